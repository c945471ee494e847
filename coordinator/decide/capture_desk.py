"""The captures of one run: the one under way, those that are over, and what they may cost.

Pure: part of the run's state machine, changed through it only.
"""

import hashlib
from collections import deque
from typing import TYPE_CHECKING

from coordinator.decide.profiling import Capture, CaptureBudget, capture_from_json, first_step_of

if TYPE_CHECKING:
    from coordinator.decide.memory import RunMemory
    from coordinator.decide.selection import Selection
    from coordinator.detect.findings import Judgement
    from coordinator.settings.policy import ProfilePolicy
    from lockstep.contracts.messages import ProfileAnswer, TraceSummary
    from lockstep.diagnosis import Diagnosis

_REQUEST_ID_SPARE_BITS = 11  # 53 bits are left, which JSON readers that know only doubles keep
_KEPT = 8  # with their summaries; the newest are what somebody may ask about


class CaptureDesk:
    """`current` is None or the only request under way; `past` are those that are over, the newest last."""

    def __init__(self, policy: "ProfilePolicy", memory: "RunMemory | None") -> None:
        self.budget = CaptureBudget(policy, memory.capture_times_s if memory else ())
        self.budget.counts.update(memory.capture_counts if memory else {})
        self.current: Capture | None = capture_from_json(memory.capture) if memory and memory.capture else None
        self.past: deque[Capture] = deque(maxlen=_KEPT)

    @property
    def policy(self) -> "ProfilePolicy":
        """What is in force."""
        return self.budget.policy

    def ask(
        self,
        incident_id: str,
        selection: "Selection",
        steps: int,
        judgement: "Judgement",
        now_s: float,
        *,
        shapes: bool = False,
    ) -> Capture:
        """Begin a request; none may be under way."""
        assert self.current is None
        # A fault has just made steps longer than the recent median says; too few steps ahead only means "at once".
        step_s = max(judgement.recent_step_seconds or 0.0, judgement.step_seconds)
        first_step = first_step_of(judgement.step, step_s, self.policy)
        self.current = Capture(
            request_id=self._request_id(incident_id, now_s),
            incident_id=incident_id,
            ranks=selection.ranks,
            first_step=first_step,
            steps=steps,
            shapes=shapes,
            asked_s=now_s,
            expires_s=now_s + (first_step - judgement.step + steps) * step_s + self.policy.expire_seconds,
            suspect_count=len(selection.suspects),
        )
        self.budget.spend(now_s, len(selection.ranks))
        return self.current

    def _request_id(self, incident_id: str, now_s: float) -> int:
        """Return the number of the next request.

        For an incident it follows from the incident and the captures before it: a pair of coordinators, one of which
        orders the capture, both know the answers as theirs. One that an operator asked for is numbered by its time.
        """
        if not incident_id:
            return max(int(now_s * 1000), max((capture.request_id for capture in self.past), default=0) + 1)
        subject = f"{incident_id}/{len(self.budget.times_s)}".encode()
        return int.from_bytes(hashlib.blake2b(subject, digest_size=8).digest()) >> _REQUEST_ID_SPARE_BITS

    def fail(self, request_id: int, reason: str) -> None:
        """Note that a request could not be sent."""
        capture = self.current
        if capture is not None and capture.request_id == request_id:
            capture.refused |= dict.fromkeys(set(capture.ranks) - capture.summaries.keys(), reason)

    def take_answer(self, answer: "ProfileAnswer") -> None:
        """Take what a rank says of the request under way; of others, late or forged, nothing is taken."""
        if self.current is not None and self.current.request_id == answer.request_id:
            self.current.take_answer(answer)

    def take_summary(self, summary: "TraceSummary", now_s: float) -> None:
        """Take a rank's summary for the request under way."""
        capture = self.current
        if capture is None or capture.request_id != summary.request_id or summary.rank not in capture.ranks:
            return
        capture.take_summary(summary)
        if capture.has_suspects:  # what is still missing is a peer's, worth a short wait only
            capture.expires_s = min(capture.expires_s, now_s + self.policy.peer_wait_seconds)

    def take_diagnosis(self, request_id: int, diagnosis: "Diagnosis") -> None:
        """Keep what a capture said that somebody asked for."""
        for capture in self.past:
            if capture.request_id == request_id:
                capture.diagnosis = diagnosis

    def finished(self, now_s: float) -> Capture | None:
        """Return the request that is complete or has expired by now, and put it away; None if there is none."""
        capture = self.current
        if capture is None or not (capture.is_complete or now_s >= capture.expires_s):
            return None
        self.put_away(now_s)
        return capture

    def put_away(self, now_s: float) -> None:
        """End the request under way, if there is one, whatever has come of it."""
        if self.current is not None:
            self.current.ended_s = now_s
            self.past.append(self.current)
            self.budget.settle(self.current)
            self.current = None
