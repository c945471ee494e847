"""Decoded messages to instructions, over several runs and nodes."""

import numpy as np
import pytest

from coordinator.decide import events as ev
from coordinator.detect.detector import Detector
from coordinator.run_isolation import QUARANTINE_S
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import BudgetPolicy, Policy
from lockstep.contracts.messages import GroupInfo, NodeAlive
from lockstep.contracts.records import MISSING
from tests.coordinator.conftest import START_UNIX_S, announce
from tests.coordinator.scenarios import Scenario, generate
from tests.support.batches import columns_of, with_columns

NOW = START_UNIX_S + 10
FAULTY = generate(Scenario(degrees="dp=4", steps=80).with_fault("data", 2, seconds=0.2, begin=40))


def runs(memories=None, policy=None, **settings):
    return Runs(CoordinatorConfig(**settings), policy or Policy(), memories or {}, lambda: 0.0)


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


def changed(batch, **columns):
    """Return the batch with some columns replaced by one value each."""
    return with_columns(batch, columns_of(batch) | {n: np.full(batch.count, v) for n, v in columns.items()})


def test_the_third_slow_step_opens_an_incident_and_asks_for_a_capture():
    """From batches of two nodes to the instructions, on the step where the third slow record arrives."""
    watch = runs()
    two_nodes(watch)
    assert play(watch, FAULTY, 0, 42) == []
    opened = [("job", "OpenIncident"), ("job", "RequestCapture"), ("job", "UpdateIncident")]
    assert play(watch, FAULTY, 42, 43) == opened
    snapshot = watch.snapshot_of(watch.by_name["job"])
    assert (snapshot.slow_ranks, snapshot.suspects[0].rank, snapshot.suspects[0].cause) == (1, 2, "data")
    assert (snapshot.suspects[0].hostname, snapshot.suspects[0].domain_kind) == ("host-n1", "dp")
    assert snapshot.step == 42
    assert sum(snapshot.step_counts) == 43


def test_a_slow_rank_is_exported_until_its_incident_closes():
    """While the incident recovers its rank keeps the ratio last measured: a page that reads it never loses the name."""
    watch = runs()
    two_nodes(watch)
    recovered = generate(Scenario(degrees="dp=4", steps=80).with_fault("data", 2, seconds=0.2, begin=40, end=50))
    play(watch, recovered, 0, 50)
    run = watch.by_name["job"]
    ratio = watch.snapshot_of(run).suspects[0].excess_ratio
    steps_open = 0
    for step in range(50, 80):
        play(watch, recovered, step, step + 1)
        snapshot = watch.snapshot_of(run)
        is_open = bool(run.machine.tracker.incidents)
        assert [each.rank for each in snapshot.suspects] == [2] * is_open, step
        assert snapshot.slow_ranks == is_open
        steps_open += is_open
        assert all(0 < each.excess_ratio <= ratio for each in snapshot.suspects)
    assert run.policy.run.recover_steps <= steps_open < 30


def test_a_run_whose_single_steps_become_long_has_one_incident_and_their_mean_as_its_step_time():
    """A quarter of the steps, on all ranks: the median of the last steps shows none of it, what is exported does."""
    scenario = Scenario(degrees="dp=4", steps=700)
    for step in (400 + np.flatnonzero(np.random.default_rng(1).random(300) < 0.25)).tolist():
        scenario = scenario.with_fault("data", *range(4), seconds=0.3, begin=step, end=step + 1)
    watch, recording = runs(), generate(scenario)
    two_nodes(watch)
    orders = play(watch, recording, 0, 700)
    run = watch.by_name["job"]
    snapshot = watch.snapshot_of(run)
    assert orders.count(("job", "OpenIncident")) == 1
    (incident,) = run.machine.tracker.incidents.values()
    assert (incident.kind, incident.cause, incident.ranks) == ("fluctuation", "data", ())
    assert snapshot.fluctuating
    lost_s = snapshot.recent_step_seconds - snapshot.baseline_step_seconds
    assert lost_s == pytest.approx(0.25 * 0.3, rel=0.3)
    assert run.machine.tracker.lost_device_seconds == pytest.approx(4 * 300 * 0.25 * 0.3, rel=0.5)


def test_runs_do_not_see_each_other():
    """Two runs with the same ranks keep their own steps, incidents and states."""
    watch = runs()
    healthy = generate(Scenario(degrees="dp=4", steps=80))
    for run in ("one", "two"):
        two_nodes(watch, run=run)
    play(watch, FAULTY, 0, 60, run="one")
    play(watch, healthy, 0, 60, run="two")
    assert len(watch.by_name["one"].machine.tracker.incidents) == 1
    assert watch.by_name["two"].machine.tracker.incidents == {}
    assert str(watch.by_name["two"].machine.state) == "healthy"


def test_records_before_any_announcement_are_counted():
    """No one knows these ranks."""
    watch = runs()
    assert play(watch, FAULTY, 0, 1) == []
    assert watch.rejected["rank"] == 4


def test_a_restart_begins_again_with_the_same_incident():
    """A new attempt warms up again; the incident from before is still the same one."""
    watch = runs()
    two_nodes(watch)
    play(watch, FAULTY, 0, 50)
    (before,) = watch.by_name["job"].machine.tracker.incidents
    again = generate(Scenario(degrees="dp=4", steps=40).with_fault("data", 2, seconds=0.2))
    play(watch, again, 0, 5, start_s=START_UNIX_S + 5000, now=NOW + 5000)
    assert str(watch.by_name["job"].machine.state) == "warming"
    play(watch, again, 5, 40, start_s=START_UNIX_S + 5000, now=NOW + 5000)
    assert list(watch.by_name["job"].machine.tracker.incidents) == [before]


def test_another_attempt_goes_on_with_what_the_first_has_shown_of_long_steps():
    """How common they are is a matter of the job's hosts, and three of them in a row no slowdown by itself."""
    watch = runs()
    two_nodes(watch)
    play(watch, FAULTY, 0, 40)
    run = watch.by_name["job"]
    before, detector = run.outliers.state_dict(), run.detector
    play(watch, FAULTY, 0, 10, start_s=START_UNIX_S + 5000, now=NOW + 5000)
    assert run.detector is not detector
    assert run.outliers.state_dict() == before
    play(watch, FAULTY, 10, 40, start_s=START_UNIX_S + 5000, now=NOW + 5000)
    assert run.outliers.state_dict()["steps"] > before["steps"]


def test_a_smaller_world_is_followed():
    """A job that comes back with half its ranks is evaluated as what it is now."""
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
    assert (run.machine.step_result.step, str(run.machine.state)) == (29, "healthy")


def test_records_of_a_timeline_that_ends_are_counted():
    """Those of a step that other ranks have not reported are late when the world shrinks, and when the run is dropped."""
    watch = runs()
    two_nodes(watch)
    play(watch, FAULTY, 0, 5)
    watch.take(FAULTY.batch(5, 6, ranks=(0, 1)), NOW + 5)
    later = START_UNIX_S + 5000
    watch.take(announce(0, 1, world=2, attempt=2, heartbeat_s=later), NOW + 5000)
    assert watch.rejected["late"] == 2
    half = generate(Scenario(degrees="dp=2", steps=1))
    watch.take(half.batch(0, 1, ranks=(0,), start_s=later), NOW + 5001)
    watch.forget("job")
    assert {reason: count for reason, count in watch.rejected.items() if count} == {"late": 3}


def test_silence_is_noticed_by_the_tick():
    """Steps of a rank that died are evaluated after the grace period, and a run without steps is lost."""
    watch = runs()
    two_nodes(watch)
    play(watch, FAULTY, 0, 30)
    watch.take(FAULTY.batch(30, 31, ranks=(0, 1)), NOW + 30)
    watch.take(FAULTY.batch(30, 31, ranks=(2,), node="n1"), NOW + 30)
    watch.tick(NOW + 31)
    assert watch.by_name["job"].machine.step_result.step == 29
    watch.tick(NOW + 40)
    assert watch.by_name["job"].machine.step_result.step == 30
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


def alive(node, *, is_alive=True):
    return NodeAlive(node=node, alive=is_alive, unix_ns=0, stream_id=7)


def send(watch, node, first, last, now):
    """Send one node's steps in one message."""
    ranks = {"n0": (0, 1), "n1": (2, 3)}[node]
    watch.take(FAULTY.batch(first, last, ranks=ranks, node=node), now)


def evaluated_all(watch, count):
    """Whether so many steps were evaluated with all four ranks, and nothing was refused."""
    return (watch.detection.records_evaluated, sum(watch.rejected.values())) == (4 * count, 0)


def test_what_a_node_spooled_while_it_was_away_is_evaluated():
    """A node without its broker is awaited: its records are not late when it returns after half a minute."""
    watch = runs()
    two_nodes(watch)
    for node in ("n0", "n1"):
        watch.take(alive(node), NOW)
    play(watch, FAULTY, 0, 10)
    watch.take(alive("n1", is_alive=False), NOW + 10)
    for step in range(10, 40):
        send(watch, "n0", step, step + 1, NOW + step)
        watch.tick(NOW + step)
    assert evaluated_all(watch, 10)
    watch.take(alive("n1"), NOW + 40)
    send(watch, "n1", 10, 40, NOW + 44)
    assert evaluated_all(watch, 40)


def test_a_node_that_does_not_return_is_evaluated_without():
    """It is awaited once: then the others go on, and their later steps are evaluated as they come."""
    watch = runs()
    two_nodes(watch)
    for node in ("n0", "n1"):
        watch.take(alive(node), NOW)
    play(watch, FAULTY, 0, 10)
    watch.take(alive("n1", is_alive=False), NOW + 10)
    for step in range(10, 70):
        send(watch, "n0", step, step + 1, NOW + step)
        watch.tick(NOW + step)
    assert watch.by_name["job"].machine.step_result.step == 69
    assert watch.detection.records_evaluated == 10 * 4 + 60 * 2


def test_an_outage_of_the_broker_loses_nothing():
    """All nodes are away from when the session ended, and have their time to return from when the next one begins."""
    watch = runs()
    two_nodes(watch)
    for node in ("n0", "n1"):
        watch.take(alive(node), NOW)
    play(watch, FAULTY, 0, 10)
    send(watch, "n0", 10, 11, NOW + 10)
    watch.end_session(NOW + 10)
    assert watch.presence.alive == set()
    for second in range(11, 600):
        watch.tick(NOW + second)
    assert evaluated_all(watch, 10)
    watch.begin_session(NOW + 600)
    watch.tick(NOW + 601)
    watch.take(alive("n0"), NOW + 602)
    send(watch, "n0", 11, 60, NOW + 602)
    watch.tick(NOW + 630)
    watch.take(alive("n1"), NOW + 631)
    send(watch, "n1", 10, 60, NOW + 632)
    assert evaluated_all(watch, 60)


@pytest.mark.parametrize("returned", [(), ("n0",)])
def test_ranks_of_a_node_that_may_return_have_not_stopped(returned):
    """The broker is away, or just back: a record that one node has not delivered yet is no rank that hangs."""
    watch = runs(policy=Policy(budget=BudgetPolicy(false_page_steps=200.0)))
    two_nodes(watch)
    for node in ("n0", "n1"):
        watch.take(alive(node), NOW)
    play(watch, FAULTY, 0, 40)
    send(watch, "n0", 40, 41, NOW + 40)
    watch.end_session(NOW + 40)
    if returned:
        watch.begin_session(NOW + 41)
    for node in returned:
        watch.take(alive(node), NOW + 42)
    kinds = set()
    for second in range(42, 85):
        watch.tick(NOW + second)
        kinds |= {each.kind for each in watch.by_name["job"].machine.tracker.incidents.values()}
    assert kinds <= {"slow_rank"}


def test_ranks_of_a_node_that_did_not_return_have_stopped():
    """It had its time."""
    watch = runs(policy=Policy(budget=BudgetPolicy(false_page_steps=200.0)))
    two_nodes(watch)
    for node in ("n0", "n1"):
        watch.take(alive(node), NOW)
    play(watch, FAULTY, 0, 40)
    send(watch, "n0", 40, 41, NOW + 40)
    watch.take(alive("n1", is_alive=False), NOW + 40)
    for second in range(41, 120):
        watch.tick(NOW + second)
    (hang,) = (each for each in watch.by_name["job"].machine.tracker.incidents.values() if each.kind == "hang")
    assert hang.ranks == (2, 3)


def test_a_coordinator_that_was_restarted_waits_for_all_nodes_of_a_run():
    """The first node that comes back is not the whole job: its steps wait for the ranks that are still to be announced."""
    watch = runs()
    watch.take(announce(0, 1), NOW)
    watch.take(alive("n0"), NOW)
    send(watch, "n0", 0, 30, NOW + 1)
    watch.tick(NOW + 20)
    assert watch.detection.records_evaluated == 0
    watch.take(announce(2, 3, node="n1"), NOW + 25)
    watch.tick(NOW + 25)
    send(watch, "n1", 0, 30, NOW + 26)
    assert evaluated_all(watch, 30)


def test_a_node_that_never_announces_its_ranks_holds_no_one_up_for_long():
    """After as long as a node may need to return, those that are known are evaluated."""
    watch = runs()
    watch.take(announce(0, 1), NOW)
    send(watch, "n0", 0, 30, NOW + 1)
    watch.tick(NOW + 46)
    assert watch.by_name["job"].machine.step_result.step == 29


def test_a_run_has_capacity_for_as_many_steps_as_it_can_hold():
    """Steps beyond are turned away while older ones are pending; what was not placed yet is placed first."""
    watch = runs()
    two_nodes(watch)
    send(watch, "n0", 0, 5, NOW)
    length = watch.by_name["job"].timeline.policy.window_steps_max
    placed = []
    assert watch.has_capacity("job", length - 1, lambda: placed.append(1))
    assert not placed
    assert not watch.has_capacity("job", length, lambda: placed.append(1))
    assert placed
    assert watch.has_capacity("other", length, lambda: None)
    assert watch.has_capacity("job", length, lambda: send(watch, "n1", 0, 1, NOW))
    send(watch, "n1", 1, 5, NOW)
    assert watch.has_capacity("job", 100 * length, lambda: None)


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


def test_degrees_that_do_not_fit_fall_back_to_groups():
    """A run that the configured degrees do not describe is watched by what it announced."""
    watch = runs(domains="tp=64")
    two_nodes(watch)
    assert [domain.kind for domain in watch.by_name["job"].topology.domains] == ["dp"]


def test_exporters_alive_are_counted():
    """A last will ends a life."""
    watch = runs()
    for node, alive in (("a", True), ("b", True), ("a", False)):
        watch.take(NodeAlive(node=node, alive=alive, unix_ns=0, stream_id=7), NOW)
    assert watch.presence.alive == {"b"}


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
    assert list(second.by_name["job"].machine.tracker.incidents) == [memory.incidents[0].id]


def test_events_for_unknown_runs_do_nothing():
    """A forged answer for a run that is not there."""
    assert runs().feed("nobody", ev.TickEvent(unix_s=NOW, cause_id="x")) == []


def test_batches_taken_together_give_what_they_give_one_by_one():
    """Two runs at once, their batches mixed: the same orders, run by run, and the same state."""
    together, apart = runs(), runs()
    for watch in (together, apart):
        two_nodes(watch, run="one")
        two_nodes(watch, run="two")
    healthy = generate(Scenario(degrees="dp=4", steps=60))
    orders, one_by_one = [], []
    for first in range(0, 60, 5):
        batches = [
            recording.batch(step, step + 1, ranks=ranks, node=node, run=run)
            for step in range(first, first + 5)
            for run, recording in (("one", FAULTY), ("two", healthy))
            for node, ranks in (("n0", (0, 1)), ("n1", (2, 3)))
        ]
        orders += together.take_batches(batches, NOW + first)
        for batch in batches:
            one_by_one += apart.take(batch, NOW + first)
    assert ("one", "OpenIncident") in names(orders)
    for run in ("one", "two"):
        assert [name for name in names(orders) if name[0] == run] == [n for n in names(one_by_one) if n[0] == run]
        snapshots = [watch.snapshot_of(watch.by_name[run]) for watch in (together, apart)]
        assert snapshots[0] == snapshots[1]
    assert together.rejected == apart.rejected


def test_batches_of_an_unknown_run_are_counted_among_others():
    """They cost the others nothing."""
    watch = runs()
    two_nodes(watch)
    known = [FAULTY.batch(0, 2, ranks=ranks, node=node) for node, ranks in (("n0", (0, 1)), ("n1", (2, 3)))]
    watch.take_batches([FAULTY.batch(0, 2, run="nobody"), *known], NOW)
    assert watch.rejected["rank"] == 8
    assert watch.by_name["job"].machine.step_result.step == 1


def test_a_tap_receives_batches_as_they_are_taken():
    """What is recorded can be given again in the same way: together what was together, each before it is taken."""
    received = []

    class Tap:
        def receive(self, what, *_):
            received.append((what, watch.detection.steps))

    watch = Runs(CoordinatorConfig(), Policy(), {}, lambda: 0.0, Tap())
    watch.take(announce(0, 1, 2, 3), NOW)
    batches = [FAULTY.batch(step, step + 1) for step in range(2)]
    watch.take_batches(batches, NOW)
    last = FAULTY.batch(2, 3)
    watch.take(last, NOW)
    taken = [(what, evaluated) for what, evaluated in received if isinstance(what, tuple)]
    assert taken == [(tuple(batches), 0), ((last,), 2)]


def test_only_news_must_not_overtake_batches():
    """What nodes announce again and again shows nothing new; a rank, an attempt, an end does."""
    watch = runs()
    two_nodes(watch)
    assert not watch.is_news(announce(0, 1, heartbeat_s=START_UNIX_S + 9))
    assert not watch.is_news(NodeAlive(node="n0", alive=True, unix_ns=0, stream_id=7))
    for message in (
        announce(0, 1, attempt=2),
        announce(0, 1, state="finished"),
        announce(0, 1, world=2),
        announce(0, 1, run="another"),
    ):
        assert watch.is_news(message)


LIES = {
    "clock years ahead": lambda batch: changed(
        batch, **{name: columns_of(batch)[name][0] + 10**17 for name in ("start_ns", "end_ns")}
    ),
    "clock in 1970": lambda batch: changed(batch, start_ns=1, end_ns=1 + 10**8, compute_ns=MISSING, dp_wait_ns=0),
    "frozen counter": lambda batch: changed(batch, step=7),
    "counter at 2^62": lambda batch: changed(batch, step=1 << 62),
    "counter just below 2^62": lambda batch: changed(batch, step=(1 << 62) - 1),
    "counter that leaps": lambda batch: changed(batch, step=int(columns_of(batch)["step"][0]) * 10**6),
    "nothing measured": lambda batch: changed(batch, **dict.fromkeys(columns_of(batch), MISSING)),
    "parts not measured": lambda batch: changed(
        batch, **dict.fromkeys(("data_ns", "compute_ns", "host_ns", "gc_ns", "dp_wait_ns"), MISSING)
    ),
    "negative": lambda batch: changed(batch, compute_ns=-5),
    "end before start": lambda batch: changed(batch, end_ns=0),
    "the same again and again": lambda batch: changed(batch, step=3, start_ns=10**18, end_ns=10**18 + 10**8),
}


EIGHT = generate(Scenario(degrees="dp=8", steps=55).with_fault("data", 2, seconds=0.2, begin=40))
HONEST = [[EIGHT.batch(step, step + 1, ranks=[rank]) for rank in range(8)] for step in range(55)]


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("begin", [0, 25])
def test_a_lying_rank_neither_silences_nor_floods_the_rest(lie, begin):
    """The slow rank is named all the same, no one else is, every step is evaluated, and each lie is counted at most once."""
    watch = runs()
    watch.take(announce(*range(8), world=8), NOW)
    sent = 0
    for step, honest in enumerate(HONEST):
        batches = list(honest)
        if step >= begin:
            batches[5] = LIES[lie](batches[5])
            sent += 1
        # Steps of a second, so that a rank that never comes is waited for once.
        watch.take_batches(batches, NOW + step)
    watch.tick(NOW + 80)
    run = watch.by_name["job"]
    assert run.machine.step_result.step == 54
    assert watch.detection.steps == 55
    named = {rank for incident in run.machine.tracker.incidents.values() for rank in incident.ranks}
    assert 2 in named
    assert named <= {2, 5}
    assert sum(watch.rejected.values()) <= sent
    assert abs(run.machine.step_result.unix_s - NOW) < 3600


def rows_of(watch, monkeypatch):
    """Return a list that fills with all rows that are evaluated."""
    rows = []
    detection = watch.detection
    evaluate = detection._evaluate
    monkeypatch.setattr(detection, "_evaluate", lambda run, row, now: (rows.append(row), evaluate(run, row, now))[1])
    return rows


def assert_row(row, recording, step):
    """Assert that an evaluated row holds what every rank measured in that step."""
    assert (row.step, row.present.tolist()) == (step, recording.present[step].tolist())
    np.testing.assert_allclose(row.duration, recording.duration[step], rtol=1e-6)
    np.testing.assert_allclose(row.self_seconds, recording.self_seconds[step], rtol=1e-6)
    for name, values in recording.components.items():
        np.testing.assert_allclose(row.components[name], values[step], rtol=1e-6, atol=1e-7, err_msg=name)
    for name, values in recording.views.items():
        np.testing.assert_allclose(row.views[name], values[step], rtol=1e-6, atol=1e-7, err_msg=name)
    for kind, values in recording.waits.items():
        np.testing.assert_allclose(row.waits[kind], values[step], rtol=1e-6, atol=1e-7, err_msg=kind)
    assert row.flags.tolist() == recording.flags[step].tolist()


def test_a_world_that_grows_and_shrinks_loses_no_row(monkeypatch):
    """Four ranks, then eight under the same name, then two: every step of each shape is evaluated whole."""
    watch = runs()
    rows = rows_of(watch, monkeypatch)
    expected = []
    for attempt, world in enumerate((4, 8, 2), start=1):
        recording = generate(Scenario(degrees=f"dp={world}", steps=12, seed=attempt))
        begin_s = START_UNIX_S + 5000 * attempt
        nodes = [tuple(range(first, min(first + 4, world))) for first in range(0, world, 4)]
        for node, ranks in enumerate(nodes):
            watch.take(
                announce(*ranks, world=world, node=f"n{node}", attempt=int(begin_s * 1e9), heartbeat_s=begin_s), begin_s
            )
        for step in range(12):
            watch.take_batches(
                [recording.batch(step, step + 1, ranks=r, node=f"n{n}", start_s=begin_s) for n, r in enumerate(nodes)],
                begin_s + step,
            )
        expected += [(recording, step) for step in range(12)]
    assert len(rows) == len(expected)
    for row, (recording, step) in zip(rows, expected, strict=True):
        assert_row(row, recording, step)
    assert sum(watch.rejected.values()) == 0


def test_unannounced_incarnations_under_one_name_lose_no_row(monkeypatch):
    """A job that is started again and again by hand: steps begin again, clocks go on, every row is evaluated whole."""
    watch = runs()
    rows = rows_of(watch, monkeypatch)
    two_nodes(watch)
    expected = []
    for again in range(3):
        recording = generate(Scenario(degrees="dp=4", steps=15, seed=again))
        play(watch, recording, 0, 15, start_s=START_UNIX_S + 1000 * again, now=NOW + 1000 * again)
        expected += [(recording, step) for step in range(15)]
    assert len(rows) == len(expected)
    for row, (recording, step) in zip(rows, expected, strict=True):
        assert_row(row, recording, step)


def test_clock_skew_between_nodes_changes_no_row(monkeypatch):
    """Durations come from one clock each; a node an hour ahead, or 10 ms behind, changes nothing that is compared."""
    watch = runs()
    rows = rows_of(watch, monkeypatch)
    two_nodes(watch)
    for step in range(20):
        for node, ranks, skew_s in (("n0", (0, 1), -0.01), ("n1", (2, 3), 3600.0)):
            batch = FAULTY.batch(step, step + 1, ranks=ranks, node=node, start_s=START_UNIX_S + skew_s)
            watch.take_batches([batch], NOW + step)
    assert len(rows) == 20
    for step, row in enumerate(rows):
        assert_row(row, FAULTY, step)


@pytest.mark.parametrize(("step_seconds", "is_whole"), [(0.5, True), (2.0, False)])
def test_records_of_devices_that_come_eight_steps_late(monkeypatch, step_seconds, is_whole):
    """Within the grace time nothing of them is lost; beyond it no one waits for them, and each is counted as late."""
    watch = runs()
    rows = rows_of(watch, monkeypatch)
    two_nodes(watch)
    evaluated_s = []
    for step in range(40):
        now = NOW + step * step_seconds
        batches = [FAULTY.batch(step, step + 1, ranks=(0, 1, 2))]
        if step >= 8:
            batches.append(FAULTY.batch(step - 8, step - 7, ranks=(3,), node="n1"))
        watch.take_batches(batches, now)
        evaluated_s += [now] * (len(rows) - len(evaluated_s))
    grace = Policy().timeline.grace_seconds
    assert all(at - (NOW + step * step_seconds) < grace + step_seconds for step, at in enumerate(evaluated_s))
    assert [bool(row.present[3]) for row in rows] == [is_whole] * len(rows)
    assert watch.rejected["late"] == (0 if is_whole else 32)
    assert len(rows) == (32 if is_whole else 40)


def test_thousands_of_nodes_are_laid_out_together():
    """Nodes of a large job that announce themselves one after the other are followed once; nothing they send is lost."""
    world, per_node = 4096, 8
    watch = runs()
    laid_out = []
    reshape = watch._reshape
    watch._reshape = lambda run, now_s: laid_out.append(len(run.membership.infos)) or reshape(run, now_s)
    groups = [GroupInfo(kind="dp", name="dp0", ranks=[[0, world, 1]])]
    for first in range(0, world, per_node):
        ranks = range(first, first + per_node)
        watch.take(announce(*ranks, node=f"n{first}", world=world, groups=groups if first == 0 else []), NOW)
        if first == 2048:
            watch.tick(NOW + 1)
    assert laid_out == [8, 2056, 4096]
    (run,) = watch.by_name.values()
    assert len(run.timeline.ranks) == world
    assert run.machine._ranks == frozenset(range(world))


def test_records_of_another_nodes_rank_are_refused_and_counted():
    """A node that reports ranks which another one announced names no one: its records are foreign, by count."""
    watch = runs()
    two_nodes(watch)
    forged = FAULTY.batch(0, 60, ranks=(0, 1), node="n1")
    watch.take_batches([forged], NOW)
    assert watch.rejected["foreign"] == 120
    assert watch.by_name["job"].timeline.pending_records == 0
    watch.take_batches([FAULTY.batch(0, 1, ranks=(0, 1), node="n0"), FAULTY.batch(0, 1, ranks=(2, 3), node="n1")], NOW)
    assert watch.detection.records_evaluated == 4
    assert watch.rejected["foreign"] == 120


class SurpriseError(Exception):
    """An exception that no code expects."""


def test_a_surprise_in_one_run_costs_that_run_alone(monkeypatch):
    """Its records are counted as failed, others are evaluated; after three steps in a row it is left alone for a while."""
    watch = runs()
    two_nodes(watch)
    two_nodes(watch, run="other")
    original = Detector.evaluate

    def evaluate(self, row):
        if self is watch.by_name["job"].detector:
            raise SurpriseError
        return original(self, row)

    monkeypatch.setattr(Detector, "evaluate", evaluate)
    for step in range(5):
        for name in ("job", "other"):
            batches = [
                FAULTY.batch(step, step + 1, ranks=r, node=n, run=name) for n, r in (("n0", (0, 1)), ("n1", (2, 3)))
            ]
            watch.take_batches(batches, NOW + step)
    assert watch.by_name["other"].evaluated.records == 20
    assert watch.by_name["job"].evaluated.records == 0
    assert watch.rejected["failed"] + watch.rejected["late"] == 12
    assert watch.rejected["quarantined"] == 8
    assert watch.is_quarantined("job", NOW + 5)
    assert not watch.is_quarantined("job", NOW + 5 + QUARANTINE_S)
    monkeypatch.setattr(Detector, "evaluate", original)
    later_s = NOW + 5 + QUARANTINE_S
    for node, ranks in (("n0", (0, 1)), ("n1", (2, 3))):
        watch.take_batches([FAULTY.batch(5, 6, ranks=ranks, node=node)], later_s)
    assert watch.by_name["job"].evaluated.records == 4
