# ruff: noqa: N803  (names of arrays end in their shape, see the legend below)
"""Which ranks are missing, and for how many steps: a table with one row per missing rank.

Pure. Shapes: R ranks, A absent ranks.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.ranks.groups import has_nan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Places = NDArray[np.intp]

_STEPS_MAX = 100  # the count stops here


class Absence:
    """Ranks (ascending) without a value in the last step, and the number of consecutive steps without one."""

    def __init__(self) -> None:
        self._ranks = np.zeros(0, dtype=np.intp)
        self._steps = np.zeros(0, dtype=np.uint8)

    def add(self, values_R: "NDArray[np.floating]") -> "Places | None":
        """Add one step's values; return the ranks without one, None if none is missing."""
        if not has_nan(values_R):
            if len(self._ranks):
                self._ranks, self._steps = self._ranks[:0], self._steps[:0]
            return None
        absent: Places = np.isnan(values_R).nonzero()[0]
        steps = np.ones(len(absent), dtype=np.uint8)
        if len(self._ranks):
            place = np.minimum(np.searchsorted(self._ranks, absent), len(self._ranks) - 1)
            before = np.where(self._ranks[place] == absent, self._steps[place], 0)
            steps += np.minimum(before, _STEPS_MAX - 1)
        self._ranks, self._steps = absent, steps
        return absent

    def since(self, steps: int) -> "Places":
        """Return the ranks that have been missing for at most `steps` steps."""
        return self._ranks[self._steps <= steps]
