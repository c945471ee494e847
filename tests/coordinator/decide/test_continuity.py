"""A coordinator that is ended or killed and started again reports what one that ran all the time would have."""

from dataclasses import replace

import pytest

from benchmarks.scenarios.job import Fault, Interruptions, Scenario
from benchmarks.scenarios.model import generate
from coordinator.decide import events as ev
from coordinator.store import Store
from tests.coordinator.live import Live

QUIET = Interruptions(checkpoint_every=1000, evaluation_every=1000, missing=0.0, late=0.0)
SLOW = Fault(cause="data", ranks=(5,), ratio=0.1, begin=60, end=100)
JOB = Scenario(name="job", degrees="tp=2,dp=4", seed=4, steps=150, faults=(SLOW,), interruptions=QUIET)
ALONE = Scenario(
    name="alone",
    degrees="pp=8",
    seed=3,
    steps=150,
    faults=(Fault(cause="compute", ranks=(3,), ratio=0.15, begin=80),),
    interruptions=QUIET,
)
DECIDED = ("id", "run", "kind", "cause", "scope", "ranks", "domain")
DECIDED = (*DECIDED, "onset_step", "detected_step", "closed_step", "confidence")


def assert_same(lines, whole, *, lost_ratio):
    """Hold all that was decided to be the same, and figures that go on being measured to be close."""
    assert [{name: line[name] for name in DECIDED} for line in lines] == [
        {name: line[name] for name in DECIDED} for line in whole
    ]
    for line, other in zip(lines, whole, strict=True):
        assert line["slowdown_ratio"] == pytest.approx(other["slowdown_ratio"], rel=0.05)
        assert line["lost_device_seconds"] == pytest.approx(other["lost_device_seconds"], rel=lost_ratio)


def unbroken(scenario):
    made = generate(scenario)
    live = Live()
    live.play(made.log(run="night"), made.topology)
    return live.lines()


def broken(scenario, directory, *shares, killed):
    """Play a scenario through as many coordinators as there are parts between `shares` of its time."""
    made = generate(scenario)
    log = made.log(run="night")
    store = Store(str(directory))
    live = Live(store=store)
    for first, last in zip((0.0, *shares), (*shares, 1.0), strict=True):
        if first:
            live = live.followed_by(store)
        live.play(log, made.topology, first=first, last=last)
        if not killed:
            live.end()
    told = {line["id"]: line for line in live.lines()}
    live.end()
    kept = {each.id for each in store.incidents()}
    store.close()
    assert kept == told.keys()
    return list(told.values())


@pytest.mark.parametrize("share", [0.3, 0.45, 0.6])
def test_a_restart_neither_loses_nor_repeats(tmp_path, share):
    """Before the fault, within it, and at its end: one incident, reported once, with the words in which it was first reported."""
    lines, whole = broken(JOB, tmp_path, share, killed=False), unbroken(JOB)
    assert_same(lines, whole, lost_ratio=0.1)
    if share > 0.4:
        assert [line["evidence"] for line in lines] == [line["evidence"] for line in whole]


def test_kills_cost_figures_only(tmp_path):
    """Killed twice within the fault: what was decided is the same; each time a second of lost time is not booked."""
    assert_same(broken(JOB, tmp_path, 0.45, 0.5, killed=True), unbroken(JOB), lost_ratio=0.2)


@pytest.mark.parametrize("share", [0.4, 0.8])
def test_the_past_of_a_rank_without_peers_outlives_the_coordinator(tmp_path, share):
    """Ended while healthy just before the fault, or within it: a slow stage is slow by the past from before."""
    lines = broken(ALONE, tmp_path, share, killed=False)
    assert_same(lines, unbroken(ALONE), lost_ratio=0.1)
    assert [line["ranks"] for line in lines if line["kind"] == "slow_rank"] == [[3]]


def test_without_its_past_such_a_rank_is_taken_for_normal(tmp_path):
    """The test above can fail: a coordinator that finds the fault there, and no memory, has nothing to compare with."""
    made = generate(ALONE)
    log = made.log(run="night")
    live = Live()
    live.play(log, made.topology, first=0.8)
    assert live.lines() == []


def test_what_was_learnt_of_another_attempt_is_not_taken(tmp_path, caplog):
    """Training began again while the coordinator was away: the evidence states that, it learns again, and the incident is still there."""
    made = generate(replace(JOB, faults=(replace(SLOW, end=None),)))
    log = made.log(run="night")
    store = Store(str(tmp_path))
    live = Live(store=store)
    live.play(log, made.topology, last=0.6)
    live.end()
    heir = live.followed_by(store)
    heir.attempt = 2
    heir.play(log, made.topology, first=0.6)
    assert "other ranks, groups, nodes or attempts; discarded" in caplog.text
    assert heir.runs.by_name["night"].remembered is None
    assert [line["id"] for line in heir.lines()] == [line["id"] for line in live.lines()]
    store.close()


def test_steps_that_are_delivered_again_are_evaluated_once(tmp_path):
    """What the broker sends again after a restart was evaluated before it: no step counts twice."""
    made = generate(JOB)
    log = made.log(run="night")
    store = Store(str(tmp_path))
    live = Live(store=store)
    live.play(log, made.topology, last=0.5)
    live.end()
    heir = live.followed_by(store)
    heir.play(log, made.topology, first=0.45)
    assert live.runs.detection.steps + heir.runs.detection.steps == 150
    assert_same(heir.lines(), unbroken(JOB), lost_ratio=0.1)
    store.close()


def test_a_run_that_is_forgotten_leaves_nothing_learnt(tmp_path):
    """Arrays of runs that ended do not gather on disk."""
    made = generate(replace(JOB, steps=40))
    store = Store(str(tmp_path))
    live = Live(store=store)
    live.play(made.log(run="night"), made.topology)
    live.end()
    assert store.load_runs()["night"].learnt is not None
    live.effects.perform([("night", [ev.ForgetRun(cause_id="tick")])])
    live.end()
    assert store.load_runs()["night"].learnt is None
    store.close()
