"""Decoded messages to instructions, over several runs and nodes."""

import pytest

from coordinator import events as ev
from coordinator.config import CoordinatorConfig
from coordinator.policy import Policy
from coordinator.runs import Runs
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import NodeAlive
from tests.coordinator.conftest import START_UNIX_S, announce
from tests.coordinator.scenarios import Scenario, generate

NOW = START_UNIX_S + 10
FAULTY = generate(Scenario(degrees="dp=4", steps=80).with_fault("data", 2, seconds=0.2, begin=40))


def runs(memories=None, **settings):
    return Runs(CoordinatorConfig(**settings), Policy(), memories or {}, lambda: 0.0)


def names(orders):
    return [(run, type(i).__name__) for run, instructions in orders for i in instructions]


def play(watch, recording, first, last, *, run="job", now=NOW, **more):
    """Send steps one by one from two nodes; return what was ordered."""
    orders = []
    for step in range(first, last):
        for node, ranks in (("n0", (0, 1)), ("n1", (2, 3))):
            orders += watch.take(recording.batch(step, step + 1, ranks=ranks, node=node, run=run, **more), now + step)
    return names(orders)


def two_nodes(watch, run="job", **more):
    watch.take(announce(0, 1, run=run, **more), NOW)
    watch.take(announce(2, 3, run=run, node="n1", **more), NOW)


def test_the_third_slow_step_opens_an_incident_and_asks_for_a_capture():
    """From batches of two nodes to the instructions, on the step where the third slow record arrives."""
    watch = runs()
    two_nodes(watch)
    assert play(watch, FAULTY, 0, 42) == []
    assert play(watch, FAULTY, 42, 43) == [("job", "OpenIncident"), ("job", "RequestProfile")]
    snapshot = watch.snapshot_of(watch.by_name["job"])
    assert (snapshot.slow_ranks, snapshot.suspects[0].rank, snapshot.suspects[0].cause) == (1, 2, "data")
    assert (snapshot.suspects[0].hostname, snapshot.suspects[0].domain_kind) == ("host-n1", "dp")
    assert snapshot.step == 42
    assert sum(snapshot.step_counts) == 43


def test_runs_do_not_see_each_other():
    """Two runs with the same ranks keep their own steps, incidents and states."""
    watch = runs()
    healthy = generate(Scenario(degrees="dp=4", steps=80))
    for run in ("one", "two"):
        two_nodes(watch, run=run)
    play(watch, FAULTY, 0, 60, run="one")
    play(watch, healthy, 0, 60, run="two")
    assert len(watch.by_name["one"].machine.casebook.incidents) == 1
    assert watch.by_name["two"].machine.casebook.incidents == {}
    assert str(watch.by_name["two"].machine.state) == "healthy"


def test_records_before_any_announcement_are_counted():
    """Nobody knows these ranks."""
    watch = runs()
    assert play(watch, FAULTY, 0, 1) == []
    assert watch.rejected["rank"] == 4


def test_a_restart_begins_anew_with_the_same_incident():
    """A new attempt warms up again; the incident from before is still the same one."""
    watch = runs()
    two_nodes(watch)
    play(watch, FAULTY, 0, 50)
    (before,) = watch.by_name["job"].machine.casebook.incidents
    again = generate(Scenario(degrees="dp=4", steps=40).with_fault("data", 2, seconds=0.2))
    play(watch, again, 0, 5, start_s=START_UNIX_S + 5000, now=NOW + 5000)
    assert str(watch.by_name["job"].machine.state) == "warming"
    play(watch, again, 5, 40, start_s=START_UNIX_S + 5000, now=NOW + 5000)
    assert list(watch.by_name["job"].machine.casebook.incidents) == [before]


def test_a_smaller_world_is_followed():
    """A job that comes back with half its ranks is judged as what it is now."""
    watch = runs()
    two_nodes(watch)
    play(watch, FAULTY, 0, 30)
    later = START_UNIX_S + 5000
    watch.take(announce(0, 1, world=2, attempt=2, heartbeat_s=later), NOW + 5000)
    half = generate(Scenario(degrees="dp=2", steps=30))
    for step in range(30):
        watch.take(half.batch(step, step + 1, start_s=later), NOW + 5000 + step)
    run = watch.by_name["job"]
    assert run.timeline.ranks.tolist() == [0, 1]
    assert (run.machine.judgement.step, str(run.machine.state)) == (29, "healthy")


def test_silence_is_noticed_by_the_tick():
    """Steps of a rank that died are judged after the grace period, and a run without steps is lost."""
    watch = runs()
    two_nodes(watch)
    play(watch, FAULTY, 0, 30)
    watch.take(FAULTY.batch(30, 31, ranks=(0, 1, 2)), NOW + 30)
    watch.tick(NOW + 31)
    assert watch.by_name["job"].machine.judgement.step == 29
    watch.tick(NOW + 40)
    assert watch.by_name["job"].machine.judgement.step == 30
    assert watch.snapshot_of(watch.by_name["job"]).ranks_reporting == 3
    watch.tick(NOW + 200)
    assert str(watch.by_name["job"].machine.state) == "lost"


def test_the_last_steps_may_come_after_the_end():
    """News of the end overtakes the last batch: its steps are counted, and the run stays finished."""
    watch = runs()
    two_nodes(watch)
    play(watch, FAULTY, 0, 30)
    two_nodes(watch, state="finished")
    play(watch, FAULTY, 30, 34)
    assert watch.snapshot_of(watch.by_name["job"]).step == 33
    assert str(watch.by_name["job"].machine.state) == "finished"


def test_finished_runs_are_forgotten_and_old_ones_never_known():
    """A run that ended is dropped in time; a retained announcement of last week is no run."""
    watch = runs()
    two_nodes(watch)
    play(watch, FAULTY, 0, 30)
    two_nodes(watch, state="finished")
    assert str(watch.by_name["job"].machine.state) == "finished"
    assert names(watch.tick(NOW + 2000)) == [("job", "ForgetRun")]
    watch.forget("job")
    assert watch.by_name == {}
    watch.take(announce(0, run="old"), NOW + 1_000_000)
    assert watch.by_name == {}


def test_too_many_runs_are_refused():
    """A flood of announcements costs a bounded number of runs."""
    watch = runs(runs_max=1)
    watch.take(announce(0), NOW)
    with pytest.raises(MalformedError, match="at most 1 runs"):
        watch.take(announce(0, run="another"), NOW)


def test_degrees_that_do_not_fit_fall_back_to_groups():
    """A run that the configured degrees do not describe is watched by what it announced."""
    watch = runs(domains="tp=64")
    two_nodes(watch)
    assert [domain.kind for domain in watch.by_name["job"].topology.domains] == ["dp"]


def test_losses_that_exporters_report_are_added_up():
    """A total that falls is a new exporter, not a gain."""
    watch = runs()
    two_nodes(watch)
    for sequence, lost in enumerate((3, 5, 2)):
        batch = FAULTY.batch(sequence, sequence + 1)
        watch.take(
            type(batch)(**{n: getattr(batch, n) for n in batch.__dataclass_fields__} | {"lost_records": lost}), NOW
        )
    assert watch.records_lost == 7


def test_exporters_alive_are_counted():
    """A last will ends a life."""
    watch = runs()
    for node, alive in (("a", True), ("b", True), ("a", False)):
        watch.take(NodeAlive(node=node, alive=alive, unix_ns=0), NOW)
    assert watch.nodes_alive == {"b"}


def test_memory_of_an_earlier_coordinator_is_used():
    """An open incident of before is not opened again."""
    first = runs()
    two_nodes(first)
    play(first, FAULTY, 0, 50)
    memory = first.by_name["job"].machine.memory()
    second = runs({"job": memory})
    two_nodes(second)
    ordered = play(second, FAULTY, 50, 80)
    assert ("job", "OpenIncident") not in ordered
    assert list(second.by_name["job"].machine.casebook.incidents) == [memory.incidents[0].id]


def test_events_for_unknown_runs_do_nothing():
    """A forged answer for a run that is not there."""
    assert runs().feed("nobody", ev.TickEvent(unix_s=NOW, cause_id="x")) == []
