"""What collectives moved in which time, and what slows them."""

import numpy as np
import pytest

from lockstep.contracts.finding import NotEvaluated
from lockstep.diagnosis.communication_causes.bandwidth import bandwidths, evaluate_bandwidth
from lockstep.diagnosis.communication_causes.contention import find_contention, overlap_ratio
from lockstep.diagnosis.communication_causes.matching import match_collectives
from lockstep.diagnosis.communication_causes.messages import find_misaligned, find_small_messages, misaligned
from lockstep.trace.columns import ABSENT
from lockstep.trace.intervals import merged
from tests.diagnosis.communication_causes.made import DP, MS, WALL_NS, job, rank_of

WINDOW_NS = 100 * MS


def table_of(transmission_ns, *, group=DP, sizes=400 * MS, count=4):
    """Return all-reduces of 400 MB among 4 ranks that arrive together."""
    return match_collectives(
        job([[at * 50 * MS] * 4 for at in range(count)], transmission_ns, group=group, sizes=sizes)
    )


def test_algorithm_and_bus_bandwidth():
    """400 MB in 10 ms are 40 GB/s, and 60 GB/s on each link of a ring of 4."""
    rates = bandwidths(table_of(10 * MS))
    assert rates.algorithm / 1e9 == pytest.approx(40)
    assert rates.bus / 1e9 == pytest.approx(60)
    assert np.isnan(bandwidths(table_of(10 * MS, sizes=ABSENT)).bus).all()


@pytest.mark.parametrize(("expected", "found"), [(75e9, 0), (75.1e9, 1)])
def test_bandwidth_against_what_is_expected(expected, found):
    """60 GB/s are 80 % of 75: just there the link is well, just above it is slow."""
    answer = evaluate_bandwidth(table_of(10 * MS), WINDOW_NS, {DP: expected})
    assert len(answer) == found
    if found:
        assert (answer[0].cause, answer[0].ranks, answer[0].confidence) == ("slow_link", (0, 1, 2, 3), "high")


def test_a_group_is_compared_with_those_that_do_the_same():
    """Three groups of equal work: the one at half the speed is reported; two groups alone are not compared."""
    groups = [("a", (0, 1)), ("b", (2, 3)), ("c", (4, 5))]
    parts = []
    for at, group in enumerate(groups):
        lasting = 20 * MS if group[0] == "c" else 10 * MS
        parts += [
            rank_of(2 * at + rank, [(each * 50 * MS, lasting) for each in range(4)], group=group) for rank in (0, 1)
        ]
    (finding,) = evaluate_bandwidth(match_collectives(parts), WINDOW_NS)
    assert (finding.subject, finding.ranks, finding.confidence) == ("c", (4, 5), "medium")
    assert finding.lost_ns == 4 * 10 * MS
    assert isinstance(evaluate_bandwidth(match_collectives(parts[2:]), WINDOW_NS), NotEvaluated)


def test_small_collectives_have_no_bandwidth():
    """Their time is latency: without a large one there is nothing to evaluate."""
    answer = evaluate_bandwidth(table_of(10 * MS, sizes=999_999), WINDOW_NS, {DP: 1e12})
    assert isinstance(answer, NotEvaluated)
    assert isinstance(evaluate_bandwidth(table_of(10 * MS), WINDOW_NS), NotEvaluated)


def contended(during_ns, alone_ns):
    """Return eight collectives, every other during computation, and when rank 0 computes."""
    lasting = [during_ns if at % 2 == 0 else alone_ns for at in range(8)]
    parts = [rank_of(rank, [(at * 50 * MS, lasting[at]) for at in range(8)]) for rank in range(4)]
    busy = np.array([WALL_NS + at * 50 * MS for at in range(0, 8, 2)], np.int64)
    return match_collectives(parts), {rank: merged(busy - MS, busy + 40 * MS) for rank in range(4)}


@pytest.mark.parametrize(("during_ns", "found"), [(12_500_000, 0), (12_600_000, 1)])
def test_contention_with_computation(during_ns, found):
    """10 ms alone and 12.5 ms during computation are 80 %: more is contention."""
    table, compute = contended(during_ns, 10 * MS)
    assert overlap_ratio(table, compute).tolist() == [1.0, 0.0] * 4
    answer = find_contention(table, compute, WINDOW_NS)
    assert len(answer) == found
    if found:
        assert answer[0].cause == "communication_contention"
        assert answer[0].lost_ns == pytest.approx(4 * 2_600_000, abs=4)


def test_contention_needs_both_kinds():
    """Always during computation, or no computation known: nothing to compare."""
    table, _ = contended(20 * MS, 10 * MS)
    always = {0: merged(np.array([WALL_NS - MS]), np.array([WALL_NS + 1000 * MS]))}
    assert isinstance(find_contention(table, always, WINDOW_NS), NotEvaluated)
    assert isinstance(find_contention(table, {}, WINDOW_NS), NotEvaluated)


def test_misaligned_sizes():
    """9,724,160 and 8,196,000 bytes are no multiple of 512, 31,502,336 is; only HCCS is evaluated by it."""
    part = rank_of(0, [(0, MS)] * 4, sizes=[9_724_160, 8_196_000, 31_502_336, ABSENT])
    assert misaligned(part).tolist() == [0, 1]
    (finding,) = find_misaligned(part, vendor="ascend")
    assert finding.cause == "unaligned"
    assert "2 of 3 collectives" in finding.evidence[0]
    answer = find_misaligned(part, vendor="nvidia")
    assert isinstance(answer, NotEvaluated)
    assert "9724160, 8196000 bytes" in answer.reason
    assert find_misaligned(rank_of(0, [(0, MS)], sizes=1024 * 1024), vendor="ascend") == []
    assert isinstance(find_misaligned(rank_of(0, [(0, MS)], sizes=ABSENT), vendor="ascend"), NotEvaluated)


def small(count, size, lasting_ns, every_ns):
    return rank_of(0, [(at * every_ns, lasting_ns) for at in range(count)], sizes=size)


def test_many_small_collectives():
    """100 of 4 kB at 0.2 ms where one would do: 99 latencies of a window of 100 ms."""
    (finding,) = find_small_messages(small(100, 4000, 200_000, MS), WINDOW_NS)
    assert (finding.cause, finding.lost_ns) == ("small_packets", 99 * 200_000)
    (of_ten,) = find_small_messages(small(100, 4000, 200_000, MS), WINDOW_NS, steps=10)
    assert of_ten.lost_ns == 90 * 200_000


@pytest.mark.parametrize(
    ("part", "steps"),
    [
        (small(100, 4 * MS, 200_000, MS), 1),
        (small(25, 133_120, 3_600_000, 20 * MS), 5),
        (small(100, 4000, 20_000, MS), 1),
        (small(9, 4000, 2 * MS, 10 * MS), 1),
    ],
    ids=["large", "healthy recording", "cheap", "few"],
)
def test_few_large_or_cheap_collectives_are_well(part, steps):
    """Large ones, five buckets a step, latencies of 2 % of the window, and nine in all are no finding."""
    assert find_small_messages(part, WINDOW_NS if steps == 1 else 550 * MS, steps=steps) == []


def test_a_lucky_collective_is_not_the_latency():
    """One of a hundred in a tenth of the usual time, and three quarters that wait: what the others take counts."""
    lasting_ns = [20_000] + [200_000] * 29 + [900_000] * 70
    part = rank_of(0, [(at * MS, each_ns) for at, each_ns in enumerate(lasting_ns)], sizes=4000)
    (finding,) = find_small_messages(part, WINDOW_NS)
    assert finding.lost_ns == 99 * 200_000


def test_collectives_that_run_at_once_cannot_spare_more_than_they_run():
    """A hundred at the same time cost the time of one."""
    (finding,) = find_small_messages(small(100, 4000, 20 * MS, 0), WINDOW_NS)
    assert finding.lost_ns == 20 * MS


def test_unknown_sizes_are_not_evaluated():
    """Neither broadcasts nor collectives without bytes can be fused."""
    assert isinstance(find_small_messages(small(9, ABSENT, 10, 10), WINDOW_NS), NotEvaluated)
    assert isinstance(
        find_small_messages(rank_of(0, [(0, 5)] * 9, kinds="broadcast", sizes=8), WINDOW_NS), NotEvaluated
    )
