"""How far each ring has been handed on, kept on disk: a restarted exporter goes on there.

Written after the records are in the spool. Between the two writes a crash makes the last interval come twice, and the
coordinator drops the second copy; the other order would lose it. A ring that is not in here (another attempt, a first
start) is read from its oldest block on: what it still holds has not been seen by anybody.

Records are a function of the accounting's state and the blocks behind it. So a restarted exporter builds the running
step from the state, reads again what came since, and leaves out the steps that are on their way already.
"""

from typing import Any, NamedTuple


class ReadOffset(NamedTuple):
    """Where to go on in the ring of one attempt of a rank.

    `builder` is the state of its accounting (`StepBuilder.state`) before the block `next_sequence`, None before its
    first step. `last_step`, which ended at `last_end_ns` (CLOCK_MONOTONIC), is the last one that was handed on.
    """

    attempt: int
    answer_generation: int = 0
    next_sequence: int = 0
    last_step: int | None = None
    last_end_ns: int | None = None
    builder: dict[str, Any] | None = None


ReadOffsets = dict[str, dict[int, ReadOffset]]
"""Run -> rank -> offset."""
