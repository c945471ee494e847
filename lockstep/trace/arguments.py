"""What is read of events' arguments ("args"): ids, streams, sizes, shapes, stacks, collectives, waits.

An argument is extra: one of another type or range is ABSENT for its event and never costs the event. Arguments stay
raw JSON while events are decoded; those of categories that have none of interest (Python frames) are never looked at,
the others are decoded together, each category as the few fields that it can have (`argument_forms`).

Shape suffix: E the events of one block.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lockstep.trace.argument_forms import OperatorArguments, Read
from lockstep.trace.categories import Reading
from lockstep.trace.columns import ABSENT, CollectiveArguments, SyncArguments
from lockstep.trace.interned import Interned
from lockstep.trace.rare import RareReader, integer

SHAPES_MAX = 1 << 16
"""Distinct shapes; real traces have tens to hundreds, a job that recompiles for every length some thousands."""
SHAPES_MAX_BYTES = 16 << 20
STACKS_MAX = 1 << 16
STACKS_MAX_BYTES = 32 << 20
"""Stacks are kilobytes each; the traces that carry them have about a hundred distinct ones."""
STREAMS_MAX = 1 << 12

_STREAM_BITS = 32
_DEVICES_MAX = 1 << 16
_NO_STREAM = (1 << _STREAM_BITS) - 1  # CUPTI's invalid id, unsigned in some versions
_DIMS, _TYPES = attrgetter("dims"), attrgetter("types")


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
        self._rare = RareReader()

    def read(self, count: int, arguments: Mapping[Reading, Read]) -> BlockArguments:
        """Return what is read of a block of `count` events."""
        block = BlockArguments({name: np.full(count, ABSENT, kind) for name, kind in _COLUMNS.items()}, {}, {})
        for reading, read in arguments.items():
            self._fill(block.columns, reading, read)
            self._note_rare(block, reading, read)
        return block

    def _fill(self, columns: dict[str, NDArray[Any]], reading: Reading, read: Read) -> None:
        at, fields = read.at, read.fields
        external = _integers(fields, "external")
        if reading is Reading.OPERATOR:
            columns["sequence"][at] = _integers(fields, "sequence")
            columns["shapes"][at] = self._shapes(fields)
            columns["stack"][at] = self._stacks(fields)
        else:
            columns["correlation"][at] = _integers(fields, "correlation")
            if (external == ABSENT).any():
                external = np.where(external == ABSENT, _integers(fields, "former_external"), external)
        columns["external"][at] = external
        if reading in (Reading.CALL, Reading.DEVICE):
            columns["bytes"][at] = _integers(fields, "bytes")
        if reading in (Reading.KERNEL, Reading.DEVICE):
            columns["stream"][at] = self._streams(_integers(fields, "device"), _integers(fields, "stream"))

    def _note_rare(self, block: BlockArguments, reading: Reading, read: Read) -> None:
        at = read.at.tolist()
        if reading is not Reading.CALL:
            found = [(event, each) for event, each in zip(at, read.fields, strict=True) if each.collective is not None]
            block.collectives.update((event, self._rare.collective(each)) for event, each in found)
        if reading is Reading.DEVICE:
            found = [(event, each) for event, each in zip(at, read.fields, strict=True) if each.sync is not None]
            block.syncs.update((event, self._rare.sync(each)) for event, each in found)

    def _streams(self, device: NDArray[np.int64], stream: NDArray[np.int64]) -> NDArray[np.int32]:
        known = (stream >= 0) & (stream < _NO_STREAM)
        device = np.where((device >= 0) & (device < _DEVICES_MAX), device, ABSENT)
        pairs, place = np.unique((device[known] << _STREAM_BITS) | stream[known], return_inverse=True)
        column = np.full(len(stream), ABSENT, np.int32)
        column[known] = np.array([self.streams[pair] for pair in pairs.tolist()], np.int32)[place]
        return column

    def _shapes(self, read: Sequence[OperatorArguments]) -> NDArray[np.int32]:
        keys = zip(map(bytes, map(_DIMS, read)), map(bytes, map(_TYPES, read)), strict=True)
        return np.fromiter(map(self.shapes.__getitem__, keys), np.int32, len(read))

    def _stacks(self, read: Sequence[OperatorArguments]) -> list[int]:
        return [self.stacks[each.stack] if each.stack and isinstance(each.stack, str) else ABSENT for each in read]


def _stream(pair: int) -> tuple[int, int]:
    return pair >> _STREAM_BITS, pair & _NO_STREAM


def _shapes(raw: tuple[bytes, bytes]) -> str:
    """Return dimensions and types as one compact JSON text."""
    dims, types = (msgspec.json.format(part or b"[]", indent=-1).decode(errors="replace") for part in raw)
    return f"[{dims},{types}]"


def _stack(text: str) -> str:
    return text.replace(";", "\n")


def _integers(read: Sequence[Any], field: str) -> NDArray[np.int64]:
    """Return one field as int64, array of shape (n_events,); decimal digits in text count, all else is ABSENT."""
    try:
        return np.fromiter(map(attrgetter(field), read), np.int64, len(read))
    except (TypeError, ValueError, OverflowError):
        return np.array([integer(getattr(each, field)) for each in read], np.int64)
