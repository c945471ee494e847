"""One rank's analysis: sums, robustness of its parts, and what travels."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from lockstep.analysis.cluster import analyse_cluster
from lockstep.analysis.evidence import Evidence
from lockstep.analysis.rank import RankAnalysis, analyse_rank, renumbered, with_communication
from lockstep.contracts.messages import HostSpan
from lockstep.trace.ascend.communication import load_communication
from lockstep.trace.columns import ANNOTATION, KERNEL, OPERATOR, PYTHON, RUNTIME, CollectiveArguments, WorkKind
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.patterns import Resource, Samples
from tests.analysis.job import BASE_NS, MS, SLEEP, rank_columns
from tests.trace.ascend.recordings import TABLES
from tests.trace.made import columns_of, made
from tests.trace.traces import RECORDING

THROTTLED = HostSpan(span_ns=1_000_000_000, throttled_ns=400_000_000, cores=2, others_cores=0.0)
LIGHT_BYTES = 100_000


def sums(analysis: RankAnalysis) -> set[int]:
    """Return what must all be the window's length."""
    assert analysis.path is not None
    return {analysis.length_ns, analysis.breakdown.window_ns, sum(share.ns for share in analysis.path.shares)}


@pytest.mark.parametrize("columns", [rank_columns(0), load_trace(RECORDING)], ids=["made", "recorded"])
def test_everything_sums_to_the_window(columns):
    """Breakdown, critical path and steps account for the same time."""
    analysis = analyse_rank(columns, rank=2)
    assert len(sums(analysis)) == 1
    assert sum(each.window_ns for each in analysis.steps_breakdown) == analysis.length_ns
    assert analysis.rank == 2
    assert all(each.ranks == (2,) for each in analysis.findings)


def test_the_analysis_is_small_and_travels():
    """What a worker sends back is the same there, and a fraction of the trace."""
    columns = load_trace(RECORDING)
    analysis = analyse_rank(columns, rank=2)
    data = pickle.dumps(analysis)
    assert len(data) < min(LIGHT_BYTES, columns.trace_bytes / 20)
    other = pickle.loads(data)
    assert other.path == analysis.path
    assert other.patterns == analysis.patterns
    assert other.findings == analysis.findings
    assert np.array_equal(other.collectives.start_ns, analysis.collectives.start_ns)


def test_the_sleeping_forward_is_on_top():
    """The path and the patterns of a rank that sleeps name the sleep first among what the host does."""
    analysis = analyse_rank(rank_columns(2, slept_ms={2: 40}), rank=2)
    assert analysis.path.shares[0].name == SLEEP
    assert analysis.path.shares[0].ns == 5 * 40_000_000
    assert any(each.function == SLEEP and each.beta == pytest.approx(0.4) for each in analysis.patterns.patterns)


def test_a_part_that_refuses_costs_nothing_else():
    """Samples with readings that cannot be: patterns report that, all other parts are as without them."""
    columns = rank_columns(0)
    whole = analyse_rank(columns, rank=0)
    samples = Samples(start_ns=BASE_NS, period_ns=MS, values=np.full(300, -1.0), peak=1.0)
    part = analyse_rank(columns, rank=0, evidence=Evidence(samples={Resource.SM: samples}))
    assert part.patterns is None
    assert [each.reason for each in part.not_evaluated if each.rule == "patterns"] == [
        "reading in samples of sm, sample 0: got -1.0, expected 0 to 2 times the peak of 1"
    ]
    assert (part.path, part.breakdown, part.findings) == (whole.path, whole.breakdown, whole.findings)


def test_evidence_of_the_node_reaches_its_rule():
    """A throttled control group is a finding of this rank, and without samples the rule states that it has none."""
    found = analyse_rank(rank_columns(1), rank=1, evidence=Evidence(host=THROTTLED))
    assert [(each.cause, each.ranks) for each in found.findings if each.cause == "cpu_contention"] == [
        ("cpu_contention", (1,))
    ]
    without = analyse_rank(rank_columns(1), rank=1)
    assert "cpu_contention" in {each.rule for each in without.not_evaluated}


ODD = {
    "one instant": [made("f", OPERATOR, 1, 0, 0)],
    "annotations alone": [made("ProfilerStep#1", ANNOTATION, 1, 0, 100), made("x", ANNOTATION, 2, 5, 0)],
    "a kernel that nobody launched": [made("gemm", KERNEL, (0, 7), 5, 10, stream=7, correlation=3)],
    "a launch without its kernel": [made("cudaLaunchKernel", RUNTIME, 1, 0, 10, correlation=3)],
    "a step without work": [made("ProfilerStep#1", ANNOTATION, 1, 0, 100), made("gemm", KERNEL, (0, 7), 500, 1)],
    "steps backwards": [made(f"ProfilerStep#{9 - n}", ANNOTATION, 1, 10 * n, 10) for n in range(5)],
    "the same step twice": [made("lockstep.step#1", ANNOTATION, 1, n, 0) for n in (0, 10, 20)],
    "a collective alone": [made("nccl", KERNEL, (0, 7), 0, 10, work=WorkKind.COMMUNICATION, stream=7)],
    "a collective of no time": [made("nccl", KERNEL, (0, 7), 0, 0, work=WorkKind.COMMUNICATION, stream=7)],
    "an empty name": [made("", OPERATOR, 1, 0, 10), made("", PYTHON, 1, 0, 10)],
    "before the epoch": [made("f", PYTHON, 1, -(10**15), 10), made("gemm", KERNEL, (0, 7), -(10**15) + 5, 10)],
    "a million deep names": [made("a" * 1_000_000, OPERATOR, 1, 0, 10)],
}


@pytest.mark.parametrize("events", ODD.values(), ids=ODD)
def test_odd_traces_are_analysed(events):
    """Whatever a trace lacks, its analysis stands, sums to the window and gives reasons."""
    analysis = analyse_rank(columns_of(events), rank=0)
    assert analysis.breakdown.window_ns == analysis.length_ns
    if analysis.length_ns:
        assert len(sums(analysis)) == 1
    assert analysis.not_evaluated
    analyse_cluster([analysis])


@pytest.mark.parametrize("seed", range(20))
def test_traces_of_chance_are_analysed(seed):
    """Events of any class anywhere, links that lead nowhere: the account holds."""
    random = np.random.default_rng(seed)
    categories = (PYTHON, OPERATOR, ANNOTATION, RUNTIME, KERNEL)
    names = ("f", "aten::mm", "ProfilerStep#3", "lockstep.step#4", "Optimizer.step#A", "nccl:all_reduce", "cudaMemcpy")
    events = []
    for _ in range(60):
        category = str(random.choice(categories))
        start, duration, link = (int(each) for each in random.integers(0, (1000, 300, 12)))
        collective = CollectiveArguments(name="allreduce", group="0", sequence=link) if random.random() < 0.1 else None
        events.append(
            made(
                str(random.choice(names)),
                category,
                int(random.integers(1, 4)),
                start,
                duration,
                work=WorkKind.COMMUNICATION if collective else None,
                stream=int(random.integers(1, 4)) if category == KERNEL else None,
                correlation=link,
                external=link,
                collective=collective,
            )
        )
    analyses = [analyse_rank(columns_of(events[::part]), rank=part) for part in (1, 2)]
    for each in analyses:
        assert each.breakdown.window_ns == each.length_ns
        assert each.path is None or sum(share.ns for share in each.path.shares) == each.length_ns
    analyse_cluster(analyses)


def test_the_vendors_links_are_evaluated():
    """A rank's communication.json gives transmission times and what its links give, under the rank's number.

    Contention needs to know when the rank computes.
    """
    plain = analyse_rank(rank_columns(0), rank=0)
    communication = load_communication(TABLES / "communication.json")
    with_collectives = with_communication(plain, communication)
    assert len(with_collectives.vendor_collectives) > 0
    assert with_collectives.vendor_collectives.rank == 0
    unknown = with_communication(replace(plain, computing=None), communication)
    refused = {each.rule for each in unknown.not_evaluated} - {each.rule for each in with_collectives.not_evaluated}
    assert refused == {"communication_contention"}


def test_another_number_everywhere():
    """A trace that got another's number is renumbered to the last field."""
    analysis = analyse_rank(rank_columns(1, slept_ms={1: 40}), rank=1, evidence=Evidence(host=THROTTLED))
    moved = renumbered(analysis, 7)
    assert (moved.rank, moved.collectives.rank) == (7, 7)
    assert moved.findings
    assert {each.ranks for each in moved.findings} == {(7,)}
    assert moved.path == analysis.path
