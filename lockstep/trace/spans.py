"""Nested spans of one thread: the innermost span at each time, the caller of each span, and its depth."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import ABSENT


class FlattenedSpans(NamedTuple):
    """Pieces of time with the place of the innermost span, of shape (n_pieces,), and by span what it is nested in.

    By span, of shape (n_spans,): its end, cut to its caller's; the place of its caller, ABSENT where it has none; and
    its depth, 1 for the outermost. All are int64.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    place: NDArray[np.int64]
    cut_ns: NDArray[np.int64]
    caller: NDArray[np.int64]
    depth: NDArray[np.int64]


_NONE = np.zeros(0, np.int64)
_NOTHING = FlattenedSpans(*[_NONE] * len(FlattenedSpans._fields))


def in_order(start_ns: NDArray[np.int64], *ties: NDArray[Any]) -> NDArray[np.intp]:
    """Return the order by start, of those that start together by `ties`, the last one first: that of `np.lexsort`.

    Profilers write a thread's spans nearly in order, and few start together: so it takes a tenth of the time.
    """
    order = np.argsort(start_ns, kind="stable")
    sorted_ns = start_ns[order]
    alike = sorted_ns[1:] == sorted_ns[:-1]
    if alike.any():
        places = np.flatnonzero(np.append(alike, [False]) | np.concatenate(([False], alike)))
        tied = order[places]
        order[places] = tied[np.lexsort((*(each[tied] for each in ties), start_ns[tied]))]
    return order


def flatten(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> FlattenedSpans:
    """Return what spans are innermost when; they come in order of start, callers first, and none is empty.

    One that ends after its caller is cut to it. That happens where clocks round, and costs a loop over all spans.
    """
    return _swept(start_ns, end_ns) or _swept(start_ns, _cut(start_ns, end_ns)) or _NOTHING


def _swept(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> FlattenedSpans | None:
    """Return what spans are innermost when, None if some do not nest.

    After a span opens it is the innermost; after one closes, that is the one opened last at the depth that is left.
    """
    if not len(start_ns):
        return _NOTHING
    places = np.arange(2 * len(start_ns), dtype=np.int32)  # half the memory of int64, and of its traffic
    span = places[: len(start_ns)]
    span = np.concatenate((span[::-1], span))  # at one time spans close before others open, callees before callers
    times_ns = np.concatenate((end_ns[::-1], start_ns))
    order = np.argsort(times_ns, kind="stable").astype(np.int32)
    times_ns, span, opens = times_ns[order], span[order], order >= len(start_ns)
    depth = np.cumsum(np.where(opens, np.int8(1), np.int8(-1)), dtype=np.int32)
    by_depth = np.argsort(depth.astype(np.min_scalar_type(depth.max())), kind="stable").astype(np.int32)
    opened_last = np.maximum.accumulate(np.where(opens[by_depth], places, np.int32(0)))
    innermost = np.empty_like(span)
    innermost[by_depth] = span[by_depth[opened_last]]
    innermost[depth == 0] = ABSENT
    before = np.concatenate((np.full(1, ABSENT, np.int32), innermost[:-1]))
    if np.any(before[~opens] != span[~opens]):
        return None
    caller, depth_of = np.empty((2, len(start_ns)), np.int64)
    caller[span[opens]] = before[opens]
    depth_of[span[opens]] = depth[opens]
    kept = (innermost[:-1] != ABSENT) & (times_ns[1:] > times_ns[:-1])
    place = innermost[:-1][kept].astype(np.int64)
    return FlattenedSpans(times_ns[:-1][kept], times_ns[1:][kept], place, end_ns, caller, depth_of)


def _cut(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ends of spans, none after its caller's."""
    ends: list[int] = []
    open_ends: list[int] = []
    for start, end in zip(start_ns.tolist(), end_ns.tolist(), strict=True):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        open_ends.append(min(end, open_ends[-1]) if open_ends else end)
        ends.append(open_ends[-1])
    return np.array(ends, np.int64)
