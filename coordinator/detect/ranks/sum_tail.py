# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""How far do sums of healthy series reach? Learnt from those that came back to zero, and what a sum must exceed then.

Pure. A CUSUM's limit follows from its average run length if noise is white and Gaussian. Threads that share cores are
descheduled in the same part of several steps in a row: their sums reach the limit for white noise every few thousand
steps. Peaks over a threshold are exponential whatever the noise (Pickands 1975), so their rate and their mean excess
give how often a sum passes any limit, and the limit for the steps between false alarms.

Shapes: P noise groups, E sums that came back to zero.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Figures = NDArray[np.float64]

THRESHOLD_SHARE = 0.5
"""Of the limit for white noise: a sum is counted from there on. White noise has one in 400 steps of 8 series."""
_MEMORY_STEPS = 1024
_PRIOR_PEAKS = 2.0  # of white noise, that what is known weighs as


class SumTail:
    """State of the peaks of the sums of each noise group, faded over `_MEMORY_STEPS`.

    `figures_3P` holds the steps that were seen, the peaks over the threshold, and the sum of what they exceeded it by.
    """

    def __init__(self, noise_groups: int) -> None:
        self.figures_3P: Figures = np.zeros((3, noise_groups))

    def learn(
        self,
        group_E: "NDArray[np.intp]",
        peak_E: "NDArray[np.floating]",
        threshold_P: "Figures",
        counts_P: "NDArray[np.bool_] | int" = 1,
    ) -> None:
        """Add the sums that came back to zero in this step: their noise groups and their peaks, sigmas.

        `counts_P` are the noise groups that were evaluated in this step.
        """
        self.figures_3P *= 1 - 1 / _MEMORY_STEPS
        steps_P, count_P, excess_P = self.figures_3P
        steps_P += counts_P
        over_E = peak_E - threshold_P[group_E]
        is_over_E = over_E > 0
        np.add.at(count_P, group_E[is_over_E], 1.0)
        np.add.at(excess_P, group_E[is_over_E], over_E[is_over_E])

    def limit_P(self, threshold_P: "Figures", slack: float, steps_P: "Figures") -> "Figures":
        """Return what a sum exceeds once in so many steps of its noise group, sigmas, array of shape (P,).

        `slack` is that of each step; in white noise the mean excess is 1 / (2 slack).
        """
        seen_P, count_P, excess_P = self.figures_3P
        mean_P = (_PRIOR_PEAKS / (2 * slack) + excess_P) / (_PRIOR_PEAKS + count_P)
        expected_P = count_P / np.maximum(seen_P, 1.0) * steps_P
        limit_P: Figures = threshold_P + mean_P * np.log(np.maximum(expected_P, 1.0))
        return limit_P
