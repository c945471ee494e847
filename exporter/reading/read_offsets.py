"""How far each ring has been read and passed on, stored on disk so that a restarted exporter continues there.

It is written after the records are in the spool. A crash between the two writes repeats the last interval, and the
coordinator drops the second copy; the other order would lose the interval. A ring without an offset (another attempt, a
first start) is read from its oldest block, because what it still holds has not been read.

Records are a function of the accounting's state and the blocks after it. So a restarted exporter builds the running
step from the state, reads again what came since, and leaves out the steps that were already passed on.
"""

from typing import Any, NamedTuple


class ReadOffset(NamedTuple):
    """Where to continue in the ring of one attempt of a rank.

    `builder` is the state of its accounting (`StepBuilder.state`) before the block `next_sequence`, None before its
    first step. `last_step`, which ended at `last_end_ns` (CLOCK_MONOTONIC), is the last one that was passed on.
    """

    attempt: int
    answer_generation: int = 0
    next_sequence: int = 0
    last_step: int | None = None
    last_end_ns: int | None = None
    builder: dict[str, Any] | None = None


ReadOffsets = dict[str, dict[int, ReadOffset]]
"""Run -> rank -> offset."""
