"""The gate on findings: its arithmetic, and that the labelled traces of the repository pass it."""

from pathlib import Path

import pytest

from benchmarks.precision import PRECISION_LEAST, RECALL_LEAST, ROOT, Label, Score, Trace, read_labels, score, table
from lockstep.contracts.finding import CPU, Finding
from lockstep.diagnosis.remedies import CAUSES


def finding(cause, subject="f", ranks=(0,)):
    return Finding(bottleneck=CPU, cause=cause, ranks=ranks, evidence=(), subject=subject)


def trace(*expected, allowed=()):
    return Trace(path="t", why="w", expected=expected, allowed=allowed)


def test_right_wrong_and_missed_are_counted_by_rule():
    """One label takes one finding; what is allowed is neither right nor wrong."""
    found = Score()
    found.add(
        trace(Label("gc", "collect", (2,)), Label("dispatch"), allowed=(Label("poor_overlap"),)),
        [finding("gc", "x: collect", (2,)), finding("gc", "x: collect", (2,)), finding("poor_overlap")],
    )
    assert found.rows() == [("dispatch", 0, 0, 1), ("gc", 1, 1, 0)]
    assert (found.precision, found.recall) == (0.5, 0.5)
    assert "| all | 1 | 1 | 1 | 0.50 | 0.50 |" in table(found)


@pytest.mark.parametrize("wrong", [finding("gc", "collect", (1,)), finding("gc", "other", (2,)), finding("dispatch")])
def test_culprit_cause_and_function_must_fit(wrong):
    """The right cause on another rank or in another function is wrong, and the label missed."""
    found = Score()
    found.add(trace(Label("gc", "collect", (2,))), [wrong])
    assert (found.right.total(), found.wrong.total(), found.missed.total()) == (0, 1, 1)


@pytest.mark.parametrize("section", ["repository", "held_out", "shared", "held_out_shared"])
def test_labels_name_causes_that_exist(section):
    """A label of a misspelt cause would be missed for ever."""
    for each in read_labels(section):
        assert {label.cause for label in (*each.expected, *each.allowed)} <= set(CAUSES)
        assert each.why


def test_every_public_trace_of_the_repository_is_labelled():
    """What lies there counts, whether the rules do well on it or not."""
    labelled = [ROOT / each.path for section in ("repository", "held_out") for each in read_labels(section)]
    for folder in ("public", "recorded", "held_out_a", "held_out_c"):
        for path in Path(ROOT / "tests" / "analysis" / folder).rglob("*.json.gz"):
            assert path in labelled or path.parent in labelled, path


@pytest.mark.parametrize("section", ["repository", "held_out"])
def test_the_repositorys_traces_pass(section):
    """0.9 of the findings are expected, and 0.9 of what is expected is found; the path is idle where the device is."""
    found = score(read_labels(section), ROOT)
    assert found.idle_points <= 0.1
    assert found.precision >= PRECISION_LEAST, found.wrong_at
    assert found.recall >= RECALL_LEAST, found.missed_at
