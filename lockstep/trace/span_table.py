"""Builds a call tree from spans in columns: by the C extension, or in Python (`tree.TreeBuilder`) without it."""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.tree import Call, CallTree, TreeBuilder

_Buffer = bytes | memoryview
Build = Callable[[_Buffer, _Buffer, _Buffer, _Buffer, _Buffer, _Buffer], tuple[bytes, bytes, bytes, bytes, list[bytes]]]
"""Takes starts, ends, calls, which calls are annotations, moments and the spans before which these are; returns the
nodes' parents, calls, totals and counts, and the totals until each moment."""


class SpanTable(NamedTuple):
    """Spans of one thread, none empty, in order of start, the longer first where they start together.

    Arrays of shape (n_spans,): times in ns, int64; `call` a place in `calls`, int32.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    call: NDArray[np.int32]
    calls: list[Call]


def compiled_build() -> Build | None:
    """Return the extension's `build`, None where it was not built; asked for at start, not at import."""
    try:
        from lockstep.trace._tree import build  # noqa: PLC0415  (optional)
    except ImportError:  # no compiler at installation, or a build for another machine
        return None
    return build


def fill(tree: CallTree, spans: SpanTable, moments_ns: NDArray[np.int64], build: Build | None) -> None:
    """Fill an empty tree with spans, and note the totals until moments, which are in order."""
    places = np.searchsorted(spans.start_ns, moments_ns)
    if build is None:
        builder = TreeBuilder(tree)
        builder.add(chain.from_iterable(_noting(builder, spans, moments_ns.tolist(), places.tolist())))
        return
    is_annotation = bytes(call.is_annotation for call in spans.calls)
    columns = spans.start_ns, spans.end_ns, spans.call, moments_ns, places.astype(np.int64)
    start_ns, end_ns, call, moments, before = (np.ascontiguousarray(each).data for each in columns)
    parents, calls, total_ns, count, until_ns = build(start_ns, end_ns, call, is_annotation, moments, before)
    kinds = [spans.calls[each] for each in np.frombuffer(calls, np.int32).tolist()]
    tree.parent.extend(np.frombuffer(parents, np.int32).tolist())
    tree.name.extend(each.name for each in kinds)
    tree.kind.extend(each.kind for each in kinds)
    tree.total_ns.extend(np.frombuffer(total_ns, np.int64).tolist())
    tree.count.extend(np.frombuffer(count, np.int64).tolist())
    tree.until_ns.extend(np.frombuffer(each, np.int64).tolist() for each in until_ns)


def _noting(
    builder: TreeBuilder, spans: SpanTable, moments_ns: list[int], places: list[int]
) -> Iterator[Iterator[tuple[int, int, Call]]]:
    """Yield the spans moment by moment, and note the totals in between."""
    calls = map(spans.calls.__getitem__, spans.call.tolist())
    each = zip(spans.start_ns.tolist(), spans.end_ns.tolist(), calls, strict=True)
    before = 0
    for moment_ns, until in zip(moments_ns, places, strict=True):
        yield islice(each, until - before)
        builder.tree.until_ns.append(builder.totals_until_ns(moment_ns))
        before = until
    yield each
