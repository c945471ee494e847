"""Counts the step records in messages that were dropped to free space, by message number.

A lost frame counts the records between two offsets, and a coordinator may be at any message that was once sent, so
counts are stored per message. Beyond a limit the newest entry grows instead; a coordinator inside it counts all of its
records, too many lost rather than too few.

    through u64, records u64 for each message or range, both ascending; CRC-32 u32
"""

import contextlib
import logging
import os
import struct
import zlib
from array import array
from bisect import bisect_right
from pathlib import Path

_log = logging.getLogger(__name__)

_CRC = struct.Struct("<I")
_ENTRY_BYTES = 16
_ENTRIES_MAX = 1 << 16


class DroppedMessages:
    """Record counts through each dropped message, counted from the spool's beginning and stored in a file."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path = path
        self._through = array("Q")
        self._records = array("Q")
        self._entries_max = min(_ENTRIES_MAX, limit_bytes // _ENTRY_BYTES)

    def load(self, first: int) -> None:
        """Read what an earlier process saved of the messages before `first`, or of all if it is 0."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning("%s cannot be read: %s", self._path, error)
            return
        values = array("Q")
        body = data[: -_CRC.size]
        if len(body) % _ENTRY_BYTES or data[len(body) :] != _CRC.pack(zlib.crc32(body)):
            _log.warning("%s is damaged: dropped messages are counted as one range", self._path)
            return
        values.frombytes(body)
        count = len(values) // 2
        place = bisect_right(values, first - 1, 0, count) if first else count
        self._through, self._records = values[:place], values[count : count + place]

    def save(self) -> None:
        """Replace the file. Call it before the messages are removed, so that a kill in between loses nothing."""
        body = self._through.tobytes() + self._records.tobytes()
        temporary = self._path.with_suffix(".tmp")
        try:
            temporary.write_bytes(body + _CRC.pack(zlib.crc32(body)))
            os.replace(temporary, self._path)  # noqa: PTH105  (as in the rest of the spool)
        except OSError as error:
            _log.warning("%s not saved, a restart would count dropped messages as one range: %s", self._path, error)

    def add(self, through: int, records: int) -> None:
        """Record a dropped message; `records` is the count through it."""
        if self._through and through <= self._through[-1]:
            return
        if len(self._through) >= self._entries_max:
            self._through.pop()
            self._records.pop()
        self._through.append(through)
        self._records.append(records)

    def records_through(self, sequence: int) -> int:
        """Return the record count through the last dropped message up to `sequence`, or 0 if there is none."""
        place = bisect_right(self._through, sequence)
        return self._records[place - 1] if place else 0

    def forget_through(self, sequence: int) -> None:
        """Drop the entries that every coordinator has committed, and the file once it is empty."""
        place = bisect_right(self._through, sequence)
        if place:
            del self._through[:place]
            del self._records[:place]
            if not self._through:
                with contextlib.suppress(OSError):
                    self._path.unlink(missing_ok=True)
