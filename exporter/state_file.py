"""Small values that outlive the exporter's process, each in its own JSON file in the spool directory."""

import logging
import os
from pathlib import Path
from typing import TypeVar

import msgspec

_log = logging.getLogger(__name__)

_FILE_MAX_BYTES = 64 << 20  # the largest, offsets of 256 ranks: 4 KB each, more for a rank that never ends a step
T = TypeVar("T")


def load_state(path: Path, form: type[T]) -> T | None:
    """Return the saved value of type `form`, or None if there is no file or it is damaged."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_FILE_MAX_BYTES), type=form)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        _log.warning("%s cannot be read and starts empty: %s", path, error)
        return None


def save_state(path: Path, value: object) -> bool:
    """Replace the file atomically; if the disk rejects it, log why, keep the old file and return False."""
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_bytes(msgspec.json.encode(value))
        os.replace(temporary, path)  # noqa: PTH105  (one call, without a Path object per second)
    except OSError as error:
        _log.warning("%s not saved: %s", path, error)
        return False
    return True
