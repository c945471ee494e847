"""How many captures a run may have, and how far apart. Pure: part of the run's state machine."""

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.decide.capture import Capture
    from coordinator.settings.run_policy import ProfilePolicy

_DAY_S = 86_400.0


class CaptureBudget:
    """When captures were made; `counts` by outcome, per rank (`metrics.PROFILE_STATES`).

    `policy` may be replaced. `excess_seconds` is what the incident of the last one cost a step, 0 for one that an
    operator asked for.
    """

    def __init__(self, policy: "ProfilePolicy", times_s: "Iterable[float]" = (), excess_seconds: float = 0.0) -> None:
        self.policy = policy
        self.times_s = list(times_s)
        self.excess_seconds = excess_seconds
        self.counts: Counter[str] = Counter()

    def refusal(self, now_s: float) -> str:
        """Return why no capture may ever be made on its own today, empty if one may."""
        policy = self.policy
        if not policy.enabled:
            return "profiling is switched off"
        if len(self.times_s) >= policy.per_run:
            return f"the run has had its {policy.per_run} captures"
        if sum(now_s - time < _DAY_S for time in self.times_s) >= policy.per_day:
            return f"the run has had its {policy.per_day} captures of a day"
        return ""

    def is_cooling(self, now_s: float, excess_seconds: float) -> bool:
        """Whether the last capture is too recent for one of an incident that costs `excess_seconds` a step.

        A larger incident does not wait for the cool-down that a smaller one left.
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
        """Count what became of a request that is over."""
        self.counts["done"] += len(capture.summaries)
        self.counts["refused"] += len(capture.refused)
        self.counts["expired"] += sum(r not in capture.summaries and r not in capture.refused for r in capture.ranks)
