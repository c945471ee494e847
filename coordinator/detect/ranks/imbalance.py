"""What legitimate differences between ranks cost; this is information and no fault.

Pure. All ranks wait for the longest stage, the replica with the longest batch and the expert with the most tokens. The
excess of each of these over the median one is learnt as a share of the step.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.ranks.groups import has_nan, median_of
from lockstep.contracts.metrics import IMBALANCES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from coordinator.detect.ranks.slow_rank import SlowRankTest

_RATE = 1 / 50
_STAGE, _REPLICA, _WORK = IMBALANCES


class Imbalance:
    """State of one run's imbalance; `ratios` holds the known shares, by `metrics.IMBALANCES`."""

    def __init__(self) -> None:
        self.ratios: dict[str, float] = {}
        self._steps = 0

    def step(self, test: "SlowRankTest", step_seconds: float) -> None:
        """Add what the slow-rank test measured in this step; nothing is learnt while it names a rank."""
        if test.is_alarmed or not step_seconds > 0:
            return
        self._steps += 1
        rate = max(_RATE, 1 / self._steps)
        seconds: dict[str, float] = {}
        stages = test.scale_P
        if has_nan(stages):
            stages = stages[~np.isnan(stages)]
        if len(stages) > 1:
            seconds[_STAGE] = float(np.maximum.reduce(stages)) - median_of(stages)
        if test.has_replicas:
            seconds[_REPLICA] = test.imbalance_seconds
        if test.shift_R is not None:
            seconds[_WORK] = float(np.maximum.reduce(test.shift_R))
        for name, value in seconds.items():
            ratio = min(max(value / step_seconds, 0.0), 1.0)
            before = self.ratios.get(name, ratio)
            self.ratios[name] = before + rate * (ratio - before)

    def state_dict(self) -> "dict[str, NDArray[np.generic]]":
        """Return the learnt state, arrays by name."""
        return {name: np.array([ratio]) for name, ratio in self.ratios.items()} | {"steps": np.array([self._steps])}

    def load_state_dict(self, state: "Mapping[str, NDArray[np.generic]]") -> None:
        """Restore the result of `state_dict`; arrays that do not fit are ignored."""
        known = {name: float(value[0]) for name, value in state.items() if value.shape == (1,)}
        self._steps = int(known.get("steps", self._steps))
        self.ratios |= {name: known[name] for name in IMBALANCES if name in known}
