"""The captures of one run: the one under way, the most recent past ones, and their budget.

Pure: part of the run's state machine, which alone changes it. A capture ends whatever its ranks do: when it is
complete, at its deadline, or when it is withdrawn. Results that arrive later are still evidence, unless it was
withdrawn.
"""

import hashlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.decide.capture import Capture, capture_from_json, first_step_of
from coordinator.decide.capture_budget import CaptureBudget

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.decide.saved_run import SavedRun
    from coordinator.decide.selection import Selection
    from coordinator.detect.anomalies import StepResult
    from coordinator.settings.run_policy import ProfilePolicy
    from lockstep.contracts.messages import CaptureResult, TraceSummary
    from lockstep.diagnosis.verdict import Diagnosis

_REQUEST_ID_SPARE_BITS = 11  # leaves 53 bits, which JSON readers that use doubles represent exactly
_KEPT = 8  # past captures, with their summaries: the newest may still be requested


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSubject:
    """The reason for a capture: an incident and its cost per step in seconds; empty and 0 for an operator's capture."""

    incident_id: str = ""
    excess_seconds: float = 0.0


class CaptureManager:
    """Captures of one run. `current` is the one under way, if any; `past` are those that are over, the newest last."""

    def __init__(self, policy: "ProfilePolicy", memory: "SavedRun | None") -> None:
        times_s, excess_seconds = (memory.capture_times_s, memory.capture_excess_seconds) if memory else ((), 0.0)
        self.budget = CaptureBudget(policy, times_s, excess_seconds)
        self.budget.counts.update(memory.capture_counts if memory else {})
        self.current: Capture | None = capture_from_json(memory.capture) if memory and memory.capture else None
        self.past: deque[Capture] = deque(maxlen=_KEPT)

    @property
    def policy(self) -> "ProfilePolicy":
        """The thresholds in force."""
        return self.budget.policy

    def request(
        self,
        subject: CaptureSubject,
        selection: "Selection",
        steps: int,
        step_result: "StepResult",
        now_s: float,
        *,
        shapes: bool = False,
        memory: bool = False,
    ) -> Capture:
        """Create a capture and make it current; none may be under way."""
        assert self.current is None
        # A fault may have made steps longer than the recent median. With too little lead, ranks begin at once.
        step_s = max(step_result.recent_step_seconds or 0.0, step_result.step_seconds)
        first_step = first_step_of(step_result.step, step_s, self.policy)
        deadline_s = now_s + (first_step - step_result.step + steps) * step_s + self.policy.expire_seconds
        self.current = capture = Capture(
            request_id=self._request_id(subject.incident_id, now_s),
            incident_id=subject.incident_id,
            ranks=selection.ranks,
            first_step=first_step,
            steps=steps,
            shapes=shapes,
            memory=memory,
            asked_s=now_s,
            expires_s=deadline_s,
            deadline_s=deadline_s,
            suspect_count=len(selection.suspects),
        )
        if subject.incident_id:
            usual_s = step_result.recent_step_seconds or step_result.step_seconds
            capture.measure(step_result.step, usual_s, subject.excess_seconds, is_acting=True)
        self.budget.spend(now_s, len(selection.ranks), subject.excess_seconds)
        return capture

    def _request_id(self, incident_id: str, now_s: float) -> int:
        """Return the id of the next capture.

        For an incident it is derived from the incident and the number of captures before it, so that both coordinators
        of a pair, only one of which sends requests, recognise the results. An operator's capture is numbered by its
        time.
        """
        if not incident_id:
            return max(int(now_s * 1000), max((capture.request_id for capture in self.past), default=0) + 1)
        subject = f"{incident_id}/{len(self.budget.times_s)}".encode()
        return int.from_bytes(hashlib.blake2b(subject, digest_size=8).digest()) >> _REQUEST_ID_SPARE_BITS

    @property
    def _known(self) -> "Iterable[Capture]":
        return (*self.past, self.current) if self.current is not None else tuple(self.past)

    def find(self, request_id: int) -> Capture | None:
        """Return the capture under way or a recent one by its id."""
        return next((each for each in self._known if each.request_id == request_id), None)

    def capturing(self, step: int, now_s: float) -> frozenset[int]:
        """Return the ranks that the profiler may delay after evaluated step `step`."""
        return frozenset().union(*(each.capturing(step, now_s) for each in self._known))

    def summarising_nodes(self, now_s: float) -> frozenset[str]:
        """Return the nodes that are summarising traces of this run now, which takes CPU time from their ranks."""
        return frozenset().union(*(each.summarising_nodes(now_s) for each in self._known))

    def fail(self, request_id: int, reason: str) -> None:
        """Note that a request could not be sent: ranks without a summary count as refused."""
        capture = self.current
        if capture is not None and capture.request_id == request_id:
            capture.refused |= dict.fromkeys(set(capture.ranks) - capture.summaries.keys(), reason)

    def take_answer(self, answer: "CaptureResult") -> None:
        """Apply the result of a rank; ignored if its capture is unknown (forged, or long over)."""
        capture = self.find(answer.request_id)
        if capture is not None and answer.rank in capture.ranks:
            capture.take_answer(answer)

    def take_summary(self, summary: "TraceSummary", now_s: float) -> Capture | None:
        """Store a rank's summary; return its capture if that was already over, so that it must be diagnosed again."""
        capture = self.find(summary.request_id)
        if capture is None or summary.rank not in capture.ranks or summary.rank in capture.summaries:
            return None
        if summary.rank in capture.withdrawn:
            return None
        capture.take_summary(summary)
        if capture is self.current:
            if capture.has_suspects:  # only peers are still missing, which are worth a short wait only
                capture.expires_s = min(capture.expires_s, now_s + self.policy.peer_wait_seconds)
            return None
        return capture if not summary.error else None

    def take_diagnosis(self, request_id: int, diagnosis: "Diagnosis") -> None:
        """Store the diagnosis of an operator's capture."""
        for capture in self.past:
            if capture.request_id == request_id:
                capture.diagnosis = diagnosis

    def finished(self, now_s: float) -> Capture | None:
        """End the current capture if it is complete or has expired, and return it; otherwise return None."""
        capture = self.current
        if capture is None or not (capture.is_complete or now_s >= capture.expires_s):
            return None
        self.put_away(now_s)
        return capture

    def put_away(self, now_s: float) -> None:
        """End the capture under way, if any, with the results so far; later results still count."""
        if self.current is not None:
            self.current.ended_s = now_s
            self.past.append(self.current)
            self.budget.settle(self.current)
            self.current = None

    def withdraw(self, now_s: float) -> Capture | None:
        """End the capture under way and return it: ranks that have not finished must not capture any more."""
        capture = self.current
        if capture is not None:
            capture.withdrawn = frozenset(capture.unanswered)
            self.put_away(now_s)
        return capture
