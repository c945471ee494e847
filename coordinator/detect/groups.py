# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Ranks laid out by group, so that one sort gives every group's reference.

Shapes: R ranks, G groups, M members of the largest group.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_THREE = 3

REFERENCE_QUANTILE = 0.3
"""Slow is one-sided, so the reference is a low quantile: up to 70 % of a large group may be slow.

Rounded to a member: the smaller of two, the second of three and four. The minimum of four, which the reference
implementation takes, doubles the noise on shared cores: one rank is always lucky there.
"""


def median_of_three(
    a_N: "NDArray[np.float64]", b_N: "NDArray[np.float64]", c_N: "NDArray[np.float64]"
) -> "NDArray[np.float64]":
    """Return the median of each place, several times faster than the general one; NaN where any is."""
    median: NDArray[np.float64] = np.maximum(np.minimum(a_N, b_N), np.minimum(np.maximum(a_N, b_N), c_N))
    return median


def middle(values_KN: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return the lower median along the first axis, NaN left out, NaN where all are."""
    if len(values_KN) == _THREE and not np.isnan(values_KN).any():
        return median_of_three(*values_KN)
    ordered_KN = np.sort(values_KN, axis=0)
    known_N = (~np.isnan(ordered_KN)).sum(axis=0)
    picked: NDArray[np.float64] = ordered_KN[np.maximum(known_N - 1, 0) // 2, np.arange(ordered_KN.shape[1])]
    return picked


class Groups:
    """A partition of R ranks into G groups; `group_R` says which, `sizes_G` how many each holds."""

    def __init__(self, group_R: "Sequence[int] | NDArray[np.intp]") -> None:
        names, self.group_R = np.unique(np.asarray(group_R, dtype=np.intp), return_inverse=True)
        self.count = len(names)
        self.sizes_G = np.bincount(self.group_R, minlength=self.count)
        order_R = np.argsort(self.group_R, kind="stable")
        starts_G = np.cumsum(self.sizes_G) - self.sizes_G
        widest = int(self.sizes_G.max(initial=0))
        place_R = np.arange(len(order_R)) - np.repeat(starts_G, self.sizes_G)
        # One column beyond the ranks holds NaN: the padding of smaller groups.
        self._members_GM = np.full((self.count, widest), len(order_R), dtype=np.intp)
        self._members_GM[self.group_R[order_R], place_R] = order_R

    def _spread(self, values_R: "NDArray[np.float64]") -> "NDArray[np.float64]":
        padded = np.append(values_R, np.nan)
        spread: NDArray[np.float64] = padded[self._members_GM]
        return spread

    def reference(self, values_R: "NDArray[np.float64]") -> "NDArray[np.float64]":
        """Return each group's low quantile, array of shape (G,); NaN where no member has a value."""
        return self._quantile(values_R, REFERENCE_QUANTILE)

    def median(self, values_R: "NDArray[np.float64]") -> "NDArray[np.float64]":
        """Return each group's lower median, array of shape (G,); NaN where no member has a value."""
        return self._quantile(values_R, 0.49)

    def _quantile(self, values_R: "NDArray[np.float64]", quantile: float) -> "NDArray[np.float64]":
        ordered_GM = np.sort(self._spread(values_R), axis=1)  # NaN goes last
        known_G = (~np.isnan(ordered_GM)).sum(axis=1)
        place_G = np.rint(quantile * np.maximum(known_G - 1, 0)).astype(np.intp)
        picked: NDArray[np.float64] = ordered_GM[np.arange(self.count), place_G]
        return picked
