"""Spans that nest are flattened as a plain reading gives them, and those that cross are cut."""

import numpy as np
import pytest

from lockstep.trace.columns import ABSENT
from lockstep.trace.spans import flatten, in_order


def _of(*spans):
    return flatten(*np.array(spans, np.int64).reshape(-1, 2).T)


def _read_plainly(start_ns, end_ns):
    """Return by span its cut end, caller and depth, and by ns what is innermost then."""
    cut_ns, caller, depth, open_spans = [], [], [], []
    innermost = np.full(end_ns.max(initial=0), ABSENT)
    for span, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        while open_spans and cut_ns[open_spans[-1]] <= start:
            open_spans.pop()
        cut_ns.append(min(end, cut_ns[open_spans[-1]]) if open_spans else end)
        caller.append(open_spans[-1] if open_spans else ABSENT)
        open_spans.append(span)
        depth.append(len(open_spans))
        innermost[start : cut_ns[-1]] = span
    return cut_ns, caller, depth, innermost.tolist()


def test_nested_spans_are_flattened():
    """The callee has its time, the caller the rest, and what lies apart no caller."""
    flat = _of((0, 10), (2, 5), (20, 30))
    assert list(zip(flat.start_ns, flat.end_ns, flat.place, strict=True)) == [
        (0, 2, 0),
        (2, 5, 1),
        (5, 10, 0),
        (20, 30, 2),
    ]
    assert (flat.caller.tolist(), flat.depth.tolist()) == ([ABSENT, 0, ABSENT], [1, 2, 1])


def test_a_span_that_ends_after_its_caller_is_cut_to_it():
    """Clocks round; no moment is counted twice."""
    flat = _of((0, 10), (8, 12))
    assert flat.cut_ns.tolist() == [10, 10]
    assert list(zip(flat.start_ns, flat.end_ns, flat.place, strict=True)) == [(0, 8, 0), (8, 10, 1)]


def test_no_spans_are_nothing():
    """Every part is empty."""
    assert [len(part) for part in _of()] == [0] * 6


@pytest.mark.parametrize("seed", range(200))
def test_spans_are_flattened_as_a_plain_reading_gives(seed):
    """Ties of beginnings and ends, equal spans and spans that cross among them."""
    random = np.random.default_rng(seed)
    start_ns = random.integers(0, 40, 25)
    end_ns = start_ns + random.integers(1, 25, 25)
    order = np.lexsort((-end_ns, start_ns))
    flat = flatten(start_ns[order], end_ns[order])
    cut_ns, caller, depth, innermost = _read_plainly(start_ns[order], end_ns[order])
    assert (flat.cut_ns.tolist(), flat.caller.tolist(), flat.depth.tolist()) == (cut_ns, caller, depth)
    found = np.full(len(innermost), ABSENT)
    for start, end, place in zip(flat.start_ns, flat.end_ns, flat.place, strict=True):
        assert (found[start:end] == ABSENT).all()
        found[start:end] = place
    assert found.tolist() == innermost


@pytest.mark.parametrize("seed", range(100))
def test_order_is_that_of_a_sort_by_all_keys(seed):
    """Nearly in order or not at all, with many ties, few, or none; equal spans keep the order of the file."""
    random = np.random.default_rng(seed)
    count, starts = int(random.integers(0, 60)), int(random.choice([2, 40, 1 << 60]))
    start_ns = random.integers(-starts, starts, count)
    if seed % 2:
        start_ns.sort()
    rank, length_ns = random.integers(0, 2, count).astype(np.int8), random.integers(0, 3, count)
    expected = np.lexsort((rank, -length_ns, start_ns))
    assert in_order(start_ns, rank, -length_ns).tolist() == expected.tolist()
