"""trace_view.json to blocks of events with exact times.

The file is one list (or `{"traceEvents": [...]}`), usually in one line. What differs from a trace of Kineto: times are
text, flows and metadata are needed too, and most of an event stands in its arguments.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lockstep.trace import times
from lockstep.trace.ascend.clocks import COUNTER_NAME
from lockstep.trace.ascend.texts import Time, durations_ns, ns_of_times
from lockstep.trace.columns import ABSENT
from lockstep.trace.pieces import BLOCK_BYTES, PieceDecoder, as_list
from lockstep.trace.source import TraceSource

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


NO_TEXT = msgspec.Raw(b'""')


class Arguments(msgspec.Struct, frozen=True, gc=False):
    """What is read of an event's arguments; long texts, which repeat, are left as they stand in the file."""

    name: str = ""
    """Of metadata: the process or thread."""
    labels: str = ""
    connection: Int64 = msgspec.field(name="connection_id", default=ABSENT)
    queued: Int64 = msgspec.field(name="correlation_id", default=ABSENT)
    """The same for what is put into the task queue and what takes it out."""
    task_type: str = msgspec.field(name="Task Type", default="")
    sequence: Int64 = msgspec.field(name="Sequence number", default=ABSENT)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NO_TEXT)
    types: msgspec.Raw = msgspec.field(name="Input type", default=NO_TEXT)
    stack: msgspec.Raw = msgspec.field(name="Call stack", default=NO_TEXT)
    count: Int64 = ABSENT
    data_type: str = ""
    algorithm: str = msgspec.field(name="alg_type", default="")
    group: str = msgspec.field(name="group_name", default="")
    size_bytes: Int64 = msgspec.field(name="size(B)", default=ABSENT)


NO_ARGUMENTS = Arguments()
NO_RAW = msgspec.Raw(b"")


class AscendEvent(msgspec.Struct, gc=False):
    """What is read of an event; ids are whatever the writer took, arguments are decoded only of rows that need them."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: str | float | None = None
    dur: float = float("nan")
    id: int | str | None = None
    args: msgspec.Raw = NO_RAW


class _ExactEvent(AscendEvent, gc=False):
    ts: Decimal | None = None  # type: ignore[assignment]


class _Document(msgspec.Struct):
    traceEvents: msgspec.Raw  # noqa: N815 - the key in the file


_EVENTS = msgspec.json.Decoder(list[AscendEvent])
_EXACT_EVENTS = msgspec.json.Decoder(list[_ExactEvent])
_DOCUMENT = msgspec.json.Decoder(_Document)
_LOOSE_EVENTS = msgspec.json.Decoder(list[Any], float_hook=Decimal)
_ARGUMENTS = msgspec.json.Decoder(list[Arguments])
_LOOSE_ARGUMENTS = msgspec.json.Decoder(Arguments, strict=False)
_OTHER_PHASES = frozenset("MsfC")
_READ_PHASES = frozenset("XMsfC")
_FLOW_PHASES = frozenset("sf")
_EXACT_EVENT = msgspec.json.Decoder(_ExactEvent, strict=False)
_GET_TIME = attrgetter("ts")


def decode_arguments(raw: Sequence[msgspec.Raw]) -> list[Arguments]:
    """Return the arguments of some events; those of another form are empty, which does not cost the event."""
    try:
        return _ARGUMENTS.decode(b"".join((b"[", b",".join(raw), b"]")))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return list(map(_loose_arguments, raw))


def _loose_arguments(raw: msgspec.Raw) -> Arguments:
    try:
        return _LOOSE_ARGUMENTS.decode(bytes(raw).decode(errors="replace"))
    except (msgspec.DecodeError, RecursionError):
        return NO_ARGUMENTS


@dataclass(frozen=True, slots=True)
class AscendBlock:
    """Events of one piece of the file, by what they are.

    Times are int64 arrays of shape (n_complete,), (n_flows,) and (n_clocks,), ns.
    """

    complete: list[AscendEvent]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    flows: list[AscendEvent]
    """Begins and ends; those without a time are left out."""
    flow_ns: NDArray[np.int64]
    metadata: list[AscendEvent]
    clocks: list[AscendEvent]
    """Counter rows of the AI cores' clock."""
    clock_ns: NDArray[np.int64]
    event_count: int
    dropped_count: int


class AscendDecoder(PieceDecoder[AscendBlock]):
    """Decodes one source; iterate once."""

    def __init__(self, source: TraceSource, *, block_bytes: int = BLOCK_BYTES) -> None:
        super().__init__(source, "a whole trace_view.json", block_bytes)

    def _note_head(self, document: bytes) -> None:
        _DOCUMENT.decode(document)

    def _decode_piece(self, piece: bytes, end: int) -> AscendBlock | None:
        try:
            return _block_of_whole(as_list(piece, end))
        except msgspec.DecodeError:
            return None

    def _decode_end(self, document: bytes) -> AscendBlock:
        return _block_of_whole(bytes(_DOCUMENT.decode(document).traceEvents))


def _block_of_whole(text: bytes) -> AscendBlock:
    try:
        return _block_of(_EVENTS.decode(text)) or _sure(_block_of(_EXACT_EVENTS.decode(text)))
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass  # one event of another form, or not in UTF-8, must not cost the block
    return _block_of_loose(_LOOSE_EVENTS.decode(text.decode(errors="replace").encode()))


def _sure(block: AscendBlock | None) -> AscendBlock:
    assert block is not None
    return block


def _block_of(events: list[Any], dropped_count: int = 0) -> AscendBlock | None:
    """Return the block of these events, or None if some time is a float too coarse for what was written."""
    complete = [event for event in events if event.ph == "X"]
    others = [event for event in events if event.ph in _OTHER_PHASES]
    flows = [event for event in others if event.ph in _FLOW_PHASES]
    clocks = [event for event in others if event.ph == "C" and event.name == COUNTER_NAME]
    metadata = [event for event in others if event.ph == "M"]
    stamps: list[Time] = list(map(_GET_TIME, complete))
    floats = [value for value in stamps if type(value) is float]
    if floats and times.needs_decimals(np.array(floats)):
        return None
    start_ns = ns_of_times(stamps)
    duration_ns = durations_ns(np.fromiter(map(attrgetter("dur"), complete), np.float64, len(complete)))
    known = (start_ns != ABSENT) & (duration_ns != ABSENT)
    if not known.all():
        complete = [event for event, good in zip(complete, known, strict=True) if good]
        start_ns, duration_ns = start_ns[known], duration_ns[known]
        dropped_count += int((~known).sum())
    flow_ns = ns_of_times(list(map(_GET_TIME, flows)))
    clock_ns = ns_of_times(list(map(_GET_TIME, clocks)))
    return AscendBlock(
        complete, start_ns, duration_ns, flows, flow_ns, metadata, clocks, clock_ns, len(events), dropped_count
    )


def _block_of_loose(items: list[Any]) -> AscendBlock:
    """Return the block of events that are not all of the usual form; those of no form are dropped and counted."""
    events: list[_ExactEvent] = []
    dropped = 0
    for item in items:
        try:
            if not isinstance(item, dict) or item.get("ph") in _READ_PHASES:
                events.append(_EXACT_EVENT.decode(msgspec.json.encode(item)))
        except (msgspec.ValidationError, ArithmeticError, ValueError):
            dropped += 1
    block = _sure(_block_of(events, dropped))
    return replace(block, event_count=len(items))
