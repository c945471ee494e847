"""Converts decoded events to a block: complete ones with exact times; invalid ones are dropped and counted."""

from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lockstep.trace import times
from lockstep.trace.kineto.argument_forms import FORMS, EventArguments, ParsedArguments, decode_raws
from lockstep.trace.kineto.categories import ArgumentSet
from lockstep.trace.kineto.events import Complete, EventPhase, ExactComplete, ExactEvent, Metadata
from lockstep.trace.kineto.kinds import Kinds

_LOOSE_EVENT = msgspec.json.Decoder(ExactEvent, strict=False)  # ids that are text stay text
_PHASE = msgspec.json.Decoder(EventPhase)

_Timed = tuple[list[Any], NDArray[np.int64], NDArray[np.int64]]
"""Events with their starts and durations, ns."""


@dataclass(frozen=True, slots=True)
class EventBlock:
    """Complete events: arrays of shape (n_events,).

    `name`, `thread` and `category` are codes of `Kinds`, int32; times are int64, ns, the trace's base not yet added.
    """

    name: NDArray[np.int32]
    thread: NDArray[np.int32]
    category: NDArray[np.int32]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    arguments: dict[ArgumentSet, EventArguments]
    metadata: list[Metadata]
    event_count: int
    dropped_count: int
    is_exact: bool = False
    """Whether the starts were read as text."""


def block_of(events: list[Any], kinds: Kinds) -> EventBlock | None:
    """Return the block of the complete events among these, or None if float times are too coarse for them."""
    forms = set(map(type, events))
    if ExactComplete in forms:
        return _exact_block_of(events, kinds)
    complete = [event for event in events if type(event) is Complete] if forms != {Complete} else events
    found = _timed(complete)
    return None if found is None else _block(events, kinds, len(complete), found)


def _block(
    events: list[Any], kinds: Kinds, complete_count: int, found: _Timed, *, is_exact: bool = False
) -> EventBlock:
    """Return the block of all that is among these events, of which those that are kept are `found`."""
    kept, start_ns, duration_ns = found
    category = kinds.categories_of(kept)
    return EventBlock(
        name=kinds.names_of(kept),
        thread=kinds.threads_of(kept),
        category=category,
        start_ns=start_ns,
        duration_ns=duration_ns,
        arguments=_arguments(kept, kinds.readings(category)),
        metadata=[event for event in events if type(event) is Metadata] if complete_count < len(events) else [],
        event_count=len(events),
        dropped_count=complete_count - len(kept),
        is_exact=is_exact,
    )


def _timed(complete: list[Any]) -> _Timed | None:
    """Return the events that are kept with their starts and durations, None if floats are too coarse for these."""
    start_us = np.fromiter([event.ts for event in complete], np.float64, len(complete))
    if times.needs_decimals(start_us):
        return None
    duration_us = _durations_us(complete)
    keep = times.usable(start_us, duration_us)
    if not keep.all():
        complete, start_us, duration_us = list(compress(complete, keep)), start_us[keep], duration_us[keep]
    return complete, times.ns_of_us(start_us), times.ns_of_us(duration_us)


def _timed_by_text(complete: list[Any]) -> _Timed:
    start_ns, known = times.ns_of_texts([event.ts for event in complete])
    duration_us = _durations_us(complete)
    keep = known & times.usable(np.zeros(len(complete)), duration_us)
    return list(compress(complete, keep)), start_ns[keep], times.ns_of_us(duration_us[keep])


def _durations_us(complete: list[Any]) -> NDArray[np.float64]:
    return np.fromiter([event.dur for event in complete], np.float64, len(complete))


def _exact_block_of(events: list[Any], kinds: Kinds) -> EventBlock:
    complete = [event for event in events if type(event) is ExactComplete]
    return _block(events, kinds, len(complete), _timed_by_text(complete), is_exact=True)


def _arguments(events: list[Any], readings: NDArray[np.int8]) -> dict[ArgumentSet, EventArguments]:
    found: dict[ArgumentSet, EventArguments] = {}
    for reading in FORMS:
        at = np.flatnonzero(readings == reading)
        if len(at):
            raws = [events[place].args for place in at.tolist()]
            found[reading] = ParsedArguments(at, decode_raws(raws, reading))
    return found


def loose_block_of(items: list[msgspec.Raw], kinds: Kinds) -> EventBlock:
    """Return the block of events that are not all of the usual form; those of no form are dropped and counted."""
    events: list[Any] = []
    dropped = 0
    for item in items:
        try:
            events.append(_LOOSE_EVENT.decode(item))
        except msgspec.ValidationError:
            dropped += _is_complete(item)
    block = _exact_block_of(events, kinds)
    return replace(block, event_count=len(items), dropped_count=block.dropped_count + dropped)


def _is_complete(item: msgspec.Raw) -> bool:
    """Whether what cannot be read would have been a complete event; what is no event at all counts as one."""
    try:
        return bool(_PHASE.decode(item).ph == "X")
    except msgspec.ValidationError:
        return True
