"""The measured step of a round trip is comparable with the expected one."""

from pathlib import Path
from statistics import fmean, median

import pytest

from benchmarks.whatif_roundtrip import Job
from tests.support import servers

USUAL_S, LATE_S, SLOW_S = 0.05, 0.13, 0.2
STEPS_OF_POLL, CHANGED_AT = 4, 8


class Coordinator:
    """Shows a job of which every fifth step is late; steps were slow before CHANGED_AT."""

    def __init__(self):
        self.durations = []

    def run(self, _name):
        for _ in range(STEPS_OF_POLL):
            step = len(self.durations)
            usual_s = SLOW_S if step < CHANGED_AT else USUAL_S
            self.durations.append(LATE_S if step % 5 == 0 else usual_s)
        return {
            "step": len(self.durations) - 1,
            "last_step_unix_seconds": sum(self.durations),
            "recent_step_seconds": median(self.durations[-10:]),
        }


def test_a_step_is_measured_as_it_is_expected(monkeypatch):
    """The expected step is the median of single steps, which a few late ones do not change; their mean is a third longer."""
    monkeypatch.setattr(servers.time, "sleep", lambda _seconds: None)
    coordinator = Coordinator()
    assert Job(coordinator, Path()).step_seconds() == pytest.approx(USUAL_S)
    assert fmean(coordinator.durations[CHANGED_AT:]) > 1.3 * USUAL_S
