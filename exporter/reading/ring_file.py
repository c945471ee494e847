"""A ring file, open for reading.

Reads use pread and never a mapping: if a mapped file is truncated, its reader is killed by SIGBUS, whereas pread
returns fewer bytes, an ordinary error here. This costs one copy of a few kilobytes per read (about 2 us).
"""

import errno
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts import ring
from lockstep.contracts.blob import HEAD_BYTES, read_blob, read_generation
from lockstep.contracts.bounds import FLAGS_MAX, INT63_MAX
from lockstep.contracts.capture import CaptureResult, result_from_json
from lockstep.contracts.endings import RaisedEnding, raised_from_json
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import MONOTONIC_NS_MAX
from lockstep.contracts.locks import lock_holder
from lockstep.contracts.marks import BLOCK_BYTES

_WORDS = struct.Struct("<3Q")
_FLAGS_HELD = struct.Struct("<2Q")
_DEVICE_MEMORY = struct.Struct(f"<{ring.DEVICE_MEMORY_WORDS}Q")
_FRONT_BYTES = ring.GROUPS_OFFSET + HEAD_BYTES - ring.WORDS_OFFSET
_ENDING = ring.ENDING_OFFSET - ring.WORDS_OFFSET
_ANSWER = ring.ANSWER_OFFSET - ring.WORDS_OFFSET
_GROUPS = ring.GROUPS_OFFSET - ring.WORDS_OFFSET
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe in a ring's place must not block us


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    """The content of a ring except its blocks; `answer`, `groups` and `facts` only if changed since the last read."""

    heartbeat_ns: int
    state: int
    failures: int
    ending: RaisedEnding | None
    answer: CaptureResult | None
    groups: Any
    facts: Any
    errors: tuple[MalformedError, ...]


@dataclass(frozen=True, slots=True)
class IssueSnapshot:
    """What a rank has issued, by issue slot: arrays of shape (ISSUE_SLOTS,), int64, times ns of CLOCK_MONOTONIC.

    `flags` are those of the running step so far; `is_alive` is whether the process exists, None if unknown.
    """

    counts: NDArray[np.int64]
    times_ns: NDArray[np.int64]
    flags: int
    is_alive: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RingHolder:
    """The process that holds a ring: `pid` in our PID namespace, None if unknown; `is_gone` if no process holds it.

    `locks` is whether the ring's file system supports locks; without them, none of this can be known.
    """

    pid: int | None
    is_gone: bool
    locks: bool


def _open(path: Path) -> int:
    try:
        return os.open(path, _FLAGS)
    except PermissionError as error:
        expected = f"a file that user {os.geteuid()} may read"
        raise MalformedError("ring", where=str(path), got=error.strerror, expected=expected) from error
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise MalformedError("ring", where=str(path), got="a link", expected="a file of its own") from error


class RingFile:
    """A reader of one incarnation of a rank's ring; owns its descriptor until `close`.

    `answer_generation` is that of the last answer read; a new reader that is given it does not return that answer
    again.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self.path = path
        self.answer_generation = 0
        self._groups_generation = 0
        self._facts_generation = 0
        self._descriptor = _open(path)
        try:
            self.inode, self.owner_uid, self.header = self._check(rank)
        except BaseException:
            self.close()
            raise

    def _check(self, rank: int) -> tuple[int, int, ring.RingHeader]:
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise MalformedError("ring", where=str(self.path), got="no regular file", expected="a ring file")
        data = os.pread(self._descriptor, ring.WORDS_OFFSET, 0)
        header = ring.unpack_header(data, where=str(self.path), file_bytes=status.st_size)
        if header.rank != rank:
            raise MalformedError("rank", where=str(self.path), got=header.rank, expected=rank)
        return status.st_ino, status.st_uid, header

    def close(self) -> None:
        """Close the descriptor; safe to call again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def heartbeat_ns(self) -> int:
        """Return the agent's last sign of life, CLOCK_MONOTONIC."""
        return self._words(self._pread(_WORDS.size, ring.WORDS_OFFSET))[0]

    def issues(self) -> IssueSnapshot:
        """Return where the rank is now, between its step records.

        Raises
        ------
        MalformedError
            The file was truncated, or a word holds a value that no rank writes.
        OSError
            Its lock cannot be queried.
        """
        pairs = np.frombuffer(self._pread(ring.ISSUES_BYTES, ring.ISSUES_OFFSET), dtype="<u8").reshape(-1, 2)
        counts, times_ns = pairs[:, 0], pairs[:, 1]
        self._check_word("issue count", int(counts.max()), INT63_MAX)
        self._check_word("issue time", int(times_ns.max()), MONOTONIC_NS_MAX)
        flags, held = self._flags_held()
        is_alive = lock_holder(self._descriptor) is not None if held else None
        return IssueSnapshot(counts.astype(np.int64), times_ns.astype(np.int64), flags, is_alive)

    def training_thread(self) -> int:
        """Return the id of the training thread, 0 if unknown.

        Raises
        ------
        MalformedError
            The file was truncated.
        """
        return int.from_bytes(self._pread(8, ring.WORD_THREAD * 8), "little")

    def device_memory(self) -> tuple[int, int, int, int] | None:
        """Return the bytes reserved, allocated, allocated at peak, and of the device; None if unknown.

        Raises
        ------
        MalformedError
            The file was truncated, or a word holds a value that no rank writes.
        """
        words = _DEVICE_MEMORY.unpack(self._pread(ring.DEVICE_MEMORY_BYTES, ring.DEVICE_MEMORY_OFFSET))
        for size_bytes in words:
            self._check_word("device memory", size_bytes, INT63_MAX)
        reserved, allocated, peak, limit = words
        return (reserved, allocated, peak, limit) if limit else None

    def holder(self) -> RingHolder:
        """Return the process that holds the ring; only its writer does.

        Raises
        ------
        MalformedError
            The file was truncated, or a word holds a value that no rank writes.
        OSError
            Its lock cannot be queried.
        """
        _, held = self._flags_held()
        if not held:
            return RingHolder(pid=None, is_gone=False, locks=False)
        pid = lock_holder(self._descriptor)
        return RingHolder(pid=pid or None, is_gone=pid is None, locks=True)

    def read(self) -> ReadResult:
        """Read the words, and the answer, groups and facts if they changed.

        Raises
        ------
        MalformedError
            The file was truncated, or a word holds a value that no rank writes.
        """
        front = memoryview(self._pread(_FRONT_BYTES, ring.WORDS_OFFSET))
        heartbeat_ns, state, failures = self._words(front)
        errors: list[MalformedError] = []
        return ReadResult(
            heartbeat_ns=heartbeat_ns,
            state=state,
            failures=failures,
            ending=self._ending(front, errors) if state == ring.STATE_RAISED else None,
            answer=self._answer(front, errors),
            groups=self._groups(front),
            facts=self._facts(),
            errors=tuple(errors),
        )

    def blocks(self, first: int, count: int) -> bytes:
        """Return the bytes of `count` slots of blocks, fewer if the file was truncated."""
        return os.pread(self._descriptor, count * BLOCK_BYTES, ring.BLOCKS_OFFSET + first * BLOCK_BYTES)

    def _words(self, front: bytes | memoryview) -> tuple[int, int, int]:
        """Return heartbeat, state and failures."""
        heartbeat_ns, state, failures = _WORDS.unpack_from(front)
        self._check_word("heartbeat", heartbeat_ns, MONOTONIC_NS_MAX)
        self._check_word("state", state, ring.STATE_RAISED)
        self._check_word("failures", failures, INT63_MAX)
        return heartbeat_ns, state, failures

    def _flags_held(self) -> tuple[int, int]:
        """Return the running step's flags, and whether the writer holds a lock."""
        flags, held = _FLAGS_HELD.unpack(self._pread(_FLAGS_HELD.size, ring.WORD_FLAGS * 8))
        self._check_word("flags", flags, FLAGS_MAX)
        self._check_word("held", held, 1)
        return flags, held

    def _check_word(self, what: str, got: int, most: int) -> None:
        if got > most:
            raise MalformedError(what, where=str(self.path), got=got, expected=f"0 to {most}")

    def _pread(self, count: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, count, offset)
        if len(data) < count:
            size = os.fstat(self._descriptor).st_size
            raise MalformedError("ring size", where=str(self.path), got=size, expected=self.header.file_bytes)
        return data

    def _ending(self, front: memoryview, errors: list[MalformedError]) -> RaisedEnding | None:
        found = read_blob(front, _ENDING, ring.ENDING_BYTES)
        if found is None:
            return None
        try:
            return raised_from_json(found[1], where=str(self.path))
        except MalformedError as error:
            errors.append(error)
            return None

    def _answer(self, front: memoryview, errors: list[MalformedError]) -> CaptureResult | None:
        if read_generation(front, _ANSWER) == self.answer_generation:
            return None
        found = read_blob(front, _ANSWER, ring.ANSWER_BYTES)
        if found is None:  # being written at this moment: the next read returns it
            return None
        self.answer_generation, value = found
        try:
            answer = result_from_json(value, where=str(self.path))
        except MalformedError as error:
            errors.append(error)
            return None
        return answer

    def _groups(self, front: memoryview) -> Any:
        if read_generation(front, _GROUPS) == self._groups_generation:
            return None
        region = memoryview(self._pread(ring.GROUPS_BYTES, ring.GROUPS_OFFSET))
        found = read_blob(region, 0, ring.GROUPS_BYTES)
        if found is None:
            return None
        self._groups_generation, value = found
        return value

    def _facts(self) -> Any:
        head = memoryview(self._pread(HEAD_BYTES, ring.FACTS_OFFSET))
        if read_generation(head, 0) == self._facts_generation:
            return None
        found = read_blob(memoryview(self._pread(ring.FACTS_BYTES, ring.FACTS_OFFSET)), 0, ring.FACTS_BYTES)
        if found is None:
            return None
        self._facts_generation, value = found
        return value
