"""Byte layout of marks, which a training process writes and from which the exporter builds step records.

A mark is MARK_BYTES long: time u64 (CLOCK_MONOTONIC, ns), kind u16 (`MarkKind`), detail u16, subject u32, argument i64,
little endian; `MarkKind` documents what each kind holds. A mark of a thread other than the training thread has
OTHER_THREAD set in its kind. Such threads write marks of issues, waits and costs only while they work for an autograd
backward.

Marks are written in blocks, one `pwrite` each, to a ring of `block_count` slots of BLOCK_BYTES; block n lies in slot n
% block_count. A block is a header and 1 to BLOCK_MARKS marks:

    0   checksum u32        CRC-32 of all that follows
    4   count u16           marks in this block
    6   version u16         MARKS_VERSION
    8   sequence u64        blocks written before this one in the attempt
    16  position u64        marks before its first one
    24  backward_ends u64   BACKWARD_END marks before its first mark
    32  optimizer_ends u64  OPTIMIZER_END, SCALER_END and FUSED_STEP marks before it
    40  step_ends u64       STEP_END marks before it
    48  marks

No slot is written twice in a lap, so a writer that is killed at any byte loses only the block it was writing and its
unwritten marks. A gap in `sequence` means blocks that were overwritten or never stored. A gap in `position` counts
their marks, and the three counts of ends show what happened in the gap, as far as step numbers depend on it.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from lockstep.contracts.errors import LocalError
from lockstep.contracts.limits import WORLD_SIZE_MAX
from lockstep.contracts.records import DOMAIN_KINDS

MARKS_VERSION = 1

MARK_STRUCT = struct.Struct("<QHHIq")
MARK_BYTES = MARK_STRUCT.size
BLOCK_HEADER = struct.Struct("<IHHQQQQQ")
CHECKSUM = struct.Struct("<I")
_FLOAT, _INTEGER = struct.Struct("<d"), struct.Struct("<q")
BLOCK_HEADER_BYTES = BLOCK_HEADER.size
BLOCK_MARKS = 40
"""Marks of a full block: the block with its header fits a quarter of a page, so a store touches one page."""
BLOCK_BYTES = 1024
BLOCK_COUNT = 2048
"""Slots of a ring, 2 MiB: 200 s at ten steps a second, 7 s if each of those steps has 200 synchronous collectives."""

OTHER_THREAD = 0x8000
KIND_MASK = OTHER_THREAD - 1
KIND_BITS = 16
"""A mark's detail lies behind its kind: the two may be packed as one word of twice the bits."""
ORDINAL_MASK = 0xFFFFFFFF

FLUSH_INTERVAL_NS = 100_000_000
"""The first mark this long after the last store writes the block, full or not: readers need it within seconds."""
FLUSH_EVENT_NS = 10_000_000
"""The same at the beginning of a wait, which may never end. It also applies at an end that may be a step's, relative to
the last such end that was stored, whatever waits were stored meanwhile: a rank may stop after it without another mark.
"""


class MarkKind(IntEnum):
    """Kinds of marks; detail, subject and argument are 0 unless stated here.

    An identity is 32 bits that distinguish objects of one process. CPU time is the training thread's, ns.
    """

    BEGIN = 1  # an attempt begins; subject and detail: ns that a mark and a collective cost; argument: CPU time
    DATA_BEGIN = 2
    DATA_END = 3
    BACKWARD_BEGIN = 4
    BACKWARD_END = 5  # argument: CPU time if an optimizer stepped within it, otherwise MISSING
    OPTIMIZER_BEGIN = 6  # subject: identity of the optimizer
    OPTIMIZER_END = 7  # argument: CPU time
    SCALER_BEGIN = 8  # subject: identity of the scaler; argument: identity of its optimizer
    SCALER_END = 9  # subject: identity of the scaler; argument: CPU time
    CLOSURE_BEGIN = 10
    CLOSURE_END = 11
    PHASE_BEGIN = 12  # detail: 0 data, 1 forward, 2 backward, 3 optimizer
    PHASE_END = 13  # detail: as above
    EXPLICIT = 14  # steps end at STEP_END only, from now on
    STEP_END = 15  # argument: CPU time
    ISSUE = 16  # a collective: detail and argument as in `pack_issue`; subject: its ordinal in the attempt
    DONE = 17  # subject: ordinal of the collective
    DONE_UNKNOWN = 18  # it will never be known when the collective `subject` was done
    EXPECT = 19  # the collective `subject` is done at the end of the next wait
    WAIT_BEGIN = 20  # the thread blocks for communication
    WAIT_END = 21
    GC_BEGIN = 22  # detail: generation
    GC_END = 23  # detail: generation
    BATCH_TOKENS = 24  # of the batch whose BATCH follows; argument: tokens
    BATCH_WORK = 25  # the same; argument: work
    BATCH = 26  # the batch of the last data span; argument: samples or MISSING
    BATCH_EVALUATED = 27  # the batch of the last data span was fetched for an evaluation
    ANNOTATION = 28  # detail: index in ANNOTATED; argument: value
    FLAGS = 29  # argument: records.Flag of the running step
    COMPILED = 30  # argument: graphs compiled in the process so far
    AGENT_COST = 31  # argument: ns that the agent took from the step: thread time at its beginning, otherwise wall time
    FAILURE = 32  # argument: failed hooks; the agent writes no more marks
    FINISH = 33  # the attempt ended successfully
    THREAD = 34  # the thread of this mark is the training thread from now on; argument: its CPU time
    FUSED_STEP = 35  # autograd's own thread steps an optimizer inside the running backward; counts as OPTIMIZER_END
    # Collectives that ran without being dispatched (a CUDA graph). detail: domain, or UNKNOWN_DOMAIN if it is unknown
    # which there were; subject: count; argument: payload bytes.
    UNMEASURED = 36
    UNMEASURED_BUS = 37  # the same; detail: domain; argument: bus bytes
    MODEL_FLOPS = 38  # from the running step on; detail: index in FLOPS_UNITS, argument: `flops_argument`
    ISSUE_BUS = 39  # of the collective `subject`, whose operator does not determine them; argument: bus bytes
    # Of a device (docs/devices.md). An event is queued after a mark; its distance is read later. Anchors are the events
    # of marks that may end a step, and that of DEVICE_BEGIN; a segment lies between two of them. Ordinals of marks are
    # their positions in the attempt & ORDINAL_MASK. A mark whose event is never read was not measured.
    DEVICE_BEGIN = 40  # events are queued from now on; the running step begins at this one; detail: stream
    DEVICE_EVENT = 41  # detail: stream; subject: ordinal of a mark; argument: device ns from the last anchor before it
    DEVICE_ANCHOR = 42  # detail: stream; subject: ordinal of a mark; argument: device ns from the anchor read last
    DEVICE_QUEUED = 43  # subject: ordinal of a collective, which is done at the event of this mark
    DEVICE_UNMEASURED = 44  # subject: ordinal of a mark whose segment has lost an event; with detail 1 the one it ends
    DEVICE_BEHIND = 45  # argument: segments that the device had not finished when last queried
    DEVICE_LOST = 46  # nothing more is read from the device
    MARKS_LOST = 50  # argument: marks of threads without the interpreter lock that found no room (_mark_queue.h)


UNKNOWN_DOMAIN = 0xFFFF
"""Detail of an UNMEASURED mark: any domain that the rank has used so far."""

ANNOTATED = ("samples", "tokens", "work", "flops")
FLOPS_UNITS = ("token", "sample", "step", "unknown")
"""The unit of a model FLOPs figure, i.e. what it is counted per."""

OPERATORS = (
    "allreduce_",
    "allreduce_coalesced_",
    "_allgather_base_",
    "allgather_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "_reduce_scatter_base_",
    "reduce_scatter_",
    "reduce_scatter_tensor_coalesced_",
    "broadcast_",
    "barrier",
    "alltoall_base_",
    "alltoall_",
    "send",
    "recv_",
    "recv_any_source_",
    "reduce_",
    "gather_",
    "scatter_",
)
"""Operators of torch's c10d; an issue mark holds the index."""
OPERATOR_INDEX = {name: index for index, name in enumerate(OPERATORS)}

PAYLOAD_BYTES_MAX = (1 << 39) - 1
"""512 GiB, more than any device holds: the part of the argument that the group's size leaves."""
DETAIL_BITS = 16
SIZE_BITS = 24
CALL_SITE_MAX = (1 << DETAIL_BITS + SIZE_BITS) - 1
_SIZE_MASK = (1 << SIZE_BITS) - 1
SYNCHRONOUS = 1 << 5
"""Bit of a call site, set for a synchronous collective; the bits below it are the operator's."""
DOMAIN_SHIFT, DOMAIN_MASK = 6, 7
SLOT_SHIFT = 9
SLOT_BITS = ((1 << DETAIL_BITS) - 1) >> SLOT_SHIFT << SLOT_SHIFT
_SLOT_MAX = (1 << (DETAIL_BITS - SLOT_SHIFT)) - 1

assert len(OPERATORS) <= SYNCHRONOUS
assert len(DOMAIN_KINDS) <= DOMAIN_MASK + 1
assert WORLD_SIZE_MAX <= _SIZE_MASK
assert BLOCK_HEADER_BYTES + BLOCK_MARKS * MARK_BYTES <= BLOCK_BYTES


@dataclass(slots=True)  # not frozen: that takes 1 us more for each, and there are hundreds a second
class MarkBlock:
    """One block: its header, and its marks as bytes of shape (count, MARK_BYTES), read by `MARK_STRUCT.iter_unpack`."""

    sequence: int
    position: int
    backward_ends: int
    optimizer_ends: int
    step_ends: int
    marks: bytes

    @property
    def count(self) -> int:
        """Number of marks."""
        return len(self.marks) // MARK_BYTES


def pack_block(block: MarkBlock) -> bytes:
    """Return a block as stored in the ring, without the unused rest of the slot."""
    header = BLOCK_HEADER.pack(
        0,
        block.count,
        MARKS_VERSION,
        block.sequence,
        block.position,
        block.backward_ends,
        block.optimizer_ends,
        block.step_ends,
    )
    body = header[CHECKSUM.size :] + block.marks
    return CHECKSUM.pack(zlib.crc32(body)) + body


def unpack_block(slots: bytes | memoryview, at: int = 0, expected: int | None = None) -> MarkBlock | None:
    """Return the block in the slot of BLOCK_BYTES at byte `at`, whose sequence must be `expected`; None is any.

    None if it is torn, never written, of another version, or another one, whose checksum is not computed.
    """
    checksum, count, version, sequence, position, backwards, optimizers, steps = BLOCK_HEADER.unpack_from(slots, at)
    if version != MARKS_VERSION or not 1 <= count <= BLOCK_MARKS or (expected is not None and expected != sequence):
        return None
    marks = at + BLOCK_HEADER_BYTES
    end = marks + count * MARK_BYTES
    if zlib.crc32(memoryview(slots)[at + CHECKSUM.size : end]) != checksum:
        return None
    return MarkBlock(sequence, position, backwards, optimizers, steps, bytes(slots[marks:end]))


def pack_call_site(operator: str, *, synchronous: bool, domain: int, slot: int, group_size: int) -> int:
    """Return what all collectives of one operator in one group share: computed once, passed at each issue.

    `domain` is an index in DOMAIN_KINDS, `slot` the group's issue slot (`ring.ISSUE_SLOTS`).

    Raises
    ------
    LocalError
        A value does not fit into an issue mark.
    """
    for what, got, most in (("slot", slot, _SLOT_MAX), ("domain", domain, len(DOMAIN_KINDS) - 1)):
        if not 0 <= got <= most:
            raise LocalError(f"{what} of a collective: got {got}, expected 0 to {most}")
    if not 1 <= group_size <= WORLD_SIZE_MAX:
        raise LocalError(f"group size of a collective: got {group_size}, expected 1 to {WORLD_SIZE_MAX}")
    if operator not in OPERATOR_INDEX:
        raise LocalError(f"operator of a collective: got {operator!r}, expected one of {', '.join(OPERATORS)}")
    detail = OPERATOR_INDEX[operator] | SYNCHRONOUS * synchronous | domain << DOMAIN_SHIFT | slot << SLOT_SHIFT
    return detail | group_size << DETAIL_BITS


def pack_issue(call_site: int, payload_bytes: int) -> tuple[int, int]:
    """Return (detail, argument) of an issue mark; `payload_bytes` is at most PAYLOAD_BYTES_MAX."""
    return call_site & ((1 << DETAIL_BITS) - 1), payload_bytes << SIZE_BITS | call_site >> DETAIL_BITS


def flops_argument(flops: float) -> int:
    """Return the argument of a MODEL_FLOPS mark: the bits of a float64."""
    return int(_INTEGER.unpack(_FLOAT.pack(flops))[0])


def flops_of_argument(argument: int) -> float:
    """Return the FLOPs that `flops_argument` encoded."""
    return float(_FLOAT.unpack(_INTEGER.pack(argument))[0])


class Issue(NamedTuple):
    """The content of an issue mark: `operator` is an index in OPERATORS, `domain` in DOMAIN_KINDS."""

    operator: int
    synchronous: bool
    domain: int
    slot: int
    group_size: int
    payload_bytes: int


def unpack_issue(detail: int, argument: int) -> Issue:
    """Return what `pack_issue` packed."""
    return Issue(
        operator=detail & (SYNCHRONOUS - 1),
        synchronous=bool(detail & SYNCHRONOUS),
        domain=detail >> DOMAIN_SHIFT & DOMAIN_MASK,
        slot=detail >> SLOT_SHIFT,
        group_size=argument & _SIZE_MASK,
        payload_bytes=argument >> SIZE_BITS,
    )
