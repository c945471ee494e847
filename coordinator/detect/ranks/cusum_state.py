# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""The clipped one-sided sums of many series, stored only while they are above zero.

Pure. A healthy series is at zero in all but a few percent of its steps, so memory and time are spent on the others. One
comparison shows which series might leave zero.

Shapes: N series, P noise groups, C series above zero, E series that came back to zero.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.ranks.detection_limits import SHORT_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from coordinator.detect.ranks.noise_groups import NoiseGroups
    from coordinator.settings.policy import ExcessPolicy

    Floats = NDArray[np.float32]
    Figures = NDArray[np.floating]
    Marks = NDArray[np.bool_]
    Places = NDArray[np.intp]

_SAFE_SHARE = 1 - 1e-6  # of the bound below which no sum leaves zero: ten times the rounding error of float32
_GROWN_SHARE = 0.5  # mean deviation since its onset relative to the present one, drifts included
_FIGURES = 7  # stored per series above zero
_SLACK_MIN = 1e-6  # sigmas; avoids 0 x infinity while noise is unknown


class CusumState:
    """`series` (unordered) are above zero; each has its sum, the steps since it left zero, and their deviation.

    The deviation is stored twice: clipped for means, so that no single step dominates one, and in full. The next figure
    is how many of these steps stalled: they exceeded `stall_ratio` and added the most that a step can. Each series
    also has the sum over its static difference. A change is smaller than the whole deviation, so this sum is above
    zero only if the other one is. The last figure is the highest that the sum has been.
    """

    def __init__(self, noise_groups: "NoiseGroups") -> None:
        self._noise_groups = noise_groups
        self.series = np.zeros(0, dtype=np.intp)
        self.group_C = np.zeros(0, dtype=np.intp)
        self._figures_C7 = np.zeros((0, _FIGURES), dtype=np.float32)
        self.ended_group_E = np.zeros(0, dtype=np.intp)
        """The noise groups of the series that came back to zero in the last step, ..."""
        self.ended_peak_E = np.zeros(0, dtype=np.float32)
        """... the highest that their sums have been, ..."""
        self.ended_stalled_E = np.zeros(0, dtype=np.float32)
        """... and how many of their steps stalled."""

    @property
    def sum_C(self) -> "Floats":
        """The sum of each of `series`."""
        return self._figures_C7[:, 0]

    def move(
        self,
        raw_N: "Floats",
        seen_N: "Marks | None",
        sigma_P: "Figures",
        warm_P: "Marks | None",
        *,
        most_P: "Figures",
        stall_ratio: float,
        policy: "ExcessPolicy",
        static_of: "Callable[[Places], Floats] | None" = None,
        noise_factor_N: "Floats | None" = None,
    ) -> None:
        """Add one step: scores in sigmas less the slack, and the deviation itself, clipped at `most_P` for means.

        `static_of` returns the static difference of some series, ratio; without it all are 0. `noise_factor_N` is the
        noise of each series relative to its noise group, None if all are alike. Noise groups that `warm_P` (None: all)
        does not mark add no score; series that `seen_N` does not mark add nothing.
        """
        bound_P = sigma_P * (max(policy.slack_sigmas, _SLACK_MIN) * _SAFE_SHARE)
        if warm_P is not None:
            bound_P[~warm_P] = np.inf
        self._admit(self._noise_groups.above_but(raw_N, bound_P, self.series))
        self.ended_group_E, self.ended_peak_E, self.ended_stalled_E = self.group_C[:0], self.sum_C[:0], self.sum_C[:0]
        if not len(self.series):
            return
        group_C = self.group_C
        deviation_C = raw_N[self.series]
        sigma_C = sigma_P.astype(np.float32)[group_C]
        if noise_factor_N is not None:
            sigma_C *= noise_factor_N[self.series]
        seen: Marks | int = 1 if seen_N is None else seen_N[self.series]
        adds: Marks | int = seen if warm_P is None else np.logical_and(seen, warm_P[group_C])
        sum_C, run_C, total_C, whole_C, stalled_C, change_C, peak_C = self._figures_C7.T
        score_C = _score(deviation_C, sigma_C, policy)
        sum_C += score_C * adds
        run_C += seen
        stalled_C += (deviation_C > np.maximum(sigma_C * np.float32(policy.clip_sigmas), stall_ratio)) * adds
        if static_of is not None:
            score_C = _score(deviation_C - np.maximum(static_of(self.series), 0), sigma_C, policy)
        change_C += np.where(adds, score_C, 0)  # the static difference may be infinite
        np.maximum(change_C, 0, out=change_C)
        deviation_C *= seen
        whole_C += deviation_C
        total_C += np.minimum(deviation_C, most_P.astype(np.float32)[group_C])
        np.maximum(peak_C, sum_C, out=peak_C)
        is_above_C = sum_C > 0
        self.ended_group_E = group_C[~is_above_C]
        self.ended_peak_E, self.ended_stalled_E = peak_C[~is_above_C], stalled_C[~is_above_C]
        self._keep(is_above_C.nonzero()[0])

    def _admit(self, series: "Places") -> None:
        """Begin the sums of more series."""
        if not len(series):
            return
        known = len(self.series)
        figures_C7 = np.zeros((known + len(series), _FIGURES), dtype=np.float32)
        figures_C7[:known] = self._figures_C7
        self._figures_C7 = figures_C7
        self.series = np.concatenate((self.series, series))
        self.group_C = np.concatenate((self.group_C, self._noise_groups.of(series)))

    def _keep(self, places: "Places") -> None:
        if len(places) < len(self.series):
            self.series, self.group_C = self.series[places], self.group_C[places]
            self._figures_C7 = self._figures_C7[places]

    def above(self, limit: float) -> "Places":
        """Return the series whose sum is above a limit."""
        if not len(self.series):
            return self.series
        return self.series[(self._figures_C7[:, 0] > limit).nonzero()[0]]

    def changed(self, limit: float) -> "Places":
        """Return the series whose sum over their static difference is above a limit."""
        return self.series[(self._figures_C7[:, 5] > limit).nonzero()[0]]

    def of(self, series: "Places") -> "Floats":
        """Return sum, steps since it left zero, clipped and full deviation and stalled steps of some series, 0 at zero.

        Shape (5, C).
        """
        return self._of(series)[:5]

    def changes_of(self, series: "Places") -> "Floats":
        """Return the sums over static differences, array of shape (C,)."""
        change_C: Floats = self._of(series)[5]
        return change_C

    def _of(self, series: "Places") -> "Floats":
        if not len(self.series):
            return np.zeros((_FIGURES, len(series)), dtype=np.float32)
        order = self.series.argsort()
        place = order[np.minimum(self.series.searchsorted(series, sorter=order), len(order) - 1)]
        figures_7C: Floats = self._figures_C7[place].T * (self.series[place] == series)
        return figures_7C

    def lasted(self, series: "Places", level_C: "Floats") -> list[int]:
        """Return how many steps deviations of the present sizes `level_C` have lasted in some series."""
        _, run_C, _, deviation_C, _ = self.of(series)
        figures = zip(run_C.astype(int).tolist(), deviation_C.tolist(), level_C.tolist(), strict=True)
        return [steps_lasted(*each) for each in figures]

    def drop(self, series: "Places") -> None:
        """Reset some series to zero."""
        self._keep(np.isin(self.series, series, invert=True).nonzero()[0])

    def bound_runs(self, steps: int) -> None:
        """Limit the step counts of all series to `steps`."""
        run_C = self._figures_C7[:, 1]
        np.minimum(run_C, steps, out=run_C)

    def state_dict(self) -> "dict[str, NDArray[np.generic]]":
        """Return the whole state, arrays by name."""
        return {"series": self.series, "figures": self._figures_C7}

    def load_state_dict(self, state: "dict[str, NDArray[np.generic]]", count: int) -> None:
        """Restore the result of `state_dict`; a state for another number of series is ignored."""
        series = state.get("series", np.zeros(0)).astype(np.intp)
        figures_C7 = state.get("figures", np.zeros(0))
        if figures_C7.shape != (*series.shape, _FIGURES):
            return
        if not ((series < 0) | (series >= count)).any():
            self.series, self.group_C = series, self._noise_groups.of(series)
            self._figures_C7 = figures_C7.astype(np.float32)


def _score(deviation_C: "Floats", sigma_C: "Floats", policy: "ExcessPolicy") -> "Floats":
    """Return what a step's deviation adds to the sums, sigmas."""
    score_C: Floats = np.minimum(deviation_C / sigma_C, np.float32(policy.clip_sigmas))
    score_C -= np.float32(policy.slack_sigmas)
    return score_C


def steps_lasted(run: int, deviation: float, level: float) -> int:
    """Return how many steps a deviation of size `level` has lasted, from the steps since its sum left zero (Page 1954).

    `level` is the present size, `deviation` the total since then. The sum may have left zero long before, because of a
    static device variation or by chance; its steps are then counted by how many of the present size they amount to.
    """
    run = max(run, 1)
    if deviation < _GROWN_SHARE * level * run:
        run = max(math.ceil(deviation / level), SHORT_STEPS)
    return run
