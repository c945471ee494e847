# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""Ranks laid out by group, so that one sort gives every group's reference.

Groups that follow from parallel degrees form a regular pattern, which needs no index: a group's members are `inner`
adjacent ranks, repeated in each of `outer` blocks. Other groups are listed.

Shapes: R ranks, G groups, M members of the largest group; O x G x I the ranks of regular groups.
"""

import math
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Figure = TypeVar("Figure", bound=np.generic)
    Floats = NDArray[np.floating]
    Places = NDArray[np.intp]

_NETWORK_SIZE = 3  # values that `median_of_three` orders without sorting
_WIDE = 256  # members from which partial selection is faster than sorting

REFERENCE_QUANTILE = 0.3
"""Slow is one-sided, so the reference is a low quantile: up to 70 % of a large group may be slow.

Rounded to a member: the smaller of two, the second of three and four. The minimum of four, which the reference
implementation uses, doubles the noise on shared cores, because the minimum is the rank with the luckiest step.
"""
_MEDIAN_QUANTILE = 0.49  # the lower median of an even number


def has_nan(values: "Floats") -> bool:
    """Whether any of at least one value is NaN: then the maximum is NaN, which is the fastest check."""
    highest = np.maximum.reduce(values, axis=None)
    return bool(highest != highest)  # noqa: PLR0124  (NaN; numpy's own test of one number takes as long as the maximum)


def median_of_three(a_N: "Floats", b_N: "Floats", c_N: "Floats") -> "Floats":
    """Return the elementwise median, several times faster than the general one; NaN where any is NaN."""
    high_N = np.maximum(a_N, b_N)
    np.minimum(high_N, c_N, out=high_N)
    low_N = np.minimum(a_N, b_N)
    return np.maximum(low_N, high_N, out=low_N)


def middle(values_KN: "Floats") -> "Floats":
    """Return the lower median along the first axis, ignoring NaN; NaN where all are NaN."""
    has_unknown = has_nan(values_KN)
    if len(values_KN) == _NETWORK_SIZE and not has_unknown:
        return median_of_three(*values_KN)
    ordered_KN = np.sort(values_KN, axis=0)
    if not has_unknown:
        last: Floats = ordered_KN[(len(ordered_KN) - 1) // 2]
        return last
    known_N = (~np.isnan(ordered_KN)).sum(axis=0)
    picked: Floats = ordered_KN[np.maximum(known_N - 1, 0) // 2, np.arange(ordered_KN.shape[1])]
    return picked


def median_of(values: "Floats") -> float:
    """Return the same as `numpy.median` in a tenth of the time, for values without NaN; NaN for an empty array."""
    if not len(values):
        return math.nan
    ordered = np.sort(values)
    half = len(ordered) // 2
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)


def mean_of(values: "Floats") -> float:
    """Return the same as `numpy.nanmean` in a tenth of the time; NaN for an empty array."""
    if not len(values):
        return math.nan
    if has_nan(values):
        values = values[~np.isnan(values)]
    return float(np.add.reduce(values) / values.dtype.type(len(values))) if len(values) else math.nan


class Groups:
    """A partition of R ranks into G groups; `sizes_G` are their sizes."""

    def __init__(self, group_R: "Sequence[int] | Places") -> None:
        names, own_R = np.unique(np.asarray(group_R, dtype=np.intp), return_inverse=True)
        self.count = len(names)
        self.sizes_G = np.bincount(own_R, minlength=self.count)
        self._ranks = len(own_R)
        self._shape = _regular(own_R, self.count)
        self._group_R = None if self._shape else own_R.astype(np.min_scalar_type(max(self.count - 1, 0)))
        self._is_even = bool((self.sizes_G == self.sizes_G[0]).all()) if self.count else True

    @property
    def is_regular(self) -> bool:
        """Whether the groups form a regular pattern, which needs no index."""
        return self._shape is not None

    @cached_property
    def _members_GM(self) -> "NDArray[np.unsignedinteger]":
        """The ranks of each group, built on first use: callers that only spread figures need no list."""
        return _members(self.group_R, self.sizes_G)

    @property
    def group_R(self) -> "Places":
        """The group of each rank, array of shape (R,), built for the caller."""
        if self._group_R is not None:
            return self._group_R.astype(np.intp)
        return self.of(np.arange(self._ranks))

    def of(self, ranks: "Places") -> "Places":
        """Return the groups of some ranks."""
        if self._group_R is not None:
            return self._group_R[ranks].astype(np.intp)
        assert self._shape is not None
        return ranks // self._shape[2] % self.count

    def group_of(self, rank: int) -> int:
        """Return the group of one rank."""
        if self._group_R is not None:
            return int(self._group_R[rank])
        assert self._shape is not None
        return rank // self._shape[2] % self.count

    def spread(self, figures_G: "NDArray[Figure]") -> "NDArray[Figure]":
        """Return the figure of each rank's group, array of shape (R,)."""
        if self._group_R is not None:
            figures_R: NDArray[Figure] = figures_G[self._group_R]
            return figures_R
        assert self._shape is not None
        outer, _, inner = self._shape
        stretch = np.repeat(figures_G, inner) if inner > 1 else figures_G
        if outer == 1:
            return stretch
        spread_R: NDArray[Figure] = np.empty((outer, len(stretch)), dtype=stretch.dtype)
        spread_R[:] = stretch
        return spread_R.reshape(-1)

    def broadcast(self, values_R: "Floats", figures_G: "Floats") -> "tuple[Floats, Floats]":
        """Return a view of contiguous `values_R` and each group's figure, in shapes that broadcast."""
        if self._shape is None:
            return values_R, self.spread(figures_G)
        outer, count, inner = self._shape
        if outer == 1:
            return values_R.reshape(count, inner), figures_G[:, None]
        return values_R.reshape(outer, count * inner), np.repeat(figures_G, inner)

    def reference(self, values_R: "Floats") -> "Floats":
        """Return each group's low quantile, array of shape (G,); NaN if no member has a value."""
        return self._quantile(values_R, REFERENCE_QUANTILE)

    def median(self, values_R: "Floats") -> "Floats":
        """Return each group's lower median, array of shape (G,); NaN if no member has a value."""
        return self._quantile(values_R, _MEDIAN_QUANTILE)

    def least(self, values_R: "Floats") -> "Floats":
        """Return each group's smallest known value, array of shape (G,); NaN if no member has one."""
        least_G: Floats = np.fmin.reduce(self._laid_out(values_R), axis=1)
        return least_G

    def sums(self, values_R: "Floats | NDArray[np.bool_]") -> "NDArray[np.float64]":
        """Return each group's sum, array of shape (G,)."""
        if self._group_R is not None:
            return np.bincount(self._group_R, values_R, self.count).astype(np.float64)
        assert self._shape is not None
        outer, count, inner = self._shape
        # Adding whole blocks is several times faster than adding over two axes.
        block = np.add.reduce(values_R.reshape(outer, count * inner), axis=0, dtype=np.float64)
        sums_G: NDArray[np.float64] = block.reshape(count, inner).sum(axis=1)
        return sums_G

    def counts(self, ranks: "Places") -> "Places":
        """Return how many of some ranks belong to each group, array of shape (G,)."""
        return np.bincount(self.of(ranks), minlength=self.count)

    def known(self, values_R: "Floats") -> "Places":
        """Return how many members of each group have a value, array of shape (G,)."""
        return self.sizes_G - self.counts(np.isnan(values_R).nonzero()[0])

    def _laid_out(self, values_R: "Floats") -> "Floats":
        """Return the values by group, array of shape (G, M), a view if possible; padded with NaN."""
        if self._shape is not None:
            outer, count, inner = self._shape
            if outer == 1:
                return values_R.reshape(count, inner)
            # Adjacent values are viewed as one item, so that numpy copies them together.
            items = np.ascontiguousarray(values_R).view(f"V{inner * values_R.itemsize}").reshape(outer, count)
            return np.ascontiguousarray(items.T).view(values_R.dtype).reshape(count, outer * inner)
        padded = values_R if self._is_even else np.append(values_R, np.nan).astype(values_R.dtype)
        laid_out_GM: Floats = padded[self._members_GM]
        return laid_out_GM

    def _quantile(self, values_R: "Floats", quantile: float) -> "Floats":
        values_GM = self._laid_out(values_R)
        is_view = self._shape is not None and self._shape[0] == 1
        values_GM = values_GM.copy() if is_view else values_GM
        members = values_GM.shape[1]
        if self._is_even and not has_nan(values_R):
            place = round(quantile * (members - 1))
            if members > _WIDE:
                values_GM.partition(place, axis=1)
            else:
                values_GM.sort(axis=1)
            return values_GM[:, place].copy()
        place_G = np.rint(quantile * np.maximum(self.known(values_R) - 1, 0)).astype(np.intp)
        if members <= _WIDE:
            values_GM.sort(axis=1)  # NaN sorts last
            picked: Floats = values_GM[np.arange(self.count), place_G]
            return picked
        picked = np.empty(self.count, dtype=values_GM.dtype)
        for place in set(place_G.tolist()):
            rows = (place_G == place).nonzero()[0]
            picked[rows] = np.partition(values_GM[rows], place, axis=1)[:, place]
        return picked


def _regular(group_R: "Places", count: int) -> tuple[int, int, int] | None:
    """Return the pattern of the groups, (outer, count, inner); None if they have none."""
    inner = int(np.argmax(group_R != group_R[0])) if count > 1 else len(group_R)
    if not inner or len(group_R) % (inner * count):
        return None
    is_regular = np.array_equal(group_R, np.arange(len(group_R)) // inner % count)
    return (len(group_R) // (inner * count), count, inner) if is_regular else None


def _members(group_R: "Places", sizes_G: "Places") -> "NDArray[np.unsignedinteger]":
    """Return the ranks of each group, array of shape (G, M); smaller groups are padded with an index past the ranks."""
    order_R = np.argsort(group_R, kind="stable")
    starts_G = np.cumsum(sizes_G) - sizes_G
    place_R = np.arange(len(order_R)) - np.repeat(starts_G, sizes_G)
    shape = (len(sizes_G), int(sizes_G.max(initial=0)))
    members_GM = np.full(shape, len(order_R), dtype=np.min_scalar_type(len(order_R)))
    members_GM[group_R[order_R], place_R] = order_R
    return members_GM
