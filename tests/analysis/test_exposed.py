"""What findings on communication may claim as lost."""

from dataclasses import replace

import pytest

from lockstep.analysis.cluster import analyse_cluster
from lockstep.analysis.exposed import bounded, exposed_ns
from lockstep.analysis.rank import analyse_rank
from lockstep.contracts.finding import COMMUNICATION, COMPUTE, Finding
from lockstep.trace.columns import TraceMetadata
from lockstep.trace.step_breakdown import Breakdown
from tests.analysis.job import FORWARD, MS, STEPS, rank_columns

BREAKDOWN = Breakdown(
    compute_ns=50 * MS,
    communication_ns=8 * MS,
    host_ns=0,
    overlap_ns=32 * MS,
    free_ns=10 * MS,
    memory_ns=0,
    compute_communication_overlap_ns=30 * MS,
    compute_active_ns=80 * MS,
    communication_active_ns=40 * MS,
    host_active_ns=2 * MS,
)


def _finding(cause="slow_link", *, lost_ns=20 * MS, bottleneck=COMMUNICATION, ranks=(0, 1)) -> Finding:
    return Finding(bottleneck=bottleneck, cause=cause, ranks=ranks, evidence=("slow",), lost_ns=lost_ns)


@pytest.mark.parametrize(("vendor", "exposed"), [("nvidia", 10 * MS), ("ascend", 10 * MS), ("cpu", None), ("", None)])
def test_what_no_kernel_hides_is_exposed(vendor, exposed):
    """40 ms of collectives of which 30 overlap kernels; without a device nothing is hidden for free."""
    assert exposed_ns(TraceMetadata(vendor=vendor), BREAKDOWN) == exposed


def test_a_finding_loses_at_most_what_is_exposed():
    """On the rank where most is exposed, and the evidence states that; smaller losses and other findings stay."""
    (finding,) = bounded([_finding()], {0: 3 * MS, 1: 10 * MS, 2: 90 * MS})
    assert finding.lost_ns == 10 * MS
    assert "only 10.0 ms" in finding.evidence[-1]
    kept = [
        _finding(lost_ns=10 * MS),
        _finding(lost_ns=None),
        _finding("waiting_for_straggler"),
        _finding("memory_bound", bottleneck=COMPUTE),
        _finding(ranks=(0, 7)),
        _finding(ranks=()),
    ]
    assert bounded(kept, {0: 3 * MS, 1: 10 * MS}) == kept


def test_waiting_that_computation_hides_is_not_what_a_slow_rank_costs():
    """Ranks that compute while they wait lose less to the slow one than they wait: 40 ms, of them 25 computed."""
    ranks = []
    for rank in range(4):
        columns = rank_columns(rank, slept_ms={2: 40})
        if rank != 2:
            gemm = columns.named(lambda name: name == "gemm")
            longer = columns.duration_ns + gemm * 25 * MS
            columns = replace(columns, duration_ns=longer)
        ranks.append(analyse_rank(columns, rank=rank))
    found = analyse_cluster(ranks).findings
    (straggler,) = [each for each in found if each.ranks == (2,)]
    assert (straggler.cause, straggler.subject) == ("slow_function", FORWARD)
    assert straggler.lost_ns == pytest.approx(STEPS * 16e6, rel=0.1)
