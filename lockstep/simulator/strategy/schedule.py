"""Pipeline schedules: the order in which a stage runs the forward and backward passes of its micro-batches.

1F1B has at most `stages - stage` micro-batches in flight, GPipe all of them; interleaved 1F1B gives each stage several
chunks of the model (Narayanan et al. 2021, section 2.2).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import ConfigError

ONE_F_ONE_B = "1f1b"
GPIPE = "gpipe"
ORDERS = (ONE_F_ONE_B, GPIPE)

FORWARD = 0
BACKWARD = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The `micro_batches` of a step and their order, which is interleaved if stages have several chunks.

    `max_ongoing` limits the micro-batches whose forward pass is done and whose backward pass is not; None for the limit
    of `order`.
    """

    micro_batches: int = 1
    order: str = ONE_F_ONE_B
    max_ongoing: int | None = None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ConfigError(f"order of micro-batches: got {self.order!r}, expected one of {ORDERS}")
        if self.micro_batches < 1 or (self.max_ongoing is not None and self.max_ongoing < 1):
            raise ConfigError(f"micro-batches: got {self.micro_batches} and {self.max_ongoing}, expected at least 1")


def passes(schedule: Schedule, stages: int, stage: int, chunks: int) -> NDArray[np.int64]:
    """Return the passes of stage `stage` of `stages` in order: rows of (FORWARD or BACKWARD, micro-batch, own chunk).

    Raises
    ------
    ConfigError
        With interleaving, the micro-batches are no multiple of the stages, or `max_ongoing` is too small.
    """
    return _interwoven(*_sequence(schedule, stages, chunks), _ahead(schedule, stages, stage, chunks))


def passes_by_stage(schedule: Schedule, stages: int, chunks: int) -> list[NDArray[np.int64]]:
    """Return the `passes` of each stage."""
    forward, backward = _sequence(schedule, stages, chunks)
    return [_interwoven(forward, backward, _ahead(schedule, stages, stage, chunks)) for stage in range(stages)]


def _interwoven(forward: NDArray[np.int64], backward: NDArray[np.int64], ahead: int) -> NDArray[np.int64]:
    total = len(forward)
    ahead = min(total, ahead)
    # `ahead` forward passes, then backward and forward in turn, then the remaining backward passes.
    rows = np.empty((2 * total, 3), dtype=np.int64)
    rows[:ahead] = forward[:ahead]
    middle = rows[ahead : 2 * total - ahead]
    middle[0::2] = backward[: total - ahead]
    middle[1::2] = forward[ahead:]
    rows[2 * total - ahead :] = backward[total - ahead :]
    return rows


def _ahead(schedule: Schedule, stages: int, stage: int, chunks: int) -> int:
    """Return the number of forward passes before the first backward pass."""
    if schedule.order == GPIPE:
        ahead = schedule.micro_batches * chunks
    elif chunks == 1:
        ahead = stages - stage
    else:
        ahead = 2 * (stages - stage - 1) + (chunks - 1) * stages + 1
    if schedule.max_ongoing is None:
        return ahead
    least = (chunks - 1) * (schedule.micro_batches if schedule.order == GPIPE else stages) + 1
    if schedule.max_ongoing < least:
        raise ConfigError(f"max_ongoing: got {schedule.max_ongoing}, expected at least {least} for {chunks} chunks")
    return min(ahead, schedule.max_ongoing)


def _sequence(schedule: Schedule, stages: int, chunks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return forward and backward passes, each in order: groups of `stages` micro-batches run all chunks in turn."""
    m = schedule.micro_batches
    if chunks > 1 and m % stages:
        raise ConfigError(f"micro-batches: got {m}, expected a multiple of {stages} stages for interleaving")
    group = m if chunks == 1 or schedule.order == GPIPE else stages
    index = np.arange(m * chunks)
    chunk = index // group % chunks
    micro = index // (group * chunks) * group + index % group
    forward = np.stack([np.full_like(index, FORWARD), micro, chunk], axis=1)
    backward = np.stack([np.full_like(index, BACKWARD), micro, chunks - 1 - chunk], axis=1)
    return forward, backward
