"""The C extension and Python build the same call trees, node by node."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.trace.calls import build_calls
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.span_table import SpanTable, compiled_build, fill
from lockstep.trace.tree import DEPTH_MAX, Call, CallTree
from tests.trace.built import built_extension
from tests.trace.traces import RECORDING, SHARED_TRACES

ROOT = Path(__file__).parents[2]
PUBLIC = sorted((ROOT / "tests" / "analysis" / "public").rglob("*.json.gz"))
CALLS = [Call("python", name, is_annotation=False) for name in "abc"] + [
    Call("python", name, is_annotation=True) for name in "xy"
]
SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40), st.integers(0, len(CALLS) - 1)), max_size=60)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Return the extension's `build`: the installed one, else one that is built here."""
    source = ROOT / "lockstep" / "trace" / "_tree.c"
    return compiled_build() or built_extension(source, tmp_path_factory.mktemp("tree")).build


def both(build, spans, moments_ns):
    """Return the trees of spans (start, end, call) by the extension and in Python."""
    start_ns, end_ns, call = np.array(sorted(spans, key=lambda each: (each[0], -each[1])), np.int64).reshape(-1, 3).T
    table = SpanTable(start_ns, end_ns, call.astype(np.int32), CALLS)
    trees = [CallTree((0, 200), None) for _ in range(2)]
    for tree, each in zip(trees, (build, None), strict=True):
        fill(tree, table, np.array(moments_ns, np.int64), each)
    return trees


@settings(max_examples=400)
@given(SPANS, st.lists(st.integers(0, 110), max_size=4).map(sorted))
def test_any_spans_are_the_same_tree_both_ways(build, rows, moments_ns):
    """Nested, crossing and equal spans, annotations that are left later or cut, and moments anywhere."""
    one, other = both(build, [(start, start + length, call) for start, length, call in rows], moments_ns)
    assert one == other


@pytest.mark.parametrize(
    "path", [RECORDING, *PUBLIC, *SHARED_TRACES], ids=lambda path: f"{path.parent.name}/{path.name:.40}"
)
def test_recordings_are_the_same_tree_both_ways(path, build):
    """Every trace at hand."""
    columns = load_trace(path, max_bytes=1 << 30)
    assert build_calls(columns, build) == build_calls(columns)


def test_spans_deeper_than_any_program_stay_in_their_caller_both_ways(build):
    """The stack of open spans is bounded."""
    spans = [(start, 20_000 - start, start % 2) for start in range(2 * DEPTH_MAX)]
    one, other = both(build, spans, [5000])
    assert one == other
    assert len(one) == DEPTH_MAX


def test_columns_that_do_not_fit_each_other_are_refused(build):
    """The extension reads and writes nothing that is not its own."""
    start, end, call = np.zeros(2, np.int64), np.ones(2, np.int64), np.zeros(2, np.int32)
    none = b""
    for columns in (
        (start, end[:1], call, b"\0", none, none),
        (start, end, call[:1], b"\0", none, none),
        (start, end, call, none, none, none),
        (start, end, call - 1, b"\0", none, none),
        (start, end, call, b"\0", start, none),
        (start, end, call, b"\0", b"123", b"123"),
    ):
        with pytest.raises(ValueError, match="spans: got 2 starts"):
            build(*columns)
