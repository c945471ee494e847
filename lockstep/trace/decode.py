"""Chunks of Kineto or Chrome JSON to blocks of complete events with exact times.

A trace is `{..., "traceEvents": [event, ...], ...}` or a bare list of events. It is cut where one object ends and the
next begins and each piece is decoded alone, so that memory stays that of a block. Whether a cut was right is for the
decoder to say: a piece that is not JSON waits for more bytes. What stands before and after the events is decoded
with the first and the last piece.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lockstep.trace import times
from lockstep.trace.source import TraceSource

BLOCK_BYTES = 2 << 20
HEAD_MAX_BYTES = 16 << 20  # devices, process groups, settings: kilobytes in every trace seen
PIECE_MAX_BYTES = 64 << 20  # what a piece without a cut, or the logs after the events, may take; 30 times a block
BASE_MAX_NS = 1 << 62
CUT_TRIES = 256  # "}," that no "{" follows, from the end of a block backwards, before giving up until the next chunk

_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_SPACES = b" \t\r\n"
_NOTHING = Decimal("nan")


class Event(msgspec.Struct, gc=False):
    """What is read of an event. Ids are whatever the writer took: numbers, negative ones, text."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: float = float("nan")
    dur: float = float("nan")


class _ExactEvent(Event, gc=False):
    ts: Decimal = _NOTHING  # type: ignore[assignment]
    dur: Decimal = _NOTHING  # type: ignore[assignment]


class _Document(msgspec.Struct):
    traceEvents: list[Event] = []  # noqa: N815 - the key in the file; msgspec copies mutable defaults
    baseTimeNanoseconds: int = 0  # noqa: N815 - the key in the file


class _LooseDocument(msgspec.Struct):
    traceEvents: list[Any]  # noqa: N815 - the key in the file
    baseTimeNanoseconds: int = 0  # noqa: N815 - the key in the file


_DOCUMENT = msgspec.json.Decoder(_Document)
_EVENTS = msgspec.json.Decoder(list[Event])
_EXACT_EVENTS = msgspec.json.Decoder(list[_ExactEvent])
_LOOSE_EVENTS = msgspec.json.Decoder(list[Any], float_hook=Decimal)
_LOOSE_DOCUMENT = msgspec.json.Decoder(_LooseDocument, float_hook=Decimal)


@dataclass(frozen=True, slots=True)
class Block:
    """Complete events and their times, int64 arrays of shape (n_events,), ns, the trace's base not yet added."""

    events: list[Event]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    event_count: int
    dropped_count: int


class TraceDecoder:
    """Decodes one source; iterate once. `base_ns` is known when the iteration has ended."""

    def __init__(self, source: TraceSource, *, block_bytes: int = BLOCK_BYTES) -> None:
        self.base_ns = 0
        self._source = source
        self._chunks = iter(source)
        self._closing = b""
        self._block_bytes = block_bytes

    def __iter__(self) -> Iterator[Block]:
        """Yield the blocks of the trace.

        Raises
        ------
        MalformedError
            Not JSON, not a trace, cut off, nested beyond reason, or a piece of it larger than its limit.
        """
        try:
            yield from self._blocks()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._source.malformed("JSON", error, "a whole Kineto or Chrome trace") from error

    def _blocks(self) -> Iterator[Block]:
        piece = self._read_head()
        enough = self._block_bytes
        for chunk in self._chunks:
            rest = 0
            if len(piece) >= enough:
                end = _last_cut(piece)
                block = _decode_piece(memoryview(piece)[:end]) if end else None
                if block is None:
                    enough = 2 * len(piece)  # doubling keeps the tries' cost linear
                else:
                    yield block
                    rest = piece.index(b",", end) + 1
                    enough = self._block_bytes
            piece = b"".join((memoryview(piece)[rest:], chunk))
            if len(piece) > PIECE_MAX_BYTES:
                raise self._source.malformed("trace events", f"{len(piece)} bytes", f"a cut every {PIECE_MAX_BYTES}")
        yield self._decode_tail(piece)

    def _read_head(self) -> bytes:
        """Read up to the first event, and return what was read beyond."""
        head = b""
        for chunk in self._chunks:
            head += chunk
            start = head.lstrip(_SPACES + b"\xef\xbb\xbf")
            if start[:1] == b"[":
                self._closing = b"}"
                return start[1:]
            if start[:1] not in (b"{", b""):
                break
            if opening := _OPENING.search(head):
                self._note_base(_DOCUMENT.decode(head[: opening.start()] + b'"traceEvents":[]}').baseTimeNanoseconds)
                return head[opening.end() :]
            if len(head) > HEAD_MAX_BYTES:
                break
        raise self._source.malformed("traceEvents", f"{len(head)} bytes from {head[:40]!r}", "a list of events")

    def _decode_tail(self, piece: bytes) -> Block:
        text = b'{"traceEvents":[' + piece + self._closing
        try:
            document = _DOCUMENT.decode(text)
            block = _block_of(document.traceEvents)
            base_ns = document.baseTimeNanoseconds
        except (msgspec.ValidationError, UnicodeDecodeError):
            block = None
        if block is None:
            loose = _LOOSE_DOCUMENT.decode(_readable(text))
            block, base_ns = _block_of_loose(loose.traceEvents), loose.baseTimeNanoseconds
        self._note_base(base_ns)
        return block

    def _note_base(self, base_ns: int) -> None:
        if not 0 <= base_ns <= BASE_MAX_NS:
            raise self._source.malformed("baseTimeNanoseconds", base_ns, f"0 to {BASE_MAX_NS}")
        self.base_ns = base_ns or self.base_ns


def _last_cut(piece: bytes) -> int:
    """Return the end of the last object that another object follows, or 0."""
    end = len(piece)
    for _ in range(CUT_TRIES):
        end = piece.rfind(b"},", 0, end)
        if end < 0:
            return 0
        if piece[end + 2 : end + 66].lstrip(_SPACES)[:1] == b"{":
            return end + 1
    return 0


def _decode_piece(piece: memoryview) -> Block | None:
    """Return the events of a piece, or None if it is not JSON: cut at the wrong place, or beyond the last event."""
    text = b"".join((b"[", piece, b"]"))
    try:
        return _block_of(_EVENTS.decode(text)) or _block_of(_EXACT_EVENTS.decode(text))
    except (msgspec.ValidationError, UnicodeDecodeError):
        pass  # one event of another form must not cost the block
    except msgspec.DecodeError:
        return None
    try:
        return _block_of_loose(_LOOSE_EVENTS.decode(_readable(text)))
    except msgspec.DecodeError:
        return None


def _readable(text: bytes) -> bytes:
    """Return `text` with bytes that are not UTF-8 replaced: a name is not worth a trace."""
    return text.decode(errors="replace").encode()


def _block_of(events: Sequence[Event]) -> Block | None:
    """Return the block of the complete events among these, or None if float times are too coarse for them."""
    complete = [event for event in events if event.ph == "X"]
    start_us = np.fromiter(map(attrgetter("ts"), complete), np.float64, len(complete))
    duration_us = np.fromiter(map(attrgetter("dur"), complete), np.float64, len(complete))
    exact = bool(complete) and isinstance(complete[0], _ExactEvent)
    if not exact and times.needs_decimals(start_us):
        return None
    keep = times.usable(start_us, duration_us)
    kept = complete if keep.all() else [event for event, good in zip(complete, keep, strict=True) if good]
    if exact:
        start_ns = np.fromiter((times.ns_of_decimal(Decimal(event.ts)) for event in kept), np.int64, len(kept))
    else:
        start_ns = times.ns_of_us(start_us[keep])
    return Block(kept, start_ns, times.ns_of_us(duration_us[keep]), len(events), len(complete) - len(kept))


def _block_of_loose(items: list[Any]) -> Block:
    """Return the block of events that are not all of the usual form; those of no form are dropped and counted."""
    events: list[_ExactEvent] = []
    dropped = 0
    for item in items:
        try:
            if not isinstance(item, dict) or item.get("ph") == "X":
                event = msgspec.convert(item, _ExactEvent, strict=False)
                float(event.ts), float(event.dur)  # a signalling NaN is a Decimal, too, and raises here
                events.append(event)
        except (msgspec.ValidationError, ValueError):
            dropped += 1
    block = _block_of(events)
    assert block is not None
    return Block(block.events, block.start_ns, block.duration_ns, len(items), block.dropped_count + dropped)
