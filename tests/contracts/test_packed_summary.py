"""Trace summaries packed: they come back equal, hostile bytes are refused by name."""

import zlib
from dataclasses import asdict, replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.contracts import limits, topics
from lockstep.contracts.codec import decode, encode, packed_bytes
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.messages import CallNode, HostSpan, RankFinding, TraceSummary

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
    patterns=b"\x98\x01patterns",
    findings=[
        RankFinding(bottleneck="cpu", cause="gc", subject="main", evidence=["5 ms"], confidence="high", lost_ns=5)
    ],
    not_judged={"gc": "no samples"},
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
        decode(TOPIC, msgspec.msgpack.encode(asdict(FULL) | {"version": 3}))
    with pytest.raises(MalformedError):
        decode(TOPIC, msgspec.msgpack.encode({"version": 1, "run": "run"}))


def test_a_summary_that_does_not_fit_is_not_sent():
    """What a receiver would refuse is refused by the sender."""
    noise = "".join(map(chr, range(0x4E00, 0x4E00 + 9000)))
    with pytest.raises(MalformedError, match=f"message size.* 0 to {limits.SUMMARY_WIRE_MAX_BYTES}"):
        encode(replace(EMPTY, error=noise))


def packed(**changes):
    """Return the envelope's fields as bytes, some of them changed."""
    fields = msgspec.msgpack.decode(encode(FULL))
    return msgspec.msgpack.encode(fields | changes)


def body_of(*, tree=None, **changes):
    """Return an envelope whose body has other values at some places."""
    body = msgspec.msgpack.decode(zlib.decompress(msgspec.msgpack.decode(encode(FULL))["body"]))
    for place, value in changes.items():
        body[int(place[1:])] = value
    for place, value in (tree or {}).items():
        body[8][place] = value
    plain = msgspec.msgpack.encode(body)
    return packed(body=zlib.compress(plain), body_bytes=len(plain))


BOMB = zlib.compress(bytes(1 << 22), 9)
"""4 MB in 4 KB."""


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (packed(body=BOMB, body_bytes=1 << 22), "body_bytes"),
        (packed(body=BOMB, body_bytes=1 << 10), "body"),
        (packed(body_bytes=0), "body_bytes"),
        (packed(body_bytes=-1), "body_bytes"),
        (packed(body_bytes=1 << 62), "body_bytes"),
        (packed(body=b""), "body"),
        (packed(body=b"nonsense"), "body"),
        (packed(body=encode(FULL)), "body"),
        (packed(body=b"x" * 11_000), "message size"),
        (packed(run="other"), "run"),
        (packed(node="other"), "node"),
        (packed(body=zlib.compress(b"\xc1"), body_bytes=1), "summary"),
        (packed(body=zlib.compress(b"\x91" * 9000), body_bytes=9000), "summary"),
        (body_of(tree={0: [1, 1, 2]}), "tree"),
        (body_of(tree={0: [1, 0, 2, 4]}), "parent"),
        (body_of(tree={0: [1, 9, 2, 4]}), "parent"),
        (body_of(tree={1: [0, 99, 0, 0]}), "name"),
        (body_of(tree={2: [0, 0, -1, 0]}), "name"),
        (body_of(tree={3: ["x", 0, 0, 0]}), "summary[8][3][0]"),
        (body_of(tree={3: [(1 << 53) + 1, 0, 0, 0]}), "tree[0].total_ns"),
        (body_of(tree={4: [1 << 60, 0, 0, 0]}), "tree[0].self_ns"),
        (body_of(_7=[]), "name"),
        (body_of(_20=[[60, 40], [60, 0], [0, 10]]), "tree"),
        (body_of(_20=[[60, 40], [60, 0], [0, 10], [5]]), "by_step_ns"),
        (body_of(_20=[]), "tree"),
        (body_of(_20=[[-1, 40], [60, 0], [0, 10], [5, 0]]), "tree[0].by_step_ns[0]"),
        (body_of(_0="three"), "summary[0]"),
    ],
)
def test_hostile_bytes_are_refused_by_name(payload, what):
    """Sizes before anything is unpacked, then every place and caller."""
    with pytest.raises(MalformedError) as caught:
        decode(TOPIC, payload)
    assert caught.value.what == what


def test_a_body_of_an_older_version_has_no_single_steps():
    """Its last two columns are not there."""
    body = msgspec.msgpack.decode(zlib.decompress(msgspec.msgpack.decode(encode(FULL))["body"]))[:-2]
    plain = msgspec.msgpack.encode(body)
    found = decode(TOPIC, packed(body=zlib.compress(plain), body_bytes=len(plain)))
    assert found.step_ns == []
    assert [each.by_step_ns for each in found.tree] == [[]] * len(FULL.tree)


def test_every_body_cut_or_changed_is_refused():
    """A checksum guards the body: cut anywhere, or with any byte changed, it is malformed and nothing else."""
    fields = msgspec.msgpack.decode(encode(FULL))
    body = fields["body"]
    for at in range(len(body)):
        for broken in (body[:at], body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :]):
            with pytest.raises(MalformedError):
                decode(TOPIC, msgspec.msgpack.encode(fields | {"body": broken}))
