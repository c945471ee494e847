"""What travels is small, comes back as it was, and hostile bytes end in an error that names the field."""

import zlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.limits import SUMMARY_MAX_BYTES
from lockstep.trace.patterns import (
    FunctionClass,
    Pattern,
    PatternSummary,
    decode_patterns,
    encode_patterns,
    plain_patterns,
)
from lockstep.trace.patterns.wire import WIRE_MAX_BYTES

_PPM = st.integers(0, 1_000_000).map(lambda ppm: ppm / 1_000_000)
_TEXT = st.text(min_size=1, max_size=40)
_PATTERN = st.builds(
    Pattern,
    function=_TEXT,
    stack=st.lists(st.sampled_from(["main", "train", "forward"]) | _TEXT, max_size=8).map(tuple),
    kind=st.sampled_from(list(FunctionClass)),
    beta=_PPM,
    mu=st.none() | _PPM,
    sigma=st.none() | _PPM,
    active_mu=st.none() | _PPM,
    gap_ratio=st.none() | _PPM,
)


def summary_of(count: int, depth=40) -> PatternSummary:
    patterns = tuple(
        Pattern(
            function=f"lib/python/module_{at % 97}.py({at * 7919 % 1000}): function_{at * 104729 % 10007}",
            stack=tuple(
                f"package_{at * level * 31 % 211}/file_{level}.py({level * at % 700}): f" for level in range(depth)
            ),
            kind=FunctionClass.HOST,
            beta=0.5 / (at + 1),
            mu=0.5,
        )
        for at in range(count)
    )
    return PatternSummary(window_ns=20_000_000_000, patterns=patterns, omitted_count=3, omitted_beta=0.001)


@settings(max_examples=100, deadline=None)
@given(st.lists(_PATTERN, max_size=20), st.integers(1, 1 << 50), st.integers(0, 1 << 30))
def test_what_travels_comes_back(patterns, window_ns, omitted_count):
    """To a part per million, in order."""
    sent = PatternSummary(window_ns=window_ns, patterns=tuple(patterns), omitted_count=omitted_count, omitted_beta=0.25)
    data = encode_patterns(sent, max_bytes=1 << 20)
    if len(data) <= WIRE_MAX_BYTES:
        assert decode_patterns(data, where="test") == sent


def test_the_largest_that_fit_are_sent_and_the_rest_is_counted():
    """2,000 functions with stacks of their own do not fit; nothing of the account is lost."""
    sent = summary_of(2000)
    data = encode_patterns(sent)
    got = decode_patterns(data, where="test")
    assert WIRE_MAX_BYTES * 0.9 < len(data) <= WIRE_MAX_BYTES
    assert 20 < len(got.patterns) < 2000
    assert [each.function for each in got.patterns] == [each.function for each in sent.patterns[: len(got.patterns)]]
    assert got.omitted_count == 3 + 2000 - len(got.patterns)
    whole = sum(each.beta for each in sent.patterns) + sent.omitted_beta
    assert sum(each.beta for each in got.patterns) + got.omitted_beta == pytest.approx(whole, abs=2e-3)


def packed(**change) -> bytes:
    """Return a message with one field set to what it must not be."""
    fields = {
        "version": 1,
        "window_ns": 100,
        "names": ["main", "f"],
        "node_caller": [-1],
        "node_name": [0],
        "rows": [[0, 1, 3, 500, -1, -1, -1, -1]],
        "omitted_count": 0,
        "omitted_beta": 0,
    }
    return zlib.compress(msgspec.msgpack.encode(list((fields | change).values())))


def test_the_made_message_is_good():
    """What the refusals below change is a message that passes."""
    (got,) = decode_patterns(packed(), where="test").patterns
    assert (got.function, got.stack, got.kind, got.beta, got.mu) == ("f", ("main",), FunctionClass.HOST, 0.0005, None)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"window_ns": 0}, "window_ns"),
        ({"window_ns": "x"}, "patterns"),
        ({"names": ["main", "f" * 257]}, "length of a name"),
        ({"node_caller": [0]}, "caller of node 0"),
        ({"node_caller": [-2]}, "caller of node 0"),
        ({"node_name": [2]}, "number of a name"),
        ({"node_name": []}, "nodes"),
        ({"node_caller": list(range(-1, 300)), "node_name": [0] * 301}, "depth of a stack"),
        ({"rows": [[1, 1, 3, 500, -1, -1, -1, -1]]}, "caller of a pattern"),
        ({"rows": [[0, 5, 3, 500, -1, -1, -1, -1]]}, "number of a name"),
        ({"rows": [[0, 1, 4, 500, -1, -1, -1, -1]]}, "class of a pattern"),
        ({"rows": [[0, 1, 3, 1_000_001, -1, -1, -1, -1]]}, "beta"),
        ({"rows": [[0, 1, 3, 500, -2, -1, -1, -1]]}, "share of a peak"),
        ({"rows": [[0, 1, 3, 500]]}, "patterns"),
        ({"rows": [[0, 1, 3, 500, -1, -1, -1, -1]] * 5000}, "number of patterns"),
        ({"omitted_count": -1}, "omitted_count"),
        ({"omitted_beta": -1}, "omitted_beta"),
    ],
)
def test_fields_that_cannot_be_are_refused_by_name(change, what):
    """What, where, got, expected."""
    with pytest.raises(MalformedError, match=f"^{what} in node7"):
        decode_patterns(packed(**change), where="node7")


@pytest.mark.parametrize("count", [0, 1, 7])
def test_plain_ones_come_back_as_well(count):
    """Inside a message that is packed as a whole: the largest, the others counted."""
    sent = summary_of(7, depth=3)
    data = plain_patterns(sent, count)
    assert zlib.decompress(encode_patterns(sent)) == plain_patterns(sent, 7)
    got = decode_patterns(data, where="test")
    assert [each.function for each in got.patterns] == [each.function for each in sent.patterns[:count]]
    assert got.omitted_count == 3 + 7 - count
    with pytest.raises(MalformedError):
        decode_patterns(data[:-1], where="test")
    with pytest.raises(MalformedError, match="size"):
        decode_patterns(data + bytes(SUMMARY_MAX_BYTES), where="test")


def test_another_version_is_refused_as_one():
    """Whether its fields look alike or not."""
    for data in (packed(version=2), zlib.compress(msgspec.msgpack.encode([2, "anything"]))):
        with pytest.raises(ContractVersionError, match="got 2"):
            decode_patterns(data, where="node7")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93nonsense",
        packed()[:-3],
        packed() + b"more",
        zlib.compress(b"\xc1"),
        zlib.compress(b"\0" * (1 << 22)),  # 4 MB in 4 KB
        b"x" * (WIRE_MAX_BYTES + 1),
    ],
)
def test_bytes_that_are_no_summary_are_refused(data):
    """Cut off, with something behind, too large packed or unpacked."""
    with pytest.raises(MalformedError):
        decode_patterns(data, where="node7")
