"""Predicts the gain of a repair from records alone, for a job that is slower as a whole.

Pure. The step of a slower run has grown by the amount that `run_cause` measured, and its cause explains a share of it.
What all ranks do longer is on the critical path, so without it a step would be shorter by the same amount. Transfers of
a whole network count as far as they are exposed. This is not a model: growth without a cause predicts no gain.
"""

from typing import TYPE_CHECKING, NamedTuple

from coordinator.decide.incidents import BY_RECORDS, Prediction
from coordinator.decide.selection import JOB
from coordinator.detect.anomalies import FLUCTUATION, SLOW_LINK, UNKNOWN, UNSYNCHRONISED_GC

if TYPE_CHECKING:
    from coordinator.decide.incidents import Incident


class Loss(NamedTuple):
    """Seconds per step that the cause costs, and the current step time."""

    lost_seconds: float
    step_seconds: float

    def prediction(self, usual_seconds: float) -> Prediction:
        """Return the predicted gain if the cause has recently cost `usual_seconds` per step."""
        repaired_s = self.step_seconds - self.lost_seconds
        faulty_s = repaired_s + usual_seconds
        return Prediction(
            gain_ratio=usual_seconds / faulty_s,
            faulty_step_seconds=faulty_s,
            repaired_step_seconds=repaired_s,
            error_band_ratio=None,
            source=BY_RECORDS,
        )


def loss_of(incident: "Incident", baseline_seconds: float | None = None) -> Loss | None:
    """Return the cost per step of the cause of a slower run, relative to its healthy past; None if it is not measured.

    `baseline_seconds` is a step by the run's history, which incidents of a whole network do not include.
    """
    figures = incident.numbers
    if incident.kind == FLUCTUATION and incident.cause != UNKNOWN:
        grown_s, share = figures.get("step_growth_seconds", 0.0), figures.get("explained_share", 0.0)
        # Parts and steps have different baselines; that of the step is the more accurate one for its growth.
        lost_s, step_s = min(share * grown_s, incident.excess_seconds), figures.get("baseline_step_seconds", 0.0)
        step_s += incident.excess_seconds
    elif incident.kind == UNSYNCHRONISED_GC:
        all_s, ratio = figures.get("lost_seconds", 0.0), figures.get("lost_ratio", 0.0)
        lost_s = min(figures.get("saving_seconds", 0.0), all_s)
        step_s = all_s / ratio + all_s if ratio > 0 else 0.0
    elif incident.kind == SLOW_LINK and incident.scope == JOB and baseline_seconds is not None:
        lost_s, step_s = incident.excess_seconds, baseline_seconds + incident.excess_seconds
    else:
        return None
    return Loss(lost_s, step_s) if 0 < lost_s < step_s else None
