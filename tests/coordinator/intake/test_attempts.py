"""Records taken together end as they would one by one, whatever the bus, restarts and lying ranks do to them."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from coordinator.intake.timeline import StepTimeline
from coordinator.settings.policy import TimelinePolicy
from lockstep.contracts.records import MISSING
from tests.support.batches import batch_of_columns

NS = 10**9
START_NS = 1_790_000_000 * NS
RANKS = 12
POLICY = TimelinePolicy(window_cells=1, window_steps_min=64, grace_seconds=3.0)
LIES = ("frozen", "leap", "clock back", "step back", "years ahead")


def record(rank, step, end_ns, **more):
    """Return one record of a step of a second as a batch of its own."""
    values = {"step": step, "start_ns": end_ns - NS, "end_ns": end_ns, "dp_wait_ns": 100, "tokens": 100 * step + rank}
    values |= {"data_ns": 0, "compute_ns": NS - 200, "host_ns": 100, "gc_ns": 0, "flags": step % 2} | more
    return batch_of_columns([rank], {name: [value] for name, value in values.items()})


def reported(rank, second, step, first, lie):
    """Return what a rank reports of a step: its index and its end, as a liar bends them."""
    end_ns = START_NS + second * NS + rank * 10**6
    match lie:
        case "frozen":
            step = min(step, first + 5)
        case "leap":
            step += 10**6 * (step % 7 == 3)
        case "clock back":
            end_ns -= (step % 5 == 2) * 5 * NS // 2
        case "step back":
            step = max(0, step - 3 * (step % 9 == 8))
        case "years ahead":
            end_ns += 10**8 * NS
    return step, end_ns


def stream(rng):
    """Return (arrival in s, batch) of one to three attempts: lost, late, redelivered, impossible, and liars' records."""
    liars = dict(
        zip(rng.choice(RANKS, 3, replace=False).tolist(), rng.choice(LIES, int(rng.integers(0, 4))), strict=False)
    )
    events, begin, first = [], 0, int(rng.integers(0, 5))
    for _ in range(int(rng.integers(1, 4))):
        for rank in range(RANKS):
            lag = float(rng.choice([0, 0, 0, 0.3, 2, 8]))  # devices end steps up to 8 later than hosts
            for place in range(30):
                if rng.random() < 0.03:
                    continue
                step, end_ns = reported(rank, begin + place + 1, first + place, first, liars.get(rank))
                more = {"tokens": MISSING} if rng.random() < 0.02 else {"data_ns": -1} if rng.random() < 0.02 else {}
                arrival = begin + place + 1 + lag * rng.random() + 0.2 * rng.random()
                batch = record(rank, step, end_ns, **more)
                events.append((arrival, batch))
                if rng.random() < 0.08:
                    events.append((arrival + float(rng.choice([0, 0.1, 1, 5])) * rng.random(), batch))
        begin += 30 + int(rng.choice([5, 60]))
        first = max(0, first + 30 - int(rng.choice([3, 20, 200])))  # rolled back to a checkpoint
    return sorted(events, key=lambda event: event[0])


@dataclass
class Played:
    """A timeline and all rows that came out of it, with their generation."""

    timeline: StepTimeline
    rows: list


def play(events, gatherings, *, one_by_one):
    """Take events in gatherings, each of them at once or record by record."""
    played = Played(StepTimeline(POLICY), [])
    played.timeline.know(list(range(RANKS)))
    for first, last in gatherings:
        now_s = events[last - 1][0]
        batches = [batch for _, batch in events[first:last]]
        for taken in [[batch] for batch in batches] if one_by_one else [batches]:
            played.timeline.ingest_all(taken, now_s)
        played.rows += [(played.timeline.generation, row) for row in played.timeline.ready(now_s)]
    played.rows += [(played.timeline.generation, row) for row in played.timeline.ready(now_s + 100)]
    return played


def assert_same(row, other):
    """Two rows are the same in all that is known of them, and NaN where a rank is absent."""
    assert (row.step, row.end_unix_s) == (other.step, other.end_unix_s)
    np.testing.assert_array_equal(row.present, other.present)
    np.testing.assert_array_equal(row.flags, other.flags)
    for name in ("duration", "self_seconds", "tokens", "work"):
        np.testing.assert_array_equal(getattr(row, name), getattr(other, name), err_msg=name)
        assert np.isnan(getattr(row, name)[~row.present]).all()
    for parts, others in ((row.components, other.components), (row.waits, other.waits)):
        assert parts.keys() == others.keys()
        for name in parts:
            np.testing.assert_array_equal(parts[name], others[name], err_msg=name)


@pytest.mark.parametrize("seed", range(6))
def test_taken_together_is_taken_one_by_one(seed):
    """Rows, counts and attempts are the same for random interleavings, however they are gathered."""
    rng = np.random.default_rng(seed)
    events = stream(rng)
    cuts = [0]
    while cuts[-1] < len(events):
        cuts.append(min(len(events), cuts[-1] + int(rng.choice([1, 5, 20, 100, 400]))))
    gatherings = list(pairwise(cuts))
    together, apart = play(events, gatherings, one_by_one=False), play(events, gatherings, one_by_one=True)
    assert together.timeline.rejected == apart.timeline.rejected
    assert together.timeline.generation == apart.timeline.generation
    assert len(together.rows) == len(apart.rows) > 25
    for (generation, row), (other_generation, other) in zip(together.rows, apart.rows, strict=True):
        assert generation == other_generation
        assert_same(row, other)


def restarted(*, skip=()):
    """Return the batches of a second attempt of all ranks but some."""
    return [record(rank, 0, START_NS + 1000 * NS + rank) for rank in range(RANKS) if rank not in skip]


def running(steps=20):
    """Return a timeline in the middle of a run, every step evaluated."""
    made = StepTimeline(POLICY)
    made.know(list(range(RANKS)))
    made.ingest_all([record(rank, n, START_NS + n * NS) for n in range(1, steps) for rank in range(RANKS)], 0.0)
    assert len(made.ready(0.0)) == steps - 1
    return made


def test_a_restart_loses_no_rank():
    """The records that voted make the first step of the attempt, together with those that came after the majority."""
    made = running()
    made.ingest_all(restarted(), 1.0)
    (row,) = made.ready(1.0)
    assert (row.step, made.generation, sum(made.rejected.values())) == (0, 1, 0)
    assert row.present.all()


def test_a_redelivered_step_is_counted_by_what_became_of_it():
    """Records of a pending step are duplicates, those of an evaluated one are late; nothing else changes."""
    made = running(steps=3)
    again = [record(rank, 3, START_NS + 3 * NS) for rank in range(RANKS)]
    made.ingest_all(again[1:], 0.0)
    made.ingest_all(again[1:], 0.0)
    made.ingest_all([record(rank, 1, START_NS + NS) for rank in range(RANKS)], 0.0)
    assert {reason: count for reason, count in made.rejected.items() if count} == {
        "late": RANKS,
        "duplicate": RANKS - 1,
    }
    assert made.generation == 0


def test_a_rank_that_leaps_does_not_cost_a_restart_a_step():
    """The second window goes to the ranks that restart, whichever ranks held it before."""
    made = running()
    made.ingest_all([record(3, 10**9, START_NS + 900 * NS)], 1.0)
    made.ingest_all(restarted(skip=(3,)), 2.0)
    rows = made.ready(60.0)
    assert [(row.step, int(row.present.sum())) for row in rows] == [(0, RANKS - 1)]
    assert made.generation == 1


def test_who_reports_first_does_not_decide_where_a_run_begins():
    """A coordinator that comes late sees the nodes' steps in any order; none of them is lost."""
    made = StepTimeline(POLICY)
    made.know([0, 1])
    made.ingest_all([record(0, 12, START_NS + 12 * NS)], 0.0)
    made.ingest_all([record(1, 10, START_NS + 10 * NS), record(1, 11, START_NS + 11 * NS)], 0.0)
    made.ingest_all([record(0, 11, START_NS + 11 * NS), record(1, 12, START_NS + 12 * NS)], 0.0)
    assert [(row.step, row.present.tolist()) for row in made.ready(0.0)] == [
        (10, [False, True]),
        (11, [True, True]),
        (12, [True, True]),
    ]
    assert sum(made.rejected.values()) == 0


def test_a_clock_that_lies_by_years_does_not_date_the_step():
    """A step ended when most ranks report it."""
    made = StepTimeline(POLICY)
    made.know([0, 1, 2])
    made.ingest_all([record(rank, 1, START_NS + NS + (rank == 1) * 10**17) for rank in range(3)], 0.0)
    (row,) = made.ready(0.0)
    assert row.end_unix_s == (START_NS + NS) / NS


def at(rank, step, second, **more):
    """Return a record that ended so many seconds after the start."""
    return record(rank, step, START_NS + round(second * NS), **more)


def timeline_of(count=4, **policy):
    """Return a timeline of so many ranks that have all reported step 1, which is handed out."""
    made = StepTimeline(TimelinePolicy(**policy))
    made.know(list(range(count)))
    made.ingest_all([at(rank, 1, 1) for rank in range(count)], 0.0)
    assert len(made.ready(0.0)) == 1
    return made


def presence(rows):
    return {row.step: row.present.tolist() for row in rows}


def test_a_record_that_ends_before_the_last_one_is_no_next_step():
    """A greater index with an earlier end belongs to no attempt that is known."""
    made = timeline_of()
    made.ingest_all([at(0, 3, 3), at(0, 4, 2)], 0.0)
    assert (made.pending_records, made.rejected["late"]) == (1, 1)


@pytest.mark.parametrize(("second", "goes_back"), [(3.4, False), (3.6, True)])
def test_an_overtaken_record_may_end_a_little_later(second, goes_back):
    """Up to half of its step: clocks are read apart. What ends later than that has gone back to an older index."""
    made = timeline_of()
    made.ingest_all([at(0, 3, 3), at(0, 2, second)], 0.0)
    made.ingest_all([at(rank, step, step) for rank in (1, 2, 3) for step in (2, 3)], 0.0)
    assert presence(made.ready(0.0)) == {2: [not goes_back, True, True, True], 3: [True] * 4}
    assert made.pending_records == goes_back


def test_a_vote_that_is_delivered_twice_counts_once():
    """It is a duplicate, also where the attempt that goes on has a hole at its step."""
    made = timeline_of()
    made.ingest_all([at(0, 3, 3), at(1, 2, 2), at(2, 2, 2)], 0.0)
    made.ingest_all([at(0, 2, 100), at(0, 2, 100)], 0.0)
    assert (made.generation, made.rejected["duplicate"]) == (0, 1)
    made.ingest_all([at(1, 3, 3), at(2, 3, 3), at(3, 3, 3)], 0.0)
    assert presence(made.ready(0.0)) == {2: [False, True, True, False], 3: [True] * 4}


def test_a_late_record_of_the_attempt_that_a_rank_left_takes_no_vote_back():
    """It is used in the attempt that goes on, and the rank's vote stands."""
    made = timeline_of()
    made.ingest_all([at(0, 3, 3), at(0, 0, 100), at(0, 2, 2)], 0.0)
    assert made.pending_records == 3
    made.ingest_all([at(1, 0, 100), at(2, 0, 100)], 0.0)
    assert made.generation == 1


def test_a_rank_that_decided_the_vote_is_one_of_the_attempt():
    """Of two ranks that restarted, one is no majority to restart again."""
    made = timeline_of(3)
    made.ingest_all([at(0, 0, 100), at(1, 0, 100)], 0.0)
    assert made.generation == 1
    made.ingest_all([at(0, 10**6, 200)], 0.0)
    assert made.generation == 1
    made.ingest_all([at(1, 10**6, 200)], 0.0)
    assert made.generation == 2


def test_a_rank_that_did_not_come_back_has_no_part_in_the_next_vote():
    """Three of four ranks restart; two of those three are a majority afterwards."""
    made = timeline_of()
    made.ingest_all([at(rank, 0, 100) for rank in range(3)], 0.0)
    made.ingest_all([at(rank, 10**6, 200) for rank in range(2)], 0.0)
    assert made.generation == 2


def test_a_restart_is_waited_for_by_all_ranks():
    """A rank that was silent in the attempt before has the grace period again."""
    made = timeline_of(grace_seconds=5.0)
    made.ingest_all([at(rank, 2, 2) for rank in range(3)], 0.0)
    assert presence(made.ready(5.0)) == {2: [True, True, True, False]}
    made.ingest_all([at(rank, 0, 100) for rank in range(3)], 6.0)
    assert (made.generation, made.ready(10.9)) == (1, [])
    assert presence(made.ready(11.0)) == {0: [True, True, True, False]}


def test_ranks_that_report_are_not_silenced_by_one_that_ran_ahead_long_ago():
    """Each is waited for as long after its own last record."""
    made = timeline_of(grace_seconds=1.0)
    made.ingest_all([at(3, 5, 5)], 0.0)
    made.ingest_all([at(rank, 2, 2) for rank in range(3)], 11.0)
    assert presence(made.ready(11.0)) == {2: [True, True, True, False]}
    assert made.ready(22.9) == []
    assert presence(made.ready(23.0)) == {5: [False, False, False, True]}
