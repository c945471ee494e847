# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Which part of its own work makes a slow rank slow: data, compute, host or gc.

Pure. Medians over the last steps, so that one odd step names nothing. The peers' figure is the median of those in the
same stage that are not slow themselves, plus what the rank's replica shares: under uneven batches compute differs by
more than any fault, and would be blamed for a slow loader.

Shapes: R ranks, P stages, K steps.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.findings import UNKNOWN
from coordinator.detect.ranks.groups import Groups, middle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.intake.timeline import StepRow
    from coordinator.settings.policy import CausePolicy

    Parts = dict[str, NDArray[np.floating]]

SELF = "self"
WAIT = "wait"
_SURE_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Cause of one slow rank, and seconds a step of it and of its peers by part (`self`, `wait`, components).

    A part that was not measured is left out of both. `confidence` is high, medium or low.
    """

    cause: str
    confidence: str
    own: dict[str, float]
    peers: dict[str, float]


def parts_of(row: "StepRow") -> "Parts":
    """Return the parts of one step: its components, own work and waiting, arrays of shape (n_ranks,), seconds."""
    return {**row.components, SELF: row.self_seconds, WAIT: row.duration - row.self_seconds}


def middling(parts: "Mapping[str, NDArray[np.floating]]") -> dict[str, float]:
    """Return each part's median over the ranks, parts that nobody measured left out."""
    return {name: float(np.nanmedian(value)) for name, value in parts.items() if not np.isnan(value).all()}


def medians(rows: "Sequence[StepRow]") -> "Parts":
    """Return per part the median over `rows`, arrays of shape (n_ranks,), seconds, NaN where never measured."""
    parts = [parts_of(row) for row in rows]
    return {name: middle(np.stack([part[name] for part in parts])) for name in parts[-1]}


def less_work(parts: "Parts", shift_R: "NDArray[np.floating] | None") -> "Parts":
    """Return the parts without the seconds of compute that each rank's work explains."""
    if shift_R is None:
        return parts
    return parts | {name: parts[name] - shift_R for name in (SELF, "compute")}


class Explainer:
    """Explains slow ranks of one layout; `replicas` is None where ranks share no batches."""

    def __init__(self, stages: Groups, replicas: Groups | None) -> None:
        self._stages = stages
        self._replicas = replicas

    def explain(
        self,
        own: "Parts",
        slow_R: "NDArray[np.bool_]",
        shares_R: "NDArray[np.bool_]",
        typical_P: "Parts",
        policy: "CausePolicy",
    ) -> dict[int, Explanation]:
        """Return the explanation of each slow rank by its column.

        `own` holds medians of the last steps; `typical_P` what steps of each stage used to consist of, the reference
        where no healthy rank does the same work; `shares_R` marks the ranks that are slower than their own replica.
        """
        columns = np.flatnonzero(slow_R)
        peers: dict[str, NDArray[np.floating]] = {}
        for name, value_R in own.items():
            healthy_R = np.where(slow_R, np.nan, value_R)
            healthy_P = self._stages.median(healthy_R)
            if name in typical_P:
                healthy_P = np.where(np.isnan(healthy_P), typical_P[name], healthy_P)
            usual_R = self._stages.spread(healthy_P)
            if self._replicas is not None and shares_R.any() and name != WAIT:
                shared_D = np.nan_to_num(self._replicas.median(healthy_R - usual_R))
                usual_R = usual_R + self._replicas.spread(shared_D) * shares_R
            peers[name] = usual_R[columns]
        found = {}
        for place, column in enumerate(columns.tolist()):
            mine = {name: float(value[column]) for name, value in own.items()}
            theirs = {name: float(value[place]) for name, value in peers.items()}
            found[column] = _explain_one(mine, theirs, policy)
        return found


def _explain_one(own: dict[str, float], peers: dict[str, float], policy: "CausePolicy") -> Explanation:
    known = [name for name in own if not np.isnan(own[name] - peers[name])]
    excess = {name: own[name] - peers[name] for name in known if name not in (SELF, WAIT)}
    total = own[SELF] - peers[SELF]
    cause = max(excess, key=lambda name: excess[name], default=UNKNOWN)
    if cause != UNKNOWN and not excess[cause] >= policy.share_min * total > 0:
        cause = UNKNOWN
    share = excess[cause] / total if cause != UNKNOWN else 0.0
    confidence = "high" if share >= _SURE_SHARE else "medium" if cause != UNKNOWN else "low"
    return Explanation(
        cause=cause,
        confidence=confidence,
        own={name: own[name] for name in known},
        peers={name: peers[name] for name in known},
    )
