"""Thresholds of a detector that is at work: the next steps are evaluated by them, with what was learnt before."""

from dataclasses import replace

import numpy as np
import pytest

from coordinator.detect.detector import Detector
from coordinator.settings.policy import Policy
from coordinator.settings.thresholds import apply
from tests.coordinator.scenarios import Scenario, generate

CHANGE = 100


def found_after(scenario, before, after):
    """Return the kinds found before step CHANGE under thresholds `before`, and in the 20 steps after, under `after`."""
    recording = generate(replace(scenario, steps=CHANGE + 20))
    detector = Detector(np.arange(recording.topology.world_size), recording.topology, apply(Policy(), before))
    kinds = ([], [])
    for row in recording.rows():
        if row.step == CHANGE:
            detector.set_policy(apply(Policy(), after))
        kinds[row.step >= CHANGE].extend(anomaly.kind for anomaly in detector.evaluate(row).anomalies)
    return tuple(set(kind) for kind in kinds)


@pytest.mark.parametrize(
    ("scenario", "threshold", "kind"),
    [
        (
            Scenario(degrees="dp=8").with_fault("compute", 3, seconds=0.03, begin=60),
            "excess.floor_ratio",
            "slow_rank",
        ),
        (
            Scenario(degrees="tp=2,dp=4").with_fault("tp", 2, 3, seconds=0.03, begin=60),
            "link.effect_ratio",
            "slow_link",
        ),
        (
            Scenario(degrees="dp=8").with_fault("data", *range(8), seconds=0.04, begin=95),
            "fluctuation.floor_ratio",
            "fluctuation",
        ),
    ],
    ids=["rank", "link", "run"],
)
def test_a_lower_threshold_tells_what_a_higher_one_kept_silent(scenario, threshold, kind):
    """Silent up to the change, reported after it, without another warm-up; and silent for good without a change."""
    high = {threshold: 5.0}
    before, after = found_after(scenario, high, {})
    assert kind not in before
    assert kind in after
    before, after = found_after(scenario, high, high)
    assert kind not in before | after
