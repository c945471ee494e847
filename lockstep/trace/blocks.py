"""Decoded events to a block: the complete ones with exact times, those that make no sense dropped and counted."""

from dataclasses import dataclass, replace
from itertools import compress
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lockstep.trace import times
from lockstep.trace.events import Complete, ExactComplete, ExactEvent, Metadata, Phase

_LOOSE_EVENT = msgspec.json.Decoder(ExactEvent, strict=False)  # ids that are text stay text
_PHASE = msgspec.json.Decoder(Phase)


@dataclass(frozen=True, slots=True)
class Block:
    """Complete events and their times, int64 arrays of shape (n_events,), ns, the trace's base not yet added."""

    events: list[Complete] | list[ExactComplete]
    metadata: list[Metadata]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    event_count: int
    dropped_count: int
    is_exact: bool = False
    """Whether the starts were read as text."""


def block_of(events: list[Any]) -> Block | None:
    """Return the block of the complete events among these, or None if float times are too coarse for them."""
    kinds = set(map(type, events))
    metadata = [event for event in events if type(event) is Metadata] if Metadata in kinds else []
    if ExactComplete in kinds:
        return _exact_block_of(events, metadata)
    complete = [event for event in events if type(event) is Complete] if kinds != {Complete} else events
    start_us = np.fromiter(map(attrgetter("ts"), complete), np.float64, len(complete))
    if times.needs_decimals(start_us):
        return None
    duration_us = np.fromiter(map(attrgetter("dur"), complete), np.float64, len(complete))
    keep = times.usable(start_us, duration_us)
    return Block(
        events=complete if keep.all() else list(compress(complete, keep)),
        metadata=metadata,
        start_ns=times.ns_of_us(start_us[keep]),
        duration_ns=times.ns_of_us(duration_us[keep]),
        event_count=len(events),
        dropped_count=int(np.count_nonzero(~keep)),
    )


def _exact_block_of(events: list[Any], metadata: list[Metadata]) -> Block:
    complete = [event for event in events if type(event) is ExactComplete]
    start_ns, known = times.ns_of_texts(list(map(bytes, map(attrgetter("ts"), complete))))
    duration_us = np.fromiter(map(attrgetter("dur"), complete), np.float64, len(complete))
    keep = known & times.usable(np.zeros(len(complete)), duration_us)
    return Block(
        events=list(compress(complete, keep)),
        metadata=metadata,
        start_ns=start_ns[keep],
        duration_ns=times.ns_of_us(duration_us[keep]),
        event_count=len(events),
        dropped_count=int(np.count_nonzero(~keep)),
        is_exact=True,
    )


def loose_block_of(items: list[msgspec.Raw]) -> Block:
    """Return the block of events that are not all of the usual form; those of no form are dropped and counted."""
    events: list[Any] = []
    dropped = 0
    for item in items:
        try:
            events.append(_LOOSE_EVENT.decode(item))
        except msgspec.ValidationError:
            dropped += _is_complete(item)
    block = _exact_block_of(events, [event for event in events if type(event) is Metadata])
    return replace(block, event_count=len(items), dropped_count=block.dropped_count + dropped)


def _is_complete(item: msgspec.Raw) -> bool:
    """Whether what cannot be read would have been a complete event; what is no event at all counts as one."""
    try:
        return bool(_PHASE.decode(item).ph == "X")
    except msgspec.ValidationError:
        return True
