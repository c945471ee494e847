"""HOT (budget 3,000 ns a record): the writer of a rank's ring file; contracts/ring.py is its layout.

The file is made under a temporary name with its space reserved, so that a full file system is an error here and
not a SIGBUS in training, then renamed: a restarted rank replaces the file of its former attempt.
"""

import fcntl
import mmap
import os
import stat
import struct
import time
from pathlib import Path
from typing import Any
from weakref import finalize

from lockstep.contracts import ring as layout
from lockstep.contracts.blob import write_blob
from lockstep.contracts.paths import ring_path

FILE_MODE = 0o640
"""The group reads: who can cut the file under our mapping can kill training with SIGBUS, so that is its owner alone."""
DIRECTORY_MODE = 0o770

_WORDS = struct.Struct("<6Q")  # head, heartbeat, state, failures, flags, held
_HEARTBEAT, _COUNTS, _TIMES = layout.WORD_HEARTBEAT, layout.WORD_ISSUE_COUNTS, layout.WORD_ISSUE_TIMES


def make_directory(path: Path) -> None:
    """Make `path` and the parents it lacks, shared by the group of trainer and exporter and closed to others.

    Raises
    ------
    OSError
        It cannot be made, or something else has its name.
    """
    if path.is_dir():
        return
    if not path.parent.is_dir():
        make_directory(path.parent)
    try:
        path.mkdir(DIRECTORY_MODE)
    except FileExistsError:  # another rank was faster
        if not path.is_dir():
            raise
    else:
        # Whatever the umask took; where a parent hands its group on (setgid), so do we: ranks and exporter meet in it.
        path.chmod(DIRECTORY_MODE | path.stat().st_mode & stat.S_ISGID)


class RingWriter:
    """The one writer of `<directory>/<rank>.ring`; used by the training thread only, but for `beat`."""

    __slots__ = ("__weakref__", "_generations", "_head", "_map", "_slot_count", "_view", "_words", "path")

    def __init__(self, directory: Path, header: layout.RingHeader) -> None:
        """Create the file.

        Raises
        ------
        OSError
            No space, no permission, a file-size limit: nothing is left behind.
        """
        make_directory(directory)
        self.path = ring_path(directory, header.rank)
        self._map, file = _create(self.path, header)
        # Open for as long as we live, for the lock; at exit the process's end is early enough to give both back.
        finalize(self, os.close, file).atexit = False
        self._view = memoryview(self._map)
        self._words = self._view.cast("Q")  # native order: bootstrap refuses big-endian hosts
        self._slot_count = header.slot_count
        self._head = 0
        self._generations = {layout.ANSWER_OFFSET: 0, layout.GROUPS_OFFSET: 0, layout.FACTS_OFFSET: 0}

    def write(self, record: bytes | bytearray) -> None:
        """Store a record (RECORD_STRUCT) in the next slot."""
        index = self._head
        offset = layout.SLOTS_OFFSET + index % self._slot_count * layout.SLOT_BYTES
        layout.pack_slot(self._view, offset, index, record)
        self._head = index + 1
        self._words[layout.WORD_HEAD] = index + 1

    def beat(self, now_ns: int) -> None:
        """Store a sign of life (CLOCK_MONOTONIC); any thread may."""
        self._words[layout.WORD_HEARTBEAT] = now_ns

    def note_issue(self, slot: int, now_ns: int) -> None:
        """Count an operation issued in an issue slot, which is a sign of life too; for one thread at a time."""
        words = self._words
        words[_HEARTBEAT] = now_ns
        words[_COUNTS + slot] += 1
        words[_TIMES + slot] = now_ns

    def clear_issues(self, slot: int) -> None:
        """Begin an issue slot anew for another group."""
        self._words[_COUNTS + slot] = 0
        self._words[_TIMES + slot] = 0

    def set_flags(self, flags: int) -> None:
        """Store what is known of the running step; any thread may."""
        self._words[layout.WORD_FLAGS] = flags

    def set_state(self, state: int, failures: int = 0) -> None:
        """Store the agent's state and how often it failed."""
        self._words[layout.WORD_FAILURES] = failures
        self._words[layout.WORD_STATE] = state

    def write_answer(self, value: Any) -> None:
        """Store what this rank says of its profile order (`control.answer_to_json`)."""
        self._write_blob(layout.ANSWER_OFFSET, layout.ANSWER_BYTES, value)

    def write_groups(self, value: Any) -> None:
        """Store the process groups of this rank, a list of objects as `groups.Groups` makes them.

        Raises
        ------
        LocalError
            They do not fit; the groups stored before stay.
        """
        self._write_blob(layout.GROUPS_OFFSET, layout.GROUPS_BYTES, value)

    def write_facts(self, value: Any) -> None:
        """Store what this rank runs on (`facts.facts_to_json`)."""
        self._write_blob(layout.FACTS_OFFSET, layout.FACTS_BYTES, value)

    def _write_blob(self, offset: int, capacity_bytes: int, value: Any) -> None:
        write_blob(self._view, offset, capacity_bytes, self._generations[offset] + 1, value)
        self._generations[offset] += 1


def _create(path: Path, header: layout.RingHeader) -> tuple[mmap.mmap, int]:
    """Return the mapping and the open, locked file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)  # left by a process of this pid that was killed right here
    file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    try:
        os.posix_fallocate(file, 0, header.file_bytes)
        mapped = mmap.mmap(file, header.file_bytes)
        packed = layout.pack_header(header)
        mapped[: len(packed)] = packed
        _WORDS.pack_into(mapped, layout.WORDS_OFFSET, 0, time.monotonic_ns(), layout.STATE_RUNNING, 0, 0, _hold(file))
        os.fchmod(file, FILE_MODE)  # whatever the umask took
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        os.close(file)
        raise
    return mapped, file


def _hold(file: int) -> bool:
    """Lock the file until this process ends; forked children do not hold it. Return whether that is possible here."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
