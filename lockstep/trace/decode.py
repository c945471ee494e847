"""Chunks of Kineto or Chrome JSON to blocks of complete events with exact times.

A trace is `{..., "traceEvents": [event, ...], ...}` or a bare list of events. It is cut where one object ends and the
next begins and each piece is decoded alone, so that memory stays that of a block. Whether a cut was right is for the
decoder to say: a piece that is not JSON waits for more bytes. What stands before and after the events is decoded
with the first and the last piece.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from lockstep.trace import times
from lockstep.trace.about import Document, Said
from lockstep.trace.blocks import Block, block_of, loose_block_of
from lockstep.trace.events import Event, ExactEvent
from lockstep.trace.source import TraceSource

BLOCK_BYTES = 2 << 20
HEAD_MAX_BYTES = 16 << 20  # devices, process groups, settings: kilobytes in every trace seen
PIECE_MAX_BYTES = 64 << 20  # what a piece without a cut, or the logs after the events, may take; 30 times a block
CUT_TRIES = 256  # "}," that no "{" follows, from the end of a block backwards, before giving up until the next chunk

Decoded = TypeVar("Decoded")

_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_NAN = re.compile(rb"(?<=[:\[,\s])[+-]?(?:nan(?:\([^)]{0,32}\))?|inf(?:inity)?)(?=[\s,}\]])", re.IGNORECASE)
_SPACES = b" \t\r\n"


class _Document(Document):
    traceEvents: list[Event] = msgspec.field(default_factory=list)  # noqa: N815 - the key in the file
    baseTimeNanoseconds: int = 0  # noqa: N815 - the key in the file


class _LooseDocument(Document, kw_only=True):
    traceEvents: list[msgspec.Raw]  # noqa: N815 - the key in the file
    baseTimeNanoseconds: int = 0  # noqa: N815 - the key in the file


_DOCUMENT = msgspec.json.Decoder(_Document)
_LOOSE_DOCUMENT = msgspec.json.Decoder(_LooseDocument)
_EVENTS: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[Event])
_EXACT_EVENTS: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[ExactEvent])
_LOOSE_EVENTS = msgspec.json.Decoder(list[msgspec.Raw])


class TraceDecoder:
    """Decodes one source; iterate once. `base_ns` and `said` are known when the iteration has ended."""

    def __init__(self, source: TraceSource, *, block_bytes: int = BLOCK_BYTES) -> None:
        self.base_ns = 0
        self.said = Said()
        self._source = source
        self._chunks = iter(source)
        self._closing = b""
        self._decoders = [_EVENTS, _EXACT_EVENTS]
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
                block = self._decode_piece(memoryview(piece)[:end]) if end else None
                if block is None:
                    enough = 2 * len(piece)  # doubling keeps the tries' cost linear
                else:
                    yield self._named(block)
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
                self._note(_tolerant(_DOCUMENT.decode, head[: opening.start()] + b'"traceEvents":[]}'))
                return head[opening.end() :]
            if len(head) > HEAD_MAX_BYTES:
                break
        raise self._source.malformed("traceEvents", f"{len(head)} bytes from {head[:40]!r}", "a list of events")

    def _decode_piece(self, piece: memoryview) -> Block | None:
        """Return the events of a piece, or None if it is not JSON: cut at the wrong place, or beyond the last event."""
        try:
            return _tolerant(self._decode_events, b"".join((b"[", piece, b"]")))
        except msgspec.DecodeError:
            return None

    def _decode_events(self, text: bytes) -> Block:
        for decoder in self._decoders:
            try:
                block = block_of(decoder.decode(text))
            except (msgspec.ValidationError, UnicodeDecodeError):
                continue  # one event of another form must not cost the block
            if block:
                if block.is_exact:
                    self._decoders = [_EXACT_EVENTS]  # the other blocks have such times, too
                return block
        return loose_block_of(_LOOSE_EVENTS.decode(_readable(text)))

    def _decode_tail(self, piece: bytes) -> Block:
        return _tolerant(self._decode_end, b'{"traceEvents":[' + piece + self._closing)

    def _decode_end(self, text: bytes) -> Block:
        try:
            document: _Document | _LooseDocument = _DOCUMENT.decode(text)
            block = block_of(document.traceEvents)
        except (msgspec.ValidationError, UnicodeDecodeError):
            block = None
        if block is None:
            document = _LOOSE_DOCUMENT.decode(_readable(text))
            block = loose_block_of(document.traceEvents)
        self._note(document)
        return self._named(block)

    def _note(self, document: _Document | _LooseDocument) -> None:
        base_ns = document.baseTimeNanoseconds
        if not 0 <= base_ns <= times.BASE_MAX_NS:
            raise self._source.malformed("baseTimeNanoseconds", base_ns, f"0 to {times.BASE_MAX_NS}")
        self.base_ns = base_ns or self.base_ns
        self.said.note_document(document)

    def _named(self, block: Block) -> Block:
        for each in block.metadata:
            if each.name == "thread_name":
                self.said.note_thread(each.pid, each.tid, each.args)
        return block


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


def _tolerant(decode: Callable[[bytes], Decoded], text: bytes) -> Decoded:
    """Return the decoded `text`, null for what some writers give for a number that is none."""
    try:
        return decode(text)
    except msgspec.DecodeError:
        repaired, count = _NAN.subn(b"null", text)
        if not count:
            raise
    return decode(repaired)


def _readable(text: bytes) -> bytes:
    """Return `text` with bytes that are not UTF-8 replaced: a name is not worth a trace."""
    return text.decode(errors="replace").encode()
