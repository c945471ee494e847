"""A real training is recorded healthy and with each fault; the diagnosis must name the line that is at fault."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.diagnosis.diagnose import diagnose
from lockstep.diagnosis.verdict import INSUFFICIENT
from lockstep.trace.summarise import summarise_trace
from tests.trace.class_times import break_down

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).parent / "small_training.py"
FAULTS = ("none", "healthy", "compute", "data", "gc", "automatic_gc")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Return what diagnoses a fault: the rank with it against two healthy ones, as measured and recorded."""
    folder = tmp_path_factory.mktemp("job")
    done = subprocess.run([sys.executable, SCRIPT, folder, *FAULTS], check=True, capture_output=True, text=True)
    seconds = json.loads(done.stdout.splitlines()[-1])
    ranks = {
        fault: summarise_trace(folder / f"{fault}.json", run="r", node="n", rank=rank, request_id=1, steps=1)
        for rank, fault in enumerate(FAULTS)
    }

    def evaluate(fault, cause):
        return diagnose(
            cause=cause,
            suspect=ranks[fault],
            peers=[ranks["none"]],
            step_seconds=seconds[fault],
            excess_seconds=seconds[fault] - seconds["none"],
        )

    evaluate.ranks = ranks
    return evaluate


def _function(diagnosis):
    return diagnosis.function.partition("): ")[2]


def test_marks_give_the_window(job):
    """The step marks in the recording count the steps, and the window holds no profiler."""
    for summary in job.ranks.values():
        assert summary.error == ""
        assert summary.steps == 3
        assert not any(node.name.startswith("torch/profiler/") for node in summary.tree)  # its start and its stop


def test_slow_function_is_named(job):
    """Twenty needless attention scores: the function that computes them, and an operator in it."""
    found = job("compute", "compute")
    assert _function(found) == "redundant_attention"
    assert found.function.startswith("small_training.py(")
    assert found.confidence == "high"
    assert found.advice[0].predicted_gain_ratio > 0.3
    assert "redundant_attention takes" in found.evidence[0]


def test_slow_dataset_is_named(job):
    """A dataset that compresses what it reads: its method, below the loader, and workers as advice."""
    found = job("data", "data")
    assert _function(found) == "read_document"
    assert found.confidence == "high"
    assert any("enumerate(DataLoader)#" in name for name in found.path)
    assert "num_workers" in found.advice[0].how


def test_explicit_collection_is_named(job):
    """gc.collect() in each step: the function that calls it, with how many and how long."""
    found = job("gc", "gc")
    assert _function(found) == "tidy_up"
    assert found.evidence[0].startswith("1.0 collections a step take ")
    assert "gc.collect()" in found.advice[0].suggestion


def test_automatic_collection_is_named_where_it_is_started(job):
    """Cycles made by the thousand start Python's own collector: the function that makes them, named as automatic."""
    found = job("automatic_gc", "gc")
    assert _function(found) == "allocate"
    assert any("Python's own collections" in each for each in found.evidence)


@pytest.mark.parametrize("cause", ["data", "gc"])
def test_a_healthy_rank_is_not_accused_of_another_cause(job, cause):
    """Where nothing is wrong with data or gc, no function is named for it when 50 ms are asked for."""
    healthy = job.ranks["healthy"]
    found = diagnose(cause=cause, suspect=healthy, peers=[job.ranks["none"]], step_seconds=0.1, excess_seconds=0.05)
    assert found.function == INSUFFICIENT


@pytest.mark.parametrize(("fault", "kind"), [("data", "data"), ("gc", "gc")])
def test_classes_show_the_fault(job, fault, kind):
    """Most of the window of a rank that reads or collects slowly is that class, and little is idle."""
    summary = job.ranks[fault]
    classes = break_down(summary.tree, summary.window_ns)
    assert max(classes, key=classes.get) == kind
    assert classes["idle"] < 0.3 * summary.window_ns
