"""How far each ring has been handed on, kept on disk: a restarted exporter goes on there.

Written after the records are in the spool. Between the two writes a crash makes the last interval come twice, and the
coordinator drops the second copy; the other order would lose it. A ring that is not in here (another attempt, a first
start) is read from its oldest record on: what it still holds has not been seen by anybody.
"""

import logging
import os
from pathlib import Path
from typing import NamedTuple

import msgspec

_log = logging.getLogger(__name__)


class Position(NamedTuple):
    """Where to go on in the ring of one attempt of a rank."""

    attempt: int
    next_index: int
    answer_generation: int


Positions = dict[str, dict[int, Position]]
"""Run -> rank -> position."""

_DECODER = msgspec.json.Decoder(Positions)
_FILE_MAX_BYTES = 1 << 20  # 256 ranks of three integers are 20 kB


def load_positions(path: Path) -> Positions:
    """Return what was saved; nothing if there is no file or it is damaged (records may come twice then)."""
    try:
        with path.open("rb") as file:
            return _DECODER.decode(file.read(_FILE_MAX_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        _log.warning("%s cannot be read, rings are read from their oldest record: %s", path, error)
        return {}


def save_positions(path: Path, positions: Positions) -> None:
    """Replace the file in one step.

    Raises
    ------
    OSError
        The disk does not take it; the old file stays.
    """
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.encode(positions))
    os.replace(temporary, path)  # noqa: PTH105  (one call, without a Path object per second)
