"""A summary within its size, whatever the trace: what matters most stays, what goes is counted."""

import random
from dataclasses import replace

import pytest

from lockstep.analysis.capture_summary import summarise
from lockstep.analysis.fitting import AIM_BYTES, fitted
from lockstep.contracts.codec import encode, packed_bytes
from lockstep.contracts.finding import Finding
from lockstep.contracts.limits import SUMMARY_WIRE_MAX_BYTES
from lockstep.contracts.messages import CallNode, HostSpan, TraceSummary
from lockstep.trace.patterns import FunctionClass, Pattern, PatternSummary, patterns_of
from tests.trace.traces import document, event, write

NAMES = {"run": "r" * 128, "node": "n" * 128, "rank": 2, "request_id": 7, "steps": 2}
EMPTY = TraceSummary(**NAMES, window_ns=10**9, trace_bytes=9, event_count=3, tree=[])
WORST_HOST = HostSpan(
    span_ns=1 << 62, on_cpu_ns=1 << 62, run_queue_wait_ns=1 << 62, throttled_ns=1 << 62, cores=8192,
    others_cores=0.1, busiest=[("c" * 128, 0.1), ("d" * 128, 0.2), ("e" * 128, 0.3)],
)  # fmt: skip


def words(source, length):
    return "".join(source.choices("abcdefghijklmnopqrstuvwxyz0123456789_./", k=length))


def noisy(functions, seed=7):
    """Return a summary whose names pack badly, and its patterns."""
    source = random.Random(seed)
    totals = sorted((source.randrange(10**9) for _ in range(functions)), reverse=True)
    tree = [CallNode(parent=-1, name="main", kind="python", total_ns=sum(totals), self_ns=0, count=1)]
    tree += [
        CallNode(parent=0, name=words(source, 100), kind="python", total_ns=total, self_ns=total, count=1)
        for total in totals[:500]
    ]
    patterns = tuple(
        Pattern(function=words(source, 60), stack=(words(source, 60),), kind=FunctionClass.HOST, beta=0.5 / (at + 1))
        for at in range(functions)
    )
    findings = [
        Finding(
            bottleneck="cpu", cause=f"c{at}", ranks=(2,), subject=words(source, 200),
            evidence=tuple(words(source, 300) for _ in range(4)), confidence="high", lost_ns=100 - at,
        )
        for at in range(8)
    ]  # fmt: skip
    summary = replace(
        EMPTY,
        tree=tree,
        findings=findings,
        not_evaluated={words(source, 30): words(source, 300) for _ in range(16)},
        path=[(words(source, 256), "host", at) for at in range(12)],
        collectives={words(source, 200): [1, 2, 3] for _ in range(32)},
        omitted={"findings": 90},
    )
    return summary, PatternSummary(window_ns=10**9, patterns=patterns, omitted_count=3, omitted_beta=0.001)


@pytest.mark.parametrize("functions", [1, 30, 300, 3000])
def test_names_that_pack_badly_fit(functions):
    """However many: within the limit with the largest host watch, the dearest first, the whole account kept."""
    summary, patterns = noisy(functions)
    found = fitted(summary, patterns)
    assert len(encode(replace(found, host=WORST_HOST))) <= SUMMARY_WIRE_MAX_BYTES
    assert found.findings
    assert [each.cause for each in found.findings] == [f"c{at}" for at in range(len(found.findings))]
    assert found.omitted["findings"] == 90 + 8 - len(found.findings)
    assert found.omitted.get("not_evaluated", 0) + len(found.not_evaluated) == 16
    assert found.omitted_nodes + len(found.tree) == len(summary.tree)
    assert [each.name for each in found.tree] == [each.name for each in summary.tree[: len(found.tree)]]
    decoded = patterns_of(found.patterns)
    assert len(decoded.patterns) + decoded.omitted_count == functions + 3
    assert sum(each.beta for each in decoded.patterns) + decoded.omitted_beta == pytest.approx(
        sum(each.beta for each in patterns.patterns) + 0.001, abs=1e-3
    )


def test_what_fits_is_left_whole():
    """Nothing is cut without need, and nothing counted."""
    summary, patterns = noisy(5)
    small = replace(summary, findings=summary.findings[:1], not_evaluated={}, collectives={}, omitted={})
    found = fitted(small, patterns)
    assert replace(found, patterns=None) == small
    assert len(patterns_of(found.patterns).patterns) == 5


def test_the_time_of_nodes_that_go_stays_in_their_callers():
    """Self times sum to the roots' totals before and after."""
    summary, patterns = noisy(300)
    found = fitted(summary, patterns)
    assert 0 < len(found.tree) < len(summary.tree)
    roots_ns = sum(each.total_ns for each in found.tree if each.parent < 0)
    assert sum(each.self_ns for each in found.tree) == roots_ns


def test_small_functions_go_before_findings():
    """Where functions alone are too many, nothing else is cut."""
    summary, patterns = noisy(3000)
    lean = replace(
        summary, tree=summary.tree[:3], findings=summary.findings[:2], not_evaluated={}, collectives={}, path=[]
    )
    found = fitted(lean, patterns)
    assert replace(found, patterns=None) == lean
    decoded = patterns_of(found.patterns)
    assert 40 <= len(decoded.patterns) < 3000
    assert AIM_BYTES * 0.95 < len(packed_bytes(found)[0]) <= AIM_BYTES


def test_a_trace_of_thousands_of_functions_fits(tmp_path):
    """From the file: 6,000 functions with long names of their own, nested and in turn, within ten kilobytes."""
    source = random.Random(3)
    ms = 1_000_000
    events = [event("train.py(1): main", 0, 6_100 * ms)]
    for at in range(3000):
        outer = words(source, 120)
        events.append(event(f"{outer}.py({at}): outer", 2 * at * ms, 2 * ms))
        events.append(event(f"{words(source, 120)}.py({at}): inner", 2 * at * ms + ms // 2, ms + at))
    summary = summarise(write(tmp_path, document(events)), **NAMES)
    assert summary.error == ""
    assert len(encode(replace(summary, host=WORST_HOST))) <= SUMMARY_WIRE_MAX_BYTES
    assert summary.tree
    assert patterns_of(summary.patterns).omitted_count > 0


def test_an_error_of_any_length_travels(tmp_path):
    """Why there is nothing is cut, too."""
    path = tmp_path / ("x" * 200)
    path.mkdir()
    path = path / ("y" * 200)
    path.write_text("{")
    assert len(encode(summarise(path, **NAMES))) < 2000
