"""Every record given to a timeline is handed out, counted as rejected or pending, and its batch's receipt shows which."""

import numpy as np
import pytest

from coordinator.intake.timeline import StepTimeline
from coordinator.settings.policy import TimelinePolicy
from lockstep.contracts.records import MISSING
from tests.coordinator.intake.test_attempts import NS, RANKS, START_NS, record, stream
from tests.support.batches import batch_of_columns

GRACE_S = 3.0
PATIENCE_S = 12 * GRACE_S
POLICY = TimelinePolicy(window_cells=1, window_steps_min=16, grace_seconds=GRACE_S)


def timeline(ranks=4, **policy):
    made = StepTimeline(TimelinePolicy(**({"grace_seconds": GRACE_S} | policy)))
    made.know(list(range(ranks)))
    return made


def of_step(step, *ranks, second=None):
    """Return a batch of one step of some ranks, which ended at `second`, else at as many seconds as its index."""
    end_ns = np.full(len(ranks), START_NS + (step if second is None else second) * NS)
    columns = {"start_ns": end_ns - NS, "end_ns": end_ns, "compute_ns": np.full(len(ranks), NS)}
    columns |= dict.fromkeys(("data_ns", "host_ns", "gc_ns", "dp_wait_ns"), np.zeros(len(ranks), dtype=np.int64))
    return batch_of_columns(ranks, columns | {"step": np.full(len(ranks), step)})


def chaos(rng):
    """Return (arrival in s, batch) of records of any rank, step and time, known or not, possible or not."""
    events, now_s, span = [], 0.0, int(rng.choice([5, 20, 70, 200]))
    for _ in range(200):
        now_s += float(rng.choice([0, 0.1, 1, 10], p=[0.6, 0.2, 0.15, 0.05]))
        count = int(rng.integers(0, 9))
        steps = rng.integers(0, span, count) + rng.choice([0, 0, 0, 1000, 10**9], count)
        end_ns = START_NS + rng.integers(1, span + 1, count) * NS // int(rng.integers(1, 4)) + NS
        columns = {"step": steps, "start_ns": end_ns - NS, "end_ns": end_ns}
        columns |= dict.fromkeys(("data_ns", "host_ns", "gc_ns", "dp_wait_ns"), np.zeros(count, dtype=np.int64))
        columns |= {"compute_ns": rng.choice([NS, NS, NS, NS, -1, MISSING, NS + 10**8], count)}
        events.append((now_s, batch_of_columns(rng.integers(0, RANKS + 1, count), columns)))
    return events


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("source", [stream, chaos])
def test_all_that_was_sent_is_handed_out_or_counted_or_pending(source, seed):
    """At every moment, over restarts, leaps, announcements and widening; and nothing is pending for ever."""
    rng = np.random.default_rng(seed)
    events = source(rng)
    made = StepTimeline(POLICY)
    made.know(list(range(RANKS // 2)))
    taken = handed_out = first = 0
    receipts, pending = [], []
    while first < len(events):
        last = min(len(events), first + int(rng.choice([1, 5, 40, 200])))
        now_s, batches = events[last - 1][0], [batch for _, batch in events[first:last]]
        receipts += made.ingest_all(batches, now_s)
        pending += [batch.count for batch in batches]
        taken, first = taken + sum(batch.count for batch in batches), last
        if rng.random() < 0.7:
            handed_out += sum(int(row.present.sum()) for row in made.ready(now_s))
        if rng.random() < 0.1:
            made.know(list(range(int(rng.integers(1, RANKS + 1)))))
        if rng.random() < 0.1:
            made.restart_ranks({rank: START_NS + int(rng.integers(0, 200)) * NS for rank in range(0, RANKS, 2)})
        assert taken == handed_out + sum(made.rejected.values()) + made.pending_records
        assert made.pending_records == sum(receipt.pending_records for receipt in receipts)
        assert all(0 <= now.pending_records <= was for now, was in zip(receipts, pending, strict=True))
        pending = [receipt.pending_records for receipt in receipts]
    handed_out += sum(int(row.present.sum()) for row in made.ready(now_s + PATIENCE_S))
    assert made.pending_records == 0
    assert all(receipt.is_settled for receipt in receipts)
    assert taken == handed_out + sum(made.rejected.values())
    assert handed_out > 0 < sum(made.rejected.values())


def test_a_batch_is_settled_with_its_last_step():
    """A batch of two steps is pending until both have been handed out; a batch of rejected records is not pending."""
    made = timeline(ranks=2)
    (two_steps, unknown, empty) = made.ingest_all([of_step(0, 0), of_step(0, 7), of_step(0)], 0.0)
    assert [receipt.pending_records for receipt in (two_steps, unknown, empty)] == [1, 0, 0]
    both = made.ingest(batch_of_two_steps(), 0.0)
    assert len(made.ready(0.0)) == 1
    assert two_steps.is_settled
    assert (both.pending_records, both.is_settled) == (1, False)
    made.ingest(of_step(1, 0), 0.0)
    assert len(made.ready(0.0)) == 1
    assert both.is_settled


def batch_of_two_steps():
    """Return steps 0 and 1 of rank 1 in one message."""
    columns = {name: np.array([0, 0]) for name in ("data_ns", "host_ns", "gc_ns", "dp_wait_ns")}
    columns |= {"step": [0, 1], "start_ns": [START_NS - NS, START_NS], "end_ns": [START_NS, START_NS + NS]}
    return batch_of_columns([1, 1], columns | {"compute_ns": [NS, NS]})


def test_a_restart_settles_what_it_leaves_behind():
    """Records of the attempt that ended are late; those of the other are pending until their step is handed out."""
    made = timeline()
    made.ingest(of_step(5, 0, 1, 2, 3), 0.0)
    made.ready(0.0)
    left_behind = made.ingest(of_step(6, 0, 1), 0.0)
    votes = [made.ingest(of_step(0, rank, second=100), 0.0) for rank in range(2)]
    assert made.generation == 0
    assert [left_behind.is_settled, *(vote.is_settled for vote in votes)] == [False, False, False]
    votes.append(made.ingest(of_step(0, 2, second=100), 0.0))
    assert (made.generation, made.rejected["late"], left_behind.is_settled) == (1, 2, True)
    assert [vote.is_settled for vote in votes] == [False, False, False]
    made.ingest(of_step(0, 3, second=100), 0.0)
    assert len(made.ready(0.0)) == 1
    assert all(vote.is_settled for vote in votes)


def test_a_rank_that_leaps_alone_is_counted_after_a_while():
    """No majority follows it: its records are late when a step that few ranks report would be given up, not before."""
    made = timeline()
    made.ingest(of_step(0, 0, 1, 2, 3), 0.0)
    leap = made.ingest(of_step(10**9, 3, second=100), 1.0)
    made.ready(0.9 + PATIENCE_S)
    assert (leap.pending_records, made.rejected["late"]) == (1, 0)
    made.ready(1.0 + PATIENCE_S)
    assert (leap.pending_records, made.rejected["late"]) == (0, 1)


def test_a_rank_that_comes_back_gives_up_what_it_left():
    """With the last vote withdrawn, the records of the other attempt are counted at once."""
    made = timeline()
    made.ingest(of_step(0, 0, 1, 2, 3), 0.0)
    leap = made.ingest(of_step(10**9, 3, second=100), 0.0)
    made.ingest(of_step(1, 3, second=101), 0.0)
    assert (leap.is_settled, made.rejected["late"]) == (True, 1)


def test_an_announced_restart_does_not_revive_an_old_leap():
    """Records of a rank that leapt and came back are gone: they do not define where the next attempt begins."""
    made = timeline()
    made.ingest(of_step(0, 0, 1, 2, 3), 0.0)
    made.ingest(of_step(10**9, 3, second=100), 0.0)
    made.ingest(of_step(1, 3, second=101), 0.0)
    made.restart_ranks(dict.fromkeys(range(4), START_NS + 200 * NS))
    made.ingest(of_step(0, 0, 1, 2, 3, second=300), 0.0)
    assert [(row.step, int(row.present.sum())) for row in made.ready(0.0)] == [(0, 4)]
    assert made.generation == 1


def test_more_ranks_do_not_push_pending_steps_out():
    """A window that holds fewer steps of more ranks still hands out those that it held before."""
    made = timeline(ranks=2, window_cells=128, window_steps_min=8)
    held = [made.ingest(of_step(step, 0), 0.0) for step in range(40)]
    made.know(list(range(16)))
    assert [row.step for row in made.ready(PATIENCE_S)] == list(range(40))
    assert all(receipt.is_settled for receipt in held)


def test_a_timeline_that_is_thrown_away_counts_what_it_held():
    """Of both windows; nothing is pending afterwards."""
    made = timeline()
    made.ingest(of_step(0, 0, 1, 2, 3), 0.0)
    receipts = [made.ingest(of_step(1, 0, 1), 0.0), made.ingest(of_step(10**9, 3, second=100), 0.0)]
    assert made.pending_records == 7
    made.drop_pending()
    assert (made.pending_records, made.rejected["late"]) == (0, 7)
    assert all(receipt.is_settled for receipt in receipts)


def test_a_duplicate_settles_its_own_batch_only():
    """The record that came first stays pending."""
    made = timeline()
    first, again = made.ingest_all([record(0, 1, START_NS + NS)] * 2, 0.0)
    assert (first.pending_records, again.pending_records) == (1, 0)
    assert made.rejected["duplicate"] == 1
