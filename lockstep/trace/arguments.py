"""What is read of events' arguments ("args"): ids, streams, sizes, shapes, stacks, collectives, waits.

An argument is extra: one of another type or range is ABSENT for its event and never costs the event. Arguments stay
raw JSON while events are decoded; those of categories that have none of interest (Python frames) are never looked at,
the others are decoded together, each category as the few fields that it can have.

Shape suffix: E the events of one block.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lockstep.contracts import limits
from lockstep.trace.categories import Reading
from lockstep.trace.columns import ABSENT, CollectiveArguments, SyncArguments
from lockstep.trace.interned import Interned

SHAPES_MAX = 1 << 16
"""Distinct shapes; real traces have tens to hundreds, a job that recompiles for every length some thousands."""
SHAPES_MAX_BYTES = 16 << 20
STACKS_MAX = 1 << 16
STACKS_MAX_BYTES = 32 << 20
"""Stacks are kilobytes each; the traces that carry them have about a hundred distinct ones."""
RANKS_MAX_CHARS = 4 << 20
"""Of distinct lists of ranks; one is at most 30 ranks long where torch writes it."""
STREAMS_MAX = 1 << 12
TEXT_MAX_CHARS = 256
"""Of a collective's, group's or wait's name."""

_STREAM_BITS = 32
_DEVICES_MAX = 1 << 16
_NO_STREAM = (1 << _STREAM_BITS) - 1  # CUPTI's invalid id, unsigned in some versions
_INT64_MAX = (1 << 63) - 1
_ARGS, _DIMS, _TYPES = attrgetter("args"), attrgetter("dims"), attrgetter("types")
_RANKS = re.compile(r"\s*\[\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)\s*\]\s*")


class _Collective(msgspec.Struct, gc=False):
    collective: Any = msgspec.field(name="Collective name", default=None)
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    dtype: Any = None
    group: Any = msgspec.field(name="Process Group Name", default=None)
    description: Any = msgspec.field(name="Process Group Description", default=None)
    ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    seq: Any = msgspec.field(name="Seq", default=None)


class _Operator(_Collective, gc=False):
    external: Any = msgspec.field(name="External id", default=ABSENT)
    sequence: Any = msgspec.field(name="Sequence number", default=ABSENT)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b""))
    stack: Any = msgspec.field(name="Call stack", default="")


class _Call(msgspec.Struct, gc=False):
    external: Any = msgspec.field(name="External id", default=ABSENT)
    former_external: Any = msgspec.field(name="external id", default=ABSENT)
    correlation: Any = ABSENT
    bytes: Any = ABSENT


class _Kernel(_Collective, gc=False):
    external: Any = msgspec.field(name="External id", default=ABSENT)
    former_external: Any = msgspec.field(name="external id", default=ABSENT)
    correlation: Any = ABSENT
    device: Any = ABSENT
    stream: Any = ABSENT


class _Device(_Kernel, gc=False):
    bytes: Any = ABSENT
    sync_kind: Any = msgspec.field(name="cuda_sync_kind", default=None)
    wait_on_stream: Any = ABSENT
    wait_on_cuda_event_record_corr_id: Any = ABSENT


_STRUCTS = {Reading.OPERATOR: _Operator, Reading.CALL: _Call, Reading.KERNEL: _Kernel, Reading.DEVICE: _Device}
_DECODERS = {reading: msgspec.json.Decoder(list[struct]) for reading, struct in _STRUCTS.items()}  # type: ignore[valid-type]


_COLUMNS: dict[str, type[np.signedinteger[Any]]] = {
    **dict.fromkeys(("stream", "shapes", "stack"), np.int32),
    **dict.fromkeys(("correlation", "external", "sequence", "bytes"), np.int64),
}


@dataclass(frozen=True, slots=True)
class BlockArguments:
    """Arguments of one block: columns by name (shape E), and what few events have, by their place in the block."""

    columns: dict[str, NDArray[Any]]
    collectives: dict[int, CollectiveArguments]
    syncs: dict[int, SyncArguments]


class ArgumentReader:
    """Reads the arguments of block after block; what repeats is kept once, for all blocks."""

    def __init__(self) -> None:
        self.streams: Interned[tuple[int, int]] = Interned(_stream, STREAMS_MAX, 2 * STREAMS_MAX)
        self.shapes: Interned[str] = Interned(_shapes, SHAPES_MAX, SHAPES_MAX_BYTES)
        self.shapes[b"", b""] = ABSENT
        self.stacks: Interned[str] = Interned(_stack, STACKS_MAX, STACKS_MAX_BYTES)
        self._said: dict[CollectiveArguments, CollectiveArguments] = {}
        self._ranks: dict[str, tuple[int, ...] | None] = {}
        self._ranks_free_chars = RANKS_MAX_CHARS

    def read(self, events: Sequence[Any], reading: NDArray[np.int8]) -> BlockArguments:
        """Return what is read of `events`, which have `args`, each as its category's `reading` (shape E)."""
        block = BlockArguments({name: np.full(len(events), ABSENT, kind) for name, kind in _COLUMNS.items()}, {}, {})
        for kind in _STRUCTS:
            at = np.flatnonzero(reading == kind)
            if len(at):
                self._fill(block, at, kind, _decode(list(map(_ARGS, map(events.__getitem__, at.tolist()))), kind))
        return block

    def _fill(self, block: BlockArguments, at: NDArray[np.intp], kind: Reading, read: list[Any]) -> None:
        columns = block.columns
        external = _integers(read, "external")
        if kind is Reading.OPERATOR:
            columns["sequence"][at] = _integers(read, "sequence")
            columns["shapes"][at] = self._shapes(read)
            columns["stack"][at] = self._stacks(read)
        else:
            columns["correlation"][at] = _integers(read, "correlation")
            if (external == ABSENT).any():
                external = np.where(external == ABSENT, _integers(read, "former_external"), external)
        columns["external"][at] = external
        if kind in (Reading.CALL, Reading.DEVICE):
            columns["bytes"][at] = _integers(read, "bytes")
        if kind is not Reading.CALL:
            self._note_collectives(block.collectives, at, read)
        if kind in (Reading.KERNEL, Reading.DEVICE):
            columns["stream"][at] = self._streams(_integers(read, "device"), _integers(read, "stream"))
        if kind is Reading.DEVICE:
            _note_syncs(block.syncs, at, read)

    def _streams(self, device: NDArray[np.int64], stream: NDArray[np.int64]) -> NDArray[np.int32]:
        known = (stream >= 0) & (stream < _NO_STREAM)
        device = np.where((device >= 0) & (device < _DEVICES_MAX), device, ABSENT)
        pairs, place = np.unique((device[known] << _STREAM_BITS) | stream[known], return_inverse=True)
        column = np.full(len(stream), ABSENT, np.int32)
        column[known] = np.array([self.streams[pair] for pair in pairs.tolist()], np.int32)[place]
        return column

    def _shapes(self, read: list[_Operator]) -> NDArray[np.int32]:
        keys = zip(map(bytes, map(_DIMS, read)), map(bytes, map(_TYPES, read)), strict=True)
        return np.fromiter(map(self.shapes.__getitem__, keys), np.int32, len(read))

    def _stacks(self, read: list[_Operator]) -> list[int]:
        return [self.stacks[each.stack] if each.stack and isinstance(each.stack, str) else ABSENT for each in read]

    def _note_collectives(
        self, found: dict[int, CollectiveArguments], at: NDArray[np.intp], read: Sequence[_Collective]
    ) -> None:
        for place in [place for place, each in enumerate(read) if each.collective is not None]:
            said = _collective(read[place], self._ranks_of(read[place].ranks))
            found[int(at[place])] = self._said.setdefault(said, said)

    def _ranks_of(self, text: object) -> tuple[int, ...] | None:
        """Return the ranks of "[0, 1]"; None where torch has cut the list ("[0, ..., 63]"), and beyond the limit."""
        if not isinstance(text, str):
            return None
        if text not in self._ranks and len(text) <= self._ranks_free_chars:
            self._ranks_free_chars -= len(text)
            found = _RANKS.fullmatch(text)
            ranks = tuple(map(int, found[1].split(","))) if found else ()
            self._ranks[text] = ranks if ranks and max(ranks) < limits.WORLD_SIZE_MAX else None
        return self._ranks.get(text)


def _stream(pair: int) -> tuple[int, int]:
    return pair >> _STREAM_BITS, pair & _NO_STREAM


def _shapes(raw: tuple[bytes, bytes]) -> str:
    """Return dimensions and types as one compact JSON text."""
    dims, types = (msgspec.json.format(part or b"[]", indent=-1).decode(errors="replace") for part in raw)
    return f"[{dims},{types}]"


def _stack(text: str) -> str:
    return text.replace(";", "\n")


def _decode(raws: list[msgspec.Raw], kind: Reading) -> list[Any]:
    """Return the arguments of each event; of those that are no object, no argument."""
    text = b"".join((b"[", b",".join(raws), b"]"))
    try:
        return _DECODERS[kind].decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return [_decode_one(bytes(raw), kind) for raw in raws]


def _decode_one(raw: bytes, kind: Reading) -> Any:
    try:
        return msgspec.json.decode(raw.decode(errors="replace"), type=_STRUCTS[kind])
    except msgspec.DecodeError:
        return _STRUCTS[kind]()


def _integers(read: Sequence[Any], field: str) -> NDArray[np.int64]:
    """Return one field as int64, array of shape (n_events,); decimal digits in text count, all else is ABSENT."""
    try:
        return np.fromiter(map(attrgetter(field), read), np.int64, len(read))
    except (TypeError, ValueError, OverflowError):
        return np.array([_integer(getattr(each, field)) for each in read], np.int64)


def _integer(value: object) -> int:
    try:
        number = int(value) if isinstance(value, int | float | str) else ABSENT  # int() itself limits the digits
    except (ValueError, OverflowError):
        return ABSENT
    return number if -_INT64_MAX <= number <= _INT64_MAX else ABSENT


def _collective(said: _Collective, ranks: tuple[int, ...] | None) -> CollectiveArguments:
    return CollectiveArguments(
        name=_text(said.collective),
        group=_text(said.group),
        description=_text(said.description),
        ranks=ranks,
        group_size=_integer(said.group_size),
        in_elements=_integer(said.in_elements),
        out_elements=_integer(said.out_elements),
        dtype=_text(said.dtype),
        sequence=_integer(said.seq),
    )


def _text(value: object) -> str:
    return str(value)[:TEXT_MAX_CHARS] if isinstance(value, str | int) else ""


def _note_syncs(found: dict[int, SyncArguments], at: NDArray[np.intp], read: list[_Device]) -> None:
    for place, each in enumerate(read):
        if each.sync_kind is not None:
            found[int(at[place])] = SyncArguments(
                kind=_text(each.sync_kind),
                waits_on_stream=_integer(each.wait_on_stream),
                waits_on_correlation=_integer(each.wait_on_cuda_event_record_corr_id),
            )
