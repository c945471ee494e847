"""The spool's segment files: their byte format, and an index that finds each message in them.

    <first>.seg     first u64, records before u64, CRC-32 u32; then entries:
                    payload bytes u32, records u32, topic bytes u32, CRC-32 of topic and payload u32,
                    CRC-32 of these four u32, topic, payload

Entries are numbered from `first` on. `records before` counts the step records of all messages with lower numbers, so
the messages and records that are missing between two segments are known, whatever happened to them. One process appends
to a segment, and never after a restart, so a truncated tail ends a segment and hides nothing.
"""

import os
import struct
import zlib
from array import array
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.contracts.limits import MESSAGE_MAX_BYTES

_HEAD = struct.Struct("<QQ")
_ENTRY = struct.Struct("<IIII")
_CRC = struct.Struct("<I")
_TOPIC_MAX_BYTES = 1024
HEAD_BYTES = _HEAD.size + _CRC.size
_ENTRY_BYTES = _ENTRY.size + _CRC.size


@dataclass(slots=True)
class SpoolSegment:
    """The index of one file.

    `ends` holds the offset at which each message ends, `totals` the record count through each message.
    """

    path: Path
    first: int
    records_before: int
    file_bytes: int = HEAD_BYTES
    ends: "array[int]" = field(default_factory=lambda: array("Q"))
    totals: "array[int]" = field(default_factory=lambda: array("Q"))

    @property
    def last(self) -> int:
        """Return the number of its last message; `first - 1` while it holds none."""
        return self.first + len(self.ends) - 1

    def records_through(self, sequence: int) -> int:
        """Return the record count through `sequence`, which is `first - 1` to `last`."""
        return self.totals[sequence - self.first] if sequence >= self.first else self.records_before

    def offset_behind(self, sequence: int) -> int:
        """Return the offset at which message `sequence` ends, which is `first - 1` to `last`."""
        return self.ends[sequence - self.first] if sequence >= self.first else HEAD_BYTES

    def index(self, entry_bytes: int, records: int) -> None:
        """Add the next entry."""
        self.totals.append(self.records_through(self.last) + records)
        self.ends.append(self.offset_behind(self.last) + entry_bytes)


def segment_path(directory: Path, first: int) -> Path:
    """Return the file of the segment that begins with message `first`."""
    return directory / f"{first:019d}.seg"


def pack_head(first: int, records_before: int) -> bytes:
    """Return the header of a segment."""
    head = _HEAD.pack(first, records_before)
    return head + _CRC.pack(zlib.crc32(head))


def pack_entry(topic: str, payload: bytes, records: int) -> bytes:
    """Return the bytes of one message."""
    name = topic.encode()
    entry = _ENTRY.pack(len(payload), records, len(name), zlib.crc32(payload, zlib.crc32(name)))
    return b"".join((entry, _CRC.pack(zlib.crc32(entry)), name, payload))


def scan(path: Path) -> tuple[SpoolSegment | None, bool]:
    """Return the index of a file (None without a header), and whether it is damaged.

    A file that a killed process left truncated inside an entry is whole up to there, and not damaged.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        head = os.pread(file, HEAD_BYTES, 0)
        if len(head) < HEAD_BYTES:
            return None, False
        first, records_before = _HEAD.unpack_from(head)
        if not _is_intact(head) or path != segment_path(path.parent, first):
            return None, True
        segment = SpoolSegment(path, first, records_before, file_bytes=os.fstat(file).st_size)
        return segment, _scan_entries(file, segment)
    finally:
        os.close(file)


def read_entry(file: int, segment: SpoolSegment, sequence: int) -> tuple[str, bytes] | None:
    """Return topic and payload of message `sequence`, which is in the index, or None if they are damaged."""
    start = segment.offset_behind(sequence - 1)
    try:
        data = os.pread(file, segment.offset_behind(sequence) - start, start)
    except OSError:
        return None
    if len(data) < _ENTRY_BYTES or not _is_intact(data[:_ENTRY_BYTES]):
        return None
    payload_bytes, _, topic_bytes, crc = _ENTRY.unpack_from(data)
    body = memoryview(data)[_ENTRY_BYTES:]
    if len(body) != topic_bytes + payload_bytes or zlib.crc32(body) != crc:
        return None
    return bytes(body[:topic_bytes]).decode(errors="replace"), bytes(body[topic_bytes:])


def _scan_entries(file: int, segment: SpoolSegment) -> bool:
    """Index every whole entry; return whether what follows the last one is damaged rather than only truncated."""
    while entry := os.pread(file, _ENTRY_BYTES, segment.offset_behind(segment.last)):
        if len(entry) < _ENTRY_BYTES:
            return False
        payload_bytes, records, topic_bytes, _ = _ENTRY.unpack_from(entry)
        if not _is_intact(entry) or payload_bytes > MESSAGE_MAX_BYTES or topic_bytes > _TOPIC_MAX_BYTES:
            return True
        entry_bytes = _ENTRY_BYTES + topic_bytes + payload_bytes
        if segment.offset_behind(segment.last) + entry_bytes > segment.file_bytes:
            return False
        segment.index(entry_bytes, records)
    return False


def _is_intact(data: bytes) -> bool:
    return data.endswith(_CRC.pack(zlib.crc32(data[: -_CRC.size])))
