"""What the agent noted in a trace and the node left next to it reaches the rules, on the node and in `analyze` alike."""

import gzip
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest

from lockstep.agent.capture.recording import FACTS_VERSION
from lockstep.agent.capture.trace_file import extend
from lockstep.analysis.analyse import analyse_paths
from lockstep.analysis.capture_summary import summarise
from lockstep.analysis.evidence import NOTHING, with_notes, with_samples
from lockstep.analysis.workers import run_here
from lockstep.contracts import topics
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.messages import HostSpan
from lockstep.contracts.node_samples import NodeSamples, ResourceSeries, samples_path
from lockstep.diagnosis.explain import explain
from lockstep.diagnosis.host_causes.contention import CONTENTION
from lockstep.diagnosis.verdict import Diagnosis
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.patterns import Resource, patterns_of
from tests.trace.traces import BASE_NS

JOBS = Path(__file__).parent / "recorded"
RANKS, STEPS, CULPRIT = 4, 3, 2
MS = 1_000_000
HOST = HostSpan(span_ns=100 * MS, on_cpu_ns=60 * MS, run_queue_wait_ns=1 * MS, cores=4)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Copy a recorded job with samples of every rank: its core is busy 25 % of the time on rank 2, 75 % on the others."""
    for rank in range(RANKS):
        trace = tmp_path / f"rank{rank}.json.gz"
        shutil.copy(JOBS / "forward" / trace.name, trace)
        columns = load_trace(trace)
        begin_ns, end_ns = int(columns.start_ns.min()), int(columns.end_ns.max())
        ratios = [0.25 if rank == CULPRIT else 0.75] * ((end_ns - begin_ns) // MS + 1)
        series = ResourceSeries(start_ns=begin_ns, period_ns=MS, ratios=ratios)
        node = NodeSamples(resources={"cpu": series}, host=HOST)
        samples_path(trace).write_text(json.dumps(asdict(node)))
    return tmp_path


def mu_of(patterns):
    return {round(each.mu, 3) for each in patterns.patterns if each.mu is not None}


def test_samples_of_the_hardware_reach_the_patterns_on_the_node_and_in_analyze(job):
    """The mean over L(e) of a steady core is its usage; sigma is 0. Both ways give the same patterns."""
    analysis = analyse_paths([job], partial(run_here, processes=1))
    for rank in analysis.cluster.ranks:
        offline = rank.patterns
        assert mu_of(offline) == {0.25 if rank.rank == CULPRIT else 0.75}
        assert max(each.sigma for each in offline.patterns if each.sigma is not None) == pytest.approx(0, abs=1e-3)
        path = job / f"rank{rank.rank}.json.gz"
        sent = summarise(path, run="r", node="n", rank=rank.rank, request_id=1, steps=STEPS)
        online = patterns_of(sent.patterns)
        assert {each.function: each.mu for each in online.patterns} == pytest.approx(
            {each.function: each.mu for each in offline.patterns[: len(online.patterns)]}, abs=1e-5
        )


def test_the_call_trees_that_are_compared_carry_what_the_node_counted(job):
    """`analyze` compares ranks' CPUs as the coordinator does."""
    analysis = analyse_paths([job], partial(run_here, processes=1))
    assert [each.calls.host for each in analysis.cluster.ranks] == [HOST] * RANKS
    assert len(analysis.cluster.ranks) == RANKS  # samples are no traces
    assert not any(each.rule == CONTENTION for rank in analysis.cluster.ranks for each in rank.not_evaluated)


def test_a_limit_of_the_control_group_is_reported_from_the_samples_file(job):
    """The finding is the same in `analyze` and in what the node sends; a trace without the file states what lacks."""
    throttled = replace(HOST, throttled_ns=40 * MS)
    slow = f"rank{CULPRIT}.json.gz"
    samples_path(job / slow).write_text(json.dumps(asdict(NodeSamples(host=throttled))))
    samples_path(job / "rank1.json.gz").unlink()
    cluster = analyse_paths([job], partial(run_here, processes=1)).cluster
    assert [(each.cause, each.ranks) for each in cluster.findings] == [(CONTENTION, (CULPRIT,))]
    unsampled = [each.rank for each in cluster.ranks if CONTENTION in {rule.rule for rule in each.not_evaluated}]
    assert unsampled == [1]
    sent = summarise(job / slow, run="r", node="n", rank=CULPRIT, request_id=1, steps=STEPS)
    (found,) = [each for each in sent.findings if each.cause == CONTENTION]
    assert "its control group was throttled 40.0 % of the time: raise the CPU limit" in found.evidence


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 99}', '{"resources": {"cpu": 5}}'])
def test_samples_that_cannot_be_used_cost_the_trace_nothing(tmp_path, text):
    """The file is passed over."""
    samples_path(tmp_path / "a.json").write_text(text)
    assert with_samples(NOTHING, tmp_path / "a.json") == NOTHING


def test_the_depths_that_the_agent_noted_are_the_loaders(tmp_path):
    """Ready and outstanding batches, and what share of their time the workers were on a CPU."""
    path = tmp_path / "t.json"
    path.write_bytes(gzip.decompress((JOBS / "loader" / "rank2.json.gz").read_bytes()))
    noted = {"depths": [[1, 0, 4], [2, 1, 3]], "workers": 2, "seen": 2, "span_ns": 100, "busy_ns": 150}
    facts = {"version": FACTS_VERSION, "collections": [], "unix_minus_monotonic_ns": 0}
    extend(path, [], {**facts, "loader": {**noted, "blocked_ratio": 0.1}}, 1 << 30)
    loader = with_notes(NOTHING, path).loader
    assert loader is not None
    assert (loader.ready.tolist(), loader.outstanding.tolist(), loader.workers) == ([0, 1], [4, 3], 2)
    assert (loader.cpu_ratio, loader.blocked_ratio, loader.empty_ratio) == (0.75, 0.1, 0.5)
    assert Resource("cpu") is Resource.CPU


@pytest.fixture
def starved(tmp_path: Path) -> Callable[[float], Path]:
    """Make a recorded job whose slow loader has two workers, and their queue as the agent notes it on every rank.

    The slow rank's queue is empty at each request; its workers are blocked in the given share of looks, and half of the
    time on a CPU. The others always have two batches ready.
    """

    def make(blocked_ratio: float) -> Path:
        for rank in range(RANKS):
            recorded = gzip.decompress((JOBS / "loader" / f"rank{rank}.json.gz").read_bytes())
            trace = tmp_path / f"rank{rank}.json"
            trace.write_bytes(recorded.replace(b"_SingleProcessDataLoaderIter", b"_MultiProcessingDataLoaderIter"))
            depth = [0, 4] if rank == CULPRIT else [2, 2]
            noted = {"depths": [[at, *depth] for at in range(STEPS)], "workers": 2, "seen": 2, "span_ns": 100}
            facts = {"version": FACTS_VERSION, "collections": [], "unix_minus_monotonic_ns": 0}
            extend(trace, [], {**facts, "loader": {**noted, "busy_ns": 100, "blocked_ratio": blocked_ratio}}, 1 << 30)
        return tmp_path

    return make


@pytest.mark.parametrize(("blocked_ratio", "cause"), [(0.9, "data_reading"), (0.1, "data_processing")])
def test_the_queue_decides_the_cause_in_analyze_and_in_the_coordinator(starved, blocked_ratio, cause):
    """Of an empty queue the workers decide: blocked ones read, those on a CPU process."""
    folder = starved(blocked_ratio)
    depth = f"no batch is ready in 100 % of {STEPS} requests"
    (found,) = analyse_paths([folder], partial(run_here, processes=1)).cluster.findings
    assert (found.ranks, found.cause) == ((CULPRIT,), cause)
    assert depth in " ".join(found.evidence)

    answer = in_the_coordinator(folder, RANKS, "data")
    assert answer.root_cause == cause
    assert depth in " ".join(answer.evidence)


DEVICES = 6


def record_devices(folder: Path, usage_ratios: Sequence[float]) -> None:
    """Write traces of devices that compute alike, nearly all of each step, and what the node sampled of their compute units."""
    for rank, ratio in enumerate(usage_ratios):
        events = [
            event
            for at in range(STEPS)
            for event in (
                event_of("ProfilerStep#", at, 0, 10_000, cat="user_annotation"),
                event_of("cudaLaunchKernel", at, 10, 10, cat="cuda_runtime", args={"correlation": at + 1}),
                event_of("gemm", at, 20, 9_970, cat="kernel", pid=0, args={"device": 0, "correlation": at + 1}),
            )
        ]
        about = {"baseTimeNanoseconds": BASE_NS, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}
        trace = folder / f"rank{rank}.json"
        distributed = {"rank": rank, "world_size": len(usage_ratios)}
        trace.write_text(json.dumps({**about, "distributedInfo": distributed, "traceEvents": events}))
        series = ResourceSeries(start_ns=BASE_NS, period_ns=MS, ratios=[ratio] * (10 * STEPS + 1))
        samples_path(trace).write_text(json.dumps(asdict(NodeSamples(resources={"sm": series}))))


def event_of(name: str, step: int, begin_us: int, duration_us: int, **more: object) -> dict[str, object]:
    """Return an event of a step of 10 ms."""
    numbered = f"{name}{step}" if name.endswith("#") else name
    return {"ph": "X", "pid": 1, "tid": 1, "name": numbered, "ts": 10_000 * step + begin_us, "dur": duration_us, **more}


@pytest.mark.parametrize(("usage_ratio", "named"), [(0.1, [CULPRIT]), (0.9, [])])
def test_algorithm_1_names_the_device_by_its_samples_in_analyze_and_in_the_coordinator(tmp_path, usage_ratio, named):
    """Only mu differs: the kernels last as long on all devices. Devices alike in it as well have none named."""
    record_devices(tmp_path, [usage_ratio if rank == CULPRIT else 0.9 for rank in range(DEVICES)])
    cluster = analyse_paths([tmp_path], partial(run_here, processes=1)).cluster
    abnormal = [each for each in cluster.localisations["NVIDIA H100"].abnormal if each.function.name == "gemm"]
    assert [rank for each in abnormal for rank in each.ranks.tolist()] == named
    assert [str(each.dimension) for found in abnormal for each in found.differences] == ["mu"] * len(named)

    for scope in ("rank", "job"):
        answer = in_the_coordinator(tmp_path, DEVICES, "unknown", scope)
        assert (answer.root_cause == "slow_device") is bool(named)
        assert ("mu 0.1 below 0.9 (peers)" in " ".join(answer.evidence)) is bool(named)


def in_the_coordinator(folder: Path, rank_count: int, cause: str, scope: str = "rank") -> Diagnosis:
    """Return the diagnosis of the slow rank, or of all ranks of a slower job, from the summaries as they travel."""
    captured = [
        summarise(folder / f"rank{rank}.json", run="r", node="n", rank=rank, request_id=1, steps=STEPS)
        for rank in range(rank_count)
    ]
    sent = [decode(topics.run_topic("r", topics.SUMMARY, "n"), encode(each)) for each in captured]
    return explain(
        cause=cause,
        scope=scope,
        suspects=[sent[CULPRIT]] if scope == "rank" else sent,
        peers=[each for each in sent if each.rank != CULPRIT] if scope == "rank" else [],
        step_seconds=sent[CULPRIT].window_ns / STEPS / 1e9,
        excess_seconds=0.02 if cause == "data" else 0.0,
    )
