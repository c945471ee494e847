"""Peak memory of activations, which are kept from the forward pass to the backward pass."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.strategy.schedule import FORWARD


def peak_bytes(passes: NDArray[np.int64], stored_bytes: Sequence[float]) -> float:
    """Return the largest number of bytes that activations take at once.

    `passes` are rows of `schedule.passes`, `stored_bytes` the bytes that one forward pass of each chunk stores. They
    are kept from the beginning of the forward pass to the end of the backward pass. Passes run one after the other, so
    that only their order matters, not their durations.
    """
    change = np.where(passes[:, 0] == FORWARD, 1.0, -1.0) * np.asarray(stored_bytes)[passes[:, 2]]
    return float(np.cumsum(change).max(initial=0.0))


def in_flight(passes: NDArray[np.int64]) -> int:
    """Return the largest number of forward passes, done or running, whose backward pass is not done."""
    return int(np.cumsum(np.where(passes[:, 0] == FORWARD, 1, -1)).max(initial=0))
