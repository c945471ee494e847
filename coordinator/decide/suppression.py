"""Suppresses the anomalies of a step that others explain: victims next to their culprit.

Pure: part of the run's state machine, which alone changes it. A slow rank inside a domain explains the domain's
transfers, and any culprit explains the run's step time, except for the part that no culprit explains
(`residual_growth.py`).

An anomaly that is too young for an incident is pending, like a Prometheus rule during its `for`. There is one such
duration. An anomaly that noise may explain must last `unsure_factor` times as long, and at least `unsure_steps` if
steps are long. A pending anomaly opens no incident, but joins an open one at once.
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
"""Kind and subject of an anomaly: a rank, a domain, or empty for the run."""
_ECHO_SHARE = 0.05  # of a culprit's excess: 1.6 % was seen, of a rank that worked 4 ms longer and waited for 270 ms
_STEPS_KEPT = 512  # evaluated steps whose ends are stored; older steps are assumed as long as the last one


class Suppression:
    """`saved` is an earlier `state_dict`. `policy` may be replaced. `evaluated_steps` counts the steps so far."""

    def __init__(self, policy: "RunPolicy", saved: "Mapping[str, Any]") -> None:
        self.policy = policy
        self.evaluated_steps = int(saved.get("evaluated_steps", 0))
        self._unexplained_step: int | None = saved.get("unexplained_step")  # the run is slower without a culprit since
        self._culprit_step: int | None = saved.get("culprit_step")
        self._explained_step: int | None = saved.get("explained_step")  # the last at which culprits explained all
        self._ends: deque[tuple[int, float]] = deque(maxlen=_STEPS_KEPT)  # of evaluated steps: index, unix time
        self._step_seconds = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return its state as JSON."""
        return {
            "evaluated_steps": self.evaluated_steps,
            "unexplained_step": self._unexplained_step,
            "culprit_step": self._culprit_step,
            "explained_step": self._explained_step,
        }

    def reset(self) -> None:
        """Start over for a new attempt of the run."""
        self._unexplained_step = self._explained_step = None
        self._ends.clear()

    def is_pending(self, anomaly: "Anomaly") -> bool:
        """Whether an anomaly of the last step is too young for an incident, by the ranks' clocks.

        Its age counts from its onset: a shared host is busy for a second now and then, which is fifty steps of 20 ms
        and no fault. An anomaly that noise may explain has no reliable onset; its age counts from the step that found
        it.
        """
        policy = self.policy
        if anomaly.kind != FLUCTUATION or self._unexplained_step is None or self._is_certain(anomaly):
            return self._lasted_s(anomaly.onset_step) < policy.pending_seconds
        is_short = self._lasted_s(self._unexplained_step + 1) < policy.unsure_factor * policy.pending_seconds
        return is_short or self._ends[-1][0] - self._unexplained_step < policy.unsure_steps

    def _lasted_s(self, step: int) -> float:
        """Return the time from the beginning of a step to the end of the last one, seconds."""
        first_step, first_s = self._ends[0]
        began_s = first_s - (first_step - step + 1) * self._step_seconds  # extrapolated: before all known ends
        if step > first_step:
            began_s = next(end_s for known, end_s in reversed(self._ends) if known < step)
        return self._ends[-1][1] - began_s

    def _is_certain(self, fluctuation: "Anomaly") -> bool:
        """Whether neither noise nor a culprit can explain a slower run.

        One that began with a culprit ends soon after it.
        """
        return fluctuation.is_sure and (self._culprit_step is None or fluctuation.onset_step > self._culprit_step)

    def filter(
        self, step_result: "StepResult", *, open_kinds: "Collection[str]", assigned: "Collection[Key]"
    ) -> "dict[Key, Anomaly]":
        """Return the anomalies of one undisturbed step that no other one explains, by key.

        `open_kinds` are the kinds of open incidents, `assigned` the keys of their anomalies. A pending anomaly prevents
        others from opening incidents, but does not suppress those of an open incident.
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
            fluctuation = self._residual(fluctuation, [*found.values(), *runs.values()], step_result)
        else:
            self._explained_step = None
        if fluctuation is None:
            self._unexplained_step = None
        else:
            self._unexplained_step = step_result.step if self._unexplained_step is None else self._unexplained_step
            found[FLUCTUATION, ""] = fluctuation
        return found | runs

    def _residual(
        self, fluctuation: "Anomaly | None", culprits: "Collection[Anomaly]", step_result: "StepResult"
    ) -> "Anomaly | None":
        """Return the part of a slowdown that its culprits do not explain.

        It began with the slowdown unless they have explained all of it since then.
        """
        grown = None if fluctuation is None else residual_growth(fluctuation, culprits, step_result.ranks_reporting)
        if grown is None:
            self._explained_step = None if fluctuation is None else step_result.step
            return None
        began = grown.onset_step if self._explained_step is None else self._explained_step + 1
        return replace(grown, onset_step=max(grown.onset_step, began))

    def _is_victim(self, anomaly: "Anomaly", slow: "Iterable[Anomaly]", *, is_open: bool) -> bool:
        """Whether a group's transfers, or a rank's own work a little, grew when another rank became slow.

        A rank that waits for another in each step finds its caches cold and its clock frequency lower. It delays no
        other rank until the culprit is repaired, and is found then if it is slow by itself.
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
