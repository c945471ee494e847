"""Recordings of real jobs of four ranks with one fault each (`recorded_job`): traces and summaries give one answer."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import pytest

from lockstep.analysis.analyse import analyse_paths
from lockstep.analysis.capture_summary import summarise, with_analysis
from lockstep.analysis.workers import run_here
from lockstep.contracts import topics
from lockstep.contracts.codec import decode, encode
from lockstep.diagnosis.explain import explain

JOBS = Path(__file__).parent / "recorded"
RANKS, CULPRIT, STEPS = 4, 2, 3
LOADER_NAME = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
EXPECTED = {
    "forward": ("slow_function", "DistributedDataParallel.forward"),
    "forward_stacks": ("slow_function", "forward"),
    "collect": ("unrecorded_time", "(no recorded call)"),
    "collect_stacks": ("gc", "collect"),
    "loader": ("data_processing", LOADER_NAME),
    "loader_stacks": ("data_processing", "__getitem__"),
    "annotated": ("slow_function", "data"),
    "annotated_stacks": ("slow_function", "train_step"),
    "backward": ("slow_function", "SlowBackwardBackward"),
    "backward_stacks": ("slow_function", "backward"),
    "optimizer": ("slow_function", "Optimizer.step#SlowSGD.step"),
    "optimizer_stacks": ("slow_function", "step"),
}
HEALTHY = ("healthy", "healthy_stacks", "healthy_crowded_a", "healthy_crowded_b", "healthy_crowded_c")
"""The crowded ones had a rank named before its lateness was held against the others' spread."""
DETECTED = dict.fromkeys(("forward", "annotated", "backward", "optimizer"), "compute") | {"loader": "data"}
"""What the detectors measure of each fault, as the coordinator has it; of collections below."""
GAIN_POINTS = 0.1
"""How far a predicted gain may be from what the repaired job gained."""


def offline(folder):
    """Return what `lockstep analyze` finds of some ranks only."""
    found = analyse_paths([folder], partial(run_here, processes=1)).cluster.findings
    return [each for each in found if len(each.ranks) < RANKS]


def summaries(folder):
    """Return the summaries that the nodes send, as the coordinator reads them."""
    made = [
        summarise(folder / f"rank{rank}.json.gz", run="r", node="n", rank=rank, request_id=1, steps=STEPS)
        for rank in range(RANKS)
    ]
    return [decode(topics.run_topic("r", topics.SUMMARY, "n"), encode(each)) for each in made]


def online(folder, cause):
    """Return what the coordinator makes of the summaries of the same files."""
    return explained(summaries(folder), cause)


def explained(captured, cause):
    """Return the diagnosis of the culprit."""
    peers = [each for each in captured if each.rank != CULPRIT]
    step_seconds = captured[CULPRIT].window_ns / STEPS / 1e9
    return explain(
        cause=cause,
        scope="rank",
        suspects=[captured[CULPRIT]],
        peers=peers,
        step_seconds=step_seconds,
        excess_seconds=0.5 * step_seconds,
    )


def step_ms(name):
    """Return the length of a job's step: the median of its ranks."""
    ranks = analyse_paths([JOBS / name], partial(run_here, processes=1)).cluster.ranks
    return median(each.length_ns for each in ranks) / STEPS / 1e6


def short(function):
    return function.partition("): ")[2] or function


@pytest.mark.parametrize("name", EXPECTED)
def test_one_fault_is_found_once_and_alike(name):
    """Culprit, cause and function are those of the fault, from whole traces and from summaries; no one else is named."""
    (found,) = offline(JOBS / name)
    cause, function = EXPECTED[name]
    assert found.ranks == (CULPRIT,)
    assert (found.cause, short(found.subject)) == (cause, function), found.evidence
    measured = DETECTED.get(name.removesuffix("_stacks"), "gc" if name.endswith("_stacks") else "unknown")
    for given in {measured, "unknown"}:
        answer = online(JOBS / name, given)
        assert (answer.root_cause, answer.function) == (found.cause, found.subject), (given, answer.evidence)


def with_pause(summary):
    """Return the summary as if all that its nodes took in the window had been in its first step."""
    tree = [replace(each, by_step_ns=[each.total_ns, *[0] * (STEPS - 1)]) for each in summary.tree]
    return replace(summary, tree=tree)


@pytest.mark.parametrize("name", ["forward", "optimizer_stacks", "backward"])
def test_single_steps_decide_alike(name):
    """Nodes send the single steps that whole traces have; a function with its excess in one of three is no cause."""
    sent = summaries(JOBS / name)
    ranks = analyse_paths([JOBS / name], partial(run_here, processes=1)).cluster.ranks
    assert [(each.tree, each.step_ns) for each in sent] == [(each.calls.tree, each.calls.step_ns) for each in ranks]
    assert explained(sent, "unknown").root_cause
    for captured in (sent, [with_analysis(each.calls, each) for each in ranks]):
        paused = [with_pause(each) if each.rank == CULPRIT else each for each in captured]
        answer = explained(paused, "unknown")
        assert (answer.root_cause, answer.bottleneck) == ("", "")
        assert f"takes longer in only 1 of {STEPS} steps" in answer.evidence[-1]


def test_collections_that_the_detectors_measured_are_named_without_stacks():
    """The capture records no collection; the agent has measured them, and the excess is in no recorded call."""
    answer = online(JOBS / "collect", "gc")
    assert (answer.root_cause, answer.function) == ("gc", "automatic garbage collection")


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_job_has_no_culprit(name):
    """Four ranks alike: none is blamed."""
    assert offline(JOBS / name) == []


@pytest.mark.parametrize("name", EXPECTED)
def test_predicted_gains_are_those_of_the_repaired_job(name):
    """The same job without its fault was recorded a moment before: its step is what the repair gives."""
    (found,) = offline(JOBS / name)
    repaired = "healthy_stacks" if name.endswith("_stacks") else "healthy"
    gained_ratio = 1 - step_ms(repaired) / step_ms(name)
    assert found.predicted_gain_ratio == pytest.approx(gained_ratio, abs=GAIN_POINTS)


@pytest.mark.parametrize("name", ["loader", "loader_stacks"])
def test_advice_knows_the_callers(name):
    """The dataset's own function is named, and the loader that calls it decides the advice: it has no workers."""
    (found,) = offline(JOBS / name)
    for advice in (found.advice, online(JOBS / name, "data").advice):
        suggestions = [each.suggestion for each in advice]
        assert suggestions[0].startswith("Load batches in worker processes")
        assert not any("CPU binding of the loader's processes" in each for each in suggestions)


def test_evidence_has_the_callers():
    """Outermost first, with file and line; frames of libraries are left out."""
    expected = (
        "called from ... > record (tests/analysis/recorded_job.py:132) > train_step (tests/analysis/recorded_job.py:98)"
        f" > data > {LOADER_NAME}"
    )
    assert expected in offline(JOBS / "loader_stacks")[0].evidence
    assert expected in online(JOBS / "loader_stacks", "data").evidence


def test_host_backends_have_no_poor_overlap():
    """Their collectives take the cores that compute: hiding one behind the other would gain nothing for free."""
    found = analyse_paths([JOBS / "healthy"], partial(run_here, processes=1)).cluster
    assert found.findings == ()
    assert "poor_overlap" in {each.rule for each in found.not_evaluated}


def test_a_fault_is_found_in_every_step():
    """The finding states in how many steps the others waited for the rank."""
    (found,) = offline(JOBS / "forward")
    assert found.steps == (STEPS, STEPS)
