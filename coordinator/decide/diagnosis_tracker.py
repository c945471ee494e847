"""Tracks the diagnoses under way, and which of them is the latest for its incident.

Pure: part of the run's state machine, which alone changes it. A late summary starts another diagnosis with all results
so far, so several diagnoses of one incident may be under way. Only the result of the latest one counts.
"""

from typing import TYPE_CHECKING

from coordinator.decide import events as ev
from coordinator.decide.selection import JOB
from coordinator.detect.anomalies import UNKNOWN

if TYPE_CHECKING:
    from coordinator.decide.capture import Capture
    from coordinator.decide.incidents import Incident
    from coordinator.detect.anomalies import StepResult

_KEPT = 32  # most recently diagnosed incidents and operators' captures


class DiagnosisTracker:
    """Diagnoses of one run. `pending` holds the open incidents that wait for a result."""

    def __init__(self) -> None:
        self.pending: set[str] = set()
        self._count = 0
        self._latest: dict[str, tuple[int, tuple[str, ...]]] = {}

    def order(
        self,
        incident: "Incident | None",
        capture: "Capture | None",
        step_result: "StepResult",
        *,
        notes: tuple[str, ...] = (),
        cause_id: str,
    ) -> ev.Diagnose:
        """Return the instruction to diagnose an incident, or an operator's capture if that is None.

        `notes` will precede the evidence of the result. Step time and excess are those measured before the capture. If
        the fault had ended by then, the capture is not used as evidence.
        """
        measured = capture.measured if capture is not None else None
        usable = capture is not None and not (measured is not None and measured.is_over)
        summaries = capture.summaries if capture is not None and usable else {}
        suspects = capture.suspects if capture is not None else ()
        step_seconds = step_result.recent_step_seconds or step_result.step_seconds
        excess_seconds = incident.excess_seconds if incident is not None else 0.0
        if measured is not None:
            step_seconds, excess_seconds = measured.step_seconds, measured.excess_seconds
        order = ev.Diagnose(
            cause_id=cause_id,
            incident_id=incident.id if incident else "",
            request_id=capture.request_id if capture else 0,
            diagnosis_id=self._count + 1,
            cause=incident.cause if incident else UNKNOWN,
            scope=incident.scope if incident else JOB,
            suspects=tuple(summaries[rank] for rank in suspects if rank in summaries),
            peers=tuple(summary for rank, summary in sorted(summaries.items()) if rank not in suspects),
            step_seconds=step_seconds,
            excess_seconds=excess_seconds,
        )
        self._count = order.diagnosis_id
        self._latest[_subject(order)] = self._count, notes
        if len(self._latest) > _KEPT:
            del self._latest[next(iter(self._latest))]
        if incident is not None:
            self.pending.add(incident.id)
        return order

    def take(self, event: ev.DiagnosedEvent) -> tuple[str, ...] | None:
        """Accept a result; return the notes that precede its evidence; None if a later diagnosis is under way."""
        latest, notes = self._latest.get(_subject(event), (event.diagnosis_id, ()))
        if event.diagnosis_id not in (0, latest):
            return None
        self.pending.discard(event.incident_id)
        return notes


def _subject(diagnosis: "ev.Diagnose | ev.DiagnosedEvent") -> str:
    return diagnosis.incident_id or str(diagnosis.request_id)
