"""Converts a piece of a trace to a block by the C extension, without an object per event; repeats are decoded once.

Without the extension, and for a piece with an event of another form, `decode` does the same in Python.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import ABSENT, Occupancy
from lockstep.trace.interned import Codes, Interned
from lockstep.trace.kineto.argument_forms import FORMS, EventArguments, ParsedArguments, decode_raws
from lockstep.trace.kineto.blocks import EventBlock
from lockstep.trace.kineto.categories import ArgumentSet
from lockstep.trace.kineto.events import Id, Metadata
from lockstep.trace.kineto.kinds import Kinds

Raws = list[tuple[bytes, bytes]]
ScanResult = tuple[int, int, bytes, bytes, bytes, bytes, Raws, bytes, Raws, bytes]
"""What `_Scanned` holds."""
Scan = Callable[[bytes, int], ScanResult | None]
"""Returns the events in `text[:end]`, None where one is of no usual form or the text is no JSON."""

_SPAN = np.dtype([("begin", np.int32), ("end", np.int32)])
_INTEGERS = ("external", "former_external", "correlation", "sequence", "bytes", "device", "stream")
_CODES = ("name", "thread", "category", "shapes", "stack", "occupancy", "is_odd", "padding")
_EVENT = np.dtype(
    [
        *((name, np.int64) for name in ("start_ns", "duration_ns", *_INTEGERS)),
        *((name, np.int32) for name in _CODES),
        ("arguments", _SPAN),
    ]
)
_TEXTS = msgspec.json.Decoder(list[str])
_IDS = msgspec.json.Decoder(list[Id])
_METADATA = msgspec.json.Decoder(list[Metadata])


class _Scanned(NamedTuple):
    """What a scan returns: `events` are `_EVENT`, pairs are raw, all else lists of JSON of what is distinct.

    Of threads the list has two ids each; a missing name or category is empty in it, a missing id null.
    """

    event_count: int
    dropped_count: int
    events: bytes
    names: bytes
    threads: bytes
    categories: bytes
    shapes: Raws
    stacks: bytes
    occupancies: Raws
    metadata: bytes


class _Distinct(NamedTuple):
    """What is distinct in a piece, by the codes that its events have.

    Shapes are raw dimensions and types, occupancies raw blocks and warps.
    """

    shapes: Raws
    stacks: list[str]
    occupancies: Raws


def compiled_scan() -> Scan | None:
    """Return the extension's `scan`, None where it was not built; asked for at start, not at import.

    A build of an earlier layout is none.
    """
    try:
        from lockstep.trace.kineto._scan import EVENT_BYTES, scan  # noqa: PLC0415  (optional)
    except ImportError:  # no compiler at installation, an early build, or one for another machine
        return None
    return scan if _EVENT.itemsize == EVENT_BYTES else None


def scanned_block(text: bytes, result: ScanResult, kinds: Kinds) -> EventBlock | None:
    """Return the block of what a scan of `text` found, None where a text is none of JSON or no UTF-8."""
    found = _Scanned(*result)
    events = np.frombuffer(found.events, _EVENT)
    try:
        names = _TEXTS.decode(found.names)
        categories = _TEXTS.decode(found.categories)
        ids = _IDS.decode(found.threads)
        metadata = _METADATA.decode(found.metadata)
        stacks = _TEXTS.decode(found.stacks)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    category = _coded(kinds.categories, categories, events["category"])
    distinct = _Distinct(found.shapes, stacks, found.occupancies)
    return EventBlock(
        name=_coded(kinds.names, names, events["name"]),
        thread=_coded(kinds.threads, list(zip(ids[::2], ids[1::2], strict=True)), events["thread"]),
        category=category,
        start_ns=events["start_ns"],
        duration_ns=events["duration_ns"],
        arguments=_arguments(text, events, distinct, kinds.readings(category)),
        metadata=metadata,
        event_count=found.event_count,
        dropped_count=found.dropped_count,
    )


@dataclass(frozen=True, slots=True)
class ScannedArguments:
    """The arguments of the events at `at` as the scan read them; those of `odd` ones, places in `at`, were decoded.

    `events` are those of the whole block: copies of their records would cost more than all that is read of them.
    """

    at: NDArray[np.intp]
    events: NDArray[Any]
    distinct: _Distinct
    odd: NDArray[np.intp]
    decoded: ParsedArguments

    def integers(self, field: str) -> NDArray[np.int64]:
        """Return what a field has, ABSENT where it is no whole number."""
        values: NDArray[np.int64] = self.events[field][self.at]
        if len(self.odd):
            values[self.odd] = self.decoded.integers(field)
        return values

    def shapes(self, codes: Interned[str]) -> NDArray[np.int32]:
        """Return the codes of raw dimensions and types."""
        return _interned(codes, self.distinct.shapes, self.events["shapes"][self.at])

    def stacks(self, codes: Interned[str]) -> NDArray[np.int32]:
        """Return the codes of call stacks, ABSENT where an event has none."""
        return _interned(codes, self.distinct.stacks, self.events["stack"][self.at])

    def occupancies(self, codes: Interned[Occupancy]) -> NDArray[np.int32]:
        """Return the codes of raw blocks and warps."""
        return _interned(codes, self.distinct.occupancies, self.events["occupancy"][self.at])

    def parsed(self) -> tuple[NDArray[np.intp], Sequence[Any]]:
        """Return those that were decoded."""
        return self.decoded.at, self.decoded.fields


def _arguments(
    text: bytes, events: NDArray[Any], distinct: _Distinct, readings: NDArray[np.int8]
) -> dict[ArgumentSet, EventArguments]:
    found: dict[ArgumentSet, EventArguments] = {}
    for reading in FORMS:
        at = np.flatnonzero(readings == reading)
        if len(at):
            odd = np.flatnonzero(events["is_odd"][at])
            raws = [text[begin:end] for begin, end in events["arguments"][at[odd]].tolist()]
            decoded = ParsedArguments(at[odd], decode_raws(raws, reading) if raws else [])
            found[reading] = ScannedArguments(at, events, distinct, odd, decoded)
    return found


def _interned(codes: Interned[Any], values: Sequence[Any], code: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the codes of a piece as those of all pieces, new values in the order of the events; ABSENT stays."""
    known = np.full(len(values) + 1, ABSENT, np.int32)  # the last one is that of ABSENT
    if values:
        first = np.full(len(values) + 1, ABSENT, np.intp)
        first[code[::-1]] = np.arange(len(code))[::-1]  # of several the last assignment counts
        used = np.flatnonzero(first[:-1] != ABSENT)
        for each in used[np.argsort(first[used])].tolist():
            if values[each]:
                known[each] = codes[values[each]]
    return known[code]


def _coded(codes: Codes, values: list[Any], code: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the codes of a piece as those of all pieces."""
    known = np.fromiter(map(codes.__getitem__, values), np.int32, len(values))
    return known[code]
