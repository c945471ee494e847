"""What travels of one rank's trace."""

from dataclasses import replace

from lockstep.analysis.capture_summary import FINDINGS_MAX, SENTENCE_CHARS, summarise, with_analysis
from lockstep.analysis.rank import analyse_rank
from lockstep.contracts.codec import encode
from lockstep.contracts.finding import Finding, NotEvaluated
from lockstep.contracts.limits import SUMMARY_WIRE_MAX_BYTES
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.patterns import patterns_of
from tests.trace.traces import RECORDING

NAMES = {"run": "r", "node": "n", "rank": 2, "request_id": 7, "steps": 2}


def test_a_recording_becomes_a_summary_of_kilobytes():
    """The call tree, the classes that sum to the window, the path and the patterns; all of it within ten kilobytes."""
    summary = summarise(RECORDING, **NAMES)
    assert summary.error == ""
    assert summary.tree
    classes = {name: ns for name, ns in summary.breakdown.items() if name != "memory_ns"}
    assert set(classes) == {"compute_ns", "communication_ns", "host_ns", "overlap_ns", "free_ns"}
    # The call tree's window is that of the marks; the breakdown's may begin with the first step's own work.
    assert abs(sum(classes.values()) - summary.window_ns) < 0.01 * summary.window_ns
    assert any("sleep" in name for name, _, _ in summary.path)
    assert patterns_of(summary.patterns).patterns
    assert len(encode(summary)) < SUMMARY_WIRE_MAX_BYTES


def test_a_file_that_is_no_trace_is_reported_as_such(tmp_path):
    """The one who asked sees why there is nothing."""
    path = tmp_path / "trace.json"
    path.write_text("{")
    summary = summarise(path, **NAMES)
    assert str(path) in summary.error
    assert (summary.rank, summary.request_id, summary.tree, summary.findings) == (2, 7, [], [])


def test_what_is_reported_is_limited():
    """Endless findings and sentences of a hostile trace are cut, the dearest stay; refusals are kept by rule."""
    columns = load_trace(RECORDING)
    whole = summarise(RECORDING, **NAMES)
    analysis = analyse_rank(columns, rank=2)
    many = [
        Finding(bottleneck="cpu", cause=f"c{n}", ranks=(2,), evidence=("x" * 10_000,) * 99, lost_ns=n)
        for n in range(100)
    ]
    analysis = replace(analysis, findings=tuple(many), not_evaluated=(NotEvaluated(rule="a", reason="y" * 9_000),))
    summary = with_analysis(whole, analysis)
    assert len(summary.findings) == FINDINGS_MAX
    assert summary.findings[0].cause == "c99"
    assert max(len(sentence) for found in summary.findings for sentence in found.evidence) == SENTENCE_CHARS
    assert summary.not_evaluated == {"a": "y" * SENTENCE_CHARS}
