"""What a log lacks in its midst, counted; what may never have been is not."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.scenarios.job import Interruptions, Scenario
from benchmarks.scenarios.model import generate
from coordinator.decide.losses import Losses
from coordinator.detect.hangs.hang import Hang
from coordinator.record.gaps import losses_of
from coordinator.record.steplog import StepLog

LATE_SECONDS = 5.0
CALM = Interruptions(checkpoint_every=0, evaluation_every=0, missing=0.0, late=0.0)


def log_of(lacking=(), *, every=1, **more):
    """Return a log of 40 rows and 4 ranks without those of `lacking`, (rank, step) of the first attempt."""
    log = generate(Scenario(name="job", degrees="dp=4", seed=4, steps=40, interruptions=replace(CALM, **more))).log()
    rank, step = log.columns["rank"], log.columns["step"]
    lost = np.zeros(log.count, dtype=bool)
    for each, at in lacking:
        lost[np.flatnonzero((rank == each) & (step == at))[0]] = True
    kept = ~lost & (step % every == 0)
    return StepLog(log.run, {name: values[kept] for name, values in log.columns.items()})


@pytest.mark.parametrize(
    ("lacking", "lost", "longest", "most"),
    [
        ([], 0, 0, 0),
        ([(1, 5), (2, 9)], 2, 1, 1),
        ([(1, 5), (1, 6), (1, 7)], 3, 3, 1),
        ([(1, 5), (2, 5), (3, 5)], 3, 1, 3),
        ([(1, 0), (2, 39)], 0, 0, 0),
    ],
    ids=["whole", "single ones", "in a row", "at once", "at the ends"],
)
def test_holes_are_counted_by_what_was_lost_together(lacking, lost, longest, most):
    """Those of one rank in a row, and those of one step."""
    losses = losses_of(log_of(lacking), LATE_SECONDS)
    assert (losses.lost, losses.longest_steps, losses.most_ranks) == (lost, longest, most)
    assert losses.records == 160 - len(lacking)


def test_a_restart_and_steps_that_are_not_logged_are_no_gaps():
    """What lacks before a rank goes back to an earlier step may have been late; every fifth step may be all there is."""
    losses = losses_of(log_of([(1, 18), (1, 19)], restart_at=20, rollback_steps=5), LATE_SECONDS)
    assert (losses.lost, losses.longest_steps) == (0, 0)
    assert losses_of(log_of(every=5), LATE_SECONDS).lost == 0


def test_the_order_of_rows_does_not_matter():
    """Nor where ranks with other numbers lack theirs in another attempt."""
    log = log_of([(1, 5), (3, 5), (2, 17)], restart_at=20)
    shuffled = np.random.default_rng(1).permutation(log.count)
    mixed = StepLog(log.run, {name: values[shuffled] for name, values in log.columns.items()})
    assert losses_of(mixed, LATE_SECONDS) == losses_of(log, LATE_SECONDS)
    assert losses_of(log, LATE_SECONDS) == Losses(lost=3, records=157, longest_steps=1, most_ranks=2)


@pytest.mark.parametrize(("seconds", "lost"), [(4, 0), (17, 3)])
def test_what_comes_too_late_is_lost(seconds, lost):
    """Two in a row of one rank and one of another, received at once long after the next ones, or a little later."""
    log = log_of()
    late = np.isin(log.columns["rank"], [1, 3]) & (log.columns["step"] == 5)
    late |= (log.columns["rank"] == 1) & (log.columns["step"] == 6)
    log.columns["received_ns"][late] = log.columns["received_ns"][late].max() + seconds * 10**9
    losses = losses_of(log, LATE_SECONDS)
    assert (losses.lost, losses.records) == (lost, 160 - lost)
    assert (losses.longest_steps, losses.most_ranks) == ((2, 2) if lost else (0, 0))


def test_ranks_that_are_there_no_more_are_gone():
    """Where others go on for more than a few steps."""
    assert losses_of(log_of([(2, step) for step in range(35, 40)]), LATE_SECONDS).gone == frozenset()
    assert losses_of(log_of([(2, step) for step in range(20, 40)]), LATE_SECONDS).gone == {2}


def test_a_log_that_lacks_most_gives_no_incident():
    """More gaps than records."""
    log = log_of()
    kept = (log.columns["step"] % 8 == 0) | (log.columns["rank"] == 0)
    assert (
        losses_of(StepLog(log.run, {name: values[kept] for name, values in log.columns.items()}), LATE_SECONDS) is None
    )


def hang(*, ranks, records, is_of_hosts=False):
    numbers = {"late_ranks": float(len(ranks)), "lacking_records": float(records)}
    return Hang(
        cause="unknown",
        scope="rank",
        ranks=ranks,
        domain=None,
        evidence=(),
        numbers=numbers,
        is_measured=False,
        is_of_hosts=is_of_hosts,
    )


def test_the_chance_of_a_gap_is_that_of_its_records_together():
    """By the share of records that are lost; 1 where a batch, or what was lost at once before, explains it."""
    losses = Losses(lost=9, records=9999, longest_steps=1, most_ranks=2)
    assert losses.chance_of(hang(ranks=(3,), records=2), 8) == pytest.approx(8 * 0.001**2)
    assert losses.chance_of(hang(ranks=(1, 3, 5), records=3), 8) == pytest.approx((8 * 0.001) ** 3)
    assert losses.chance_of(hang(ranks=(1, 3), records=2), 8) == 1
    assert losses.chance_of(hang(ranks=(3,), records=1), 8) == 1
    assert losses.chance_of(hang(ranks=(3,), records=2, is_of_hosts=True), 8) == 1
    assert replace(losses, longest_steps=2).chance_of(hang(ranks=(3,), records=2), 8) == 1
    assert replace(losses, gone=frozenset({3})).chance_of(hang(ranks=(3,), records=2), 8) == 1


@pytest.mark.parametrize(("lost", "expected"), [(9, 0.0), (999_999, 1.0)])
def test_the_chance_of_a_gap_of_many_ranks_is_a_number(lost, expected):
    """Four thousand of ten thousand ranks, where hardly anything is lost and where everything is."""
    losses = Losses(lost=lost, records=999_999, longest_steps=1, most_ranks=2)
    assert losses.chance_of(hang(ranks=tuple(range(4000)), records=4000), 10_240) == expected
