"""Messages that wait for the broker, on disk, in order.

Every message goes through it, connected or not: one way instead of two, nothing to move over when a connection breaks,
and a killed exporter loses what it had not written yet (one batch interval) and nothing else. It costs one small write
per message into the page cache; there is no fsync, since the rings that feed it do not survive the machine either.

    lock            held while an exporter uses the directory
    cursor          segment u64, offset u64, CRC-32 u32: the first message that the broker has not acknowledged
    <number>.seg    frames: payload bytes u32, CRC-32 u32, records u32, topic bytes u32, topic, payload

A segment is appended to by one process only and never after a restart, so a cut tail ends a segment and hides nothing.
Beyond the limit the oldest segment goes; the records in it that were not acknowledged are counted.
"""

import fcntl
import logging
import os
import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.limits import MESSAGE_MAX_BYTES

_log = logging.getLogger(__name__)

_FRAME = struct.Struct("<IIII")
_SEED = struct.Struct("<II")
_CURSOR = struct.Struct("<QQ")
_CRC = struct.Struct("<I")
_SEGMENT = re.compile(r"([0-9]{1,18})\.seg\Z")
_TOPIC_MAX_BYTES = 1024
_SEGMENTS = 8  # at least this many segments fill the limit, so that dropping one costs little
_SEGMENT_MAX_BYTES = 4 << 20  # what stays on disk while everything is acknowledged


@dataclass(frozen=True, slots=True)
class Spooled:
    """A message with the number of step records in it."""

    topic: str
    payload: bytes
    records: int


class Spool:
    """A queue on disk. Belongs to the event loop; nothing is touched before `open`."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.disk_bytes = 0
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._segment_bytes = min(limit_bytes // _SEGMENTS, _SEGMENT_MAX_BYTES)
        self._sizes: dict[int, int] = {}  # segment number -> bytes, oldest first; the last one is appended to
        self._offset = 0  # of the first unacknowledged frame in the oldest segment
        self._frame_bytes = 0  # size of the frame last peeked, 0 before
        self._lock = self._cursor = self._writer = self._reader = -1

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the broker has not acknowledged."""
        return self.disk_bytes - self._offset

    def open(self) -> None:
        """Take the directory and find what an earlier exporter left.

        Raises
        ------
        ConfigError
            It cannot be made or written, is not ours alone, or another exporter uses it.
        """
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self._directory.lstat()
            if not self._directory.is_dir() or self._directory.is_symlink() or status.st_uid != os.geteuid():
                raise ConfigError(f"spool_directory: got {str(self._directory)!r}, expected a directory of our own")
            self._lock = self._open("lock", os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._cursor = self._open("cursor", os.O_RDWR | os.O_CREAT)
            self._find_segments()
            self._start_segment()
        except BlockingIOError:
            self.close()
            raise ConfigError(
                f"spool_directory: got {str(self._directory)!r}, expected one that no other exporter uses"
            ) from None
        except OSError as error:
            self.close()
            raise ConfigError(
                f"spool_directory: got {str(self._directory)!r}, expected a writable one: {error}"
            ) from None

    def close(self) -> None:
        """Give the directory back; what waits stays in it."""
        for name in ("_reader", "_writer", "_cursor", "_lock"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)

    def append(self, topic: str, payload: bytes, records: int) -> int:
        """Store a message behind all others, and return the number of records lost by that.

        Lost are records of the oldest messages that had to make room, or of this one if the disk does not take it.
        """
        name = topic.encode()
        frame = b"".join((_head(name, payload, records), name, payload))
        if len(frame) > self._limit_bytes:
            _log.warning("message of %d bytes exceeds the spool's limit of %d", len(frame), self._limit_bytes)
            return records
        try:
            lost = self._make_room(len(frame))
            self._write(frame)
        except OSError as error:
            _log.warning("spool %s does not take a message: %s", self._directory, error)
            return records
        return lost

    def peek(self) -> Spooled | None:
        """Return the oldest message, None if nothing waits; the same one until `acknowledge`."""
        while self._sizes:
            oldest = next(iter(self._sizes))
            if self._offset < self._sizes[oldest]:
                found = self._read(oldest, self._offset)
                if found is not None:
                    self._frame_bytes, message = found
                    return message
                left = self._sizes[oldest] - self._offset
                _log.warning("spool segment %d is damaged at %d: %d bytes left out", oldest, self._offset, left)
            if len(self._sizes) == 1:
                if self._offset < self._sizes[oldest]:  # damaged while we write it: go on in a new one
                    self._start_segment()
                    continue
                return None
            self._remove_oldest()
        return None

    def acknowledge(self) -> None:
        """Forget the message last peeked; nothing, if it had to make room meanwhile."""
        if not self._frame_bytes:
            return
        self._offset += self._frame_bytes
        self._frame_bytes = 0
        self._save_cursor()

    def _open(self, name: str, flags: int) -> int:
        return os.open(self._directory / name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:012d}.seg"

    def _find_segments(self) -> None:
        numbers = sorted(int(m[1]) for e in os.scandir(self._directory) if (m := _SEGMENT.match(e.name)))
        self._sizes = {number: self._path(number).lstat().st_size for number in numbers}
        self.disk_bytes = sum(self._sizes.values())
        segment, offset = self._load_cursor()
        while self._sizes and next(iter(self._sizes)) < segment:
            self._remove_oldest()
        if segment in self._sizes and offset <= self._sizes[segment]:
            self._offset = offset

    def _load_cursor(self) -> tuple[int, int]:
        """Return the saved place; (0, 0), which sends everything again, if it is damaged."""
        data = os.pread(self._cursor, _CURSOR.size + _CRC.size, 0)
        if (
            len(data) < _CURSOR.size + _CRC.size
            or zlib.crc32(data[: _CURSOR.size]) != _CRC.unpack(data[-_CRC.size :])[0]
        ):
            return 0, 0
        segment, offset = _CURSOR.unpack_from(data)
        return int(segment), int(offset)

    def _save_cursor(self) -> None:
        place = _CURSOR.pack(next(iter(self._sizes)), self._offset)
        try:
            os.pwrite(self._cursor, place + _CRC.pack(zlib.crc32(place)), 0)
        except OSError as error:
            _log.warning("spool cursor not saved, a restart would send messages again: %s", error)

    def _start_segment(self) -> None:
        number = max(self._sizes, default=self._load_cursor()[0]) + 1
        writer = self._open(self._path(number).name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        if self._writer >= 0:
            os.close(self._writer)
        self._writer = writer
        self._sizes[number] = 0

    def _remove_oldest(self) -> None:
        number = next(iter(self._sizes))
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1
        try:
            self._path(number).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("spool segment %d cannot be removed: %s", number, error)
        self.disk_bytes -= self._sizes.pop(number)
        self._offset = self._frame_bytes = 0

    def _make_room(self, frame_bytes: int) -> int:
        """Start a segment where one is due, drop old ones where the limit asks for it; return the records dropped."""
        current = next(reversed(self._sizes))
        if self._sizes[current] and self._sizes[current] + frame_bytes > self._segment_bytes:
            self._start_segment()
        lost = 0
        while self.disk_bytes + frame_bytes > self._limit_bytes and len(self._sizes) > 1:
            lost += self._count_oldest()
            self._remove_oldest()
        return lost

    def _count_oldest(self) -> int:
        """Return the records in the oldest segment that were not acknowledged."""
        number = next(iter(self._sizes))
        offset, records = self._offset, 0
        while found := self._read(number, offset):
            offset += found[0]
            records += found[1].records
        return records

    def _write(self, frame: bytes) -> None:
        current = next(reversed(self._sizes))
        written = os.write(self._writer, frame)
        if written < len(frame):  # a full disk takes a part: cut it off, so that the next frame stands whole
            os.ftruncate(self._writer, self._sizes[current])
            raise OSError(f"{written} of {len(frame)} bytes written")
        self._sizes[current] += len(frame)
        self.disk_bytes += len(frame)

    def _read(self, number: int, offset: int) -> tuple[int, Spooled] | None:
        """Return (frame bytes, message) of the whole frame at `offset` of the oldest segment, or None."""
        if self._reader < 0:
            try:
                self._reader = self._open(self._path(number).name, os.O_RDONLY)
            except OSError:  # removed by somebody else: damaged as a whole
                return None
        head = os.pread(self._reader, _FRAME.size, offset)
        if len(head) < _FRAME.size:
            return None
        payload_bytes, crc, records, topic_bytes = _FRAME.unpack(head)
        if payload_bytes > MESSAGE_MAX_BYTES or topic_bytes > _TOPIC_MAX_BYTES:
            return None
        body = os.pread(self._reader, topic_bytes + payload_bytes, offset + _FRAME.size)
        if (
            len(body) < topic_bytes + payload_bytes
            or zlib.crc32(body, zlib.crc32(_SEED.pack(records, topic_bytes))) != crc
        ):
            return None
        topic = body[:topic_bytes].decode(errors="replace")
        return _FRAME.size + len(body), Spooled(topic, body[topic_bytes:], records)


def _head(topic: bytes, payload: bytes, records: int) -> bytes:
    crc = zlib.crc32(payload, zlib.crc32(topic, zlib.crc32(_SEED.pack(records, len(topic)))))
    return _FRAME.pack(len(payload), crc, records, len(topic))
