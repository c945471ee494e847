"""What a rank holds at its peak: weights and their like all the time, activations from forward to backward."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.strategy.schedule import FORWARD


def peak_bytes(passes: NDArray[np.int64], stored_bytes: Sequence[float]) -> float:
    """Return the most that activations take at once.

    `passes` are rows of `schedule.passes`, `stored_bytes` what one forward pass of each chunk leaves. A reference to it
    is held from the beginning of the forward to the end of the backward. Passes follow each other, so that their order
    is all that matters, whatever time they take.
    """
    change = np.where(passes[:, 0] == FORWARD, 1.0, -1.0) * np.asarray(stored_bytes)[passes[:, 2]]
    return float(np.cumsum(change).max(initial=0.0))


def in_flight(passes: NDArray[np.int64]) -> int:
    """Return the most forward passes that are done, or under way, before their backward is."""
    return int(np.cumsum(np.where(passes[:, 0] == FORWARD, 1, -1)).max(initial=0))
