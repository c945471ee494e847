"""Which diagnoses are under way, what each is asked, and which result is the latest.

Pure: part of the run's state machine, changed through it only. Summaries that come late ask again with all that has
come, so several diagnoses of one incident may be under way: only the result of the last one asked counts.
"""

from typing import TYPE_CHECKING

from coordinator.decide import events as ev
from coordinator.decide.selection import JOB
from coordinator.detect.anomalies import UNKNOWN

if TYPE_CHECKING:
    from coordinator.decide.capture import Capture
    from coordinator.decide.incidents import Incident
    from coordinator.detect.anomalies import StepResult

_KEPT = 32  # incidents and operators' captures diagnosed last


class DiagnosisTracker:
    """`pending` are the open incidents that wait for a result."""

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
        """Return the order to diagnose an incident, or with None an operator's capture; `notes` go before its result.

        What a capture is held against was measured in the steps before it; where the fault had ended by then, what it
        shows is no evidence.
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
        """Take a result; return the notes that go before it, None where a later diagnosis is under way."""
        latest, notes = self._latest.get(_subject(event), (event.diagnosis_id, ()))
        if event.diagnosis_id not in (0, latest):
            return None
        self.pending.discard(event.incident_id)
        return notes


def _subject(of: "ev.Diagnose | ev.DiagnosedEvent") -> str:
    return of.incident_id or str(of.request_id)
