"""The noise of noise groups as of now, and the limits that follow from it."""

import numpy as np
import pytest

from coordinator.detect.ranks.detection_limits import DetectionLimits
from coordinator.detect.ranks.noise_groups import NoiseGroups
from coordinator.settings.policy import ExcessPolicy


@pytest.mark.filterwarnings("error")
def test_the_present_scatter_waits_for_learnt_noise():
    """Without it, nothing is relative to it: no warning, whatever the sizes of groups, and no figure of that row."""
    limits = DetectionLimits(NoiseGroups(np.array([0] * 4 + [1] * 8)), np.array([0, 1]), (4, 8))
    limits.set_policy(ExcessPolicy(), floor_ratio=0.05)
    differences = np.random.default_rng(0).normal(0, 0.01, 12).astype(np.float32)
    limits.follow(differences)
    unlearnt = limits.present_P
    assert np.all((unlearnt > 0) & (unlearnt < 0.02))
    limits.single.sigma_P[:] = 0.01
    limits.follow(differences)
    assert np.all(limits.present_P >= unlearnt)
