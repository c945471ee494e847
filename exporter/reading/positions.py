"""How far each ring has been handed on, kept on disk: a restarted exporter goes on there.

Written after the records are in the spool. Between the two writes a crash makes the last interval come twice, and the
coordinator drops the second copy; the other order would lose it. A ring that is not in here (another attempt, a first
start) is read from its oldest record on: what it still holds has not been seen by anybody.
"""

from typing import NamedTuple


class Position(NamedTuple):
    """Where to go on in the ring of one attempt of a rank."""

    attempt: int
    next_index: int
    answer_generation: int


Positions = dict[str, dict[int, Position]]
"""Run -> rank -> position."""
