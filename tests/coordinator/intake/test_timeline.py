"""Records in, complete steps out, whatever the bus does to them."""

import numpy as np
import pytest

from coordinator.intake.timeline import StepTimeline
from coordinator.settings.policy import TimelinePolicy
from lockstep.contracts.records import MISSING
from tests.coordinator.scenarios import START_UNIX_S, Scenario, generate
from tests.support.batches import columns_of, with_columns

RECORDING = generate(Scenario(degrees="dp=4", steps=40))


def timeline(ranks=4, **policy):
    made = StepTimeline(TimelinePolicy(**policy))
    made.know(list(range(ranks)))
    return made


def steps(rows):
    return [row.step for row in rows]


def changed(batch, **columns):
    """Return the batch with some columns replaced; values are lists."""
    return with_columns(batch, columns_of(batch) | columns)


def test_a_step_is_complete_when_every_rank_has_reported_it():
    """Nothing is handed out before the last rank, and every step once, in order."""
    made = timeline()
    made.ingest(RECORDING.batch(0, 3, ranks=[0, 1, 2]), 0.0)
    assert made.ready(0.0) == []
    made.ingest(RECORDING.batch(0, 2, ranks=[3]), 0.1)
    rows = made.ready(0.1)
    assert steps(rows) == [0, 1]
    assert made.ready(0.1) == []
    assert rows[0].self_seconds == pytest.approx(RECORDING.self_seconds[0], rel=1e-6)
    assert rows[0].components["data"] == pytest.approx(RECORDING.components["data"][0], rel=1e-6)
    assert rows[0].moved["dp"].tolist() == [1e8] * 4
    assert sum(made.rejected.values()) == 0


def test_a_step_ended_at_the_median_of_the_clocks():
    """Also where two of the latest ends that can be would not fit into 64 bits together."""
    made, batch = timeline(), RECORDING.batch(0, 1)
    came = columns_of(batch)
    end_ns = [(1 << 62) - 7, (1 << 62) - 1, 1 << 62, 1 << 62]
    start_ns = [end - (e - s) for end, e, s in zip(end_ns, came["end_ns"], came["start_ns"], strict=True)]
    made.ingest(changed(batch, end_ns=end_ns, start_ns=start_ns), 0.0)
    (row,) = made.ready(0.0)
    assert row.end_unix_s == pytest.approx(2**62 * 1e-9)


def test_a_rank_that_went_past_a_step_is_not_waited_for():
    """A lost record is missing for good once the rank's next one is there."""
    made = timeline()
    made.ingest(RECORDING.batch(0, 1), 0.0)
    made.ingest(RECORDING.batch(1, 3, ranks=[0, 1, 2]), 0.0)
    made.ingest(RECORDING.batch(2, 3, ranks=[3]), 0.0)
    rows = made.ready(0.0)
    assert steps(rows) == [0, 1, 2]
    assert rows[1].present.tolist() == [True, True, True, False]
    assert np.isnan(rows[1].self_seconds[3])


def test_a_dead_rank_is_waited_for_once():
    """After the grace period a silent rank stops nothing, until it reports again."""
    made = timeline(grace_seconds=5.0)
    made.ingest(RECORDING.batch(0, 1), 0.0)
    made.ingest(RECORDING.batch(1, 2, ranks=[0, 1, 2]), 1.0)
    assert steps(made.ready(5.9)) == [0]
    assert steps(made.ready(6.0)) == [1]
    assert made.ranks_reporting == 3
    made.ingest(RECORDING.batch(2, 3, ranks=[0, 1, 2]), 6.1)
    assert steps(made.ready(6.1)) == [2]
    made.ingest(RECORDING.batch(3, 4), 6.2)
    assert steps(made.ready(6.2)) == [3]
    assert made.ranks_reporting == 4


def test_a_rank_that_catches_up_is_waited_for():
    """Ranks that deliver old steps bit by bit are not silent, however far behind they are."""
    made = timeline(grace_seconds=5.0)
    made.ingest(RECORDING.batch(0, 20, ranks=[0, 1]), 0.0)
    rows = []
    for step in range(20):
        made.ingest(RECORDING.batch(step, step + 1, ranks=[2, 3]), 4.0 * step)
        rows += made.ready(4.0 * step)
    assert steps(rows) == list(range(20))
    assert all(row.present.all() for row in rows)


def test_a_rank_whose_node_may_deliver_is_waited_for():
    """While its node is away a rank is not silent; from then on it is, and the others are evaluated without it."""
    made = timeline(grace_seconds=5.0)
    made.ingest(RECORDING.batch(0, 3, ranks=[0, 1, 2]), 0.0)
    assert made.ready(30.0, lambda rank: rank == 3) == []
    assert made.ranks_reporting == 3
    assert steps(made.ready(31.0, lambda rank: rank == 2)) == [0, 1, 2]


def test_what_is_pending_bounds_what_fits():
    """Steps beyond the window do not fit, until older ones are handed out; then nothing is pending any more."""
    made = timeline(window_steps_max=8, window_steps_min=8)
    assert made.is_idle
    made.ingest(RECORDING.batch(0, 8, ranks=[0, 1, 2]), 0.0)
    assert [made.fits(step) for step in (0, 7, 8)] == [True, True, False]
    made.ingest(RECORDING.batch(0, 3, ranks=[3]), 0.0)
    assert len(made.ready(0.0)) == 3
    assert [made.fits(step) for step in (10, 11)] == [True, False]
    assert not made.is_idle
    made.ingest(RECORDING.batch(3, 8, ranks=[3]), 0.0)
    made.ready(0.0)
    assert made.is_idle


def test_a_rank_that_runs_ahead_silences_no_one():
    """However long ago one rank claimed a later step, the others are waited for until half of them have reported it."""
    made = timeline(grace_seconds=1.0)
    made.ingest(RECORDING.batch(0, 1, ranks=[0, 1, 2]), 0.0)
    made.ingest(RECORDING.batch(7, 8, ranks=[3]), 0.0)
    assert steps(made.ready(0.0)) == [0]
    assert made.ready(9.0) == []
    made.ingest(RECORDING.batch(1, 3, ranks=[0, 1]), 10.0)
    assert made.ready(10.9) == []
    rows = made.ready(11.0)
    assert steps(rows) == [1, 2]
    assert rows[0].present.tolist() == [True, True, False, False]
    assert made.ranks_reporting == 3


def test_where_few_ranks_report_the_others_are_waited_for_longer():
    """When most of the nodes report nothing for a minute, the rest is evaluated without them."""
    made = timeline(grace_seconds=5.0)
    made.ingest(RECORDING.batch(0, 1), 0.0)
    made.ingest(RECORDING.batch(1, 2, ranks=[0]), 1.0)
    assert steps(made.ready(60.9)) == [0]
    assert steps(made.ready(61.0)) == [1]
    made.ingest(RECORDING.batch(2, 3, ranks=[0]), 62.0)
    assert steps(made.ready(62.0)) == [2]


def test_duplicates_and_late_records_are_counted_and_dropped():
    """A redelivered batch changes nothing; a record of an evaluated step is too late."""
    made = timeline()
    made.ingest(RECORDING.batch(0, 2, ranks=[0, 1, 2]), 0.0)
    made.ingest(RECORDING.batch(0, 2, ranks=[0]), 0.0)
    assert made.rejected["duplicate"] == 2
    made.ingest(RECORDING.batch(1, 2, ranks=[3]), 0.0)
    assert steps(made.ready(0.0)) == [0, 1]
    made.ingest(RECORDING.batch(0, 1, ranks=[3]), 0.0)
    assert {reason: count for reason, count in made.rejected.items() if count} == {"late": 1, "duplicate": 2}
    assert made.generation == 0


def test_a_record_that_is_too_late_shows_how_far_its_rank_is():
    """The step was evaluated without it after the grace time, and yet the rank has ended it."""
    made = timeline()
    made.ingest(RECORDING.batch(0, 1), 0.0)
    made.ingest(RECORDING.batch(1, 2, ranks=[0, 1, 2]), 0.0)
    assert steps(made.ready(61.0)) == [0, 1]
    assert made.last_steps.tolist() == [1, 1, 1, 0]
    made.ingest(RECORDING.batch(1, 2, ranks=[3]), 62.0)
    assert made.rejected["late"] == 1
    assert made.last_steps.tolist() == [1, 1, 1, 1]


def test_a_record_overtaken_by_a_younger_one_is_still_used():
    """Order inside a step that is not evaluated yet does not matter."""
    made = timeline()
    made.ingest(RECORDING.batch(0, 1), 0.0)
    made.ready(0.0)
    made.ingest(RECORDING.batch(2, 3, ranks=[0]), 0.0)
    made.ingest(RECORDING.batch(1, 2, ranks=[0]), 0.0)
    made.ingest(RECORDING.batch(1, 3, ranks=[1, 2, 3]), 0.0)
    rows = made.ready(0.0)
    assert [row.present.all() for row in rows] == [True, True]


@pytest.mark.parametrize(
    "lie",
    [
        {"data_ns": [-5]},
        {"end_ns": [1]},
        {"step": [-1]},
        {"step": [1 << 62]},
        {"compute_ns": [1]},
        {"dp_wait_ns": [1 << 62]},
        {"host_ns": [(1 << 63) - 1]},
        {"flags": [-2]},
    ],
    ids=lambda lie: next(iter(lie)),
)
def test_impossible_records_are_counted_and_the_others_evaluated(lie):
    """Negative, endless or parts that do not sum to the step: the record is refused, the step goes on without it."""
    made = timeline(grace_seconds=1.0)
    made.ingest(RECORDING.batch(0, 1, ranks=[0, 1, 2]), 0.0)
    made.ingest(changed(RECORDING.batch(0, 1, ranks=[3]), **lie), 0.0)
    assert made.rejected["impossible"] == 1
    rows = made.ready(1.0)
    assert steps(rows) == [0]
    assert rows[0].present.tolist() == [True, True, True, False]


def test_missing_parts_are_nan_and_no_lie():
    """What was not measured is NaN, a measured zero is 0, and a rank without any wait has no own work."""
    made = timeline(ranks=1)
    batch = RECORDING.batch(0, 1, ranks=[0])
    made.ingest(changed(batch, gc_ns=[MISSING], dp_wait_ns=[MISSING]), 0.0)
    (row,) = made.ready(0.0)
    assert np.isnan(row.components["gc"][0])
    assert np.isnan(row.self_seconds[0])
    assert row.duration[0] > 0


def test_flops_are_those_of_ranks_without_a_work_figure():
    """The work figure that a training reports comes before its FLOPs; without FLOPs there is no column of them."""
    made = timeline(ranks=2)
    batch = RECORDING.batch(0, 1, ranks=[0, 1])
    made.ingest(changed(batch, work=[7, MISSING], model_flops=[10**15, 10**15], tokens=[8192, 8192]), 0.0)
    made.ingest(RECORDING.batch(1, 2, ranks=[0, 1]), 0.0)
    first, second = made.ready(0.0)
    assert first.work.tolist() == [7, 8192]
    assert np.isnan(first.flops[0])
    assert first.flops[1] == pytest.approx(1e15)
    assert second.flops is None


def test_ranks_that_were_not_announced_are_counted():
    """Records of a rank outside the world are refused by name."""
    made = timeline(ranks=3)
    made.ingest(RECORDING.batch(0, 2), 0.0)
    assert made.rejected["rank"] == 2
    assert steps(made.ready(0.0)) == [0, 1]


def test_a_restart_begins_a_generation_and_loses_nothing():
    """When step indices fall while time goes on, on more than half of the ranks, the steps of the new attempt count."""
    made = timeline()
    made.ingest(RECORDING.batch(0, 10), 0.0)
    assert len(made.ready(0.0)) == 10
    later = START_UNIX_S + 1000
    for rank in range(4):
        made.ingest(RECORDING.batch(0, 2, ranks=[rank], start_s=later), 1.0)
    rows = made.ready(1.0)
    assert made.generation == 1
    assert steps(rows) == [0, 1]
    assert all(row.present.all() for row in rows)
    assert sum(made.rejected.values()) == 0


@pytest.mark.parametrize("lie", [{"step_offset": 10**9}, {"step_offset": -9, "start_s": START_UNIX_S + 1000}])
def test_one_rank_cannot_move_the_window(lie):
    """A rank that leaps or falls back alone counts as missing; the others go on in the same generation."""
    made = timeline(grace_seconds=1.0)
    made.ingest(RECORDING.batch(0, 10), 0.0)
    made.ready(0.0)
    made.ingest(RECORDING.batch(10, 12, ranks=[3], **lie), 0.0)
    made.ingest(RECORDING.batch(10, 12, ranks=[0, 1, 2]), 0.0)
    assert steps(made.ready(2.0)) == [10, 11]
    assert made.generation == 0
    made.ingest(RECORDING.batch(12, 14, start_s=START_UNIX_S + 2000), 3.0)
    assert steps(made.ready(3.0)) == [12, 13]


def test_a_first_liar_does_not_set_the_window():
    """When the first record ever is a leap, the honest majority moves the window to itself."""
    made = timeline()
    made.ingest(RECORDING.batch(0, 1, ranks=[3], step_offset=10**9), 0.0)
    for rank in (0, 1, 2):
        made.ingest(RECORDING.batch(0, 4, ranks=[rank]), 0.0)
    assert steps(made.ready(60.0)) == [0, 1, 2, 3]


def test_an_announced_restart_counts_like_a_seen_one_and_only_once():
    """A new incarnation announced before its records resets the run; one announced after them does not again."""
    made = timeline()
    made.ingest(RECORDING.batch(0, 10), 0.0)
    made.ready(0.0)
    attempt = int((START_UNIX_S + 500) * 1e9)
    made.restart_ranks(dict.fromkeys(range(4), attempt))
    assert made.generation == 1
    made.ingest(RECORDING.batch(0, 1, start_s=START_UNIX_S + 1000), 1.0)
    assert steps(made.ready(1.0)) == [0]
    made.restart_ranks(dict.fromkeys(range(4), attempt + 1))
    assert made.generation == 1


def test_new_ranks_join_without_losing_what_is_held():
    """Announcing more ranks widens the window; what was reported stays."""
    made = timeline(ranks=2)
    made.ingest(RECORDING.batch(0, 2, ranks=[0]), 0.0)
    made.know([0, 1, 2, 3])
    made.ingest(RECORDING.batch(0, 2, ranks=[1, 2, 3]), 0.0)
    rows = made.ready(0.0)
    assert [row.present.all() for row in rows] == [True, True]
    assert rows[0].duration == pytest.approx(RECORDING.duration[0], rel=1e-6)


def test_memory_is_bounded():
    """A rank far ahead of the others is not stored without end."""
    made = timeline(window_steps_max=32)
    made.ingest(RECORDING.batch(0, 1, ranks=[0, 1, 2, 3]), 0.0)
    long = generate(Scenario(degrees="dp=4", steps=200))
    made.ingest(long.batch(1, 200, ranks=[0]), 0.0)
    windows = 31 + 32  # steps after the first in the present window, and as many as a leap may leave in the other
    assert (made.pending_records, made.rejected["late"]) == (4 + windows, 199 - windows)


@pytest.mark.parametrize("seed", range(6))
def test_batches_taken_together_are_those_taken_one_by_one(seed):
    """Whatever the order of batches, redelivered ones and lost records: rows and counts do not depend on the bulk."""
    rng = np.random.default_rng(seed)
    batches = [RECORDING.batch(first, first + 4, ranks=[rank]) for rank in range(4) for first in range(0, 24, 4)]
    batches = [batches[place] for place in rng.permutation(len(batches)) if place != seed]
    batches += [batches[place] for place in rng.choice(len(batches), 5)]
    one_by_one, together = timeline(), timeline()
    for made in (one_by_one, together):
        made.ingest_all([RECORDING.batch(0, 1)], 0.0)
    for batch in batches:
        one_by_one.ingest(batch, 1.0)
    together.ingest_all(batches, 1.0)
    assert together.rejected == one_by_one.rejected
    assert together.rejected["duplicate"] >= 20
    rows, expected = together.ready(1.0), one_by_one.ready(1.0)
    assert steps(rows) == steps(expected)
    for row, other in zip(rows, expected, strict=True):
        assert row.end_unix_s == other.end_unix_s
        assert row.present.tolist() == other.present.tolist()
        np.testing.assert_array_equal(row.self_seconds, other.self_seconds)


def test_a_rank_that_contradicts_itself_does_not_hold_up_the_others():
    """One rank's repeated and twisted records are sorted out by themselves; the rest of the batch is taken whole."""
    made = timeline()
    made.ingest_all([RECORDING.batch(0, 2, ranks=[3]), RECORDING.batch(0, 3), RECORDING.batch(1, 2, ranks=[3])], 0.0)
    rows = made.ready(0.0)
    assert steps(rows) == [0, 1, 2]
    assert all(row.present.all() for row in rows)
    assert {reason: count for reason, count in made.rejected.items() if count} == {"duplicate": 3}


def test_senders_of_different_columns_are_taken_together():
    """A node that measures less than the others costs only what it did not measure."""
    made = timeline()
    less = RECORDING.batch(0, 1, ranks=[2, 3])
    less = with_columns(less, {name: values for name, values in columns_of(less).items() if name != "dp_bytes"})
    made.ingest_all([RECORDING.batch(0, 1, ranks=[0, 1]), less], 0.0)
    (row,) = made.ready(0.0)
    assert row.present.all()
    assert np.isnan(row.moved["dp"]).tolist() == [False, False, True, True]
    assert not np.isnan(row.waits["dp"]).any()


@pytest.mark.parametrize("absent", [(), (3,), tuple(range(8))])
def test_nodes_of_eight_ranks_are_laid_out_wherever_they_stand(absent):
    """Whole nodes or parts of them, in no order: each rank's values are its own, and NaN where it is not there."""
    wide = generate(Scenario(degrees="dp=24", steps=1))
    made = StepTimeline(TimelinePolicy(grace_seconds=3.0))
    made.know(list(range(24)))
    for node in (2, 0, 1):
        ranks = [rank for rank in range(8 * node, 8 * node + 8) if rank not in absent]
        if ranks:
            made.ingest(wide.batch(0, 1, ranks=ranks, node=f"n{node}"), 0.0)
    (row,) = made.ready(9.0)
    expected = wide.components["compute"][0].astype(np.float32)
    expected[list(absent)] = np.nan
    np.testing.assert_allclose(row.components["compute"], expected, rtol=1e-6)


def test_ranks_beyond_gaps_are_found():
    """Ranks need not be 0 to R - 1: those announced are distinguished from those between them."""
    made = StepTimeline(TimelinePolicy())
    made.know([1, 3])
    made.ingest(RECORDING.batch(0, 1), 0.0)
    (row,) = made.ready(0.0)
    assert made.rejected["rank"] == 2
    assert row.duration.tolist() == pytest.approx(RECORDING.duration[0, [1, 3]].tolist(), rel=1e-6)
