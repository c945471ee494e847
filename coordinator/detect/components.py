# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Which part of its own work makes a slow rank slow: data, compute, host or gc.

Pure. Medians over the last steps, so that one odd step names nothing; the peers' figure is the median of those in the
same stage that are not slow themselves.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.groups import Groups, middle
from coordinator.findings import LINK, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from coordinator.policy import CausePolicy
    from coordinator.timeline import StepRow

SELF = "self"
WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Cause of one slow rank, and seconds a step of it and of its peers by part (`self`, `wait`, components).

    A part that was not measured is left out of both.
    """

    cause: str
    own: dict[str, float]
    peers: dict[str, float]


def parts_of(row: "StepRow") -> "dict[str, NDArray[np.float64]]":
    """Return the parts of one step: its components, own work and waiting, arrays of shape (n_ranks,), seconds."""
    return {**row.components, SELF: row.self_seconds, WAIT: row.duration - row.self_seconds}


def middling(parts: "dict[str, NDArray[np.float64]]") -> dict[str, float]:
    """Return each part's median over the ranks, parts that nobody measured left out."""
    return {name: float(np.nanmedian(value)) for name, value in parts.items() if not np.isnan(value).all()}


def medians(rows: "Sequence[StepRow]") -> "dict[str, NDArray[np.float64]]":
    """Return per part the median over `rows`, arrays of shape (n_ranks,), seconds, NaN where never measured."""
    parts = [parts_of(row) for row in rows]
    return {name: middle(np.stack([part[name] for part in parts])) for name in parts[-1]}


def explain(
    rows: "Sequence[StepRow]",
    slow_R: "NDArray[np.bool_]",
    stages: Groups,
    typical: "dict[str, NDArray[np.float64]]",
    policy: "CausePolicy",
) -> dict[int, Explanation]:
    """Return the explanation of each slow rank by its column.

    `rows` are the last steps, the youngest last; `typical` what each rank's steps used to consist of, the reference
    where no healthy rank does the same work.
    """
    own = medians(rows)
    peers: dict[str, NDArray[np.float64]] = {}
    for name, value_R in own.items():
        healthy_P = stages.median(np.where(slow_R, np.nan, value_R))
        healthy_R = healthy_P[stages.group_R]
        peers[name] = np.where(np.isnan(healthy_R), typical.get(name, np.nan), healthy_R)
    return {
        int(column): _explain_one(
            {name: float(value[column]) for name, value in own.items()},
            {name: float(value[column]) for name, value in peers.items()},
            policy,
        )
        for column in np.flatnonzero(slow_R)
    }


def _explain_one(own: dict[str, float], peers: dict[str, float], policy: "CausePolicy") -> Explanation:
    known = [name for name in own if not np.isnan(own[name] - peers[name])]
    excess = {name: own[name] - peers[name] for name in known if name not in (SELF, WAIT)}
    total = own[SELF] - peers[SELF]
    cause = max(excess, key=lambda name: excess[name], default=UNKNOWN)
    if cause != UNKNOWN and not excess[cause] >= policy.share_min * total > 0:
        cause = UNKNOWN
    return Explanation(
        cause=cause, own={name: own[name] for name in known}, peers={name: peers[name] for name in known}
    )


def explain_run(before: dict[str, float], now: dict[str, float], policy: "CausePolicy") -> str:
    """Return the cause of a slower run from typical seconds a step by part, before and now.

    Waiting grows with whatever grows on a few ranks, so communication is the answer only when no own work explains a
    share of it.
    """
    growth = {name: now[name] - before[name] for name in now if name in before and name != SELF}
    total = sum(max(0.0, value) for value in growth.values())
    own = {name: value for name, value in growth.items() if name != WAIT}
    largest = max(own, key=lambda name: own[name], default=UNKNOWN)
    if total > 0 and own and own[largest] >= policy.run_share_min * total:
        return largest
    return LINK if total > 0 and growth.get(WAIT, 0.0) > 0 else UNKNOWN
