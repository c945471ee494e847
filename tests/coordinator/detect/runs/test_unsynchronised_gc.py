"""Collections of garbage out of step."""

import itertools

import numpy as np
import pytest

from coordinator.detect.runs.unsynchronised_gc import UnsynchronisedGcTest
from coordinator.settings.policy import GcPolicy

STEP_SECONDS = 0.5


def collections(ranks, steps=200, *, rate=0.0, begin=60, end=None, seconds=0.13, seed=0):
    """Return what ranks collect, array of shape (steps, ranks): a little always, and much by chance from `begin` on."""
    rng = np.random.default_rng(seed)
    gc = 0.002 * (1 + 0.1 * rng.standard_normal((steps, ranks)))
    hit = rng.random((steps, ranks)) < rate
    hit[:begin] = False
    hit[steps if end is None else end :] = False
    return (gc + seconds * hit).astype(np.float32)


def feed(gc, test=None):
    """Return the test and the steps in which it had found something."""
    test = test or UnsynchronisedGcTest(gc.shape[1], GcPolicy())
    found = []
    for step, row in enumerate(gc):
        test.step(row, STEP_SECONDS, step)
        if test.found is not None:
            found.append(step)
    return test, found


@pytest.mark.parametrize(("ranks", "rate", "latest"), [(128, 0.02, 10), (1024, 8 / 1024, 4)])
def test_collections_out_of_step_are_told_within_steps(ranks, rate, latest):
    """Three events on three ranks are enough; where many ranks collect, that is three steps, or four by chance."""
    for seed in range(10):
        test, found = feed(collections(ranks, rate=rate, seed=seed))
        assert 60 <= found[0] < 60 + latest
        assert found == list(range(found[0], 200))
        assert test.found.onset_step <= found[0]


def test_a_small_job_is_told_at_its_third_event():
    """At eight ranks events are rare: the verdict comes with the third of them, on a third rank, and not before."""
    gc = collections(8)
    for step, rank in ((70, 0), (90, 3), (100, 3), (120, 6)):
        gc[step, rank] += 0.3
    test, found = feed(gc)
    assert found[0] == 120
    assert (test.found, found[-1] < 199) == (None, True)
    gc[100, 3] -= 0.3
    gc[101, 5] += 0.3
    test, found = feed(gc[:150])
    assert (found[0], test.found.onset_step, test.found.ranks) == (101, 70, (0, 3, 5, 6))


@pytest.mark.parametrize("rate", [0.02, 0.03])
def test_rare_collections_are_one_anomaly_while_they_go_on(rate):
    """At eight ranks the distance between two varies: chance alone neither ends an anomaly nor begins it again."""
    ends = 0
    for seed in range(12):
        _, found = feed(collections(8, 400, rate=rate, seed=seed))
        ends += sum(later - earlier > 1 for earlier, later in itertools.pairwise(found))
    assert ends <= 3  # of 12 runs; 20 when five distances were enough


@pytest.mark.parametrize(("ranks", "slow"), [(16, [4, 12, 15]), (128, list(range(8, 16)))])
def test_ranks_that_collect_in_every_step_are_slow_by_themselves(ranks, slow):
    """The same ranks in step after step take no turns: they are slow ranks, however many, and not the job's fault."""
    gc = collections(ranks)
    gc[60:, slow] += np.random.default_rng(1).normal(0.05, 0.003, (140, len(slow)))
    _, found = feed(gc)
    assert found == []


@pytest.mark.parametrize("every", [2, 3, 5, 8])
def test_ranks_that_collect_a_few_at_a_time_are_out_of_step(every):
    """Of a small job several collect in one step by chance: as many as in each of the other steps, all wait for."""
    gc = collections(8)
    for rank in range(8):
        gc[60 + rank % every :: every, rank] += 0.15
    test, found = feed(gc)
    assert found == list(range(found[0], 200))
    assert found[0] < 60 + every + 3
    assert len(test.found.ranks) == 8


@pytest.mark.parametrize("ranks", [16, 128])
def test_the_same_ranks_that_collect_together_are_in_step(ranks):
    """A stage that allocates more collects by itself, its ranks at once: a common time would save nothing."""
    gc = collections(ranks)
    gc[60::10, : ranks // 8] += np.random.default_rng(2).uniform(0.1, 0.2, (14, ranks // 8))
    assert feed(gc)[1] == []


def test_collections_are_counted_since_they_are_a_fault():
    """What was seen before an anomaly that has ended is not reported again with the next one."""
    gc = np.zeros((80, 8), dtype=np.float32)
    for step in (*range(10, 16), 60, 62, 64):
        gc[step, step % 8] = 0.3
    test, found = feed(gc)
    assert (found[0], 40 in found, found[-1]) == (12, False, 79)
    assert test.found.evidence[0].startswith("3 collections")


def test_the_figures_say_what_the_job_pays_and_would_save():
    """The longest collection of a step holds everybody; together, each rank's own would be all."""
    gc = np.zeros((40, 4), dtype=np.float32)
    for step in range(40):
        gc[step, step % 4] = 0.1
    test, _ = feed(gc)
    assert test.found.lost_seconds == pytest.approx(0.075, rel=0.01)
    assert test.found.saving_seconds == pytest.approx(0.75 * 0.075, rel=0.05)
    assert test.found.lost_ratio == pytest.approx(0.15, rel=0.01)
    assert test.found.numbers["ranks"] == 4


@pytest.mark.parametrize("name", ["together", "one rank", "little always", "short", "rare", "most of them"])
def test_what_is_no_fault_is_not_told(name):
    """Synchronised collections, one rank's, a little in every step, short ones and a few in hundreds of steps."""
    gc = collections(16, steps=400)
    if name == "together":
        gc[50::20] += 0.3
    elif name == "one rank":
        gc[50:, 5] += 0.2
        gc[100, 1] += 0.2
        gc[110, 2] += 0.2
    elif name == "little always":
        gc = gc * 8  # 3 % of a step on every rank, 10 % of that more or less
    elif name == "short":
        gc = collections(16, steps=400, rate=0.05, seconds=0.005)
    elif name == "rare":
        gc[np.arange(60, 400, 60), np.arange(6) * 2] += 0.3
    else:
        gc[50::20, :12] += 0.3
    assert feed(gc)[1] == []


def test_it_ends_when_collections_are_synchronised():
    """Cured, it is over within a few of the usual distances between events."""
    test, found = feed(collections(128, rate=0.02, end=120))
    assert test.found is None
    assert 120 <= found[-1] <= 135


def test_missing_ranks_are_no_events():
    """A rank without a record changes nothing, and its neighbours are still seen."""
    gc = collections(64, rate=0.02)
    gc[np.random.default_rng(1).random(gc.shape) < 0.05] = np.nan
    gc[70] = np.nan
    _, found = feed(gc)
    assert 60 <= found[0] < 75
    healthy = collections(64)
    healthy[:, ::2] = np.nan
    assert feed(healthy)[1] == []


def test_what_was_seen_outlives_a_restart():
    """The third event counts with the first two, though a new process sees it."""
    gc = collections(8)
    for step, rank in ((70, 0), (80, 3), (95, 6)):
        gc[step, rank] += 0.3
    whole, found = feed(gc[:96])
    first, _ = feed(gc[:90])
    again = UnsynchronisedGcTest(8, GcPolicy())
    again.load_state_dict(first.state_dict())
    for step in range(90, 96):
        again.step(gc[step], STEP_SECONDS, step)
    assert again.found == whole.found
    assert found[-1] == 95
    again.load_state_dict({"events": np.zeros(3)})
    again.load_state_dict({})
    assert again.found == whole.found


def recipe(steps=300, ranks=4, *, every=1, seed=3):
    """Return what ranks collect that all call `gc.collect()` after a step on busy cores: 5 ms, and 100 ms by chance."""
    rng = np.random.default_rng(seed)
    gc = np.where(rng.random((steps, ranks)) < 0.1, 0.1, 0.005).astype(np.float32)
    is_due = np.arange(steps) % every == 0
    gc[~is_due] = 0.0002
    return gc, np.repeat(is_due[:, None], ranks, axis=1).astype(np.float32)


@pytest.mark.parametrize("every", [1, 4])
def test_a_step_in_which_every_rank_collects_is_in_step_whatever_each_takes(every):
    """A common recipe, on cores that strangers share: some rank's collection is descheduled, which is no fault of it."""
    gc, full = recipe(every=every)
    test, fooled = UnsynchronisedGcTest(4, GcPolicy()), UnsynchronisedGcTest(4, GcPolicy())
    found = {"counted": 0, "by length alone": 0}
    for step, (row, counts) in enumerate(zip(gc, full, strict=True)):
        test.step(row, 0.12, step, full_R=counts)
        fooled.step(row, 0.12, step, full_R=np.zeros(4, dtype=np.float32))
        found["counted"] += test.found is not None
        found["by length alone"] += fooled.found is not None
    assert found["counted"] == 0
    assert found["by length alone"] > 0  # the same durations in steps that are not all ranks' are out of step


def test_full_collections_out_of_step_are_reported_next_to_small_ones_of_all_ranks():
    """Young generations are collected everywhere all the time: only full collections of every rank are in step."""
    gc = collections(128, rate=0.02)
    test, steps = UnsynchronisedGcTest(128, GcPolicy()), []
    for step, row in enumerate(gc):
        test.step(row, STEP_SECONDS, step, full_R=(row > 0.05).astype(np.float32))
        if test.found is not None:
            steps.append(step)
    assert 60 <= steps[0] < 70


def test_without_counts_collections_that_all_take_long_are_in_step():
    """A log of an older version: every rank collects for more than what counts."""
    rng = np.random.default_rng(5)
    test = UnsynchronisedGcTest(4, GcPolicy())
    for step in range(200):
        test.step((0.02 + 0.1 * (rng.random(4) < 0.1)).astype(np.float32), 0.12, step)
        assert test.found is None
