"""Byte layout of a rank's ring file; the rank writes it, the node's exporter reads it.

    0      static header   magic, version, sizes, identity; written before the file gets its name
    512    words           u64 each, 8-aligned: head, heartbeat, state, failures, flags, held
    1024   issues          ISSUE_SLOTS pairs of u64, count and time: what this rank issued, by issue slot
    4096   answer          blob: state of the profile request this rank last saw
    8192   groups          blob: process groups of this rank, and their issue slots
    73728  facts           blob: what the rank runs on (`facts.RankFacts`)
    77824  slots           slot_count x slot_bytes, slot of record i at i % slot_count

A slot is: index u64, record (`records.RECORD_FIELDS`), CRC-32 u32 over both, padding u32. The index tells a lapped
reader which record it met, the checksum tells a torn one apart; no sequence lock is needed, nor an order of
stores that only some processors keep. `head` counts the records ever written, so the next record's index.

A step's record is written at the step's end, so it cannot say who has not arrived in a collective that never ends. The
issues can: in its issue slot, a rank counts what it has issued in a group since the attempt began (of sends and
receives, with each peer), beside the CLOCK_MONOTONIC ns of the last issue. Which slot is whose stands in the groups.

A file is made under a temporary name, its space reserved, its header written, then renamed: a reader never meets
half a header, and a restarted rank replaces the file instead of writing under a reader's feet. `attempt` (wall
clock of creation) tells two incarnations of a rank apart.
"""

import struct
import zlib
from dataclasses import dataclass

from lockstep.contracts.bounds import MONOTONIC_NS_MAX, UNIX_NS_MAX
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.limits import RING_FILE_MAX_BYTES, RING_SLOTS, WORLD_SIZE_MAX
from lockstep.contracts.records import RECORD_BYTES, RECORD_FIELDS, RECORD_VERSION

RING_MAGIC = b"LKSTRING"
RING_VERSION = 4

WORDS_OFFSET = 512
WORD_HEAD = WORDS_OFFSET // 8
WORD_HEARTBEAT = WORD_HEAD + 1
"""CLOCK_MONOTONIC ns of the agent's last sign of life (any hook); pids lie across PID namespaces, this does not.

It is up to 100 ms behind: a store costs a system call, and readers need seconds.
"""
WORD_STATE = WORD_HEAD + 2
WORD_FAILURES = WORD_HEAD + 3
"""How often the file was cut or removed and written again, and hooks that failed: the first of those ends the agent."""
WORD_FLAGS = WORD_HEAD + 4
"""What is known of the running step (`records.Flag`) before its record is written."""
WORD_HELD = WORD_HEAD + 5
"""1: the writer holds a POSIX lock on the whole file until its process ends; 0: this file system knows no locks.

A rank that was killed and one that hangs look alike otherwise: neither beats, and pids lie across PID namespaces.
"""

ISSUE_SLOTS = 128
"""Of a rank: the largest jobs have 20 groups; both directions to a pipeline's two neighbours are 4 slots more."""
OTHER_SLOT = ISSUE_SLOTS - 1
"""Takes what has no slot of its own, so that the writer needs no branch; it means nothing and nobody is given it."""
ISSUES_OFFSET = 1024
WORD_ISSUES = ISSUES_OFFSET // 8
WORDS_PER_ISSUE_SLOT = 2
ISSUE_SLOT_BYTES = 8 * WORDS_PER_ISSUE_SLOT
ISSUES_BYTES = ISSUE_SLOTS * ISSUE_SLOT_BYTES

STATE_NONE = 0
"""Between a ring's creation and its first word."""
STATE_RUNNING = 1
STATE_FINISHED = 2
STATE_FAILED = 3
"""The agent took itself out after a failure of its own; training goes on unwatched."""

ANSWER_OFFSET = 4096
ANSWER_BYTES = 4096
GROUPS_OFFSET = ANSWER_OFFSET + ANSWER_BYTES
GROUPS_BYTES = 64 << 10
FACTS_OFFSET = GROUPS_OFFSET + GROUPS_BYTES
FACTS_BYTES = 4096
SLOTS_OFFSET = FACTS_OFFSET + FACTS_BYTES

_HEADER = struct.Struct("<8sIIIIIiiiqqq64s")
_INDEX = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_CRC_OFFSET = _INDEX.size + RECORD_BYTES
SLOT_BYTES = _CRC_OFFSET + 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RingHeader:
    """The static header: who writes this ring, and how to read it.

    `clock_offset_ns` is wall clock minus CLOCK_MONOTONIC when the ring was made.
    """

    rank: int
    local_rank: int
    world_size: int
    pid: int
    attempt: int
    clock_offset_ns: int
    hostname: str
    slot_count: int = RING_SLOTS

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return SLOTS_OFFSET + self.slot_count * SLOT_BYTES


def pack_header(header: RingHeader) -> bytes:
    """Return the bytes of the static header."""
    return _HEADER.pack(
        RING_MAGIC,
        RING_VERSION,
        RECORD_VERSION,
        SLOT_BYTES,
        header.slot_count,
        len(RECORD_FIELDS),
        header.rank,
        header.local_rank,
        header.world_size,
        header.pid,
        header.attempt,
        header.clock_offset_ns,
        header.hostname.encode(errors="replace")[:63],
    )


def unpack_header(data: bytes | memoryview, *, where: str, file_bytes: int) -> RingHeader:
    """Return the header of a ring file of `file_bytes` bytes.

    Raises
    ------
    MalformedError
        Not a ring, or one whose sizes do not fit its file.
    ContractVersionError
        A ring of another version.
    """
    if file_bytes < SLOTS_OFFSET or len(data) < _HEADER.size:
        raise MalformedError("ring size", where=where, got=file_bytes, expected=f"at least {SLOTS_OFFSET} bytes")
    if file_bytes > RING_FILE_MAX_BYTES:
        raise MalformedError("ring size", where=where, got=file_bytes, expected=f"at most {RING_FILE_MAX_BYTES} bytes")
    magic, ring, record, slot, slots, fields, rank, local, world, pid, attempt, offset, host = _HEADER.unpack_from(data)
    if magic != RING_MAGIC:
        raise MalformedError("magic", where=where, got=magic, expected=RING_MAGIC)
    versions = (ring, record, slot, fields)
    ours = (RING_VERSION, RECORD_VERSION, SLOT_BYTES, len(RECORD_FIELDS))
    if versions != ours:
        raise ContractVersionError(
            "ring version, record version, slot bytes, fields", where=where, got=versions, expected=ours
        )
    if not 0 <= rank < world <= WORLD_SIZE_MAX:
        raise MalformedError("rank of world size", where=where, got=(rank, world), expected="0 <= rank < world size")
    for what, got, most in (
        ("local rank", local, WORLD_SIZE_MAX - 1),
        ("pid", pid, (1 << 31) - 1),
        ("attempt", attempt, UNIX_NS_MAX),
        ("clock offset", offset, MONOTONIC_NS_MAX),
    ):
        if not 0 <= got <= most:
            raise MalformedError(what, where=where, got=got, expected=f"0 to {most}")
    header = RingHeader(
        rank=rank,
        local_rank=local,
        world_size=world,
        pid=pid,
        attempt=attempt,
        clock_offset_ns=offset,
        hostname=host.rstrip(b"\0").decode(errors="replace"),
        slot_count=slots,
    )
    if slots < 1 or header.file_bytes != file_bytes:
        raise MalformedError("slot count", where=where, got=slots, expected=f"what fills {file_bytes} bytes")
    return header


def pack_slot(view: memoryview, offset: int, index: int, record: bytes | bytearray) -> None:
    """Write the slot of record `index` (RECORD_BYTES long) at `offset`.

    A reader that meets it half written sees its checksum wrong.
    """
    begin, end = offset + _INDEX.size, offset + _CRC_OFFSET
    _INDEX.pack_into(view, offset, index)
    view[begin:end] = record
    _CRC.pack_into(view, end, zlib.crc32(record, zlib.crc32(view[offset:begin])))


def unpack_slot(slot: bytes) -> tuple[int, bytes] | None:
    """Return (index, record bytes) of a slot, or None if it is torn."""
    if zlib.crc32(memoryview(slot)[:_CRC_OFFSET]) != _CRC.unpack_from(slot, _CRC_OFFSET)[0]:
        return None
    return int(_INDEX.unpack_from(slot)[0]), slot[_INDEX.size : _CRC_OFFSET]
