"""Cuts a trace's JSON into pieces that are decoded separately, so that memory is bounded by a piece.

A trace is `{..., "traceEvents": [event, ...], ...}` or a bare list of events. It is cut where one object ends and the
next begins. The decoder decides whether a cut was right: a piece that is not JSON waits for more bytes. The text before
and after the events is decoded with the first and the last piece.
"""

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Generic, NamedTuple, TypeVar

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


class _Cut(NamedTuple, Generic[Block]):
    """Bytes that were cut, where the next ones begin, and what decodes them, or returns None if the cut was wrong."""

    piece: bytes
    rest: int
    decode: Callable[[], Block | None]


class PieceDecoder(ABC, Generic[Block]):
    """Decodes one source into blocks; iterate once.

    `cuts_ahead` pieces are cut before the one that is decoded, so that `_begin` can have work done on them meanwhile.
    """

    cuts_ahead = 0

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

    def _begin(self, piece: bytes, end: int) -> Callable[[], Block | None]:
        """Return the decoder of `piece[:end]`; it is called in the order of the pieces."""
        return partial(self._decode_piece, piece, end)

    def _blocks(self) -> Iterator[Block]:
        piece = self._read_head()
        cuts: deque[_Cut[Block]] = deque()
        enough = self._block_bytes
        for chunk in self._chunks:
            if len(piece) >= enough:
                cut = self._cut(piece)
                if cut is None:
                    enough = 2 * len(piece)  # doubling keeps the tries' cost linear
                else:
                    cuts.append(cut)
                    piece, enough = piece[cut.rest :], self._block_bytes
            if len(cuts) > self.cuts_ahead:
                block = cuts[0].decode()
                if block is None:
                    piece = _rejoined(cuts, piece)
                    enough = 2 * len(piece)
                else:
                    yield block
                    cuts.popleft()
            piece += chunk
            if len(piece) > PIECE_MAX_BYTES:
                raise self._source.malformed("trace events", f"{len(piece)} bytes", f"a cut every {PIECE_MAX_BYTES}")
        if cut := self._cut(piece):
            cuts.append(cut)
            piece = piece[cut.rest :]
        while cuts:
            block = cuts[0].decode()
            if block is None:
                piece = _rejoined(cuts, piece)
            else:
                yield block
                cuts.popleft()
        yield self._decode_end(b'{"traceEvents":[' + piece + self._closing)

    def _cut(self, piece: bytes) -> _Cut[Block] | None:
        end = _last_cut(piece)
        return _Cut(piece, piece.index(b",", end) + 1, self._begin(piece, end)) if end else None

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


def _rejoined(cuts: deque[_Cut[Block]], piece: bytes) -> bytes:
    """Return what was cut since the first of `cuts`, in front of the `piece` after them; they are none then."""
    joined = b"".join((*(memoryview(cut.piece)[: cut.rest] for cut in cuts), piece))
    cuts.clear()
    return joined


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
