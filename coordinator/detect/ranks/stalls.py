# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""How many stalled steps in a row chance explains: learnt from the sums that came back to zero.

Pure. A stalled step adds the most that a step can to a sum. How often series stall, and how often a second stalled step
follows the first, is known from healthy sums. Stalls are taken for pairs at most: what follows a pair is another stall.
So many in a row come by chance, among all series and in the steps between false pages, that a sum must be an alarm's
without them.

Shapes: P noise groups, E sums that came back to zero.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Figures = NDArray[np.float64]

_MEMORY_STEPS = 1024
_PRIOR_STALLS, _PRIOR_STEPS = 0.5, 5000.0  # of healthy hosts: noisy ones stall once in 10,000 steps
_PRIOR_PAIRS, _PRIOR_FIRSTS = 0.5, 5.0  # on shared hosts three stalls in ten take two steps
_ROW_MAX = 20


class Stalls:
    """State of the stalls of `series_P` series in each noise group, faded over `_MEMORY_STEPS`.

    `figures_3P` holds the steps of all series that were seen, the stalls, and those of at least two steps.
    """

    def __init__(self, series_P: "Figures") -> None:
        self._series_P = series_P
        self.figures_3P: Figures = np.zeros((3, len(series_P)))

    def learn(
        self,
        group_E: "NDArray[np.intp]",
        stalled_E: "NDArray[np.floating]",
        counts_P: "NDArray[np.bool_] | int" = 1,
    ) -> None:
        """Add the sums that came back to zero in this step: their noise groups, and how many of their steps stalled.

        `counts_P` are the noise groups that were evaluated in this step.
        """
        self.figures_3P *= 1 - 1 / _MEMORY_STEPS
        seen_P, stalls_P, pairs_P = self.figures_3P
        seen_P += self._series_P * counts_P
        np.add.at(stalls_P, group_E[stalled_E > 0], 1.0)
        np.add.at(pairs_P, group_E[stalled_E > 1], 1.0)

    def row_P(self, steps: float, least: int) -> "Figures":
        """Return how many stalled steps in a row chance does not bring, array of shape (P,), at least `least`.

        `steps` are the expected steps between false pages of each series.
        """
        seen_P, stalls_P, pairs_P = self.figures_3P
        rate_P = (_PRIOR_STALLS + stalls_P) / (_PRIOR_STEPS + seen_P)
        again_P = np.minimum((_PRIOR_PAIRS + pairs_P) / (_PRIOR_FIRSTS + stalls_P), 1.0)
        row_P = np.full(len(seen_P), float(least))
        for row in range(least, _ROW_MAX):
            pairs, single = divmod(row, 2)  # the single stall has as many places as there are pairs, and one
            expected_P = steps * (rate_P * again_P) ** pairs * ((pairs + 1) * rate_P) ** single
            row_P[expected_P > 1] = row + 1
        return row_P
