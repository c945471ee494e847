"""Self time of host events: the time in which an event runs and none of its callees does."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import Mask, TraceColumns
from lockstep.trace.intervals import Intervals
from lockstep.trace.spans import flatten, in_order

_NONE = np.zeros(0, np.int64)


class SpanPieces(NamedTuple):
    """Disjoint pieces of each thread's time and the innermost event in each; int64 arrays of shape (n_pieces,)."""

    event: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]


def innermost_pieces(columns: TraceColumns, events: Mask) -> SpanPieces:
    """Return which of the chosen `events` is innermost on its thread when. One that ends after its caller is cut."""
    chosen = events & (columns.duration_ns > 0)
    found = [
        _of_thread(columns, np.flatnonzero(chosen & (columns.thread == thread)))
        for thread in np.unique(columns.thread[chosen]).tolist()
    ]
    return SpanPieces(*(np.concatenate([_NONE, *parts]) for parts in zip(*found, strict=True))) if found else _NOTHING


_NOTHING = SpanPieces(_NONE, _NONE, _NONE)


def _of_thread(columns: TraceColumns, events: NDArray[np.intp]) -> SpanPieces:
    events = events[in_order(columns.start_ns[events], -columns.duration_ns[events])]
    flat = flatten(columns.start_ns[events], columns.end_ns[events])
    return SpanPieces(events[flat.place].astype(np.int64), flat.start_ns, flat.end_ns)


def time_outside(pieces: SpanPieces, excluded: Intervals) -> NDArray[np.int64]:
    """Return how long each piece lasts outside of a set of times, int64 array of shape (n_pieces,), ns."""
    before_ns = np.concatenate(([0], np.cumsum(excluded.end_ns - excluded.start_ns)))

    def passed(time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        at = np.searchsorted(excluded.start_ns, time_ns, side="right")
        last = np.maximum(at - 1, 0)
        inside = np.where(at > 0, np.minimum(time_ns, excluded.end_ns[last]) - excluded.start_ns[last], 0)
        return np.asarray(before_ns[last] + inside, np.int64)

    lasted_ns = pieces.end_ns - pieces.start_ns
    return lasted_ns - (passed(pieces.end_ns) - passed(pieces.start_ns)) if len(excluded.start_ns) else lasted_ns


def self_times(columns: TraceColumns, events: Mask) -> NDArray[np.int64]:
    """Return the self time of each event among the chosen ones, int64 array of shape (n_events,), ns; 0 for others."""
    pieces = innermost_pieces(columns, events)
    found = np.zeros(len(columns), np.int64)
    np.add.at(found, pieces.event, pieces.end_ns - pieces.start_ns)
    return found
