"""The last deviations of a run from its expected step time, the newest last.

Pure. A change of work may be granted an allowance. Once the run has settled, the allowance is replaced by the actual
effect of the change, also in the stored steps.
"""

from collections import deque
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.error_budget import level_sigmas, steps_between
from coordinator.detect.state_dict import Learner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from coordinator.detect.state_dict import StateDict

WINDOWS = (3, 6, 16, 50)
"""Window sizes in steps, whose means are compared with what noise explains; the last is PerfTracker's."""
_ONSET_SHARE = 1 / 3  # of the effect; the first steps of a drift are smaller
_COLUMNS = 3


@dataclass(slots=True)
class _Deviation:
    step: int
    value: float
    allowed: float


class RunWindow(Learner):
    """The last `steps` deviations."""

    def __init__(self, steps: int) -> None:
        self._last: deque[_Deviation] = deque(maxlen=steps)

    def __len__(self) -> int:
        return len(self._last)

    def append(self, step: int, value: float, allowed: float) -> None:
        """Add one step's deviation, which includes an allowance of `allowed`."""
        self._last.append(_Deviation(step, value, allowed))

    def drop(self, steps: int) -> None:
        """Drop the last steps."""
        for _ in range(min(steps, len(self._last))):
            self._last.pop()

    def keep_only(self, steps: int) -> None:
        """Drop all but the last steps."""
        while len(self._last) > steps:
            self._last.popleft()

    def values(self, steps: int, limit: float) -> list[float]:
        """Return the last deviations, clipped at +-`limit`."""
        return [min(max(item.value, -limit), limit) for item in list(self._last)[-steps:]]

    def median(self, steps: int, *, granted: bool = False) -> float:
        """Return the median of the last deviations, including allowances if `granted`."""
        return median(item.value + granted * item.allowed for item in list(self._last)[-steps:])

    def whole(self) -> list[float]:
        """Return all deviations from the run's level, including allowances."""
        return [item.value + item.allowed for item in self._last]

    def move(self, by: float) -> None:
        """Subtract a level change of `by` from all steps, in place of their allowances."""
        for item in self._last:
            item.value += item.allowed - by
            item.allowed = 0.0

    def onset(self, effect: float) -> tuple[int, int]:
        """Return the step at which an effect of this size began, and how many steps it has lasted."""
        total, begin = 0.0, 0
        for place, item in enumerate(self._last):
            total = max(0.0, total + item.value - _ONSET_SHARE * effect)
            begin = place + 1 if total == 0 else begin
        begin = min(begin, len(self._last) - 1)
        return self._last[begin].step, len(self._last) - begin

    def state_dict(self) -> "StateDict":
        """Return the whole state, as one array of shape (n_steps, 3)."""
        figures = [(item.step, item.value, item.allowed) for item in self._last]
        return {"steps": np.array(figures, dtype=np.float64).reshape(-1, _COLUMNS)}

    def load_state_dict(self, state: "Mapping[str, NDArray[np.generic]]") -> None:
        """Restore the result of `state_dict`, if it fits."""
        steps = state.get("steps")
        if steps is not None and steps.shape[1:] == (_COLUMNS,):
            self._last.clear()
            self._last.extend(_Deviation(int(step), *figures) for step, *figures in steps.astype(np.float64).tolist())


@cache
def mean_sigmas(false_page_steps: float) -> float:
    """Return the limit of a window's mean, in its own standard deviations; disjoint windows are independent looks."""
    looks = steps_between("run_means", false_page_steps) * sum(1 / steps for steps in WINDOWS)
    return level_sigmas(looks)
