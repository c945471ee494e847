"""Limits the number of captures of a run and the time between them. Pure: part of the run's state machine."""

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.decide.capture import Capture
    from coordinator.settings.run_policy import ProfilePolicy

_DAY_S = 86_400.0


class CaptureBudget:
    """Times of past captures; `counts` counts ranks by outcome (`metrics.PROFILE_STATES`).

    `policy` may be replaced. `excess_seconds` is what the incident of the last capture cost per step; 0 for an
    operator's capture.
    """

    def __init__(self, policy: "ProfilePolicy", times_s: "Iterable[float]" = (), excess_seconds: float = 0.0) -> None:
        self.policy = policy
        self.times_s = list(times_s)
        self.excess_seconds = excess_seconds
        self.counts: Counter[str] = Counter()

    def refusal(self, now_s: float) -> str:
        """Return why no automatic capture is allowed today; empty if one is."""
        policy = self.policy
        if not policy.enabled:
            return "profiling is switched off"
        if len(self.times_s) >= policy.per_run:
            return f"the limit of {policy.per_run} captures per run is reached"
        if sum(now_s - time < _DAY_S for time in self.times_s) >= policy.per_day:
            return f"the limit of {policy.per_day} captures per day is reached"
        return ""

    def is_cooling(self, now_s: float, excess_seconds: float) -> bool:
        """Whether the last capture is too recent for an incident that costs `excess_seconds` per step.

        A larger incident does not wait for the cool-down of a smaller one.
        """
        policy = self.policy
        if not self.times_s or now_s - self.times_s[-1] >= policy.cooldown_seconds:
            return False
        return excess_seconds <= policy.larger_factor * self.excess_seconds

    def spend(self, now_s: float, ranks: int, excess_seconds: float) -> None:
        """Count a request."""
        self.times_s.append(now_s)
        self.excess_seconds = excess_seconds
        self.counts["requested"] += ranks

    def settle(self, capture: "Capture") -> None:
        """Count the outcome of a capture that is over."""
        self.counts["done"] += len(capture.summaries)
        self.counts["refused"] += len(capture.refused)
        self.counts["expired"] += sum(r not in capture.summaries and r not in capture.refused for r in capture.ranks)
