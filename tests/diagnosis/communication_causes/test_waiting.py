"""R_wait and who is waited for."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.contracts.finding import NotEvaluated
from lockstep.diagnosis.communication_causes.matching import match_collectives
from lockstep.diagnosis.communication_causes.transmission import evaluate_transmission
from lockstep.diagnosis.communication_causes.waiting import (
    blame_limit,
    computed_before_ns,
    group_waiting,
    transmission_ns,
    wait_ratio,
    waited_ns,
)
from lockstep.trace.columns import ABSENT
from lockstep.trace.intervals import Intervals
from tests.diagnosis.communication_causes.made import DP, MS, WALL_NS, evaluated, job, rank_of

NAN = float("nan")
WINDOW_NS = 1000 * MS


def steps(delays_ms, count=5, every_ms=100):
    """Return arrivals of ranks that compute for as long as all, plus their delay."""
    return [[round((at * every_ms + delay) * MS) for delay in delays_ms] for at in range(1, count + 1)]


@pytest.mark.parametrize(
    ("times", "ratio"),
    [
        ([[1, 1, 1, 1]], 0.0),
        ([[1, 1, 1, 2]], 1 - 1.25 / 2),
        ([[34.6, 121.0]], 0.357),
        ([[1, 1, NAN, 2]], 1 - 4 / 6),
        ([[1, 3], [2, 2]], 1 - 8 / 10),
        ([[0, 0]], 0.0),
    ],
)
def test_wait_ratio(times, ratio):
    """Equation 2, with hcom_allReduce__170_1_1 of a real run (34.6 and 121.0 ms); several collectives sum both sides."""
    assert wait_ratio(np.array(times, np.float64)) == pytest.approx(ratio, abs=1e-3)
    assert wait_ratio(np.zeros((0, 4))) == 0.0


def test_equation_1_is_equation_2():
    """T_wait = sum (T_max - T_i) over n T_max."""
    times = np.random.default_rng(1).uniform(1, 9, (20, 8))
    waited = (times.max(axis=1, keepdims=True) - times).sum()
    assert wait_ratio(times) == pytest.approx(waited / (8 * times.max(axis=1).sum()))


@pytest.mark.parametrize("shared", [True, False])
def test_waits_are_the_same_with_and_without_a_common_clock(shared):
    """All leave together: what a rank waits is its duration less the shortest, on any clock."""
    table = match_collectives(job(steps([0, 3, 20, 5]), 4 * MS, shared=shared))
    assert table.clock_is_shared == shared
    assert waited_ns(table) / MS == pytest.approx(np.tile([20, 17, 0, 15], (5, 1)))
    assert transmission_ns(table) / MS == pytest.approx(4)


@pytest.mark.parametrize(
    ("delays_ms", "named"),
    [([[0, 40], [0, 40], [0, 40], [12, 0]], [1]), ([[0, 40], [0, 40], [16, 0], [16, 0]], [])],
)
def test_one_of_two_ranks_must_cause_nearly_all_waiting(delays_ms, named):
    """Of two ranks one causes 0.7 of the waiting by chance easily, of the healthy recording's: 0.9 names it, 0.7 not."""
    arrivals = [[(at * 100 + delay) * MS for delay in delays] for at, delays in enumerate(delays_ms, 1)]
    reported = evaluated(match_collectives(job(arrivals, 4 * MS)), WINDOW_NS // 10)
    assert [finding.ranks for finding in reported] == [(rank,) for rank in named]
    assert (blame_limit(2), blame_limit(3), blame_limit(4), blame_limit(8)) == pytest.approx((0.8, 0.7, 0.6, 0.6))


def test_clocks_that_are_not_shared_do_not_matter():
    """Ranks of two hosts an hour apart have the same straggler."""
    parts = [
        replace(part, start_ns=part.start_ns + part.rank * 3_600_000 * MS, host=f"h{part.rank}")
        for part in job(steps([0, 0, 0, 60]), 4 * MS)
    ]
    (finding,) = evaluated(match_collectives(parts), WINDOW_NS)
    assert finding.ranks == (3,)
    assert finding.lost_ns == 5 * 60 * MS


def test_the_vendor_knows_the_transmission():
    """Transit times count before what can be inferred from durations."""
    table = match_collectives(job(steps([0, 1, 2, 3]), 9 * MS, transit=[5 * MS] * 5))
    assert transmission_ns(table) / MS == pytest.approx(5)


def test_compute_before_the_sync():
    """From the end of the last collective to the start of this one, on each rank's own clock."""
    table = match_collectives(job(steps([0, 0, 0, 50], count=3), 4 * MS))
    compute = computed_before_ns(table, np.arange(3)) / MS
    assert compute == pytest.approx(np.tile([46, 46, 46, 96], (2, 1)))
    assert group_waiting(table)[0].compute_ratio == pytest.approx(1 - (3 * 46 + 96) / 4 / 96)


def test_the_straggler_has_the_shortest_collective():
    """Rank 2 computes 60 ms longer: it is named, with what all others waited."""
    table = match_collectives(job(steps([0, 5, 60, 2]), 4 * MS))
    (finding,) = evaluated(table, WINDOW_NS)
    assert (finding.cause, finding.ranks, finding.subject) == ("waiting_for_straggler", (2,), "group dp")
    assert finding.lost_ns == 5 * 55 * MS
    assert finding.confidence == "high"
    assert "the others wait for rank 2 in 5 of them" in finding.evidence[1]
    (waiting,) = group_waiting(table)
    assert waiting.duration_ns.argmin() == 2
    assert waiting.awaited.tolist() == [0, 0, 5, 0]


def test_collectives_side_by_side_count_once():
    """Five buckets that wait for the same rank at the same time cost the wait once."""
    arrivals = [[at, at, at, at + 60 * MS] for at in range(0, 5000, 1000)]
    table = match_collectives(job([*arrivals, *steps([0, 0, 0, 60], count=2, every_ms=200)], 4 * MS))
    (finding,) = evaluated(table, WINDOW_NS)
    assert finding.lost_ns == pytest.approx(3 * 60 * MS, abs=5000)


def test_a_rank_that_misses_all_of_it_does_not_hide_the_loss():
    """A rank whose capture holds none of the collectives that waited for rank 0 is none of those that waited."""
    parts = job(steps([60, 0, 0], count=6), 4 * MS, numbers=[*range(6)])
    late = rank_of(3, [(at * MS, 4 * MS) for at in (900, 950)], numbers=[6, 7])
    early = replace(
        parts[1],
        **{
            name: np.append(getattr(parts[1], name), getattr(late, name))
            for name in ("start_ns", "duration_ns", "bytes", "sequence")
        },
        kinds=["all_reduce"] * 8,
        groups=[DP] * 8,
    )
    (finding,) = evaluated(match_collectives([parts[0], early, parts[2], late]), WINDOW_NS)
    assert (finding.ranks, finding.lost_ns) == ((0,), 6 * 60 * MS)


def test_a_healthy_job_has_no_straggler():
    """Small differences, and large ones that hit every rank in turn, name no one."""
    rng = np.random.default_rng(4)
    small = [[round((at * 100 + jitter) * MS) for jitter in rng.uniform(0, 3, 4)] for at in range(20)]
    turns = [[(at * 100 + 50 * (at % 4 == rank)) * MS for rank in range(4)] for at in range(20)]
    for arrivals in (small, turns):
        assert evaluated(match_collectives(job(arrivals, 4 * MS)), WINDOW_NS) == []


def test_a_wait_that_costs_nothing_is_not_reported():
    """Below 1 % of the window it is no finding."""
    table = match_collectives(job(steps([0, 0, 0, 60]), 4 * MS))
    assert evaluated(table, 5 * 60 * MS * 100 + 1) == []
    assert len(evaluated(table, 5 * 60 * MS * 100)) == 1


def test_a_part_of_a_group_is_evaluated_with_less_confidence():
    """Two captured ranks of four: the culprit may be among the others."""
    table = match_collectives(job(steps([0, 0, 60, 0]), 4 * MS)[1:3])
    (finding,) = evaluated(table, WINDOW_NS)
    assert (finding.ranks, finding.confidence) == ((2,), "medium")
    assert finding.evidence[-1] == "only 2 ranks of the group were captured"


def test_a_group_without_name_is_evaluated_with_less_confidence():
    """Order alone matched it."""
    (finding,) = evaluated(match_collectives(job(steps([0, 0, 60, 0]), 4 * MS, group=("", ()))), WINDOW_NS)
    assert finding.confidence == "medium"


@pytest.mark.parametrize("parts", [[], [rank_of(0, [(0, 5)] * 9)], job(steps([0, 9], count=2), 4 * MS)])
def test_too_little_is_not_evaluated(parts):
    """No rank, one rank, two collectives: each states that."""
    assert isinstance(evaluated(match_collectives(parts), WINDOW_NS), NotEvaluated)


def test_slow_transmission_names_the_slowest_link():
    """Hermes' VGG16: R_wait of 0.3 on the transmission because of rank 7."""
    quick, slow = 65.8 * MS, 100 * MS
    transits = [[round(quick)] * 6] * 7 + [[round(slow)] * 6]
    parts = [
        rank_of(rank, [(at * 200 * MS, 110 * MS) for at in range(6)], group=("world", ()), transit=transits[rank])
        for rank in range(8)
    ]
    table = match_collectives(parts)
    assert group_waiting(table)[0].transit_ratio == pytest.approx(0.3, abs=1e-3)
    (finding,) = evaluate_transmission(table, WINDOW_NS)
    assert (finding.cause, finding.ranks) == ("slow_link", (7,))
    assert finding.lost_ns == pytest.approx(6 * 34.2 * MS)
    assert isinstance(evaluate_transmission(match_collectives(job(steps([0, 0]), 9)), WINDOW_NS), NotEvaluated)


def test_even_transmissions_are_no_finding():
    """The same time on all ranks."""
    table = match_collectives(job(steps([0, 0, 0, 0]), 9 * MS, transit=[8 * MS] * 5))
    assert evaluate_transmission(table, WINDOW_NS) == []
    assert table.groups[0] == DP


@pytest.mark.parametrize(("computed_ms", "lost_ms"), [(0, 60), (40, 20), (60, None)])
def test_waiting_during_computation_costs_nothing(computed_ms, lost_ms):
    """Who waits in a collective and computes meanwhile loses the rest only; ranks of unknown computation all of it."""
    table = match_collectives(job(steps([0, 0, 60, 0]), 4 * MS))
    start_ns = table.start_ns[:, 0]
    busy = Intervals(start_ns, start_ns + computed_ms * MS)
    reported = evaluated(table, WINDOW_NS, dict.fromkeys((0, 1, 3), busy))
    assert [finding.lost_ns for finding in reported] == ([] if lost_ms is None else [5 * lost_ms * MS])
    assert group_waiting(table, {0: busy})[0].lost_ns[2] == 5 * (60 - computed_ms) * MS


def _two_by_two(compute_ms, *, tensor_ms=(4, 4)):
    """Return four ranks that compute, meet in pairs (0, 1) and (2, 3), and then in pairs (0, 2) and (1, 3)."""
    tensor, data = (("tp0", (0, 1)), ("tp1", (2, 3))), (("dp0", (0, 2)), ("dp1", (1, 3)))
    spans, groups, numbers = ([[] for _ in range(4)] for _ in range(3))
    at_ms = [0] * 4
    for step in range(5):
        at_ms = [at + compute for at, compute in zip(at_ms, compute_ms, strict=True)]
        for pairs, lasting_ms in ((tensor, tensor_ms), (data, (4, 4))):
            for group, lasts in zip(pairs, lasting_ms, strict=True):
                end = max(at_ms[rank] for rank in group[1]) + lasts
                for rank in group[1]:
                    spans[rank].append((at_ms[rank] * MS, (end - at_ms[rank]) * MS))
                    groups[rank].append(group)
                    numbers[rank].append(step)
                    at_ms[rank] = end + 1
    return match_collectives(
        [rank_of(rank, spans[rank], groups=groups[rank], numbers=numbers[rank]) for rank in range(4)]
    )


def _broadcast_and_sum(late, *, async_ms=None, steps=5, **more):
    """Return four ranks of which rank 1 comes `late` ms late to a broadcast; rank 2 leaves it early, then all sum.

    With `async_ms` the sum is called at these times after the step begins, whatever the broadcast does.
    """
    spans, kinds = [[] for _ in range(4)], ["broadcast", "all_reduce"] * steps
    for step in range(steps):
        begin = 200 * step
        arrives = [0, late, 0, 0]
        leaves = [late + 1, late + 1, 1, late + 1]
        calls = async_ms or [leave + wait for leave, wait in zip(leaves, (1.5, 1, 1, 1.2), strict=True)]
        end = max(calls) + 4
        for rank in range(4):
            spans[rank].append((round((begin + arrives[rank]) * MS), round((leaves[rank] - arrives[rank]) * MS)))
            spans[rank].append((round((begin + calls[rank]) * MS), round((end - calls[rank]) * MS)))
    return match_collectives([rank_of(rank, spans[rank], kinds=kinds, **more) for rank in range(4)])


def test_who_stood_in_a_broadcast_is_not_late_by_itself():
    """Ranks 0 and 3 wait for rank 1 in the broadcast, rank 2 for them in the sum: all of it is for rank 1."""
    table = _broadcast_and_sum(60)
    (finding,) = evaluated(table, WINDOW_NS)
    assert (finding.ranks, finding.confidence) == ((1,), "high")
    assert finding.lost_ns == pytest.approx(5 * 60 * MS, rel=0.01)
    assert group_waiting(table)[0].awaited.tolist() == [0, 10, 0, 0]


@pytest.mark.parametrize("shared", [True, False])
def test_a_broadcast_that_one_rank_leaves_early_keeps_its_partners(shared):
    """Without numbers rank 2's broadcasts, which end a step's length before the others', stay between the same sums."""
    table = _broadcast_and_sum(150, numbers=[ABSENT] * 10, shared=shared)
    assert (len(table), table.present.all()) == (10, True)
    assert table.kinds == ["broadcast", "all_reduce"] * 5


def test_who_leaves_a_broadcast_early_did_not_come_last():
    """Without one clock only durations count, and the shortest broadcast is that of a rank that waited for no one."""
    found = evaluated(_broadcast_and_sum(60, shared=False), WINDOW_NS)
    assert [each.ranks for each in found] != [(2,)]


def test_a_collective_called_before_the_other_ended_is_late_by_itself():
    """Rank 0 calls the sum, which rank 2 waits for, while it stands in the broadcast: that was no reason."""
    table = _broadcast_and_sum(60, async_ms=[50, 1, 1, 1])
    assert group_waiting(table)[0].awaited.tolist() == [5, 5, 0, 0]


def test_two_ranks_that_are_late_one_after_the_other_are_both_waited_for():
    """Rank 1 is late to the broadcast by 20 ms, rank 3 to the sum by 60 of its own."""
    table = _broadcast_and_sum(20, async_ms=[22, 22, 2, 82])
    assert group_waiting(table)[0].awaited.tolist() == [0, 5, 0, 5]


def test_who_waits_elsewhere_first_is_no_slow_rank():
    """Rank 2 comes late to rank 0 because it waited for rank 3: only rank 3 is named, in both of its groups."""
    table = _two_by_two([40, 40, 40, 60])
    found = evaluated(table, 400 * MS)
    assert {(finding.ranks, finding.subject) for finding in found} == {((3,), "group tp1"), ((3,), "group dp1")}
    ratios = {each.group[0]: each.compute_ratio for each in group_waiting(table)}
    assert ratios["dp0"] == pytest.approx(0)
    assert ratios["dp1"] == pytest.approx(1 - 52 / 62)


def test_a_slow_link_of_one_group_makes_no_slow_rank_in_another():
    """Ranks 2 and 3 come late to the others from transmitting to each other: no one computes longer."""
    assert evaluated(_two_by_two([40] * 4, tensor_ms=(4, 30)), 400 * MS) == []


def test_other_groups_collectives_during_computation_are_computing():
    """Who computes while a collective of another group runs has computed."""
    table = _two_by_two([40, 40, 40, 60])
    rows = table.rows_of(("tp1", (2, 3)))
    busy = Intervals(table.start_ns[rows, 2], table.start_ns[rows, 2] + table.duration_ns[rows, 2])
    ratios = {each.group[0]: each.compute_ratio for each in group_waiting(table, {2: busy})}
    assert ratios["dp0"] == pytest.approx(1 - (42 + 66) / 2 / 66)


def test_a_rank_arrives_where_it_calls_the_collective():
    """Four buckets on a backend with one thread: of the ranks that wait, the later ones begin when rank 2 has come."""
    called_ms = [[0, 1, 2, 3], [2, 3, 4, 5], [40, 41, 42, 43], [1, 2, 3, 4]]
    ends_ms = [45, 50, 55, 60]
    parts = []
    for rank, calls in enumerate(called_ms):
        starts = [max(call, end) for call, end in zip(calls, [0, *ends_ms[:-1]], strict=True)]
        spans = [(start * MS, (end - start) * MS) for start, end in zip(starts, ends_ms, strict=True)]
        made = rank_of(rank, spans)
        parts.append(replace(made, called_ns=WALL_NS + np.array(calls, np.int64) * MS))
    assert waited_ns(match_collectives(parts))[3] / MS == pytest.approx([40, 38, 0, 39])
    assert waited_ns(match_collectives([*parts[:3], replace(parts[3], called_ns=None)]))[3].max() == 0
