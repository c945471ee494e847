"""Begin and end of each incident of a run, for the timeline below its charts. Pure: values in, plain values out."""

from typing import TYPE_CHECKING, Any

from coordinator.page.cards import title_of, where_of
from coordinator.record.step_series import time_of_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from coordinator.decide.incidents import Incident

TIMELINE_MAX = 100
"""Incidents on the timeline of a run: the open ones, then the newest."""
_TEXT_MAX = 120  # characters of a title
_NS = 1e-9


def incident_timeline(
    incidents: "Sequence[Incident]", complete: "Sequence[NDArray[np.float64]]", step_seconds: float
) -> list[dict[str, Any]]:
    """Return the incidents ordered by onset; `complete` are the intervals of the run's series.

    The time of an onset before the series is extrapolated from the detection, at `step_seconds` per step. An unknown
    onset is placed at the detection.
    """
    return sorted(
        (_entry(incident, complete, step_seconds) for incident in incidents[:TIMELINE_MAX]),
        key=lambda entry: (entry["begin_unix_seconds"], entry["id"]),
    )


def _entry(incident: "Incident", complete: "Sequence[NDArray[np.float64]]", step_seconds: float) -> dict[str, Any]:
    opened_s = incident.opened_unix_ns * _NS
    onset_s = opened_s
    if incident.onset_step is not None and incident.detected_step is not None:
        before_s = max(incident.detected_step - incident.onset_step, 0) * step_seconds
        known_s = time_of_step(complete, incident.onset_step, opened_s)
        onset_s = opened_s - before_s if known_s is None else known_s
    closed_s = None if incident.closed_unix_ns is None else round(incident.closed_unix_ns * _NS, 3)
    return {
        "id": incident.id,
        "kind": incident.kind,
        "cause": incident.cause,
        "state": incident.state,
        "culprit": where_of(incident)[:_TEXT_MAX],
        "title": f"{title_of(incident)}, {incident.cause.replace('_', ' ')}"[:_TEXT_MAX],
        "onset_step": incident.onset_step,
        "begin_unix_seconds": round(min(onset_s, opened_s), 3),
        "end_unix_seconds": closed_s,
    }
