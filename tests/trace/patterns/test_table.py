"""What travels is small, comes back as it was, and hostile tables end in an error that names the field."""

from dataclasses import asdict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.contracts.codec import decode, encode, packed_bytes
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import PATTERN_DEPTH_MAX
from lockstep.contracts.messages import FUNCTION_CLASSES, PatternCaller, PatternRow, PatternTable
from lockstep.trace.patterns import FunctionClass, Pattern, PatternSummary, patterns_of, table_of
from tests.contracts.test_deflated_summary import EMPTY, TOPIC, deflated

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
TABLE = PatternTable(
    window_ns=100,
    callers=[PatternCaller(parent=-1, name="main"), PatternCaller(parent=0, name="train")],
    rows=[PatternRow(function="f", kind="host", beta_ppm=500, caller=1)],
)


def sent(table: PatternTable) -> bytes:
    """Return a summary with this table, whether a node would send it or not."""
    return deflated(asdict(EMPTY) | {"patterns": msgspec.to_builtins(table)})


def summary_of(count: int, depth=40) -> PatternSummary:
    patterns = tuple(
        Pattern(
            function=f"lib/python/module_{at % 97}.py({at * 7919 % 1000}): function_{at * 104729 % 10007}",
            stack=tuple(f"package_{at % 5}/file_{level}.py({level * 31}): f" for level in range(depth)),
            kind=FunctionClass.HOST,
            beta=0.5 / (at + 1),
            mu=0.5,
        )
        for at in range(count)
    )
    return PatternSummary(window_ns=20_000_000_000, patterns=patterns, omitted_count=3, omitted_beta=0.001)


def test_the_classes_are_those_of_messages():
    """A class that the message does not know would be refused."""
    assert tuple(FunctionClass) == FUNCTION_CLASSES


@settings(max_examples=100, deadline=None)
@given(st.lists(_PATTERN, max_size=20), st.integers(1, 1 << 50), st.integers(0, 1 << 30))
def test_what_travels_comes_back(patterns, window_ns, omitted_count):
    """To a part per million, in order."""
    given_ones = PatternSummary(
        window_ns=window_ns, patterns=tuple(patterns), omitted_count=omitted_count, omitted_beta=0.25
    )
    message = decode(TOPIC, sent(table_of(given_ones, len(patterns))))
    assert patterns_of(message.patterns) == given_ones


@pytest.mark.parametrize("count", [0, 1, 7])
def test_the_largest_are_sent_and_the_rest_is_counted(count):
    """Nothing of the account is lost."""
    whole = summary_of(7, depth=3)
    found = patterns_of(table_of(whole, count))
    assert [each.function for each in found.patterns] == [each.function for each in whole.patterns[:count]]
    assert [each.stack for each in found.patterns] == [each.stack for each in whole.patterns[:count]]
    assert found.omitted_count == 3 + 7 - count
    total = sum(each.beta for each in whole.patterns) + whole.omitted_beta
    assert sum(each.beta for each in found.patterns) + found.omitted_beta == pytest.approx(total, abs=1e-5)


def test_stacks_that_begin_alike_are_sent_once():
    """100 functions under five stacks of 40 callers: 200 callers, 3 KB instead of 300 unpacked."""
    table = table_of(summary_of(100), 100)
    assert len(table.callers) == 5 * 40
    deflated_bytes, plain_bytes = packed_bytes(decode(TOPIC, sent(table)))
    assert len(deflated_bytes) < 4_000
    assert plain_bytes < 30_000


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"window_ns": 0}, "patterns.window_ns"),
        ({"window_ns": "x"}, "patterns.window_ns"),
        ({"callers": [{"parent": 0, "name": "main"}]}, "patterns.parent"),
        ({"callers": [{"parent": -2, "name": "main"}]}, "patterns.callers[0].parent"),
        ({"callers": [{"parent": -1}]}, "summary"),
        ({"callers": [{"parent": at - 1, "name": "f"} for at in range(PATTERN_DEPTH_MAX + 1)]}, "depth of patterns"),
        ({"callers": []}, "patterns.caller"),
        ({"rows": [{"function": "f", "kind": "host", "beta_ppm": 1, "caller": 2}]}, "patterns.caller"),
        ({"rows": [{"function": "f", "kind": "other", "beta_ppm": 1}]}, "patterns.rows[0].kind"),
        ({"rows": [{"function": "f", "kind": "host", "beta_ppm": 1_000_001}]}, "patterns.rows[0].beta_ppm"),
        ({"rows": [{"function": "f", "kind": "host", "beta_ppm": 1, "mu_ppm": -2}]}, "patterns.rows[0].mu_ppm"),
        ({"rows": [{"function": 7, "kind": "host", "beta_ppm": 1}]}, "patterns.rows[0].function"),
        ({"rows": [{"function": "", "kind": "host", "beta_ppm": 1}] * 3000}, "summary"),
        ({"omitted_count": -1}, "patterns.omitted_count"),
        ({"omitted_beta_ppm": -1}, "patterns.omitted_beta_ppm"),
    ],
)
def test_fields_that_cannot_be_are_refused_by_name(change, what):
    """What, where, got, expected."""
    assert decode(TOPIC, sent(TABLE)).patterns == TABLE
    with pytest.raises(MalformedError) as caught:
        decode(TOPIC, deflated(asdict(EMPTY) | {"patterns": asdict(TABLE) | change}))
    assert caught.value.what == what
    assert caught.value.where == TOPIC


def test_a_share_above_the_peak_is_sent():
    """A measured rate may be above what a vendor states."""
    fast = PatternSummary(window_ns=1, patterns=(Pattern(function="f", kind=FunctionClass.MEMORY, beta=1.0, mu=1.2),))
    assert patterns_of(decode(TOPIC, sent(table_of(fast, 1))).patterns) == fast
    assert decode(TOPIC, encode(decode(TOPIC, sent(table_of(fast, 1))))).patterns == table_of(fast, 1)
