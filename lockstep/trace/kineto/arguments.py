"""Reads arguments of events ("args"): ids, streams, sizes, shapes, stacks, collectives, waits.

Arguments are optional: one of another type or range is ABSENT for its event and does not invalidate the event.
Arguments stay raw JSON while events are decoded; those of categories without any of interest (Python frames) are never
parsed, the others are decoded together, each category with the few fields that it can have (`argument_forms`).
Shape suffix: E the events of one block.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import ABSENT, CollectiveArguments, Occupancy, SyncArguments
from lockstep.trace.interned import Interned
from lockstep.trace.kineto.argument_forms import EventArguments
from lockstep.trace.kineto.categories import ArgumentSet
from lockstep.trace.kineto.collective_args import CollectiveArgsReader

SHAPES_MAX = 1 << 16
"""Distinct shapes; real traces have tens to hundreds, a job that recompiles for every length some thousands."""
SHAPES_MAX_BYTES = 16 << 20
STACKS_MAX = 1 << 16
STACKS_MAX_BYTES = 32 << 20
"""Stacks are kilobytes each; the traces that carry them have about a hundred distinct ones."""
STREAMS_MAX = 1 << 12
OCCUPANCIES_MAX = 1 << 16
"""Distinct launches; real traces have tens to hundreds."""

_AMOUNT = re.compile(rb"\d{1,9}(?:\.\d{1,20})?")
_STREAM_BITS = 32
_DEVICES_MAX = 1 << 16
_NO_STREAM = (1 << _STREAM_BITS) - 1  # CUPTI's invalid id, unsigned in some versions


_COLUMNS: dict[str, type[np.signedinteger[Any]]] = {
    **dict.fromkeys(("stream", "shapes", "stack", "occupancy"), np.int32),
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
        self.occupancies: Interned[Occupancy] = Interned(_occupancy, OCCUPANCIES_MAX, SHAPES_MAX_BYTES)
        self._collective_args = CollectiveArgsReader()

    def read(self, count: int, arguments: Mapping[ArgumentSet, EventArguments]) -> BlockArguments:
        """Return what is read of a block of `count` events."""
        block = BlockArguments({name: np.full(count, ABSENT, kind) for name, kind in _COLUMNS.items()}, {}, {})
        for reading, read in arguments.items():
            self._fill(block.columns, reading, read)
            self._note_collective_args(block, reading, read)
        return block

    def _fill(self, columns: dict[str, NDArray[Any]], reading: ArgumentSet, read: EventArguments) -> None:
        at = read.at
        external = read.integers("external")
        if reading is ArgumentSet.OPERATOR:
            columns["sequence"][at] = read.integers("sequence")
            columns["shapes"][at] = read.shapes(self.shapes)
            columns["stack"][at] = read.stacks(self.stacks)
        else:
            columns["correlation"][at] = read.integers("correlation")
            if (external == ABSENT).any():
                external = np.where(external == ABSENT, read.integers("former_external"), external)
        columns["external"][at] = external
        if reading in (ArgumentSet.CALL, ArgumentSet.DEVICE):
            columns["bytes"][at] = read.integers("bytes")
        if reading in (ArgumentSet.KERNEL, ArgumentSet.DEVICE):
            columns["stream"][at] = self._streams(read.integers("device"), read.integers("stream"))
        if reading is ArgumentSet.KERNEL:
            columns["occupancy"][at] = read.occupancies(self.occupancies)

    def _note_collective_args(self, block: BlockArguments, reading: ArgumentSet, read: EventArguments) -> None:
        places, fields = read.parsed()
        if reading is not ArgumentSet.CALL:
            found = _with_arguments(places, fields, [each.collective for each in fields])
            block.collectives.update((event, self._collective_args.collective(each)) for event, each in found)
        if reading is ArgumentSet.DEVICE:
            found = _with_arguments(places, fields, [each.sync for each in fields])
            block.syncs.update((event, self._collective_args.sync(each)) for event, each in found)

    def _streams(self, device: NDArray[np.int64], stream: NDArray[np.int64]) -> NDArray[np.int32]:
        known = (stream >= 0) & (stream < _NO_STREAM)
        device = np.where((device >= 0) & (device < _DEVICES_MAX), device, ABSENT)
        pairs, place = np.unique((device[known] << _STREAM_BITS) | stream[known], return_inverse=True)
        column = np.full(len(stream), ABSENT, np.int32)
        column[known] = np.array([self.streams[pair] for pair in pairs.tolist()], np.int32)[place]
        return column


def _with_arguments(at: NDArray[np.intp], fields: Sequence[Any], parsed: list[Any]) -> list[tuple[int, Any]]:
    """Return the places and arguments of the events that have them: of most blocks, none."""
    if parsed.count(None) == len(parsed):
        return []
    places = at.tolist()
    return [(places[place], fields[place]) for place, each in enumerate(parsed) if each is not None]


def _stream(pair: int) -> tuple[int, int]:
    return pair >> _STREAM_BITS, pair & _NO_STREAM


def _shapes(raw: tuple[bytes, bytes]) -> str:
    """Return dimensions and types as one compact JSON text."""
    dims, types = (msgspec.json.format(part or b"[]", indent=-1).decode(errors="replace") for part in raw)
    return f"[{dims},{types}]"


def _occupancy(raw: tuple[bytes, bytes]) -> Occupancy | None:
    blocks, percent = map(_amount, raw)
    if blocks == percent == ABSENT:
        return None
    return Occupancy(blocks, ABSENT if percent == ABSENT else percent / 100)


def _amount(raw: bytes) -> float:
    """Return a number that is at least 0, ABSENT for all else."""
    return float(raw) if _AMOUNT.fullmatch(raw) else ABSENT


def _stack(text: str) -> str:
    return text.replace(";", "\n")
