"""The messages that a coordinator may still need, on disk, in order of their numbers in the node's stream.

Every message goes through the spool, connected or not. There is one path instead of two, nothing to move when a
connection breaks, and a killed exporter loses only what it had not written yet (one batch interval). The cost is one
small write per message into the page cache. There is no fsync, because the rings that feed the spool do not survive a
crash of the machine either.

    lock            held while an exporter uses the directory
    cursor          the stream's id, and what is freed of it (`cursor.py`)
    dropped         records of messages that were dropped to free space (`dropped.py`)
    <first>.seg     messages (`segments.py`)

The publisher reads at its send offset (`read`), at any number, and frees what every coordinator has committed (`free`).
A number without a message (dropped at the limit, never written because the disk was full, damaged) is read as
`DroppedRange`: how far the gap extends, and how many step records it cost.

Numbers continue for the life of the directory. The stream's id does not: a new stream begins after a reboot (unsynced
bytes may be lost, and their numbers are reused), and after a damaged cursor or a damaged end.
"""

import errno
import fcntl
import logging
import os
import re
import secrets
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from exporter.sending.cursor import BOOT_ID, Cursor, is_same_boot, read_boot_id, read_cursor, write_cursor
from exporter.sending.dropped import DroppedMessages
from exporter.sending.segments import (
    HEAD_BYTES,
    SpoolSegment,
    pack_entry,
    pack_head,
    read_entry,
    scan,
    segment_path,
)
from lockstep.contracts.delivery import SEQUENCE_MAX
from lockstep.contracts.errors import ConfigError

_log = logging.getLogger(__name__)

_SEGMENT = re.compile(r"[0-9]{19}\.seg\Z")
_SEGMENTS = 8  # at least this many segments at the limit, so that dropping one costs little
_SEGMENT_MAX_BYTES = 4 << 20  # kept on disk while everything is committed
_DROPPED_SHARE = 16  # of the limit, at most, for the counts of dropped messages


@dataclass(frozen=True, slots=True)
class SpooledMessage:
    """A message with its number, and the number of step records in it."""

    sequence: int
    topic: str
    payload: bytes
    records: int


@dataclass(frozen=True, slots=True)
class DroppedRange:
    """Messages `first` to `last`, which the spool lacks; `records` counts those that were uncommitted when dropped."""

    first: int
    last: int
    records: int


class Spool:
    """A queue on disk. Runs on the event loop; touches nothing before `open`.

    The owner sets `received`, the last number that every coordinator has in memory. Dropping messages up to it does not
    count in `lost_records`.
    """

    def __init__(self, directory: Path, limit_bytes: int, *, boot_id: Path = BOOT_ID) -> None:
        self.stream_id = 0
        self.freed = 0  # every message through this number is committed
        self.last = 0  # number of the newest message
        self.received = 0
        self.lost_records = 0  # dropped, damaged or not written since `open`
        self.disk_bytes = 0
        self.limit_bytes = limit_bytes
        self._directory = directory
        self._boot_id_path = boot_id
        self._boot_id = b""
        self._segment_bytes = min(limit_bytes // _SEGMENTS, _SEGMENT_MAX_BYTES)
        self._segments: list[SpoolSegment] = []  # oldest first; the last one is appended to while `_writer` is open
        self._freed_records = 0  # of all messages through `freed`
        self._records = 0  # of all messages through `last`
        self._unwritten_messages = 0  # not written by the disk since the last one that was
        self._unwritten_records = 0
        self._refused: set[int] = set()
        self._damaged: set[int] = set()
        self._dropped = DroppedMessages(directory / "dropped", limit_bytes // _DROPPED_SHARE)
        self._lock = self._cursor = self._writer = self._reader = -1
        self._reading: SpoolSegment | None = None

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes that some coordinator has not committed."""
        if not self._segments or self.freed >= self.last:
            return 0
        return self.disk_bytes - self._segments[0].offset_behind(max(self.freed, self._segments[0].first - 1))

    @property
    def waiting_messages(self) -> int:
        """Return the number of messages on disk that some coordinator has not committed."""
        return sum(segment.last - max(self.freed, segment.first - 1) for segment in self._segments)

    def open(self) -> None:
        """Lock the directory and find what an earlier exporter left.

        Raises
        ------
        ConfigError
            It cannot be created or written, is not ours alone, or is in use by another exporter.
        """
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self._directory.lstat()
            if not self._directory.is_dir() or self._directory.is_symlink() or status.st_uid != os.geteuid():
                raise ConfigError(f"spool_directory: got {str(self._directory)!r}, expected a directory of our own")
            self._lock = self._open_file("lock", os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._cursor = self._open_file("cursor", os.O_RDWR | os.O_CREAT)
            self._resume()
            self._save_cursor()
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
        """Unlock the directory; its messages stay."""
        for name in ("_reader", "_writer", "_cursor", "_lock"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)
        self._reading = None

    def append(self, topic: str, payload: bytes, records: int) -> None:
        """Store a message under the next number.

        At the limit, the oldest messages are dropped. If the disk rejects a message, its number is written with the
        next one, and it is read as `DroppedRange`.
        """
        entry = pack_entry(topic, payload, records)
        try:
            self._write(entry, records)
        except OSError as error:
            _log.warning("spool %s refuses a message of %d bytes: %s", self._directory, len(entry), error)
            self._close_writer()
            self.lost_records += records
            self._unwritten_messages += 1
            self._unwritten_records += records
        while self.disk_bytes > self.limit_bytes and len(self._segments) > 1:
            self._drop_oldest()

    def read(self, sequence: int) -> SpooledMessage | DroppedRange | None:
        """Return message `sequence` (from 1 on), or the gap that begins there; None beyond the last message."""
        if sequence > self.last:
            return None
        place = self._place(sequence)
        if place >= 0 and sequence <= self._segments[place].last:
            return self._read_message(self._segments[place], sequence)
        last = self._segments[place + 1].first - 1 if place + 1 < len(self._segments) else self.last
        return self.dropped(sequence, last)

    def dropped(self, first: int, last: int) -> DroppedRange:
        """Return the gap of messages `first` to `last`, with the records that it cost."""
        return DroppedRange(first, last, self._records_through(last) - self._records_through(first - 1))

    def refuse(self, sequence: int) -> None:
        """Read this message as `DroppedRange` from now on; a restart tries it again."""
        self._refused.add(sequence)

    def free(self, sequence: int) -> None:
        """Remove the messages through `sequence`, which every coordinator has committed."""
        sequence = min(sequence, self.last)
        if sequence <= self.freed:
            return
        self._freed_records = self._records_through(sequence)
        self.freed = sequence
        while self._segments and self._segments[0].last <= sequence:
            if len(self._segments) == 1 and self._writer >= 0:
                break
            self._remove_oldest()
        self._dropped.forget_through(sequence)
        for numbers in (self._refused, self._damaged):
            numbers.difference_update([number for number in numbers if number <= sequence])
        try:
            self._save_cursor()
        except OSError as error:
            _log.warning("spool cursor not saved, a restart would send messages again: %s", error)

    def _open_file(self, name: str, flags: int) -> int:
        return os.open(self._directory / name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def _resume(self) -> None:
        """Find segments and offsets, and decide whether the stream continues."""
        damaged_after, ends_well = self._find_segments()
        self._dropped.load(self._segments[0].first if self._segments else 0)
        cursor = read_cursor(self._cursor)
        if cursor is not None:
            self.freed, self._freed_records = cursor.freed, cursor.records
        elif self._segments:
            self.freed, self._freed_records = self._segments[0].first - 1, self._segments[0].records_before
        self.last, self._records = self.freed, self._freed_records
        if self._segments and self._segments[-1].last > self.freed:
            self.last, self._records = self._segments[-1].last, self._segments[-1].totals[-1]
        while self._segments and self._segments[0].last <= self.freed:
            self._remove_oldest()
        for sequence in damaged_after:
            missing = self.read(max(sequence, self.freed) + 1)
            self.lost_records += missing.records if isinstance(missing, DroppedRange) else 0
        self._boot_id = read_boot_id(self._boot_id_path)
        if cursor is not None and ends_well and is_same_boot(cursor.boot_id, self._boot_id):
            self.stream_id = cursor.stream_id
            return
        self.stream_id = secrets.randbelow(SEQUENCE_MAX) + 1
        if self.waiting_messages:
            _log.warning("spool %s: %d messages move to a new stream", self._directory, self.waiting_messages)

    def _find_segments(self) -> tuple[list[int], bool]:
        """Index every segment.

        Return the numbers of the messages after which something is damaged, and whether the last segment ends as a
        process leaves it.
        """
        damaged_after, ends_well = [], True
        for path in sorted(path for path in self._directory.iterdir() if _SEGMENT.match(path.name)):
            last = self._segments[-1].last if self._segments else 0
            segment, is_damaged = self._scan(path)
            if is_damaged:
                damaged_after.append(segment.last if segment is not None else last)
                _log.warning("spool segment %s is damaged: the rest of it is lost", path.name)
            if segment is None or not segment.ends:
                ends_well = ends_well and not is_damaged
                path.unlink()
                continue
            ends_well = not is_damaged
            if segment.file_bytes > segment.ends[-1]:
                os.truncate(path, segment.ends[-1])
                segment.file_bytes = segment.ends[-1]
            self._segments.append(segment)
            self.disk_bytes += segment.file_bytes
        return damaged_after, ends_well

    def _scan(self, path: Path) -> tuple[SpoolSegment | None, bool]:
        try:
            segment, is_damaged = scan(path)
        except OSError as error:
            _log.warning("spool segment %s cannot be read: %s", path.name, error)
            return None, True
        if segment is not None and self._segments and not _follows(segment, self._segments[-1]):
            return None, True
        return segment, is_damaged

    def _save_cursor(self) -> None:
        write_cursor(self._cursor, Cursor(self.stream_id, self._boot_id, self.freed, self._freed_records))

    def _place(self, sequence: int) -> int:
        """Return the index of the last segment that begins at or before `sequence`, or -1 if none does."""
        return bisect_right(self._segments, sequence, key=lambda segment: segment.first) - 1

    def _records_through(self, sequence: int) -> int:
        """Return the record count through `sequence`; inside a gap, the count before it."""
        if sequence <= self.freed:
            return self._freed_records
        place = self._place(sequence + 1)
        if place < 0:
            return max(self._freed_records, self._dropped.records_through(sequence))
        segment = self._segments[place]
        return segment.records_through(min(sequence, segment.last))

    def _read_message(self, segment: SpoolSegment, sequence: int) -> SpooledMessage | DroppedRange:
        records = segment.records_through(sequence) - segment.records_through(sequence - 1)
        if sequence not in self._refused:
            entry = self._read_entry(segment, sequence)
            if entry is not None:
                return SpooledMessage(sequence, *entry, records)
            if sequence not in self._damaged:
                _log.warning("spool segment %s: message %d is damaged", segment.path.name, sequence)
                self._damaged.add(sequence)
                self.lost_records += records
        return DroppedRange(sequence, sequence, records if sequence > self.freed else 0)

    def _read_entry(self, segment: SpoolSegment, sequence: int) -> tuple[str, bytes] | None:
        if self._reading is not segment:
            self._close_reader()
            try:
                self._reader = self._open_file(segment.path.name, os.O_RDONLY)
            except OSError:  # removed by another process: damaged as a whole
                return None
            self._reading = segment
        return read_entry(self._reader, segment, sequence)

    def _drop_oldest(self) -> None:
        """Remove the oldest segment, and store the counts of its uncommitted records."""
        segment = self._segments[0]
        if segment.last > self.freed:
            first = max(segment.first - 1, self.freed)
            self._dropped.add(first, segment.records_through(first))
            for sequence in range(first + 1, segment.last + 1):
                self._dropped.add(sequence, segment.records_through(sequence))
            self._dropped.save()
            counted = min(max(first, self.received), segment.last)
            self.lost_records += segment.totals[-1] - segment.records_through(counted)
        self._remove_oldest()

    def _remove_oldest(self) -> None:
        segment = self._segments[0]
        if self._reading is segment:
            self._close_reader()
        try:
            segment.path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("spool segment %s cannot be removed: %s", segment.path.name, error)
        self.disk_bytes -= segment.file_bytes
        del self._segments[0]

    def _write(self, entry: bytes, records: int) -> None:
        """Append to the segment, or begin a new one.

        Raises
        ------
        OSError
            The disk did not write all of it, and nothing of it remains; or it exceeds the limit.
        """
        if HEAD_BYTES + len(entry) > self.limit_bytes:
            raise OSError(f"spool_max_bytes is {self.limit_bytes}")
        if self._writer >= 0 and self._segments[-1].file_bytes + len(entry) > self._segment_bytes:
            self._close_writer()
        if self._writer < 0:
            self._begin_segment(entry, records)
            return
        segment = self._segments[-1]
        _write_whole(self._writer, entry, segment.file_bytes)
        segment.index(len(entry), records)
        segment.file_bytes += len(entry)
        self.disk_bytes += len(entry)
        self.last += 1
        self._records += records

    def _begin_segment(self, entry: bytes, records: int) -> None:
        """Begin a segment after the numbers of messages that were not written."""
        first = self.last + 1 + self._unwritten_messages
        records_before = self._records + self._unwritten_records
        path = segment_path(self._directory, first)
        writer = self._open_file(path.name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        try:
            _write_whole(writer, pack_head(first, records_before) + entry, 0)
        except OSError:
            os.close(writer)
            path.unlink(missing_ok=True)
            raise
        segment = SpoolSegment(path, first, records_before, file_bytes=HEAD_BYTES + len(entry))
        segment.index(len(entry), records)
        self._segments.append(segment)
        self._writer = writer
        self.disk_bytes += segment.file_bytes
        self.last, self._records = first, records_before + records
        self._unwritten_messages = self._unwritten_records = 0

    def _close_reader(self) -> None:
        self._reading = None
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1

    def _close_writer(self) -> None:
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1


def _follows(segment: SpoolSegment, last: SpoolSegment) -> bool:
    """Whether a segment may follow another one."""
    return segment.first > last.last and segment.records_before >= last.totals[-1]


def _write_whole(file: int, data: bytes, start: int) -> None:
    """Write all of `data` at the file's end, which is at `start`, or nothing.

    Raises
    ------
    OSError
        The disk wrote nothing, or only a part, which is truncated.
    """
    if os.write(file, data) < len(data):
        os.ftruncate(file, start)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
