"""A trace's JSON cut into pieces, each decoded alone, so that memory stays that of a piece.

A trace is `{..., "traceEvents": [event, ...], ...}` or a bare list of events. It is cut where one object ends and the
next begins. Whether a cut was right is for the decoder to decide: a piece that is not JSON waits for more bytes. What
stands before and after the events is decoded with the first and the last piece.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from lockstep.trace.source import TraceSource

BLOCK_BYTES = 1 << 20  # of `source.CHUNK_BYTES`
HEAD_MAX_BYTES = 16 << 20  # devices, process groups, settings: kilobytes in every trace seen
PIECE_MAX_BYTES = 64 << 20  # what a piece without a cut, or the logs after the events, may take; 60 times a block
CUT_TRIES = 256  # "}," that no "{" follows, from the end of a block backwards, before giving up until the next chunk

Block = TypeVar("Block")

_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_SPACES = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class PieceDecoder(ABC, Generic[Block]):
    """Decodes one source into blocks; iterate once."""

    def __init__(self, source: TraceSource, expected: str, block_bytes: int) -> None:
        self._source = source
        self._expected = expected
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
            raise self._source.malformed("JSON", error, self._expected) from error

    @abstractmethod
    def _note_head(self, document: bytes) -> None:
        """Take over what stands before the events, a document without events."""

    @abstractmethod
    def _decode_piece(self, piece: bytes, end: int) -> Block | None:
        """Return the events in `piece[:end]`, or None if it is not JSON: cut at the wrong place, or beyond the last."""

    @abstractmethod
    def _decode_end(self, document: bytes) -> Block:
        """Return the last events, with what stands after them."""

    def _blocks(self) -> Iterator[Block]:
        piece = self._read_head()
        enough = self._block_bytes
        for chunk in self._chunks:
            rest = 0
            if len(piece) >= enough:
                end = _last_cut(piece)
                block = self._decode_piece(piece, end) if end else None
                if block is None:
                    enough = 2 * len(piece)  # doubling keeps the tries' cost linear
                else:
                    yield block
                    rest = piece.index(b",", end) + 1
                    enough = self._block_bytes
            piece = b"".join((memoryview(piece)[rest:], chunk))
            if len(piece) > PIECE_MAX_BYTES:
                raise self._source.malformed("trace events", f"{len(piece)} bytes", f"a cut every {PIECE_MAX_BYTES}")
        yield self._decode_end(b'{"traceEvents":[' + piece + self._closing)

    def _read_head(self) -> bytes:
        """Read up to the first event, and return what was read beyond."""
        head = b""
        for chunk in self._chunks:
            head += chunk
            start = head.lstrip(_SPACES + _BYTE_ORDER_MARK)
            if start[:1] == b"[":
                self._closing = b"}"
                return start[1:]
            if start[:1] not in (b"{", b""):
                break
            if opening := _OPENING.search(head):
                self._note_head(head[: opening.start()] + b'"traceEvents":[]}')
                return head[opening.end() :]
            if len(head) > HEAD_MAX_BYTES:
                break
        raise self._source.malformed("traceEvents", f"{len(head)} bytes from {head[:40]!r}", "a list of events")


def as_list(piece: bytes, end: int) -> bytes:
    """Return `piece[:end]` as a list of JSON."""
    return b"".join((b"[", memoryview(piece)[:end], b"]"))


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
