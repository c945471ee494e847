"""One file of the Inspector: reads new lines, and frees the memory of what was read at once.

The plugin opens its file once and keeps writing at its own offset, so a truncated file would grow back from there.
Instead, what was read becomes a hole (`fallocate`, PUNCH_HOLE): offsets stay valid, no line is lost between a read and
a truncation, and the file uses memory only for new content.
"""

import ctypes
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from exporter.inspector.lines import LINE_MAX_BYTES
from lockstep.contracts.errors import MalformedError

READ_MAX_BYTES = 256 << 10
"""Bytes of a file that are read at once: 500 lines, some ms of parsing; five times a second."""
KEPT_MAX_BYTES = 8 << 20
"""Bytes of a file that may be in memory; what a plugin writes beyond that within a second is dropped and counted."""
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02  # linux/falloc.h
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


@dataclass(frozen=True, slots=True)
class NewLines:
    """Whole lines without their line ends, and how many bytes were dropped unread."""

    lines: tuple[bytes, ...] = ()
    dropped_bytes: int = 0


class DumpFile:
    """A file that a process of user `owner_uid` writes. It is opened for each read, so that no descriptor stays open.

    Invariant: everything before `_offset` was returned or dropped, and uses no memory.
    """

    def __init__(self, path: Path, owner_uid: int) -> None:
        self.path = path
        self._owner_uid = owner_uid
        self._inode = 0
        self._offset = 0
        self._in_line = False
        """Whether the offset lies within a line that is dropped."""

    def read(self) -> NewLines:
        """Return new lines; the last line only once it is complete.

        Raises
        ------
        MalformedError, OSError
            It is not a regular file of the owner's, cannot be read, or its memory cannot be freed.
        """
        descriptor = os.open(self.path, _FLAGS)
        try:
            status = os.fstat(descriptor)
            is_own = status.st_uid == self._owner_uid and status.st_nlink == 1  # may link to another user's
            if not stat.S_ISREG(status.st_mode) or not is_own:
                got = f"{stat.filemode(status.st_mode)} of uid {status.st_uid}, {status.st_nlink} links"
                expected = f"a file of uid {self._owner_uid} without other names"
                raise MalformedError("dump", where=str(self.path), got=got, expected=expected)
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._inode, self._offset, self._in_line = status.st_ino, _first_data(descriptor), False
            return self._read(descriptor, status.st_size)
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int, size_bytes: int) -> NewLines:
        start = self._offset
        dropped = max(0, size_bytes - start - KEPT_MAX_BYTES)
        if dropped:
            self._offset, self._in_line = start + dropped, True
        data = os.pread(descriptor, READ_MAX_BYTES, self._offset)
        end = data.rfind(b"\n") + 1
        if not end and len(data) > LINE_MAX_BYTES:  # longer than any line that the plugin writes
            self._offset, self._in_line = self._offset + len(data), True
            dropped += len(data)
        lines = data[:end].split(b"\n")[:-1]
        self._offset += end
        if lines and self._in_line:
            dropped += len(lines[0]) + 1
            lines, self._in_line = lines[1:], False
        if self._offset > start:
            start -= start % _PAGE_BYTES  # a page freed in two parts at different times would stay
            _give_back(descriptor, start, self._offset - start)
        return NewLines(tuple(line.lstrip(b"\0") for line in lines), dropped)


def _first_data(descriptor: int) -> int:
    """Return where the first page that was not freed begins: an earlier exporter has read what precedes it."""
    try:
        return os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError:  # nothing but a hole
        return os.fstat(descriptor).st_size


def _give_back(descriptor: int, offset: int, size_bytes: int) -> None:
    if _fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, size_bytes):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "fallocate")
