# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Which of many series are in alarm, and the state of each alarm: a table with one row per alarm.

Pure. Shapes: N series, A series in alarm, C some of these.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Places = NDArray[np.intp]

_NO_STEP = -1
_LEVEL_RATE = np.float32(1 / 8)  # smoothing of the reported level, per step


class Alarms:
    """`series_A` (ascending) are in alarm: the smoothed deviation of each, and the step at which it began."""

    def __init__(self) -> None:
        self.series_A = np.zeros(0, dtype=np.intp)
        self.level_A = np.zeros(0, dtype=np.float32)
        self.onset_A = np.zeros(0, dtype=np.int64)
        self._quiet_A = np.zeros(0, dtype=np.int64)
        self._place: dict[int, int] = {}

    def __len__(self) -> int:
        """Return the number of series in alarm."""
        return len(self._place)

    def __contains__(self, series: int) -> bool:
        """Whether a series is in alarm."""
        return series in self._place

    def is_quiet(self, series: int) -> bool:
        """Whether a series in alarm had no deviation in the last step."""
        return bool(self._quiet_A[self._place[series]] > 0)

    @property
    def has_quiet(self) -> bool:
        """Whether any series in alarm had no deviation in the last step."""
        return bool(self._quiet_A.any())

    def without(self, series: "Places") -> "Places":
        """Return those of `series` that are not in alarm."""
        if not len(self._place):
            return series
        place = np.minimum(self.series_A.searchsorted(series), len(self._place) - 1)
        others: Places = series[self.series_A[place] != series]
        return others

    def of(self, series: int) -> tuple[float, int]:
        """Return level and onset of a series, 0 and -1 if it is not in alarm."""
        place = self._place.get(series)
        return (0.0, _NO_STEP) if place is None else (float(self.level_A[place]), int(self.onset_A[place]))

    def add(self, series: "Places", level: "NDArray[np.float32]", onset: "NDArray[np.int64]") -> None:
        """Raise alarms of series that are not in alarm."""
        all_A = np.concatenate((self.series_A, series))
        order_A = np.argsort(all_A)
        self.level_A = np.concatenate((self.level_A, level))[order_A]
        self.onset_A = np.concatenate((self.onset_A, onset))[order_A]
        self._quiet_A = np.concatenate((self._quiet_A, np.zeros_like(onset)))[order_A]
        self._hold(all_A[order_A])

    def update(
        self, chosen: "slice | NDArray[np.bool_]", quiet_C: "NDArray[np.bool_]", median_C: "NDArray[np.float32]"
    ) -> None:
        """Update the chosen alarms by one step: whether each was quiet, and its level if it was not."""
        self._quiet_A[chosen] = np.where(quiet_C, self._quiet_A[chosen] + 1, 0)
        level_C = self.level_A[chosen]
        self.level_A[chosen] = np.where(quiet_C, level_C, level_C + (median_C - level_C) * _LEVEL_RATE)

    def clear(self, quiet_steps: int) -> "Places":
        """End the alarms that have been quiet for `quiet_steps` steps; return their series."""
        kept_A = self._quiet_A < quiet_steps
        ended = self.series_A[~kept_A]
        if len(ended):
            self.level_A, self.onset_A = self.level_A[kept_A], self.onset_A[kept_A]
            self._quiet_A = self._quiet_A[kept_A]
            self._hold(self.series_A[kept_A])
        return ended

    def _hold(self, series_A: "Places") -> None:
        self.series_A = series_A
        self._place = {series: place for place, series in enumerate(series_A.tolist())}

    def state_dict(self) -> "dict[str, NDArray[np.generic]]":
        """Return the whole state, arrays by name."""
        return {"series": self.series_A, "level": self.level_A, "onset": self.onset_A, "quiet": self._quiet_A}

    def load_state_dict(self, state: "dict[str, NDArray[np.generic]]", count: int) -> None:
        """Restore the result of `state_dict`; a state for another number of series is ignored."""
        lengths = {state[name].shape for name in self.state_dict() if name in state}
        series_A = state.get("series", np.zeros(0)).astype(np.intp)
        if lengths != {series_A.shape} or series_A.ndim != 1 or (series_A < 0).any() or (series_A >= count).any():
            return
        self.level_A = state["level"].astype(np.float32)
        self.onset_A = state["onset"].astype(np.int64)
        self._quiet_A = state["quiet"].astype(np.int64)
        self._hold(series_A)
