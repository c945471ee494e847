"""Detects that a run makes no steps, decides when that is a hang, and maintains its incident.

Pure: part of the run's state machine, which alone changes it. `detect/hangs/hang.py` finds the ranks that have not
arrived.
"""

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from coordinator.detect.anomalies import HANG, LINK, UNKNOWN, Anomaly
from coordinator.detect.error_budget import AttemptLength, attempt_chance

if TYPE_CHECKING:
    from coordinator.decide.incident_tracker import IncidentTracker
    from coordinator.decide.incidents import Incident
    from coordinator.decide.losses import Losses
    from coordinator.detect.anomalies import StepResult
    from coordinator.detect.hangs.hang import Hang
    from coordinator.settings.run_policy import RunPolicy


class StallDetector:
    """Invariant: at most one incident of kind hang is open in `tracker`. `policy` may be replaced.

    `last_sign_s` is when the run last made a step, or began; 0 before the first event. `losses` are the lost records of
    a replayed step log, None for a live run. `attempt_length` is that of the run's attempts.
    """

    def __init__(self, tracker: "IncidentTracker", policy: "RunPolicy") -> None:
        self.policy = policy
        self.losses: Losses | None = None
        self.attempt_length = AttemptLength()
        self.last_sign_s = 0.0
        self._tracker = tracker
        self._step_result: StepResult | None = None
        self._is_warm = False
        self._reporting = 0
        self._lacking = self._dropped = self._steps = 0
        self._longest_s = {False: 0.0, True: 0.0}  # longest step by whether the run was warm
        self._reported_s = 0.0
        self._last_seen: tuple[Hang | None, float] = None, 0.0  # the latest verdict, and unchanged since when
        self._named_by: Hang | None = None  # the verdict from which the incident has its ranks

    @property
    def incident(self) -> "Incident | None":
        """The open incident."""
        return next((i for i in self._tracker.incidents.values() if i.kind == HANG), None)

    @property
    def cause_by_issues(self) -> str:
        """The cause of the open incident by the collectives that its ranks have issued, regardless of their stacks."""
        incident = self.incident
        if incident is None or self._named_by is None:  # restored after a restart of the coordinator
            return UNKNOWN if incident is None or incident.stacks else incident.cause
        return self._named_by.cause

    def begin(self, now_s: float) -> None:
        """Begin a run or another attempt.

        Until it is warm, long set-up or compilation is indistinguishable from a hang.
        """
        self.attempt_length.end()
        self.last_sign_s = now_s
        self._is_warm = False
        self._step_result = None
        self._reporting = 0

    def take_step(self, step_result: "StepResult", now_s: float) -> bool:
        """Apply an evaluated step; return whether it shows that the run makes progress.

        A step with fewer ranks than the one before does not: it was evaluated because records did not arrive, and the
        next step will show whether the run continues without those ranks.
        """
        dropped = self._reporting - step_result.ranks_reporting
        self._reporting = step_result.ranks_reporting
        if dropped > 0:
            self._dropped += dropped
            return False
        self._lacking, self._dropped = self._lacking + self._dropped, 0
        self._steps += 1
        self.attempt_length.count_step()
        step_s = step_result.step_seconds
        if self.incident is not None and not step_result.is_disturbed:
            step_s = min(step_s, self.policy.lost_seconds)  # a hang must not count as a normal pause
        self._longest_s[self._is_warm] = max(self._longest_s[self._is_warm], step_s)
        self._step_result, self._is_warm = step_result, step_result.is_warm
        self._last_seen = None, now_s
        self.last_sign_s = now_s
        return True

    @property
    def _usual_s(self) -> float:
        step_result = self._step_result
        return 0.0 if step_result is None else step_result.recent_step_seconds or step_result.step_seconds

    @property
    def blocked_after_s(self) -> float:
        """Time without a step after which the run counts as hung; longer than the pauses it has made so far."""
        policy = self.policy
        pause_s = policy.hang_pause_factor * self._longest_s[self._is_warm]
        if not self._is_warm:
            return max(policy.lost_seconds, pause_s)
        return max(policy.hang_steps * self._usual_s, policy.hang_seconds, pause_s)

    def is_blocked(self, now_s: float) -> bool:
        """Whether the run has made no step for so long that the ranks that have not arrived should be determined."""
        return self.incident is not None or (self.last_sign_s > 0 and now_s - self.last_sign_s > self.blocked_after_s)

    def take(self, hang: "Hang | None", now_s: float, rank_count: int) -> "tuple[Incident | None, bool]":
        """Apply a verdict; return the incident if it is new or changed enough to report, and whether it is new."""
        before = self.incident
        if hang != self._last_seen[0]:
            self._last_seen = hang, now_s
        if before is None:
            if hang is None or not self._may_open(hang, now_s, rank_count):
                return None, False
            self._reported_s = now_s
            self._named_by = hang
            found = self._anomaly(hang, now_s)
            ended_unix_s = now_s if self._step_result is None else self._step_result.unix_s
            step = None if self._step is None and hang.onset_step is None else max(found.onset_step, self._step or 0)
            incident = self._tracker.open(found, step, now_s, ended_unix_s=ended_unix_s)
            return self._grow(incident, now_s, rank_count), True
        after = self._named(before, hang, now_s)
        after = self._grow(after, now_s, rank_count)
        is_news = (after.ranks, after.domain, after.cause) != (before.ranks, before.domain, before.cause)
        if not is_news and now_s - self._reported_s < self.policy.hang_store_seconds:
            return None, False
        self._reported_s = now_s
        return after, False

    def held(self, step_result: "StepResult") -> Anomaly | None:
        """Return who held a step for longer than any pause so far; call it before `take_step`.

        None if an incident that names ranks was open meanwhile.
        """
        found, incident = step_result.held, self.incident
        if found is None or not self._is_warm or (incident is not None and incident.ranks):
            return None
        return found if step_result.step_seconds > self.policy.hang_pause_factor * self._longest_s[True] else None

    def close(self, now_s: float, held: Anomaly | None = None) -> "Incident | None":
        """Close the incident, if one is open: the run makes steps again, or no more are expected.

        `held` names the ranks that were waited for, if that became known only when the step ended.
        """
        incident = self.incident
        if incident is None:
            return None
        if held is not None:
            evidence, numbers = (*held.evidence, *incident.evidence), incident.numbers | held.numbers
            named = replace(incident, scope=held.scope, ranks=held.ranks, evidence=evidence, numbers=numbers)
            self._tracker.incidents[incident.id] = replace(named, cause=held.cause, domain=None)
        step = incident.detected_step
        if self._step_result is not None:
            step = max(step or 0, self._step_result.step)
        self._named_by = None
        return self._tracker.close(incident.id, step, now_s)

    @property
    def _step(self) -> int | None:
        """The step that is under way; None before the first was evaluated."""
        return None if self._step_result is None else self._step_result.step + 1

    def _may_open(self, hang: "Hang", now_s: float, rank_count: int) -> bool:
        """Whether a verdict may open an incident."""
        is_long = now_s - self.last_sign_s > self.policy.lost_seconds
        if not hang.is_measured:
            # One more may be missing by chance: few steps without a lost record prove nothing.
            chance = (self._lacking + 1) / max(self._steps, 1)
            if self.losses is not None:
                if self.losses.excludes(hang, now_s):
                    return False
                chance = min(chance, self.losses.chance_of(hang, rank_count))
            # While records still arrive the verdict changes: ranks that are merely behind are not late.
            stood_s = max(self.policy.hang_steps * self._usual_s, self.policy.hang_seconds)
            is_silent = now_s - self._last_seen[1] >= stood_s
            steps = self.attempt_length.expected_steps
            is_rare = chance <= attempt_chance("hang", self.policy.false_page_steps, steps)
            return self._is_warm and is_silent and is_rare
        if not hang.ranks and hang.cause != LINK:  # no rank waits for another: all may be busy with something long
            return self._is_warm and is_long
        return is_long or not hang.is_pause

    def report_held(self, held: Anomaly, step_result: "StepResult", now_s: float) -> "tuple[Incident, Incident]":
        """Open and close at once the incident of a step that ranks held for minutes; return both forms."""
        incident = self._tracker.open(held, held.onset_step, now_s, ended_unix_s=step_result.unix_s)
        lost_s = step_result.ranks_reporting * held.excess_seconds
        incident = self._tracker.incidents[incident.id] = replace(incident, lost_device_seconds=lost_s)
        self._tracker.lost_device_seconds += lost_s
        return incident, self._tracker.close(incident.id, step_result.step, now_s)

    def _anomaly(self, hang: "Hang", now_s: float) -> Anomaly:
        stall_s, usual_s = now_s - self.last_sign_s, self._usual_s
        return Anomaly(
            kind=HANG,
            cause=hang.cause,
            scope=hang.scope,
            ranks=hang.ranks,
            domain=hang.domain,
            onset_step=(self._step or 0) if hang.onset_step is None else hang.onset_step,
            excess_ratio=stall_s / usual_s if usual_s else 0.0,
            excess_seconds=stall_s,
            evidence=(*hang.evidence, self._stall_text()),
            numbers={**hang.numbers, "last_step_unix_seconds": self.last_sign_s, "usual_step_seconds": usual_s},
        )

    def _stall_text(self) -> str:
        since = f"no step since {datetime.fromtimestamp(self.last_sign_s, UTC):%H:%M:%S} UTC"
        return f"{since}; a step usually takes {self._usual_s:.3g} s" if self._usual_s else since

    def _named(self, before: "Incident", hang: "Hang | None", now_s: float) -> "Incident":
        """Return the incident updated by a verdict; one that is less specific than the previous one changes nothing."""
        cause = self.cause_by_issues
        if hang is None or (not hang.ranks and hang.cause != LINK and (before.ranks or cause == LINK)):
            return before
        if (hang.ranks, hang.domain, hang.cause) == (before.ranks, before.domain, cause):
            return before
        self._named_by = hang
        found = self._anomaly(hang, now_s)
        return replace(
            before,
            cause=found.cause,
            scope=found.scope,
            ranks=found.ranks,
            domain=found.domain,
            evidence=(*hang.evidence, before.evidence[-1]),
            numbers=before.numbers | hang.numbers,
        )

    def _grow(self, incident: "Incident", now_s: float, rank_count: int) -> "Incident":
        """Return the incident with its cost so far, which counts all ranks: none of them makes progress."""
        stall_s = now_s - incident.numbers.get("last_step_unix_seconds", now_s)
        usual_s = incident.numbers.get("usual_step_seconds", 0.0)
        grown = replace(
            incident,
            excess_seconds=stall_s,
            slowdown_ratio=stall_s / usual_s if usual_s else 0.0,
            numbers=incident.numbers | {"silence_seconds": stall_s},
            lost_device_seconds=rank_count * stall_s,
        )
        self._tracker.lost_device_seconds += max(0.0, grown.lost_device_seconds - incident.lost_device_seconds)
        self._tracker.incidents[incident.id] = grown
        return grown
