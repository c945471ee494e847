"""Which anomalies of a step stand for themselves: those of victims are suppressed next to their culprit's.

Pure: part of the run's state machine, changed through it only. A slow rank inside a domain explains the domain's
transfers, and any culprit explains the run's step time, but for what of it no culprit explains
(`residual_growth.py`).

What is too young to be worth an incident is pending, as a rule of Prometheus is for the time of its `for`. There is one
such time: what noise may explain must last `unsure_factor` times as long, and `unsure_steps` where steps are long. A
pending anomaly opens no incident; of one that is open it is part at once.
"""

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coordinator.decide.residual_growth import residual_growth
from coordinator.detect.anomalies import FLUCTUATION, SLOW_LINK, SLOW_RANK, UNSYNCHRONISED_GC

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from coordinator.detect.anomalies import Anomaly, StepResult
    from coordinator.settings.run_policy import RunPolicy

Key = tuple[str, str]
"""Kind of an anomaly, and what it is about: a rank, a domain, the run."""
_ECHO_SHARE = 0.05  # of a culprit's excess: 1.6 % was seen of a rank that worked 4 ms longer and waited for 270 ms
_STEPS_KEPT = 512  # evaluated steps whose ends are known; those before them took as long as the last one


class Suppression:
    """`policy` may be replaced. `evaluated_steps` counts the steps taken so far."""

    def __init__(self, policy: "RunPolicy", book: "Mapping[str, Any]") -> None:
        self.policy = policy
        self.evaluated_steps = int(book.get("evaluated_steps", 0))
        self._alone_step: int | None = book.get("alone_step")  # since when the run is slower without a culprit
        self._culprit_step: int | None = book.get("culprit_step")
        self._residual_step: int | None = book.get("beside_step")  # since when all ranks have grown next to a culprit
        self._ends: deque[tuple[int, float]] = deque(maxlen=_STEPS_KEPT)  # of evaluated steps: index, Unix time
        self._step_seconds = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return its state as JSON."""
        return {
            "evaluated_steps": self.evaluated_steps,
            "alone_step": self._alone_step,
            "culprit_step": self._culprit_step,
            "beside_step": self._residual_step,
        }

    def reset(self) -> None:
        """Begin again for a new attempt of the run."""
        self.forget_slower_run()
        self._ends.clear()

    def forget_slower_run(self) -> None:
        """Begin again with a slower run: it has turned out to be its culprit's."""
        self._alone_step = self._residual_step = None

    def is_pending(self, anomaly: "Anomaly") -> bool:
        """Whether an anomaly of the last step has lasted too short a time for any incident, by the ranks' clocks.

        From its onset on: a host that is shared is busy for a second now and then, of steps of 20 ms that is fifty, and
        no fault. What noise may explain has no onset to believe in, and must last from the step that found it on.
        """
        policy = self.policy
        if anomaly.kind != FLUCTUATION or self._alone_step is None or self._is_certain(anomaly):
            return self._lasted_s(anomaly.onset_step) < policy.pending_seconds
        is_short = self._lasted_s(self._alone_step + 1) < policy.unsure_factor * policy.pending_seconds
        return is_short or self._ends[-1][0] - self._alone_step < policy.unsure_steps

    def _lasted_s(self, step: int) -> float:
        """Return how long ago a step began, before the end of the last one, s."""
        first_step, first_s = self._ends[0]
        began_s = first_s - (first_step - step + 1) * self._step_seconds  # before all that is known
        if step > first_step:
            began_s = next(end_s for known, end_s in reversed(self._ends) if known < step)
        return self._ends[-1][1] - began_s

    def _is_certain(self, fluctuation: "Anomaly") -> bool:
        """Whether noise explains a slower run in no case, nor a culprit: what began with one ends soon after it."""
        return fluctuation.is_sure and (self._culprit_step is None or fluctuation.onset_step > self._culprit_step)

    def filter(
        self, step_result: "StepResult", *, open_kinds: "Collection[str]", assigned: "Collection[Key]"
    ) -> "dict[Key, Anomaly]":
        """Return the anomalies of one undisturbed step that stand for themselves, by key.

        `open_kinds` are those of open incidents, `assigned` the keys of their anomalies. What is pending keeps others
        from becoming incidents; of an incident that is open it takes nothing away.
        """
        self.evaluated_steps += 1
        self._ends.append((step_result.step, step_result.unix_s))
        self._step_seconds = step_result.step_seconds
        culprits = {_key_of(f): f for f in step_result.anomalies if f.kind in (SLOW_RANK, SLOW_LINK)}
        if open_kinds:
            culprits = {key: f for key, f in culprits.items() if key in assigned or not self.is_pending(f)}
        ranks = [f for f in culprits.values() if f.kind == SLOW_RANK]
        found = {key: f for key, f in culprits.items() if not self._is_victim(f, ranks, is_open=key in assigned)}
        runs = {(f.kind, f.cause): f for f in step_result.anomalies if f.kind == UNSYNCHRONISED_GC}
        fluctuation = next((f for f in step_result.anomalies if f.kind == FLUCTUATION), None)
        if found or runs:
            self._culprit_step = step_result.step
            fluctuation = None if runs else self._residual(fluctuation, found.values(), step_result)
        else:
            self._residual_step = None
        if fluctuation is None:
            self._alone_step = None
        else:
            self._alone_step = step_result.step if self._alone_step is None else self._alone_step
            found[FLUCTUATION, ""] = fluctuation
        return found | runs

    def _residual(
        self, fluctuation: "Anomaly | None", culprits: "Collection[Anomaly]", step_result: "StepResult"
    ) -> "Anomaly | None":
        """Return the part of a slower run that its culprits do not explain, if it did not begin with one of them."""
        grown = None if fluctuation is None else residual_growth(fluctuation, culprits, step_result.ranks_reporting)
        if grown is None:
            self._residual_step = None
            return None
        if self._residual_step is None:
            self._residual_step = step_result.step
        for onset_step in (grown.onset_step, self._residual_step):
            if all(abs(onset_step - culprit.onset_step) > self.policy.join_steps for culprit in culprits):
                return replace(grown, onset_step=onset_step)
        return None

    def _is_victim(self, anomaly: "Anomaly", slow: "Iterable[Anomaly]", *, is_open: bool) -> bool:
        """Whether a group's transfers, or a little of a rank's own work, grew when another rank turned slow.

        A rank that waits for another in each step finds its caches cold and its clock lower. It holds no one
        back before the other is repaired, and is found then if it is slow by itself.
        """
        together = [f for f in slow if abs(f.onset_step - anomaly.onset_step) <= self.policy.join_steps]
        if anomaly.kind == SLOW_RANK:
            return not is_open and any(anomaly.excess_seconds < _ECHO_SHARE * f.excess_seconds for f in together)
        return anomaly.scope == "group" and any(f.ranks[0] in anomaly.ranks for f in together)


def _key_of(anomaly: "Anomaly") -> Key:
    """Return the key of a slow rank or link."""
    if anomaly.kind == SLOW_RANK:
        return SLOW_RANK, str(anomaly.ranks[0])
    return SLOW_LINK, "/".join(anomaly.domain or (anomaly.scope, anomaly.node))
