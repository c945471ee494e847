"""Trace summaries deflated: they come back equal, hostile bytes are refused by name."""

import random
import zlib
from dataclasses import asdict, replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.contracts import limits, topics
from lockstep.contracts.codec import decode, encode, packed_bytes
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.finding import Finding
from lockstep.contracts.messages import (
    CallNode,
    HostSpan,
    PatternCaller,
    PatternRow,
    PatternTable,
    TraceSummary,
)

TOPIC = topics.run_topic("run", topics.SUMMARY, "node")
EMPTY = TraceSummary(
    run="run", node="node", rank=3, request_id=9, window_ns=0, steps=1, trace_bytes=0, event_count=0, tree=[]
)
FULL = replace(
    EMPTY,
    window_ns=100,
    tree=[
        CallNode(parent=-1, name="main", kind="python", total_ns=100, self_ns=30, count=1, by_step_ns=[60, 40]),
        CallNode(parent=0, name="forward", kind="python", total_ns=60, self_ns=60, count=2, by_step_ns=[60, 0]),
        CallNode(parent=0, name="main", kind="data", total_ns=10, self_ns=9, count=2, by_step_ns=[0, 10]),
        CallNode(parent=-1, name="other", kind="gc", total_ns=5, self_ns=5, count=1, by_step_ns=[5, 0]),
    ],
    omitted_nodes=7,
    collectives={"gloo:all_reduce": [10, 120, 3]},
    breakdown={"compute_ns": 40, "host_ns": 60},
    path=[("main", "host", 60), ("gemm", "compute", 40)],
    patterns=PatternTable(
        window_ns=100,
        callers=[PatternCaller(parent=-1, name="main")],
        rows=[PatternRow(function="forward", kind="host", beta_ppm=600_000, caller=0, mu_ppm=1_100_000)],
        omitted_count=2,
        omitted_beta_ppm=7,
    ),
    findings=[Finding(bottleneck="cpu", cause="gc", ranks=(3,), subject="main", evidence=("5 ms",), lost_ns=5)],
    not_evaluated={"gc": "no samples"},
    omitted={"findings": 4},
    step_ns=[60, 40],
    host=HostSpan(span_ns=5, cores=2, busiest=[("x", 0.5)]),
)

_INT = st.integers(0, 1 << 53)
_NAME = st.text(max_size=12)
_TREE = st.lists(st.tuples(st.integers(0, 1 << 30), _NAME, _INT, _INT, st.integers(0, 99)), max_size=30).map(
    lambda rows: [
        CallNode(parent=up % (at + 1) - 1, name=name, kind="python", total_ns=total, self_ns=own, count=count)
        for at, (up, name, total, own, count) in enumerate(rows)
    ]
)


@pytest.mark.parametrize("summary", [EMPTY, FULL])
def test_a_summary_comes_back_equal(summary):
    """To the last field."""
    assert decode(TOPIC, encode(summary)) == summary


@settings(max_examples=100, deadline=None)
@given(tree=_TREE, path=st.lists(st.tuples(_NAME, _NAME, _INT), max_size=9))
def test_any_tree_comes_back_equal(tree, path):
    """From any source: self times need not be what totals leave, and names may repeat."""
    summary = replace(EMPTY, tree=tree, path=path)
    data, _ = packed_bytes(summary)
    if len(data) <= limits.SUMMARY_WIRE_MAX_BYTES:
        assert decode(TOPIC, encode(summary)) == summary


def test_another_version_is_named():
    """Whatever else stands in the message."""
    with pytest.raises(ContractVersionError, match="got 3, expected 1"):
        decode(TOPIC, summary_with(version=3))
    with pytest.raises(ContractVersionError, match="got 3, expected 1"):
        decode(TOPIC, deflated({"version": 3, "tree": 7}))
    with pytest.raises(MalformedError):
        decode(TOPIC, deflated({"version": 1, "run": "run"}))


def test_a_summary_that_does_not_fit_is_not_sent():
    """What a receiver would refuse is refused by the sender."""
    noise = "".join(map(chr, range(0x4E00, 0x4E00 + 9000)))
    with pytest.raises(MalformedError, match=f"message size.* 0 to {limits.SUMMARY_WIRE_MAX_BYTES}"):
        encode(replace(EMPTY, error=noise))


def deflated(fields):
    """Return the bytes of a summary of these fields, valid or not."""
    return zlib.compress(msgspec.msgpack.encode(fields))


def summary_with(**changes):
    """Return the bytes of a summary, some of its fields changed."""
    return deflated(asdict(FULL) | changes)


def tree_with(at, **changes):
    """Return the bytes of a summary, some fields of one node changed."""
    tree = [asdict(node) for node in FULL.tree]
    tree[at] |= changes
    return summary_with(tree=tree)


BOMB = zlib.compress(bytes(1 << 22), 9)
"""4 MB in 4 KB."""


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (BOMB, "summary"),
        (b"", "summary"),
        (b"nonsense", "summary"),
        (msgspec.msgpack.encode(FULL), "summary"),
        (encode(FULL)[:-1], "summary"),
        (encode(FULL) + b"x", "summary"),
        (zlib.compress(random.Random(1).randbytes(9000) + bytes(limits.SUMMARY_MAX_BYTES - 8999)), "summary"),
        (b"x" * 11_000, "message size"),
        (summary_with(run="other"), "run"),
        (summary_with(node="other"), "node"),
        (zlib.compress(b"\xc1"), "summary"),
        (zlib.compress(b"\x91" * 9000), "summary"),
        (tree_with(1, parent=1), "parent"),
        (tree_with(1, parent=3), "parent"),
        (tree_with(1, parent=-2), "tree[1].parent"),
        (tree_with(1, name=7), "tree[1].name"),
        (tree_with(0, total_ns="x"), "tree[0].total_ns"),
        (tree_with(0, total_ns=(1 << 53) + 1), "tree[0].total_ns"),
        (tree_with(0, self_ns=1 << 60), "tree[0].self_ns"),
        (tree_with(3, by_step_ns=[5]), "by_step_ns"),
        (tree_with(3, by_step_ns=[]), "by_step_ns"),
        (tree_with(0, by_step_ns=[-1, 40]), "tree[0].by_step_ns[0]"),
        (summary_with(step_ns=[60]), "by_step_ns"),
        (summary_with(rank="three"), "rank"),
    ],
)
def test_hostile_bytes_are_refused_by_name(payload, what):
    """Sizes before anything is unpacked, then every place and caller."""
    with pytest.raises(MalformedError) as caught:
        decode(TOPIC, payload)
    assert caught.value.what == what


def test_every_summary_cut_or_changed_is_refused():
    """A checksum guards it: cut anywhere, or with any byte changed, it is malformed and nothing else."""
    data = encode(FULL)
    for at in range(len(data)):
        for broken in (data[:at], data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]):
            with pytest.raises(MalformedError):
                decode(TOPIC, broken)


def test_a_summary_of_the_largest_size_is_accepted():
    """To the byte."""
    missing = limits.SUMMARY_MAX_BYTES - len(msgspec.msgpack.encode(replace(EMPTY, error="x" * 300)))
    full = replace(EMPTY, error="x" * (300 + missing))
    assert packed_bytes(full)[1] == limits.SUMMARY_MAX_BYTES
    assert decode(TOPIC, encode(full)) == full
