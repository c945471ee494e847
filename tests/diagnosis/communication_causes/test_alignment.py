"""Collectives without numbers that swap places, are missing or are extra: the others keep their partners."""

import numpy as np
import pytest

from lockstep.diagnosis.communication_causes.alignment import CollectiveSequence, align, clock_difference_ns
from lockstep.diagnosis.communication_causes.matching import match_collectives
from lockstep.diagnosis.communication_causes.waiting import group_waiting
from lockstep.trace.columns import ABSENT
from tests.diagnosis.communication_causes.made import MS, evaluated, rank_of

STEPS = 6
STEP_NS = 100 * MS
SIZES = (8 * MS, 2 * MS)  # two buckets, under way together
JITTER = np.random.default_rng(7).integers(0, 3 * MS, STEPS)
CULPRIT, LATE_NS = 2, 30 * MS


def rank_spans(rank, *, swapped=(), dropped=(), extra=()):
    """Return starts and durations in order of start, and sizes, of a rank; the culprit comes late in every step.

    `swapped` are steps in which its second bucket is recorded first, `dropped` and `extra` (step, bucket).
    """
    events = []
    for step in range(STEPS):
        begin = step * STEP_NS + int(JITTER[: step + 1].sum())
        own = begin + rank * MS // 10 + (LATE_NS if rank == CULPRIT else 0)
        leave = begin + LATE_NS + 2 * MS
        starts = (own + MS // 5, own) if step in swapped else (own, own + MS // 5)
        for bucket, size in enumerate(SIZES):
            start, end = starts[bucket], leave + bucket * MS // 2
            if (step, bucket) not in dropped:
                events.append((start, end - start, size))
            if (step, bucket) in extra:
                events.append((end + 10 * MS, MS, size))
    events.sort()
    return [(start, duration) for start, duration, _ in events], [size for _, _, size in events]


def ranks(changes=None, *, shared=True, offsets=(0, 0, 0, 0)):
    found = []
    for rank in range(4):
        spans, sizes = rank_spans(rank, **((changes or {}).get(rank, {})))
        numbers = [ABSENT] * len(spans)
        host = "n0" if shared else f"n{rank}"
        found.append(
            rank_of(rank, spans, sizes=sizes, numbers=numbers, shared=shared, host=host, offset_ns=offsets[rank])
        )
    return found


CHANGES = {
    "healthy": {},
    "the culprit swaps in one step": {CULPRIT: {"swapped": (2,)}},
    "two ranks swap": {0: {"swapped": (1, 3)}, CULPRIT: {"swapped": (0, 2, 4)}},
    "the first is missing": {1: {"dropped": ((0, 0),)}},
    "one in the middle is missing": {CULPRIT: {"dropped": ((3, 1),)}},
    "two are missing": {0: {"dropped": ((2, 0), (2, 1))}, 3: {"dropped": ((5, 1),)}},
    "one is extra": {3: {"extra": ((1, 1),)}},
    "swapped, missing and extra": {
        0: {"extra": ((4, 0),)},
        1: {"dropped": ((1, 1),)},
        CULPRIT: {"swapped": (2, 3)},
    },
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("shared", [True, False], ids=["one clock", "four clocks"])
def test_the_culprit_keeps_the_blame(changes, shared):
    """All of the waiting is for rank 2, and it is named; of 48 events only those without partners are left out."""
    offsets = (0, 0, 0, 0) if shared else (0, 7_000 * MS, -3_000 * MS, 123)
    table = match_collectives(ranks(changes, shared=shared, offsets=offsets))
    (waiting,) = group_waiting(table)
    assert waiting.caused_ns[CULPRIT] / waiting.caused_ns.sum() > 0.95
    (found,) = evaluated(table, STEPS * STEP_NS)
    assert found.ranks == (CULPRIT,)
    lost = sum(len(each.get("dropped", ())) + len(each.get("extra", ())) for each in changes.values())
    assert sum(table.left_out.values()) <= 3 * lost
    assert set(table.bytes.tolist()) == set(SIZES)


def test_uneven_sizes_meet_by_kind():
    """Ranks of an uneven all-to-all have sizes of their own, and leave together all the same."""
    spans = [(step * STEP_NS, MS) for step in range(4)]
    one, other = (
        rank_of(rank, spans, kinds="all_to_all", sizes=sizes, numbers=[ABSENT] * 4)
        for rank, sizes in ((0, [1, 2, 3, 4]), (1, [5, 6, 7, 8]))
    )
    assert match_collectives([one, other]).present.all()


def side(ends, signature=("all_reduce", 1)):
    return CollectiveSequence([signature] * len(ends), np.array(ends, np.int64))


def test_uneven_steps_find_the_shift_between_clocks():
    """Ten steps of uneven length; the other capture begins two later on a clock of its own."""
    ends = np.cumsum(np.random.default_rng(3).integers(90, 110, 10)) * MS
    one, other = side(ends), side(ends[2:] - 5_000 * MS)
    assert clock_difference_ns(one, other) == 5_000 * MS
    assert align(one, other, shared=False) == {at: at + 2 for at in range(8)}


def test_even_steps_of_uneven_captures_leave_it_open():
    """Steps that are exactly alike fit at any shift: nothing decides, and nothing is made up."""
    ends = np.arange(10) * STEP_NS
    assert clock_difference_ns(side(ends), side(ends[2:])) is None
    assert clock_difference_ns(side(ends), side(ends + 7)) == -7
    assert align(side(ends), side(ends[2:]), shared=False) is None


def test_other_work_is_not_aligned():
    """Kinds that differ have nothing in common, whatever the clock."""
    ends = np.arange(5) * STEP_NS
    assert align(side(ends), side(ends, ("broadcast", 1)), shared=True) is None
    assert align(side(ends), side(ends, ("broadcast", 1)), shared=False) is None
