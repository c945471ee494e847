# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Finds the outliers inside communication groups: the ranks that make the others wait.

A collective is slow on all ranks in the group of a slow link; the paper's three workers without NVLink are among 48
slow ones. Inside such a group the outlier is found by its hardware usage, in either direction (more on the PCIe that
replaces NVLink; less, and steadier, on the slow link: PerfTracker, sections 3 and 6.1), or, without measurements, by
the shortest collective: the last rank to arrive waits for no other.

Shape suffixes: D dimensions, W workers, M members of one group.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.localisation.limits import (
    EFFECT_BETA,
    EFFECT_RATIO,
    EFFECT_USE,
    GROUP_MEMBERS,
    GROUP_SHARE,
    OUTLIER_LENGTH,
    SPREAD_FLOOR,
    SPREAD_FLOOR_RATIO,
)
from lockstep.diagnosis.localisation.matrix import BETA, MU, Flags, Single

GROUPS_MAX = 4096
"""Flagged groups to search; with more of them the problem is not a single link."""

_SPREAD_OF_MAD = 1.4826
NO_GROUP = -1
Groups = NDArray[np.int64]
"""The group of each worker in one kind of communication domain, NO_GROUP for none; array of shape (n_workers,)."""


class OutlierBy(StrEnum):
    """The evidence that a worker is the outlier of its group."""

    NOTHING = ""
    USAGE = "hardware usage"
    SHORTEST = "shortest collective"


@dataclass(frozen=True, slots=True)
class GroupOutliers:
    """The outliers (int64 indices of workers) of one kind of group; empty without one."""

    worker: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    by: OutlierBy = OutlierBy.NOTHING
    group_kind: str = ""


def outlier_ranks(values_DW: Single, flagged_W: Flags, groups: Mapping[str, Groups]) -> GroupOutliers:
    """Return the outliers inside the flagged groups, of the kind of group that explains the flagged workers best.

    A kind explains them if most workers of their groups are flagged. Outliers by usage take precedence over those by
    the shortest collective, because a rank that arrives late is not slow in this function.
    """
    best, kind = 0.0, ""
    for name, group_W in groups.items():
        share = _explained(flagged_W, group_W)
        if share > best:
            best, kind = share, name
    if best < GROUP_SHARE.value:
        return GroupOutliers()
    groups_found = _flagged_groups(flagged_W, groups[kind])
    for by, of in ((OutlierBy.USAGE, _outliers_by_usage), (OutlierBy.SHORTEST, _shortest)):
        found = [members[of(values_DW[:, members])] for members in groups_found]
        if any(map(len, found)):
            return GroupOutliers(np.concatenate(found), by, kind)
    return GroupOutliers()


def _explained(flagged_W: Flags, group_W: Groups) -> float:
    """Return the share of flagged workers in the groups (of at least 3) that contain one."""
    inside_W = group_W != NO_GROUP
    if not (flagged_W & inside_W).any():
        return 0.0
    size, flagged = np.bincount(group_W[inside_W]), np.bincount(group_W[inside_W], flagged_W[inside_W])
    touched = (flagged > 0) & (size >= GROUP_MEMBERS.value)
    return float(flagged[touched].sum() / size[touched].sum()) if touched.any() else 0.0


def _flagged_groups(flagged_W: Flags, group_W: Groups) -> list[NDArray[np.int64]]:
    """Return the members of each group whose members are mostly flagged."""
    inside = np.flatnonzero(group_W != NO_GROUP)
    order = inside[np.argsort(group_W[inside], kind="stable")]
    bounds = np.flatnonzero(np.diff(group_W[order])) + 1
    starts, sizes = np.append(0, bounds), np.diff(np.concatenate(([0], bounds, [len(order)])))
    flagged = np.add.reduceat(flagged_W[order].astype(np.int64), starts)
    chosen = np.flatnonzero((flagged >= GROUP_SHARE.value * sizes) & (sizes >= GROUP_MEMBERS.value))[:GROUPS_MAX]
    return [order[start : start + size] for start, size in zip(starts[chosen], sizes[chosen], strict=True)]


def _outliers_by_usage(values_DM: Single) -> Flags:
    """Return the members whose usage differs from the others', none if they are not the minority."""
    apart = [_apart(uses_M, EFFECT_USE.value) for uses_M in values_DM[MU:] if not np.isnan(uses_M).any()]
    if not apart:
        return np.zeros(values_DM.shape[1], np.bool_)
    outlier_M: Flags = np.any([effect_M for _, effect_M in apart], axis=0)
    outlier_M &= np.sum([spreads_M**2 for spreads_M, _ in apart], axis=0) > OUTLIER_LENGTH.value**2
    return outlier_M if 2 * np.count_nonzero(outlier_M) < len(outlier_M) else np.zeros_like(outlier_M)


def _shortest(values_DM: Single) -> Flags:
    """Return the member that waits least, if its wait is clearly the shortest."""
    spreads_M, effect_M = _apart(values_DM[BETA], EFFECT_BETA.value)
    least: Flags = (spreads_M == spreads_M.min()) & (spreads_M < -OUTLIER_LENGTH.value) & effect_M
    return least


def _apart(values_M: Single, least_effect: float) -> tuple[NDArray[np.float64], Flags]:
    """Return how far each member is from the median, in robust spreads, and whether that is an effect."""
    middle = float(np.median(values_M))
    off_M = values_M.astype(np.float64) - middle
    spread = float(np.median(np.abs(off_M))) * _SPREAD_OF_MAD
    floors = SPREAD_FLOOR_RATIO.value * middle, SPREAD_FLOOR.value
    return off_M / max(spread, *floors), np.abs(off_M) > max(least_effect, EFFECT_RATIO.value * middle)
