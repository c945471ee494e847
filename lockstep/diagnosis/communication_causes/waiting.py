# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""How much of a group's time is waiting, and for which rank (Hermes, section 4.2.2, equations 1 and 2).

    T_wait = sum (T_max - T_i) = n (T_max - T_avg)        R_wait = T_wait / (n T_max) = 1 - T_avg / T_max

T is the time that each device needs for itself: its computation before the synchronisation, or its transmission. A
collective's duration is not such a T: it contains the wait for the last rank, so the rank that is waited for has the
shortest one. With one clock for all ranks it is the rank that starts last, and the transmission begins at its start.

Shape suffixes: S collectives of one group, R ranks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.finding import COMMUNICATION, HIGH, LOW, MEDIUM, Finding, NotEvaluated
from lockstep.diagnosis.communication_causes.awaited import awaited_first, waited_once_ns
from lockstep.diagnosis.communication_causes.collectives import ROOTED, Group
from lockstep.diagnosis.communication_causes.matching import CollectiveTable
from lockstep.diagnosis.communication_causes.repetition import Repetition, repetition
from lockstep.diagnosis.communication_causes.thresholds import BLAME_SHARE, COLLECTIVES, WAIT_RATIO, WORTH_RATIO
from lockstep.trace.columns import ABSENT
from lockstep.trace.intervals import Intervals, merged, without
from lockstep.trace.patterns.exposure import CoveredTime

SLOW_RANK = "waiting_for_straggler"
RULE = "waiting in collectives"
COLLECTIVES_COUNTED = "collectives"
_BLAME_RANKS = 4  # ranks in the recordings from which the blame share was derived

Times = NDArray[np.float64]
Computing = Mapping[int, Intervals]
"""When the device of each rank computes, on the rank's own clock."""

StepStarts = Mapping[int, NDArray[np.int64]]
"""When the steps of each rank begin, on the rank's own clock; ranks without marked steps are missing."""

_NOWHERE: Computing = MappingProxyType({})
_UNMARKED: StepStarts = MappingProxyType({})
_NO_STEPS = np.zeros(0, np.int64)
_NEVER = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))


def wait_ratio(time_SR: Times) -> float:
    """Return R_wait over all collectives: waiting time over own time; NaN marks a rank that does not take part.

    For one collective it is equation 2; for several, the sums of equation 1 in numerator and denominator.
    """
    count_S = np.asarray((~np.isnan(time_SR)).sum(axis=1))
    slowest_S = greatest(time_SR)
    total = float((slowest_S * count_S)[count_S > 0].sum())
    return 1 - float(np.nansum(time_SR)) / total if total > 0 else 0.0


def waited_ns(table: CollectiveTable) -> Times:
    """Return each rank's waiting in each collective, of shape (n_collectives, n_ranks), ns, NaN if it is not in it.

    With one clock: from its arrival to the last arrival. Otherwise: its duration less the shortest one; counted from
    its arrival, it would include the scatter of everything that a host backend ran in between.
    """
    return _waited_ns(table, table.arrived_ns if table.clock_is_shared else table.start_ns)


def _waited_ns(table: CollectiveTable, begin_ns: NDArray[np.int64]) -> Times:
    """Return the waits of ranks that arrive at `begin_ns`, of shape (n_collectives, n_ranks), ns."""
    lasting = _known(table.start_ns + table.duration_ns - begin_ns, table)
    if not table.clock_is_shared:
        return np.asarray(lasting - _least(lasting)[:, None])
    begin = _known(_since_first(table, begin_ns), table)
    return np.minimum(greatest(begin)[:, None] - begin, lasting)


def transmission_ns(table: CollectiveTable) -> Times:
    """Return the time from the last arrival to the end, of shape (n_collectives,), ns: an upper bound without waiting.

    With one clock: to the last end. Otherwise: the shortest duration. The vendor's own figure takes precedence.
    """
    duration = _known(table.duration_ns, table)
    found = _least(duration)
    if table.clock_is_shared:
        start = _known(_since_first(table, table.start_ns), table)
        found = np.minimum(greatest(start + duration) - greatest(start), greatest(duration))
    vendor = greatest(np.where(table.transit_ns > 0, table.transit_ns, np.nan))
    return np.where(np.isnan(vendor), found, vendor)


def _known(values: NDArray[np.int64], table: CollectiveTable) -> Times:
    return np.where(table.present, values, np.nan)


def _since_first(table: CollectiveTable, begin_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return times since each row's first: a wall clock in ns does not fit a float."""
    began = np.where(table.present, begin_ns, np.iinfo(np.int64).max)
    return np.asarray(begin_ns - began.min(axis=1, initial=np.iinfo(np.int64).max)[:, None])


def greatest(values_SR: Times) -> Times:
    """Return the largest known value of each row, NaN if none is known."""
    return np.asarray(np.fmax.reduce(values_SR, axis=1, initial=np.nan))


def _least(values_SR: Times) -> Times:
    return np.asarray(np.fmin.reduce(values_SR, axis=1, initial=np.nan))


def computed_before_ns(
    table: CollectiveTable, rows: NDArray[np.int64], elsewhere: Sequence[CoveredTime] | None = None
) -> Times:
    """Return the time from a rank's end of the group's previous collective to its arrival at this one.

    Of shape (n_rows - 1, n_ranks), ns, NaN if a rank lacks one of the two. Needs no common clock, since all ranks leave
    a collective together. `elsewhere`, one per rank, is excluded: the time in collectives of other groups. A rank that
    is late because of those is not slow.
    """
    end_ns = table.start_ns[rows] + table.duration_ns[rows]
    begin_ns, until_ns = end_ns[:-1], np.maximum(table.arrived_ns[rows][1:], end_ns[:-1])
    between_ns = until_ns - begin_ns
    for column, each in enumerate(elsewhere or ()):
        between_ns[:, column] = each.free(begin_ns[:, column], until_ns[:, column])
    present = table.present[rows]
    return np.where(present[1:] & present[:-1], between_ns, np.nan)


def _elsewhere(table: CollectiveTable, rows: NDArray[np.int64], computing: Computing) -> list[CoveredTime]:
    """Return, per rank, the time in a collective of another group while its device had nothing to compute."""
    of_others: NDArray[np.bool_] = np.ones(len(table), np.bool_)
    of_others[rows] = False
    present = table.present
    is_member: NDArray[np.bool_] = np.asarray(present[rows].any(axis=0))
    found = []
    for column, rank in enumerate(table.ranks):
        at = np.flatnonzero(of_others & present[:, column]) if is_member[column] else rows[:0]
        start_ns = table.start_ns[at, column]
        stood = merged(start_ns, start_ns + table.duration_ns[at, column])
        found.append(CoveredTime(without(stood, computing[rank]) if len(at) and rank in computing else stood))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWaiting:
    """Waiting of a group of ranks over its matched collectives; arrays of shape (n_ranks,).

    `compute_ratio`, `elapsed_ratio` and `transit_ratio` are R_wait on the compute before the synchronisation (without
    time in other groups' collectives), on the collectives' durations and on the vendor's transmission times (NaN
    without them). `awaited` counts the collectives in which the others waited for a rank (`awaited_first`), `caused_ns`
    is their waiting summed over ranks and collectives, `once_ns` the largest part in one collective, and `repeated`
    counts the steps in which most of the waiting was for this rank. `waited_ns` is the time that a rank waited;
    `lost_ns` is the time that every other rank lost to this one, waiting for it with nothing to compute. Concurrent
    collectives count once in both. `transmits_ns`, of shape (n_collectives, n_ranks), is each collective's time without
    waiting, NaN if a rank is not in it. `counted` is the unit of the counts: if ranks are compared by step
    (`step_waiting`), each step counts as one collective.
    """

    group: Group
    ranks: tuple[int, ...]
    collectives: int
    compute_ratio: float
    elapsed_ratio: float
    transit_ratio: float
    waited_ns: Times
    caused_ns: Times
    once_ns: Times
    lost_ns: Times
    awaited: NDArray[np.int64]
    repeated: Repetition
    duration_ns: Times
    transmits_ns: Times
    is_whole: bool
    counted: str = COLLECTIVES_COUNTED

    @property
    def title(self) -> str:
        """Return the group's name for a sentence."""
        return f"group {self.group[0] or 'unnamed'}" if self.counted == COLLECTIVES_COUNTED else self.group[0]


def group_waiting(
    table: CollectiveTable, computing: Computing = _NOWHERE, steps: StepStarts = _UNMARKED
) -> list[GroupWaiting]:
    """Return the waiting of every group with at least two ranks in the table, the one with most waiting first.

    Ranks that are not in `computing` count as computing nothing during their collectives.
    """
    busy = [CoveredTime(computing.get(rank, _NEVER)) for rank in table.ranks]
    waited = waited_ns(table)
    transmits = np.where(table.present, table.duration_ns, np.nan) - _waited_ns(table, table.start_ns)
    found = []
    for group in dict.fromkeys(table.groups):
        rows = _comparable_rows(table, group)
        computed_before = computed_before_ns(table, rows, _elsewhere(table, rows, computing))
        found.append(_group_waiting(table, rows, waited[rows], transmits[rows], computed_before, busy, steps))
    return sorted(found, key=lambda each: -float(np.nansum(each.waited_ns)))


def transmission_by_rank_ns(waiting: Iterable[GroupWaiting]) -> dict[int, int]:
    """Return the time of each rank's matched collectives without waiting for other ranks, ns, over all its groups."""
    found: Counter[int] = Counter()
    for each in waiting:
        totals_ns = np.nansum(np.maximum(each.transmits_ns, 0), axis=0)
        found.update(dict(zip(each.ranks, totals_ns.astype(np.int64).tolist(), strict=True)))
    return dict(found)


def _comparable_rows(table: CollectiveTable, group: Group) -> NDArray[np.int64]:
    """Return the rows of a group that show its waiting: without one clock, those that all ranks leave together.

    A group without such rows keeps its rooted ones.
    """
    rows = table.rows_of(group)
    if table.clock_is_shared:
        return rows
    met = rows[[table.kinds[row] not in ROOTED for row in rows.tolist()]]
    return met if len(met) else rows


def _group_waiting(  # noqa: PLR0917  (all of one group)
    table: CollectiveTable,
    rows: NDArray[np.int64],
    waited: Times,
    transmits: Times,
    computed_before: Times,
    busy: Sequence[CoveredTime],
    steps: StepStarts,
) -> GroupWaiting:
    """Return the waiting of the group whose collectives are `rows`; times are those of these rows and all ranks."""
    present = table.present[rows]
    members = np.flatnonzero(present.any(axis=0))
    waited = waited[:, members]
    arrived_ns = table.arrived_ns[rows][:, members]
    awaited = np.where(np.isnan(waited), np.inf, waited).argmin(axis=1)
    if table.clock_is_shared:
        awaited = awaited_first(awaited, waited, arrived_ns, (table.start_ns + table.duration_ns)[rows][:, members])
    caused, once = np.zeros((2, len(members)))
    np.add.at(caused, awaited, np.nansum(waited, axis=1))
    np.maximum.at(once, awaited, np.nansum(waited, axis=1))
    marked = next((at for at, member in enumerate(members.tolist()) if table.ranks[member] in steps), 0)
    of_rank = present[:, members[marked]]
    repeated = repetition(
        arrived_ns[of_rank, marked],
        awaited[of_rank],
        waited_once_ns(arrived_ns, waited)[of_rank],
        step_starts_ns_T=steps.get(table.ranks[members[marked]], _NO_STEPS),
    )
    mine = [busy[member] for member in members.tolist()]
    lost = [_lost_to(arrived_ns[awaited == at], waited[awaited == at], at, mine) for at in range(len(members))]
    duration = np.where(present, table.duration_ns[rows], np.nan)[:, members]
    transit = np.where(table.transit_ns[rows] > 0, table.transit_ns[rows], np.nan)[:, members]
    size = int(table.size[rows[0]])
    return GroupWaiting(
        group=table.groups[int(rows[0])],
        ranks=tuple(table.ranks[member] for member in members.tolist()),
        collectives=len(rows),
        compute_ratio=wait_ratio(computed_before[:, members]),
        elapsed_ratio=wait_ratio(duration),
        transit_ratio=wait_ratio(transit) if not np.isnan(transit).all() else float("nan"),
        waited_ns=np.array([each.measure_ns() for each in _waits(arrived_ns, waited)], np.float64),
        caused_ns=caused,
        once_ns=once,
        lost_ns=np.array(lost),
        awaited=np.bincount(awaited, minlength=len(members)),
        repeated=repeated,
        duration_ns=np.nansum(duration, axis=0),
        transmits_ns=transmits[:, members],
        is_whole=size in (ABSENT, len(members)),
    )


def _lost_to(start_ns: NDArray[np.int64], waited: Times, rank: int, busy: Sequence[CoveredTime]) -> float:
    """Return the time that every rank but `rank` lost waiting in these collectives: the shortest loss among them."""
    others: NDArray[np.bool_] = np.asarray((~np.isnan(waited)).any(axis=0))
    others[rank] = False
    if not others.any():
        return 0.0
    idle_ns = [float(busy[at].free(*each).sum()) for at, each in enumerate(_waits(start_ns, waited)) if others[at]]
    return min(idle_ns)


def _waits(start_ns: NDArray[np.int64], waited: Times) -> Iterator[Intervals]:
    """Yield, per rank, the intervals in which it waits in any of the collectives."""
    wait_ns = np.nan_to_num(waited).astype(np.int64)
    ends_ns = start_ns + wait_ns
    for at in range(start_ns.shape[1]):
        yield merged(start_ns[:, at], ends_ns[:, at])


def evaluate_waiting(
    waiting: Sequence[GroupWaiting], window_ns: int, *, hides: bool = False
) -> list[Finding] | NotEvaluated:
    """Return the ranks that others wait for, the most expensive first.

    `lost_ns` is the time in which all others waited for the named rank and had nothing to compute: waiting during
    computation costs nothing, and `hides` states whether any rank computes meanwhile. A rank is named with low
    confidence if it would not be blamed without one collective, or in no more steps than chance explains
    (`repetition`). A group of which only some ranks were captured also lowers the confidence: the rank that all wait
    for may not be among them.
    """
    if not waiting:
        return NotEvaluated(rule=RULE, reason="no two traces share a collective")
    groups = [each for each in waiting if each.collectives >= COLLECTIVES.value]
    if not groups:
        return NotEvaluated(rule=RULE, reason=f"no group has {COLLECTIVES.value:.0f} collectives that its ranks share")
    found = [finding for each in groups if (finding := _finding_of(each, window_ns, hides=hides)) is not None]
    return sorted(found, key=lambda each: -(each.lost_ns or 0))


def blame_limit(rank_count: int) -> float:
    """Return the share of all waiting from which one of `rank_count` ranks is named.

    `BLAME_SHARE` applies to 4 ranks and more. With fewer ranks each causes more by chance: up to 0.73 among two ranks
    of the healthy recording, up to 0.55 among three.
    """
    return max(BLAME_SHARE.value, 1 - (1 - BLAME_SHARE.value) * rank_count / _BLAME_RANKS)


def _finding_of(waiting: GroupWaiting, window_ns: int, *, hides: bool) -> Finding | None:
    total = float(waiting.caused_ns.sum())
    at = int(waiting.caused_ns.argmax())
    lost_ns = int(waiting.lost_ns[at])
    ratio = waiting.compute_ratio
    if ratio < WAIT_RATIO.value or total <= 0 or lost_ns < WORTH_RATIO.value * window_ns:
        return None
    share, limit = waiting.caused_ns[at] / total, blame_limit(len(waiting.ranks))
    if share < limit:
        return None
    rank = waiting.ranks[at]
    others = np.delete(waiting.waited_ns, at)
    is_by_step = waiting.counted != COLLECTIVES_COUNTED
    over = (
        f"the own time of {waiting.collectives} steps"
        if is_by_step
        else f"the compute before {waiting.collectives} collectives"
    )
    communication = "communication takes" if is_by_step else "collectives take"
    idle = [f"every other rank waits {lost_ns / 1e6:.3f} ms for it with nothing else to compute"] if hides else []
    doubts = [] if waiting.is_whole else [f"only {len(waiting.ranks)} ranks of the group were captured"]
    if is_single := waiting.caused_ns[at] - waiting.once_ns[at] < limit * (total - waiting.once_ns[at]):
        doubts.append("most of the waiting is in a single collective")
    repeated, blamed = waiting.repeated, int(np.count_nonzero(waiting.repeated.is_blamed([at])))
    often = [f"it causes most of the waiting in {blamed} of {repeated.steps} steps"] if repeated.steps else []
    if is_chance := repeated.is_chance([at]):
        doubts.append("one step holds most of the waiting, or some healthy rank would be blamed as often by chance")
    if not waiting.group[0]:
        doubts.append("the traces do not name the group: collectives are matched by kind, size and end time")
    return Finding(
        bottleneck=COMMUNICATION,
        cause=SLOW_RANK,
        ranks=(rank,),
        subject=waiting.title,
        evidence=(
            (
                f"in {waiting.title} of {len(waiting.ranks)} ranks R_wait is {ratio:.3f} over {over} "
                f"(threshold {WAIT_RATIO.value})"
            ),
            (
                f"the others wait for rank {rank} in {int(waiting.awaited[at])} of them, {share:.0%} of all waiting; "
                f"its {communication} {waiting.duration_ns[at] / 1e6:.3f} ms in total, those of the others "
                f"{np.delete(waiting.duration_ns, at).mean() / 1e6:.3f} ms on average"
            ),
            f"the others wait {others.mean() / 1e6:.3f} ms each, this rank {waiting.waited_ns[at] / 1e6:.3f} ms",
            *idle,
            *often,
            *doubts,
        ),
        lost_ns=lost_ns,
        steps=(blamed, repeated.steps) if repeated.steps else None,
        confidence=LOW if is_single or is_chance else MEDIUM if doubts else HIGH,
    )
