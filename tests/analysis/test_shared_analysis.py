"""Real recordings next to the checkout from end to end: sums everywhere, the right rank, function and cause."""

from functools import cache, partial

import pytest

from lockstep.analysis.analyse import analyse_paths
from lockstep.analysis.capture_summary import summarise
from lockstep.analysis.workers import run_here
from lockstep.contracts import topics
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.limits import SUMMARY_WIRE_MAX_BYTES
from lockstep.trace.patterns import patterns_of
from tests.analysis.job import SLEEP
from tests.trace.ascend.recordings import SHARED as SHARED_ASCEND
from tests.trace.traces import SHARED, SHARED_TRACES

pytestmark = pytest.mark.shared

ASCEND = [SHARED_ASCEND / "msinsight" / name for name in ("level0", "msprof_0.db")]
ALONE = [path for path in SHARED_TRACES if path.parent.name not in ("healthy", "slow_forward_rank2_with_stack")]
JOBS = [SHARED / "torch_cpu" / name for name in ("healthy", "slow_forward_rank2_with_stack")]
ALL = [*ALONE, *JOBS, *ASCEND]


@cache
def summary(path):
    return analyse_paths([path], partial(run_here, processes=1)).as_json()


def recording(part):
    return summary(next(path for path in SHARED_TRACES if part in path.name))


def causes(found):
    return [(each["cause"], each["ranks"]) for each in found["findings"]]


@pytest.mark.parametrize("path", ALL, ids=[f"{path.parent.name}/{path.name}" for path in ALL])
def test_everything_sums_to_the_window(path):
    """On every rank of every recording breakdown and critical path account for the whole window."""
    for rank in summary(path)["ranks"]:
        parts = rank["breakdown"]
        names = ("compute_ns", "communication_ns", "host_ns", "overlap_ns", "free_ns")
        assert sum(parts[name] for name in names) == rank["window_ns"] > 0
        assert sum(each["ns"] for each in rank["critical_path"]) == rank["window_ns"]
        assert rank["dropped_count"] == 0


def test_the_slow_rank_its_function_and_its_cause():
    """The recorded job of four: rank 2 is waited for because of its forward; no one else is named, and it is named once."""
    found = summary(SHARED / "torch_cpu" / "slow_forward_rank2_with_stack")
    assert causes(found) == [("slow_function", [2])]
    function = found["findings"][0]
    assert function["subject"] == "train.py(20): forward"
    assert f"most of it in {SLEEP}" in function["evidence"]
    assert function["lost_ns"] == pytest.approx(60e6, rel=0.1)  # two steps of 30 ms, as far as the others wait for them
    assert found["groups"][0]["blame"]["2"] > 0.9


def test_the_healthy_job_has_no_slow_rank():
    """Four healthy ranks on two shared cores: R_wait is 0.45, and nothing is found."""
    found = summary(SHARED / "torch_cpu" / "healthy")
    assert found["findings"] == []
    assert found["groups"][0]["r_wait_ratio"] > 0.4


def test_the_loader_is_the_bottleneck_until_it_has_workers():
    """ResNet50: 23 % of the window are to be had from the loader without workers, and with four it is not named."""
    before, after = recording("num_workers_0"), recording("num_workers_4")
    first = before["findings"][0]
    assert (first["bottleneck"], first["cause"]) == ("io", "data_processing")
    assert first["predicted_gain_ratio"] == pytest.approx(0.23, abs=0.01)
    assert "num_workers=4" in first["advice"][0]["how"]
    assert {each["bottleneck"] for each in after["findings"]}.isdisjoint({"io"})


def test_one_rank_with_nccl():
    """The NCCL recording: its collectives have kinds and sizes, launches are what holds it."""
    found = recording("nccl_data")
    (rank,) = found["ranks"]
    assert {each["name"] for each in rank["collectives"]} >= {"all_reduce"}
    assert found["findings"][0]["cause"] == "dispatch"


def test_an_amd_recording_has_its_roofline():
    """MI300X: the convolutions have places on its roofline, and the exposed collectives lead the path."""
    (rank,) = recording("mi300")["ranks"]
    assert rank["vendor"] == "amd"
    assert "MI300X" in rank["roofline"]["device"]
    assert {"aten::convolution_backward", "aten::miopen_convolution"} <= {
        each["name"] for each in rank["roofline"]["points"]
    }
    assert rank["critical_path"][0]["class"] == "communication"


def test_two_ranks_of_ascend():
    """The level-0 pair: ranks by their folders, collectives matched between them, sizes that HCCS does not like."""
    found = summary(SHARED_ASCEND / "msinsight" / "level0")
    assert [each["rank"] for each in found["ranks"]] == [0, 1]
    assert found["skipped"] == []
    assert sum(each["count"] for each in found["collectives"]) > 0
    assert ("unaligned", [0, 1]) in causes(found)
    assert all(each["components"] is not None for each in found["ranks"])


def test_two_ranks_of_ascend_with_their_tables_alone():
    """Kernels and communication.json without a trace: collectives matched by the vendor's count, with transmissions."""
    folders = [SHARED_ASCEND / "msinsight" / f"test_rank_{rank}" for rank in (0, 1)]
    found = analyse_paths(folders, partial(run_here, processes=1)).as_json()
    assert [each["rank"] for each in found["ranks"]] == [0, 1]
    assert {each["vendor"] for each in found["ranks"]} == {"ascend"}
    assert found["skipped"] == []
    for rank in found["ranks"]:
        assert rank["breakdown"]["host_ns"] == 0
        assert sum(each["ns"] for each in rank["critical_path"]) == rank["window_ns"]
    assert "waiting for transmission" not in {each["rule"] for each in found["not_evaluated"]}


@pytest.mark.parametrize("path", SHARED_TRACES, ids=[f"{each.parent.name}/{each.name}" for each in SHARED_TRACES])
def test_every_recordings_summary_travels_in_ten_kilobytes(path):
    """With the functions that take 1 % and more, the causes and the call tree; nothing but small functions is cut."""
    sent = summarise(path, run="run", node="node", rank=0, request_id=1, steps=1)
    data = encode(sent)
    assert len(data) <= SUMMARY_WIRE_MAX_BYTES
    assert decode(topics.run_topic("run", topics.SUMMARY, "node"), data) == sent
    assert set(sent.omitted) <= {"path", "findings"}  # beyond the first of each cause
    assert patterns_of(sent.patterns).omitted_beta < 0.02


def test_recorded_clocks_are_healthy():
    """Both Ascend ranks keep 1800 MHz: evaluated, and nothing found."""
    found = summary(SHARED_ASCEND / "msinsight" / "level0")
    assert "frequency_drop" not in {each["cause"] for each in found["findings"]}
    assert "frequency_drop" not in {each["rule"] for each in found["not_evaluated"]}


def test_recorded_groups_and_settings():
    """The only group of four is data parallel; Ascend's metadata shows which variables are not set, gloo's nothing."""
    (group,) = summary(SHARED / "torch_cpu" / "healthy")["groups"]
    assert group["kind"] == "dp"
    assert "network_configuration" in {
        each["rule"] for each in summary(SHARED / "torch_cpu" / "healthy")["not_evaluated"]
    }
    found = summary(SHARED_ASCEND / "msinsight" / "level0")
    assert "network_configuration" not in {each["rule"] for each in found["not_evaluated"]}
    assert "network_configuration" not in {each["cause"] for each in found["findings"]}
