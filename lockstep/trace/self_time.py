"""Self time of host events: when an event runs and none of those that it calls does."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import ABSENT, Mask, TraceColumns
from lockstep.trace.intervals import Intervals
from lockstep.trace.spans import flatten, in_order

_NONE = np.zeros(0, np.int64)
_NO_INTERVALS = Intervals(_NONE, _NONE)


class Pieces(NamedTuple):
    """Disjoint pieces of each thread's time and the innermost event in each; int64 arrays of shape (n_pieces,)."""

    event: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]


def innermost_pieces(
    columns: TraceColumns, events: Mask, *, thread: int = ABSENT, waiting: Intervals = _NO_INTERVALS
) -> Pieces:
    """Return which of the chosen `events` is innermost on its thread when.

    Time of `waiting` on `thread` is nobody's. An event that ends after its caller is cut to it.
    """
    found = [
        _of_thread(columns, np.flatnonzero(events & (columns.thread == each)), waiting if each == thread else None)
        for each in np.unique(columns.thread[events]).tolist()
    ]
    return Pieces(*(np.concatenate([_NONE, *parts]) for parts in zip(*found, strict=True))) if found else _NOTHING


_NOTHING = Pieces(_NONE, _NONE, _NONE)


def _of_thread(columns: TraceColumns, events: NDArray[np.intp], waiting: Intervals | None) -> Pieces:
    waiting = waiting or _NO_INTERVALS
    start_ns = np.concatenate((columns.start_ns[events], waiting.start_ns))
    end_ns = np.concatenate((columns.end_ns[events], waiting.end_ns))
    event = np.concatenate((events, np.full(len(waiting.start_ns), ABSENT)))
    order = in_order(start_ns, -end_ns)
    order = order[end_ns[order] > start_ns[order]]
    flat = flatten(start_ns[order], end_ns[order])
    innermost = event[order][flat.place]
    known = innermost != ABSENT
    return Pieces(innermost[known], flat.start_ns[known], flat.end_ns[known])


def self_times(columns: TraceColumns, events: Mask) -> NDArray[np.int64]:
    """Return the self time of each event among the chosen ones, int64 array of shape (n_events,), ns; 0 for others."""
    pieces = innermost_pieces(columns, events)
    found = np.zeros(len(columns), np.int64)
    np.add.at(found, pieces.event, pieces.end_ns - pieces.start_ns)
    return found
