"""The spool's cursor: the stream that its messages belong to, and which of them every coordinator has committed.

File format: stream id u64, boot id 16 bytes, freed u64, records through it u64, CRC-32 of these u32.
"""

import logging
import os
import struct
import uuid
import zlib
from pathlib import Path
from typing import NamedTuple

_log = logging.getLogger(__name__)

_CURSOR = struct.Struct("<Q16sQQ")
_CRC = struct.Struct("<I")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UNKNOWN_BOOT = bytes(16)


class Cursor(NamedTuple):
    """`freed` is the last message that every coordinator has committed, `records` the record count through it."""

    stream_id: int
    boot_id: bytes
    freed: int
    records: int


def read_cursor(file: int) -> Cursor | None:
    """Return the saved cursor, or None if there is none or it is damaged."""
    data = os.pread(file, _CURSOR.size + _CRC.size, 0)
    body = data[: _CURSOR.size]
    if len(data) < _CURSOR.size + _CRC.size or _CRC.pack(zlib.crc32(body)) != data[_CURSOR.size :]:
        return None
    return Cursor(*_CURSOR.unpack(body))


def write_cursor(file: int, cursor: Cursor) -> None:
    """Overwrite the file.

    Raises
    ------
    OSError
        The disk rejects the write.
    """
    body = _CURSOR.pack(*cursor)
    os.pwrite(file, body + _CRC.pack(zlib.crc32(body)), 0)


def read_boot_id(path: Path) -> bytes:
    """Return the id of the machine's boot; zeros, which no boot has, if it cannot be read."""
    try:
        return uuid.UUID(path.read_text().strip()).bytes
    except (OSError, ValueError) as error:
        _log.warning("%s cannot be read, so every start begins a new stream: %s", path, error)
        return _UNKNOWN_BOOT


def is_same_boot(saved: bytes, current: bytes) -> bool:
    """Whether files written during that boot are known to hold what was written to them."""
    return saved == current != _UNKNOWN_BOOT
