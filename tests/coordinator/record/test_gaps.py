"""What a log lacks in its midst, counted; what may never have been is not."""

from dataclasses import replace
from math import comb

import numpy as np
import pytest

from benchmarks.scenarios.job import Interruptions, Scenario
from benchmarks.scenarios.model import generate
from coordinator.decide.losses import Losses
from coordinator.detect.hangs.hang import Hang
from coordinator.record.gaps import losses_of
from coordinator.record.steplog import StepLog

LATE_SECONDS = 5.0
PER_NODE = 4
NS = 10**9
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
    ("lacking", "lost", "repeated", "most"),
    [
        ([], 0, 0, 0),
        ([(1, 5), (2, 9)], 2, 0, 1),
        ([(1, 5), (1, 6), (1, 7), (2, 7)], 4, 2, 2),
        ([(1, 5), (2, 5), (3, 5)], 3, 0, 3),
        ([(1, 0), (2, 39)], 0, 0, 0),
    ],
    ids=["whole", "single ones", "in a row", "at once", "at the ends"],
)
def test_gaps_are_counted_by_what_was_lost_together(lacking, lost, repeated, most):
    """Those of one rank that follow a lost one, and those of one step."""
    losses = losses_of(log_of(lacking), LATE_SECONDS, PER_NODE)
    assert (losses.lost, losses.repeated, losses.most_ranks) == (lost, repeated, most)
    assert losses.records == 160 - len(lacking)


def test_the_batches_of_a_host_are_lost_apart_from_records():
    """Two of a host of two lack the same five steps, and one of them the sixth, which its host has."""
    lacking = [(rank, step) for rank in (2, 3) for step in range(10, 15)]
    losses = losses_of(log_of([*lacking, (3, 15)]), LATE_SECONDS, 2)
    assert (losses.lost, losses.repeated, losses.most_ranks) == (1, 0, 1)


def test_a_restart_and_steps_that_are_not_logged_are_no_gaps():
    """What lacks before a rank goes back to an earlier step may have been late; every fifth step may be all there is."""
    losses = losses_of(log_of([(1, 18), (1, 19)], restart_at=20, rollback_steps=5), LATE_SECONDS, PER_NODE)
    assert (losses.lost, losses.stride_steps) == (0, 1)
    losses = losses_of(log_of(every=5), LATE_SECONDS, PER_NODE)
    assert (losses.lost, losses.stride_steps) == (0, 5)


def test_the_order_of_rows_does_not_matter():
    """Nor where ranks with other numbers lack theirs in another attempt."""
    log = log_of([(1, 5), (3, 5), (2, 17)], restart_at=20)
    shuffled = np.random.default_rng(1).permutation(log.count)
    mixed = StepLog(log.run, {name: values[shuffled] for name, values in log.columns.items()})
    assert losses_of(mixed, LATE_SECONDS, PER_NODE) == losses_of(log, LATE_SECONDS, PER_NODE)
    losses = losses_of(log, LATE_SECONDS, PER_NODE)
    assert replace(losses, past_s={}) == Losses(lost=3, records=157, most_ranks=2)
    assert {rank: len(own) for rank, own in losses.past_s.items()} == {1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize(("ahead_s", "seconds", "is_late"), [(0, 4, False), (0, 17, True), (900, 17, True)])
def test_a_record_that_comes_late_is_on_its_way_and_not_lost(ahead_s, seconds, is_late):
    """From the end of its step on, by the clock of the receiver, wherever that of the rank is."""
    log = log_of()
    of_rank = log.columns["rank"] == 1
    (at,) = np.flatnonzero(of_rank & (log.columns["step"] == 39))
    end_s = float(log.columns["received_ns"][at]) / NS
    log.columns["received_ns"][at] += seconds * NS
    log.columns["start_ns"][of_rank] += ahead_s * NS
    losses = losses_of(log, LATE_SECONDS, PER_NODE)
    assert (losses.lost, losses.records) == (0, 160)
    assert list(losses.past_s) == [1] * is_late
    for begin_s, until_s in losses.past_s.get(1, ()):
        assert begin_s == pytest.approx(end_s, abs=0.1)
        assert until_s - (end_s + seconds) == pytest.approx(0.5, abs=0.6)  # the second in which it is delivered


def test_ranks_that_are_there_no_more_are_gone():
    """Where others go on for more than a few steps."""
    assert losses_of(log_of([(2, step) for step in range(35, 40)]), LATE_SECONDS, PER_NODE).gone == frozenset()
    assert losses_of(log_of([(2, step) for step in range(20, 40)]), LATE_SECONDS, PER_NODE).gone == {2}


def test_a_log_that_lacks_most_gives_no_incident():
    """More gaps than records."""
    log = log_of()
    kept = (log.columns["step"] % 8 == 0) | (log.columns["rank"] == 0)
    assert (
        losses_of(
            StepLog(log.run, {name: values[kept] for name, values in log.columns.items()}), LATE_SECONDS, PER_NODE
        )
        is None
    )


def hang(*, ranks, steps):
    return Hang(
        cause="unknown",
        scope="rank",
        ranks=ranks,
        domain=None,
        evidence=(),
        is_measured=False,
        behind_host_steps=steps,
    )


def test_the_chance_of_a_gap_is_that_of_its_records_together():
    """By the share of records that are lost; 1 where all of a host lacks it, or where the rank's log was cut."""
    losses = Losses(lost=9, records=9999, most_ranks=2)
    assert losses.chance_of(hang(ranks=(3,), steps=1), 8) == pytest.approx(8 * 0.001)
    assert losses.chance_of(hang(ranks=(3,), steps=2), 8) == pytest.approx(8 * 0.001**2)
    assert losses.chance_of(hang(ranks=(1, 3, 5), steps=1), 8) == pytest.approx(comb(8, 3) * 0.001**3)
    assert losses.chance_of(hang(ranks=(3,), steps=0), 8) == 1
    assert replace(losses, gone=frozenset({3})).chance_of(hang(ranks=(3,), steps=2), 8) == 1


def test_the_chance_counts_the_steps_that_are_logged():
    """In a log of every fifth step ten steps are two records."""
    losses = Losses(lost=9, records=9999, most_ranks=1, stride_steps=5)
    assert losses.chance_of(hang(ranks=(3,), steps=10), 8) == pytest.approx(8 * 0.001**2)
    assert losses.chance_of(hang(ranks=(3,), steps=4), 8) == 1


@pytest.mark.parametrize(
    ("lost", "repeated", "most_ranks", "is_independent"),
    [(0, 0, 0, True), (20, 2, 1, True), (20, 3, 1, False), (4, 0, 2, True), (4, 0, 3, False)],
)
def test_records_that_were_lost_together_have_no_chance_of_their_own(lost, repeated, most_ranks, is_independent):
    """Of 1,600 records in 200 steps: chance repeats 2 of 20 in 1 of 40 logs, and has 2 of 4 in one step in 1 of 25."""
    losses = Losses(lost=lost, records=1600 - lost, repeated=repeated, most_ranks=most_ranks)
    assert (losses.chance_of(hang(ranks=(3,), steps=2), 8) < 1) is is_independent


@pytest.mark.parametrize(("lost", "expected"), [(9, 0.0), (999_999, 1.0)])
def test_the_chance_of_a_gap_of_many_ranks_is_a_number(lost, expected):
    """Four thousand of ten thousand ranks, where hardly anything is lost and where everything is."""
    losses = Losses(lost=lost, records=999_999, most_ranks=2)
    assert losses.chance_of(hang(ranks=tuple(range(4000)), steps=1), 10_240) == expected
