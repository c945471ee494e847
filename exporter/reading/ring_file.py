"""One ring file, open for reading.

Reads with pread, never through a mapping: a file that is cut under a mapping kills its reader with SIGBUS, while pread
comes back short, which is an ordinary error here. It costs one copy of a few kilobytes per look (about 2 us).
"""

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
from lockstep.contracts.bounds import FLAGS_MAX, INT63_MAX, MONOTONIC_NS_MAX
from lockstep.contracts.control import OrderAnswer, answer_from_json
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.locks import lock_holder
from lockstep.contracts.records import RECORD_FIELDS

_WORDS = struct.Struct("<4Q")
_FLAGS_HELD = struct.Struct("<2Q")
_FRONT_BYTES = ring.GROUPS_OFFSET + HEAD_BYTES - ring.WORDS_OFFSET
_ANSWER = ring.ANSWER_OFFSET - ring.WORDS_OFFSET
_GROUPS = ring.GROUPS_OFFSET - ring.WORDS_OFFSET
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe in a ring's place must not block us

Records = NDArray[np.int64]
"""Array of shape (n_records, n_fields), int64, columns as `RECORD_FIELDS`; times ns of CLOCK_MONOTONIC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at a ring saw; `answer`, `groups` and `facts` only if they changed since the look before."""

    records: Records
    lapped: int
    torn: int
    heartbeat_ns: int
    state: int
    failures: int
    answer: OrderAnswer | None
    groups: Any
    facts: Any
    errors: tuple[MalformedError, ...]


@dataclass(frozen=True, slots=True)
class Issues:
    """What a rank has issued, by issue slot: arrays of shape (ISSUE_SLOTS,), int64, times ns of CLOCK_MONOTONIC.

    `flags` are what is known of its running step; `is_alive` whether its process exists, None where nobody can tell.
    """

    counts: NDArray[np.int64]
    times_ns: NDArray[np.int64]
    flags: int
    is_alive: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a ring: `pid` in our PID namespace, None where that does not tell; `is_gone` if nobody does any more.

    `locks` says whether the ring's file system knows locks, and so whether any of this can be told.
    """

    pid: int | None
    is_gone: bool
    locks: bool


class RingFile:
    """A reader of one incarnation of a rank's ring; owns its descriptor until `close`.

    `next_index` is the record to read next and `answer_generation` the last answer seen: a new reader that is given
    both goes on where this one stopped.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self.path = path
        self.next_index = 0
        self.answer_generation = 0
        self._groups_generation = 0
        self._facts_generation = 0
        self._torn_index = -1
        self._descriptor = os.open(path, _FLAGS)
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
        """Give the descriptor back; may be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def resume(self, next_index: int, answer_generation: int) -> Records:
        """Go on where an earlier exporter process stopped with this same file.

        Return the record before that place, none if it is gone: it tells where the rank stands, nobody counts it again.
        """
        head = self._words(self._pread(_WORDS.size, ring.WORDS_OFFSET))[0]
        if not 0 <= next_index <= head:
            return _to_records([])
        self.next_index, self.answer_generation = next_index, answer_generation
        if next_index == 0:
            return _to_records([])
        slot = ring.unpack_slot(self._slots(next_index - 1, 1))
        return _to_records([slot[1]] if slot is not None and slot[0] == next_index - 1 else [])

    def heartbeat_ns(self) -> int:
        """Return the last sign of life of the agent, CLOCK_MONOTONIC."""
        return self._words(self._pread(_WORDS.size, ring.WORDS_OFFSET))[1]

    def issues(self) -> Issues:
        """Return where the rank stands now, between its step records.

        Raises
        ------
        MalformedError
            The file was cut, or a word holds what no rank writes.
        OSError
            Its lock cannot be asked for.
        """
        pairs = np.frombuffer(self._pread(ring.ISSUES_BYTES, ring.ISSUES_OFFSET), dtype="<u8").reshape(-1, 2)
        counts, times_ns = pairs[:, 0], pairs[:, 1]
        self._check_word("issue count", int(counts.max()), INT63_MAX)
        self._check_word("issue time", int(times_ns.max()), MONOTONIC_NS_MAX)
        flags, held = self._flags_held()
        is_alive = lock_holder(self._descriptor) is not None if held else None
        return Issues(counts.astype(np.int64), times_ns.astype(np.int64), flags, is_alive)

    def holder(self) -> Holder:
        """Return who holds the ring, which only its writer does.

        Raises
        ------
        MalformedError
            The file was cut, or a word holds what no rank writes.
        OSError
            Its lock cannot be asked for.
        """
        _, held = self._flags_held()
        if not held:
            return Holder(pid=None, is_gone=False, locks=False)
        pid = lock_holder(self._descriptor)
        return Holder(pid=pid or None, is_gone=pid is None, locks=True)

    def look(self, limit: int) -> Look:
        """Read what is new, at most `limit` records.

        Raises
        ------
        MalformedError
            The file was cut, or a word holds what no rank writes; nothing was consumed.
        """
        front = memoryview(self._pread(_FRONT_BYTES, ring.WORDS_OFFSET))
        head, heartbeat_ns, state, failures = self._words(front)
        errors: list[MalformedError] = []
        rows, lapped, torn = self._read_slots(head, limit)
        answer = self._answer(front, errors)
        groups = self._groups(front)
        facts = self._facts()
        return Look(
            records=_to_records(rows),
            lapped=lapped,
            torn=torn,
            heartbeat_ns=heartbeat_ns,
            state=state,
            failures=failures,
            answer=answer,
            groups=groups,
            facts=facts,
            errors=tuple(errors),
        )

    def _words(self, front: bytes | memoryview) -> tuple[int, int, int, int]:
        """Return head, heartbeat, state and failures."""
        head, heartbeat_ns, state, failures = _WORDS.unpack_from(front)
        self._check_word("head", head, INT63_MAX)
        self._check_word("heartbeat", heartbeat_ns, MONOTONIC_NS_MAX)
        self._check_word("state", state, ring.STATE_FAILED)
        self._check_word("failures", failures, INT63_MAX)
        return head, heartbeat_ns, state, failures

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

    def _read_slots(self, head: int, limit: int) -> tuple[list[bytes], int, int]:
        """Return (records, lapped, torn) from `next_index` on and move it.

        A torn slot is given one more look at the next call, because a store of the writer may not be visible yet; torn
        again, it is counted and passed.
        """
        lapped = self._skip_overwritten(head)
        torn = 0
        rows: list[bytes] = []
        count = min(head - self.next_index, limit)
        data = self._slots(self.next_index, count)
        for offset in range(0, len(data), ring.SLOT_BYTES):
            slot = ring.unpack_slot(data[offset : offset + ring.SLOT_BYTES])
            if slot is None or slot[0] < self.next_index:
                if self._torn_index != self.next_index:
                    self._torn_index = self.next_index
                    break
                torn += 1
            elif slot[0] > self.next_index:
                lapped += 1
            else:
                rows.append(slot[1])
            self.next_index += 1
        return rows, lapped, torn

    def _skip_overwritten(self, head: int) -> int:
        if head < self.next_index:
            raise MalformedError("head", where=str(self.path), got=head, expected=f"at least {self.next_index}")
        overwritten = head - self.header.slot_count - self.next_index
        if overwritten <= 0:
            return 0
        # Believed only if the newest slot says the same: a wrong head must not count as millions of lost records.
        newest = ring.unpack_slot(self._slots(head - 1, 1))
        if newest is None or newest[0] < head - 1:
            raise MalformedError("head", where=str(self.path), got=head, expected="the index in the newest slot")
        self.next_index += overwritten
        return overwritten

    def _slots(self, index: int, count: int) -> bytes:
        """Return `count` slots from that of record `index` on, over the ring's end."""
        if count == 0:
            return b""
        first = index % self.header.slot_count
        straight = min(count, self.header.slot_count - first)
        data = self._pread(straight * ring.SLOT_BYTES, ring.SLOTS_OFFSET + first * ring.SLOT_BYTES)
        if straight < count:
            data += self._pread((count - straight) * ring.SLOT_BYTES, ring.SLOTS_OFFSET)
        return data

    def _answer(self, front: memoryview, errors: list[MalformedError]) -> OrderAnswer | None:
        if read_generation(front, _ANSWER) == self.answer_generation:
            return None
        found = read_blob(front, _ANSWER, ring.ANSWER_BYTES)
        if found is None:  # in the middle of being written: the next look sees it
            return None
        self.answer_generation, value = found
        try:
            answer = answer_from_json(value, where=str(self.path))
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


def _to_records(rows: list[bytes]) -> Records:
    return np.frombuffer(b"".join(rows), dtype="<i8").reshape(len(rows), len(RECORD_FIELDS))


NO_RECORDS: Records = _to_records([])
