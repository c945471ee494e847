"""Ideas that the detector must not lose: each is taken away in turn, and the claim that rests on it must fall.

Each claim is a test of its own and holds with the detector as it is. The test after it changes what the detector is
given, or how it learns, and shows that the answer becomes another one: with that idea lost the claim's test fails.
"""

from dataclasses import replace

import numpy as np
import pytest

from coordinator.detect import detector as detector_module
from coordinator.detect.detector import Detector
from coordinator.detect.ranks.series_cusum import CusumTest
from coordinator.detect.ranks.slow_rank import SlowRankTest
from coordinator.settings.policy import Policy
from tests.coordinator.scenarios import Scenario, generate

GRID = Scenario(degrees="tp=2,pp=2,dp=4", steps=90, seed=5).with_fault("compute", 3, seconds=0.04, begin=60)
"""Rank 3, of the first stage, is 10 % slow: everybody's step is longer, its tensor peer 2 and its replica wait less."""
HALF = Scenario(degrees="dp=8", steps=90, seed=5).with_fault("compute", 0, 2, 4, 6, seconds=0.03, begin=60)
UNEVEN = Scenario(degrees="tp=2,pp=2,dp=8", steps=160, seed=5, sequence_sigma=0.12)
UNEVEN = UNEVEN.with_fault("compute", 5, seconds=0.04, begin=60)


def as_measured(row):
    return row


def step_time(row):
    """Compare what synchronisation makes equal."""
    return replace(row, self_seconds=row.duration)


def waits_of(*kinds):
    """Take off only the waits of some kinds of domain."""

    def seen(row):
        return replace(row, self_seconds=row.duration - sum(row.waits[kind] for kind in kinds))

    return seen


def named(scenario, seen=as_measured):
    """Return the ranks that are named in a job, given what the detector sees of each step."""
    recording = generate(scenario)
    detector = Detector(np.arange(recording.topology.world_size), recording.topology, Policy())
    step_results = [detector.evaluate(seen(row)) for row in recording.rows()]
    return {rank for each in step_results for f in each.anomalies if f.kind == "slow_rank" for rank in f.ranks}


def test_own_work_names_the_culprit_alone():
    """Step minus the waits of all domains names the slow rank, and none of those that wait for it."""
    assert named(GRID) == {3}


@pytest.mark.parametrize(
    "seen",
    [step_time, waits_of("tp"), waits_of("pp"), waits_of("dp"), waits_of("pp", "dp"), waits_of("tp", "dp")],
    ids=["step time", "tp wait only", "pp wait only", "dp wait only", "all but tp", "all but pp"],
)
def test_own_work_needs_the_waits_of_all_domains(seen):
    """Step time names no one; with a wait left in it, those who wait for the culprit are named too, or no one is."""
    assert named(GRID, seen) != {3}


def test_half_a_domain_is_named():
    """Four of eight ranks 7 % slow are named, all of them and no one else."""
    assert named(HALF) == {0, 2, 4, 6}


def test_half_a_domain_needs_noise_from_differences(monkeypatch):
    """A median absolute deviation over the ranks takes half of them, slow together, for the noise of all."""
    step = CusumTest.step

    def step_by_spread(self, deviation, step_index, **factors):
        step(self, deviation, step_index, **factors)
        deviation = np.abs(deviation - np.nanmedian(deviation))
        self.noise.sigma_P[:] = 1.4826 * np.nanmedian(deviation)

    monkeypatch.setattr(CusumTest, "step", step_by_spread)
    monkeypatch.setattr(SlowRankTest, "_is_noisy", lambda _: False)  # else each part shows it by itself
    assert named(HALF) == set()


def test_uneven_sequences_hide_nobody():
    """A rank 10 % slow is named while sequences make replicas differ by 12 % in every step, and no replica is."""
    assert named(UNEVEN) == {5}


def test_uneven_sequences_need_the_replica_effect(monkeypatch):
    """Without what a replica's ranks share taken off, the sequences are each rank's own noise, and hide the culprit."""
    monkeypatch.setattr(detector_module, "replicas_of", lambda topology: list(range(topology.world_size)))
    assert named(UNEVEN) == set()
