"""The merged trace, read back by the rules of the Chrome trace event format."""

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from lockstep.analysis.merged_trace import FINDINGS_PROCESS, merged_events, write_merged
from lockstep.cli.main import main
from lockstep.trace.columns import ANNOTATION, KERNEL, OPERATOR, RUNTIME, TraceMetadata
from lockstep.trace.kineto.load import load_trace
from tests.analysis.comparison.made_run import Job
from tests.trace.made import columns_of, made

RECORDED = Path(__file__).parent / "recorded"
_FINDING = {
    "bottleneck": "cpu", "cause": "slow_function", "ranks": [1], "subject": "work", "lost_ns": 5,
    "evidence": ["so it is"], "advice": [{"suggestion": "mend it"}],
}  # fmt: skip


def check(trace):
    """Check every event by the format, and that slices of a track nest; return them by kind."""
    assert trace["displayTimeUnit"] == "ms"
    by_kind, tracks = defaultdict(list), defaultdict(list)
    for event in trace["traceEvents"]:
        by_kind[event["ph"]].append(event)
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append(event)
    named = {(event["pid"], event["tid"]) for event in by_kind["M"] if event["name"] == "thread_name"}
    assert set(tracks) <= named
    starts, ends = (Counter(event["id"] for event in by_kind[kind]) for kind in "sf")
    assert starts == ends
    assert set(starts.values()) <= {1}
    assert set(by_kind) <= set("MXsf")
    return by_kind


def opened(path):
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return json.load(file)


def test_every_event_of_every_rank_is_there(tmp_path):
    """A process for each rank, threads and streams with names, a flow for each launch."""
    ranks = dict(enumerate(Job(seed=1, ranks=2, steps=2).columns()))
    count = write_merged(tmp_path / "merged.json.gz", ranks, [])
    trace = opened(tmp_path / "merged.json.gz")
    assert len(trace["traceEvents"]) == count
    kinds = check(trace)
    assert len(kinds["X"]) == sum(map(len, ranks.values()))
    processes = {event["args"]["name"] for event in kinds["M"] if event["name"] == "process_name"}
    assert processes == {"rank 0 on node", "rank 1 on node"}
    threads = {event["args"]["name"] for event in kinds["M"] if event["name"] == "thread_name"}
    assert {"device 0 stream 7", "device 0 stream 20", "thread 1"} <= threads
    assert len(kinds["s"]) == sum(int(columns.on_device.sum()) for columns in ranks.values())
    first = min(event["ts"] for event in kinds["X"])
    assert first == 0


def test_a_flow_leads_from_a_launch_to_its_kernel():
    """Its ends are the starts of the two events, on their tracks."""
    columns = columns_of(
        [
            made("launch", RUNTIME, 1, 100, 5, correlation=3),
            made("gemm", KERNEL, (0, 7), 400, 90, stream=7, correlation=3),
        ]
    )
    begin, end = (event for event in merged_events({0: columns}, []) if event["ph"] in "sf")
    assert (begin["ph"], begin["ts"], end["ph"], end["ts"]) == ("s", 0.0, "f", 0.3)
    assert begin["id"] == end["id"]
    assert begin["tid"] != end["tid"]


def _ranks(*, shared):
    metadata = TraceMetadata(clock_is_shared=shared)
    return {
        rank: columns_of(
            [
                made("ProfilerStep#1", ANNOTATION, 1, 1000 * (rank + 1), 500),
                made("work", OPERATOR, 1, 1000 * (rank + 1) + 100, 50),
                made("work", OPERATOR, 1, 1000 * (rank + 1) + 300, 70),
            ],
            metadata=metadata,
        )
        for rank in (0, 1)
    }


@pytest.mark.parametrize(("shared", "begin_us"), [(True, 1.0), (False, 0.0)])
def test_clocks_are_laid_side_by_side(shared, begin_us):
    """By the wall clock where all have one, else by the first step."""
    steps = [event for event in merged_events(_ranks(shared=shared), []) if event["name"] == "ProfilerStep#1"]
    assert [event["ts"] for event in steps] == [0.0, begin_us]


def test_a_finding_is_a_track_of_its_own(tmp_path):
    """With a slice wherever its function runs on its ranks, and what the finding states as arguments."""
    write_merged(tmp_path / "merged.json", _ranks(shared=True), [_FINDING])
    kinds = check(opened(tmp_path / "merged.json"))
    process = next(event["pid"] for event in kinds["M"] if event["args"].get("name") == FINDINGS_PROCESS)
    slices = [event for event in kinds["X"] if event["pid"] == process]
    assert [(event["ts"], event["dur"]) for event in slices] == [(1.1, 0.05), (1.3, 0.07)]
    assert slices[0]["name"] == "work (rank 1)"
    assert slices[0]["args"]["advice"] == ["mend it"]
    thread = next(
        event["args"]["name"] for event in kinds["M"] if event["pid"] == process and event["name"] == "thread_name"
    )
    assert thread == "1. cpu: slow function"


def test_a_finding_without_a_function_lies_over_the_steps_of_its_ranks():
    """Where nothing of that name is in the trace, the rank's steps are its place."""
    events = merged_events(_ranks(shared=True), [_FINDING | {"subject": ""}])
    slices = [event for event in events if event.get("cat") == "finding"]
    assert [(event["ts"], event["dur"]) for event in slices] == [(1.0, 0.5)]


def test_recorded_traces_and_their_findings(tmp_path, capsys):
    """The command on a real job: every event of four ranks, and the slow loader as a track on rank 2."""
    path = tmp_path / "merged.json.gz"
    arguments = ["analyze", "--processes", "1", str(RECORDED / "loader"), "--perfetto", str(path), "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    kinds = check(opened(path))
    events = sum(len(load_trace(RECORDED / "loader" / f"rank{rank}.json.gz")) for rank in range(4))
    slices = [event for event in kinds["X"] if event["cat"] == "finding"]
    assert len(kinds["X"]) == events + len(slices)
    assert {event["args"]["subject"] for event in slices} == {each["subject"] for each in found}
    assert max(event["dur"] for event in slices) > 30_000
    assert all(event["name"].endswith("(rank 2)") for event in slices)


def test_a_file_that_cannot_be_written_is_named(tmp_path, capsys):
    """What, and why."""
    path = tmp_path / "missing" / "merged.json"
    assert main(["analyze", "--processes", "1", str(RECORDED / "healthy"), "--perfetto", str(path)]) == 2
    assert f"--perfetto {path}: got No such file or directory" in capsys.readouterr().err
