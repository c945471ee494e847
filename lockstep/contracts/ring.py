"""Byte layout of a rank's ring file; the rank writes it, and the node's exporter reads it.

    0      static header   magic, versions, sizes, identity; written before the file gets its name
    512    words           u64 each, 8-aligned: heartbeat, state, failures, flags, held, thread
    576    ending          blob: the exception that ended the process (`endings.RaisedEnding`)
    1024   issues          ISSUE_SLOTS pairs of u64, count and time: what this rank issued, by issue slot
    3072   device memory   u64 each: bytes reserved, allocated, allocated at peak, and of the device; all 0: unknown
    4096   answer          blob: state of the capture request that this rank last saw
    8192   groups          blob: process groups of this rank, and their issue slots
    73728  facts           blob: what the rank runs on (`facts.RankFacts`)
    77824  blocks          block_count x BLOCK_BYTES, block n at n % block_count

Blocks hold the marks of the training (contracts/marks.py), each block with its sequence and a checksum: a lapped reader
detects which block it found, and whether it is torn. There is no stored head index, and no reliance on a store order
that only some processors guarantee.

A block is written when it is full or a tenth of a second old, and a mark in it shows that training progressed; a step
that hangs leaves none. The issues show who has not arrived in a collective that never ends: in its issue slot, a rank
counts what it has issued in a group since the attempt began (of sends and receives, with each peer), next to the
CLOCK_MONOTONIC ns of the last issue. The groups region assigns the slots.

A file is created under a temporary name, its space reserved, its header written, then renamed. So a reader never finds
half a header, and a restarted rank replaces the file instead of overwriting it under its reader. `attempt` (wall clock
of creation) distinguishes two incarnations of a rank. A file that was truncated or removed is written again under the
same attempt, without the blocks that it held: these are lost, and later ones continue their sequence.
"""

import struct
from typing import NamedTuple

from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.limits import MONOTONIC_NS_MAX, RING_FILE_MAX_BYTES, UNIX_NS_MAX, WORLD_SIZE_MAX
from lockstep.contracts.marks import BLOCK_BYTES, BLOCK_COUNT, DETAIL_BITS, MARKS_VERSION, SLOT_SHIFT

RING_MAGIC = b"LKSTRING"
RING_VERSION = 5

WORDS_OFFSET = 512
WORD_HEARTBEAT = WORDS_OFFSET // 8
"""CLOCK_MONOTONIC ns of the agent's last sign of life (any hook); unlike a pid, it is valid across PID namespaces.

It is up to 100 ms behind: a store costs a system call, and readers need seconds.
"""
WORD_STATE = WORD_HEARTBEAT + 1
WORD_FAILURES = WORD_HEARTBEAT + 2
"""How often the file was truncated or removed and rewritten, plus failed hooks: the first of those ends the agent."""
WORD_FLAGS = WORD_HEARTBEAT + 3
"""Known flags of the running step (`records.Flag`), before its marks are read: a step that hangs may store none."""
WORD_HELD = WORD_HEARTBEAT + 4
"""1: the writer holds a POSIX lock on the whole file until its process ends; 0: the file system has no locks.

Otherwise a killed rank and a hanging one look alike: neither sends heartbeats, and pids differ between PID namespaces.
"""
WORD_THREAD = WORD_HEARTBEAT + 5
"""The training thread's id, as in `threading.get_ident` and faulthandler; 0 is unknown."""

ISSUE_SLOTS = 128
"""Slots of a rank: the largest jobs have 20 groups; both directions to a pipeline's two neighbours take 4 more."""
OTHER_SLOT = ISSUE_SLOTS - 1
"""Slot for groups without one of their own, so that the writer needs no branch; never assigned, its content unused."""
ISSUES_OFFSET = 1024
WORD_ISSUES = ISSUES_OFFSET // 8
WORDS_PER_ISSUE_SLOT = 2
ISSUE_SLOT_BYTES = 8 * WORDS_PER_ISSUE_SLOT
ISSUES_BYTES = ISSUE_SLOTS * ISSUE_SLOT_BYTES

DEVICE_MEMORY_OFFSET = ISSUES_OFFSET + ISSUES_BYTES
WORD_DEVICE_MEMORY = DEVICE_MEMORY_OFFSET // 8
DEVICE_MEMORY_WORDS = 4
DEVICE_MEMORY_BYTES = 8 * DEVICE_MEMORY_WORDS

STATE_NONE = 0
"""Between a ring's creation and its first word."""
STATE_RUNNING = 1
STATE_FINISHED = 2
STATE_FAILED = 3
"""The agent disabled itself after a failure of its own; training continues unmonitored."""
STATE_RAISED = 4
"""An exception ends the process; the ending names it."""

ENDING_OFFSET = 576
ENDING_BYTES = ISSUES_OFFSET - ENDING_OFFSET

ANSWER_OFFSET = 4096
ANSWER_BYTES = 4096
GROUPS_OFFSET = ANSWER_OFFSET + ANSWER_BYTES
GROUPS_BYTES = 64 << 10
FACTS_OFFSET = GROUPS_OFFSET + GROUPS_BYTES
FACTS_BYTES = 4096
BLOCKS_OFFSET = FACTS_OFFSET + FACTS_BYTES

_HEADER = struct.Struct("<8sIIIIiiiqqq64s")

assert ISSUE_SLOTS == 1 << (DETAIL_BITS - SLOT_SHIFT)  # an issue mark has room for each


class RingHeader(NamedTuple):
    """The static header: who writes this ring, and how to read it.

    `clock_offset_ns` is wall clock minus CLOCK_MONOTONIC when the ring was created.
    """

    rank: int
    local_rank: int
    world_size: int
    pid: int
    attempt: int
    clock_offset_ns: int
    hostname: str
    block_count: int = BLOCK_COUNT

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return BLOCKS_OFFSET + self.block_count * BLOCK_BYTES


def pack_header(header: RingHeader) -> bytes:
    """Return the bytes of the static header."""
    return _HEADER.pack(
        RING_MAGIC,
        RING_VERSION,
        MARKS_VERSION,
        BLOCK_BYTES,
        header.block_count,
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
        It is not a ring, or its sizes do not fit the file.
    ContractVersionError
        The ring has another version.
    """
    if file_bytes < BLOCKS_OFFSET or len(data) < _HEADER.size:
        raise MalformedError("ring size", where=where, got=file_bytes, expected=f"at least {BLOCKS_OFFSET} bytes")
    if file_bytes > RING_FILE_MAX_BYTES:
        raise MalformedError("ring size", where=where, got=file_bytes, expected=f"at most {RING_FILE_MAX_BYTES} bytes")
    magic, ring, marks, block, blocks, rank, local, world, pid, attempt, offset, host = _HEADER.unpack_from(data)
    if magic != RING_MAGIC:
        raise MalformedError("magic", where=where, got=magic, expected=RING_MAGIC)
    versions = (ring, marks, block)
    ours = (RING_VERSION, MARKS_VERSION, BLOCK_BYTES)
    if versions != ours:
        raise ContractVersionError("ring version, marks version, block bytes", where=where, got=versions, expected=ours)
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
        block_count=blocks,
    )
    if blocks < 1 or header.file_bytes != file_bytes:
        raise MalformedError("block count", where=where, got=blocks, expected=f"what fills {file_bytes} bytes")
    return header
