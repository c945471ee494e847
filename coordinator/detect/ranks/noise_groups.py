# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Noise groups: one noise figure for all series of a group, and reductions over the series of a group.

Pure. Contiguous noise groups, such as kinds of domains, are slices. Others follow from parallel degrees: each kind of
series is a pattern of groups (`groups.py`), and passes over all series need no index then.

Shapes: N series, P noise groups, C some of the series.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.ranks.groups import Groups

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Figures = NDArray[np.floating]
    Places = NDArray[np.intp]

_ONE_BY_ONE = 4  # noise groups; up to this many are searched one by one
_NONE = np.zeros(0, dtype=np.intp)


class NoiseGroups:
    """Assigns each of N series to one of the noise groups 0, 1, ...; `sizes_P` are their sizes."""

    def __init__(self, group_N: "Places") -> None:
        self.count = int(group_N.max(initial=0)) + 1
        sizes_P = np.bincount(group_N, minlength=self.count)
        self.sizes_P = sizes_P.astype(np.float64)
        is_sorted = bool((np.diff(group_N) >= 0).all()) and bool((sizes_P > 0).all())
        self._runs_P = sizes_P
        self._starts_P = np.cumsum(sizes_P) - sizes_P
        self._group_N = None if is_sorted else group_N.astype(np.min_scalar_type(self.count))
        self._patterns = _patterns(group_N) if len(group_N) and not is_sorted else ()

    def per_series(self, figures_P: "Floats") -> "Floats":
        """Return the figure of each series' noise group, in a shape that broadcasts to (N,)."""
        if self._patterns:
            return np.concatenate([groups.spread(figures_P[its]) for _, its, groups in self._patterns])
        if self._group_N is not None:
            figures_N: Floats = figures_P[self._group_N]
            return figures_N
        return figures_P if self.count == 1 else np.repeat(figures_P, self._runs_P)

    def highest(self, values_N: "Floats") -> "Floats":
        """Return an upper bound of each noise group's values, array of shape (P,); NaN if any of them is."""
        if self._group_N is not None:
            return np.full(self.count, np.maximum.reduce(values_N), dtype=np.float32)
        highest_P: Floats = np.maximum.reduceat(values_N, self._starts_P)
        return highest_P

    def reach(self, values_N: "Floats", highest_P: "Floats") -> "Floats":
        """Return a bound of each noise group's absolute values, given its `highest`, array of shape (P,)."""
        whole = self._group_N is not None
        lowest_P = np.minimum.reduce(values_N) if whole else np.minimum.reduceat(values_N, self._starts_P)
        reach_P: Floats = np.maximum(highest_P, -lowest_P)
        return reach_P

    def above(self, values_N: "Floats", limit_P: "Figures", highest_P: "Floats") -> "Places":
        """Return the series above the limit of their noise group, ascending; no group's values exceed `highest_P`."""
        limit_P = limit_P.astype(np.float32)
        hot = (highest_P > limit_P).nonzero()[0].tolist()
        if not hot:
            return _NONE
        if len(hot) > _ONE_BY_ONE or self._group_N is not None:
            everywhere: Places = (values_N > self.per_series(limit_P)).nonzero()[0]
            return everywhere
        found = []
        for noise_group in hot:
            first = self._starts_P[noise_group]
            own_N = values_N[first : first + self._runs_P[noise_group]]
            found.append((own_N > limit_P[noise_group]).nonzero()[0] + first)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def above_but(self, values_N: "Floats", limit_P: "Figures", those: "Places") -> "Places":
        """Return the series above the limit of their noise group, except `those`, ascending."""
        above_N = values_N > self.per_series(limit_P.astype(np.float32))
        if len(those):
            above_N[those] = False
        places: Places = above_N.nonzero()[0]
        return places

    def clip(self, values_N: "Floats", limit_P: "Figures", reach_P: "Floats") -> "Floats":
        """Return the values clipped symmetrically at their noise group's limit; unchanged if `reach_P` is below it."""
        limit_P = limit_P.astype(np.float32)
        if not np.count_nonzero(reach_P > limit_P):
            return values_N
        limit_N = self.per_series(limit_P)
        clipped_N: Floats = np.fmin(values_N, limit_N)
        if np.minimum.reduce(values_N) < -np.fmin.reduce(limit_P):
            np.fmax(clipped_N, -limit_N, out=clipped_N)
        return clipped_N

    def of(self, series: "Places") -> "Places":
        """Return the noise groups of some series."""
        if self.count == 1:
            return np.zeros(len(series), dtype=np.intp)
        if self._group_N is None:
            return self._starts_P.searchsorted(series, side="right") - 1
        return self._group_N[series].astype(np.intp)

    def counts(self, series: "Places") -> "NDArray[np.float64]":
        """Return how many of some series belong to each noise group, array of shape (P,)."""
        return np.bincount(self.of(series), minlength=self.count).astype(np.float64)

    def counts_below(self, values_N: "Floats", limit_P: "Figures") -> "NDArray[np.float64]":
        """Return how many of each noise group's series are below its limit, array of shape (P,)."""
        return self.sums(values_N < self.per_series(limit_P.astype(np.float32)))

    def members(self, noise_group: int) -> "Places | slice":
        """Return the indices of the series of a noise group."""
        if self._group_N is not None:
            return np.flatnonzero(self._group_N == noise_group)
        first = int(self._starts_P[noise_group])
        return slice(first, first + int(self._runs_P[noise_group]))

    def sums(self, values_N: "Floats | NDArray[np.bool_]") -> "NDArray[np.float64]":
        """Return the sum of each noise group's values, array of shape (P,)."""
        if self._group_N is None:
            sums: NDArray[np.float64] = np.add.reduceat(values_N, self._starts_P, dtype=np.float64)
            return sums
        if self._patterns:
            return np.concatenate([groups.sums(values_N[span]) for span, _, groups in self._patterns])
        return np.bincount(self._group_N, values_N, self.count).astype(np.float64)


def _patterns(group_N: "Places") -> "tuple[tuple[slice, slice, Groups], ...]":
    """Return spans of series, the noise groups in each and their pattern; nothing if one has none.

    Spans are as short as possible, given that no two share a noise group and that noise groups ascend over spans.
    """
    highest_N = np.maximum.accumulate(group_N)
    lowest_N = np.minimum.accumulate(group_N[::-1])[::-1]
    starts = [0, *(np.flatnonzero(lowest_N[1:] > highest_N[:-1]) + 1).tolist(), len(group_N)]
    spans = [slice(start, stop) for start, stop in pairwise(starts)]
    patterns = [
        (span, slice(int(lowest_N[span.start]), int(highest_N[span.stop - 1]) + 1), Groups(group_N[span]))
        for span in spans
    ]
    is_regular = all(groups.is_regular and groups.count == its.stop - its.start for _, its, groups in patterns)
    return tuple(patterns) if is_regular else ()
