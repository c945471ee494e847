# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Ranks laid out by group, so that one sort gives every group's reference.

Shapes: R ranks, G groups, M members of the largest group.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.floating]

_THREE = 3
_WIDE = 256  # members from which selecting one place is quicker than sorting

REFERENCE_QUANTILE = 0.3
"""Slow is one-sided, so the reference is a low quantile: up to 70 % of a large group may be slow.

Rounded to a member: the smaller of two, the second of three and four. The minimum of four, which the reference
implementation takes, doubles the noise on shared cores: one rank is always lucky there.
"""
_MEDIAN_QUANTILE = 0.49  # the lower median of an even number


def median_of_three(a_N: "Floats", b_N: "Floats", c_N: "Floats") -> "Floats":
    """Return the median of each place, several times faster than the general one; NaN where any is."""
    high_N = np.maximum(a_N, b_N)
    np.minimum(high_N, c_N, out=high_N)
    low_N = np.minimum(a_N, b_N)
    return np.maximum(low_N, high_N, out=low_N)


def middle(values_KN: "Floats") -> "Floats":
    """Return the lower median along the first axis, NaN left out, NaN where all are."""
    if len(values_KN) == _THREE and not np.isnan(values_KN).any():
        return median_of_three(*values_KN)
    ordered_KN = np.sort(values_KN, axis=0)
    known_N = (~np.isnan(ordered_KN)).sum(axis=0)
    picked: Floats = ordered_KN[np.maximum(known_N - 1, 0) // 2, np.arange(ordered_KN.shape[1])]
    return picked


class Groups:
    """A partition of R ranks into G groups; `group_R` says which, `sizes_G` how many each holds."""

    def __init__(self, group_R: "Sequence[int] | NDArray[np.intp]") -> None:
        names, self.group_R = np.unique(np.asarray(group_R, dtype=np.intp), return_inverse=True)
        self.count = len(names)
        self.sizes_G = np.bincount(self.group_R, minlength=self.count)
        self._is_even = bool((self.sizes_G == self.sizes_G[0]).all()) if self.count else True
        order_R = np.argsort(self.group_R, kind="stable")
        starts_G = np.cumsum(self.sizes_G) - self.sizes_G
        widest = int(self.sizes_G.max(initial=0))
        place_R = np.arange(len(order_R)) - np.repeat(starts_G, self.sizes_G)
        # Beyond the ranks stands NaN: the padding of smaller groups.
        self._members_GM = np.full((self.count, widest), len(order_R), dtype=np.intp)
        self._members_GM[self.group_R[order_R], place_R] = order_R

    def reference(self, values_R: "Floats") -> "Floats":
        """Return each group's low quantile, array of shape (G,); NaN where no member has a value."""
        return self._quantile(values_R, REFERENCE_QUANTILE)

    def median(self, values_R: "Floats") -> "Floats":
        """Return each group's lower median, array of shape (G,); NaN where no member has a value."""
        return self._quantile(values_R, _MEDIAN_QUANTILE)

    def sums(self, values_R: "Floats") -> "NDArray[np.float64]":
        """Return each group's sum, array of shape (G,)."""
        return np.bincount(self.group_R, values_R, self.count).astype(np.float64)

    def known(self, values_R: "Floats") -> "NDArray[np.intp]":
        """Return how many members of each group have a value, array of shape (G,)."""
        return np.bincount(self.group_R, ~np.isnan(values_R), self.count).astype(np.intp)

    def _quantile(self, values_R: "Floats", quantile: float) -> "Floats":
        padded = values_R if self._is_even else np.append(values_R, np.nan).astype(values_R.dtype)
        values_GM = padded[self._members_GM]
        if self._is_even and not np.isnan(values_GM.sum()):
            place = round(quantile * (values_GM.shape[1] - 1))
            values_GM = (
                np.partition(values_GM, place, axis=1) if values_GM.shape[1] > _WIDE else np.sort(values_GM, axis=1)
            )
            return values_GM[:, place]
        values_GM = np.sort(values_GM, axis=1)  # NaN goes last
        known_G = (~np.isnan(values_GM)).sum(axis=1)
        place_G = np.rint(quantile * np.maximum(known_G - 1, 0)).astype(np.intp)
        picked: Floats = values_GM[np.arange(self.count), place_G]
        return picked
