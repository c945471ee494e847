"""Decodes chunks of Kineto or Chrome JSON to blocks of complete events with exact times.

A piece with events of an unusual form is decoded event by event.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from lockstep.trace import times
from lockstep.trace.kineto.blocks import EventBlock, block_of, loose_block_of
from lockstep.trace.kineto.events import Event, ExactEvent
from lockstep.trace.kineto.kinds import Kinds
from lockstep.trace.kineto.metadata import Document, MetadataBuilder
from lockstep.trace.kineto.scanned import Scan, ScanResult, scanned_block
from lockstep.trace.pieces import BLOCK_BYTES, PieceDecoder, as_list
from lockstep.trace.source import TraceSource

Decoded = TypeVar("Decoded")

_SCANNERS_MAX = 3
"""Threads that scan: one thread makes blocks of what two find, and each more holds another piece in memory."""

_NAN = re.compile(rb"(?<=[:\[,\s])[+-]?(?:nan(?:\([^)]{0,32}\))?|inf(?:inity)?)(?=[\s,}\]])", re.IGNORECASE)


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


class TraceDecoder(PieceDecoder[EventBlock]):
    """Decodes one source; iterate once. `base_ns` and `metadata` are known when the iteration has ended.

    The codes of blocks are of `kinds`. `scan` reads pieces of the usual form without an object for each event; with
    several `cores` it runs in threads, ahead of what makes blocks of what it found.
    """

    def __init__(
        self, source: TraceSource, *, block_bytes: int = BLOCK_BYTES, scan: Scan | None = None, cores: int = 1
    ) -> None:
        super().__init__(source, "a whole Kineto or Chrome trace", block_bytes)
        self._scan = scan
        self._scanners = min(cores - 1, _SCANNERS_MAX) if scan else 0
        self._pool: ThreadPoolExecutor | None = None
        self.base_ns = 0
        self.metadata = MetadataBuilder()
        self.kinds = Kinds()
        self._decoders = [_EVENTS, _EXACT_EVENTS]

    def _note_head(self, document: bytes) -> None:
        self._note(_tolerant(_DOCUMENT.decode, document))

    def __iter__(self) -> Iterator[EventBlock]:
        """Yield the blocks of the trace; errors as of `PieceDecoder`."""
        if self._scanners < 1:
            yield from super().__iter__()
            return
        self.cuts_ahead = self._scanners + 1
        with ThreadPoolExecutor(self._scanners, "trace-scan") as self._pool:
            yield from super().__iter__()

    def _begin(self, piece: bytes, end: int) -> Callable[[], EventBlock | None]:
        if self._pool is None or self._scan is None:
            return super()._begin(piece, end)
        found = self._pool.submit(self._scan, piece, end)
        return lambda: self._decode(piece, end, found.result())

    def _decode_piece(self, piece: bytes, end: int) -> EventBlock | None:
        return self._decode(piece, end, None if self._scan is None else self._scan(piece, end))

    def _decode(self, piece: bytes, end: int, found: ScanResult | None) -> EventBlock | None:
        block = None if found is None else scanned_block(piece, found, self.kinds)
        if block is not None:
            return self._named(block)
        try:
            return self._named(_tolerant(self._decode_events, as_list(piece, end)))
        except msgspec.DecodeError:
            return None

    def _decode_end(self, document: bytes) -> EventBlock:
        return self._named(_tolerant(self._decode_document, document))

    def _decode_events(self, text: bytes) -> EventBlock:
        for decoder in self._decoders:
            try:
                block = block_of(decoder.decode(text), self.kinds)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # one event of another form, or not in UTF-8, must not cost the block
            if block:
                if block.is_exact:
                    self._decoders = [_EXACT_EVENTS]  # the other blocks have such times, too
                return block
        return loose_block_of(_LOOSE_EVENTS.decode(_readable(text)), self.kinds)

    def _decode_document(self, text: bytes) -> EventBlock:
        try:
            document: _Document | _LooseDocument = _DOCUMENT.decode(text)
            block = block_of(document.traceEvents, self.kinds)
        except (msgspec.DecodeError, UnicodeDecodeError):
            block = None
        if block is None:
            document = _LOOSE_DOCUMENT.decode(_readable(text))
            block = loose_block_of(document.traceEvents, self.kinds)
        self._note(document)
        return block

    def _note(self, document: _Document | _LooseDocument) -> None:
        base_ns = document.baseTimeNanoseconds
        if not 0 <= base_ns <= times.BASE_MAX_NS:
            raise self._source.malformed("baseTimeNanoseconds", base_ns, f"0 to {times.BASE_MAX_NS}")
        self.base_ns = base_ns or self.base_ns
        self.metadata.note_document(document)

    def _named(self, block: EventBlock) -> EventBlock:
        for each in block.metadata:
            if each.name == "thread_name":
                self.metadata.note_thread(each.pid, each.tid, each.args)
        return block


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
