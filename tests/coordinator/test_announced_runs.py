"""Which announcements become runs, which nodes and ranks they may have, and what heartbeats change."""

import json
import logging
import signal
import tracemalloc
from dataclasses import replace

import pytest

from coordinator.decide import events as ev
from coordinator.decide.saved_run import SavedRun
from coordinator.record.journal import Entry, JournalWriter, is_kept, read_entry, time_ns_of
from coordinator.record.replay import replay
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from lockstep.contracts.domains import Topology
from lockstep.contracts.limits import ANNOUNCE_REFRESH_SECONDS, RUNS_OF_NODE_MAX, WORLD_SIZE_MAX
from lockstep.contracts.messages import GONE, SIGNAL, GroupInfo, NodeAlive, RankEnding, RankProgress, RunHeartbeat
from tests.coordinator.conftest import START_UNIX_S, announce
from tests.coordinator.scenarios import Scenario, generate

NOW = START_UNIX_S + 10
HEALTHY = generate(Scenario(degrees="dp=4", steps=10))


def runs(memories=None, policy=None, **settings):
    return Runs(CoordinatorConfig(**settings), policy or Policy(), memories or {}, lambda: 0.0)


def begin(watch, run, *, node="n0", steps=0, now=NOW):
    """Announce a run of four ranks and send its first steps."""
    watch.take(announce(0, 1, 2, 3, run=run, node=node), now)
    for step in range(steps):
        watch.take(HEALTHY.batch(step, step + 1, run=run, node=node), now + step)


def silent(announcement, last_step=None):
    """Return an announcement whose ranks have recorded no step for long, the last one `last_step`."""
    progress = RankProgress(last_step=last_step, flags=0, issues=[], is_alive=True)
    return replace(announcement, ranks=[replace(info, progress=progress) for info in announcement.ranks])


def let_pass(watch, seconds, *, since_s=NOW, announced=()):
    """Let time pass in ticks of a minute; nodes announce `announced` every five minutes, alive, as exporters do."""
    for second in range(0, seconds + 1, 60):
        now = since_s + second
        for each in announced if second % ANNOUNCE_REFRESH_SECONDS == 0 else ():
            ranks = [replace(info, heartbeat_unix_ns=int(now * 1e9)) for info in each.ranks]
            watch.take(replace(each, ranks=ranks), now)
        for run, instructions in watch.tick(now):
            if any(isinstance(each, ev.ForgetRun) for each in instructions):
                watch.forget(run)


def beat(watch, node, alive_s, *, run="job", revision=0, now):
    heartbeat = RunHeartbeat(run=run, revision=revision, alive_unix_ns=[int(each * 1e9) for each in alive_s])
    return watch.take(NodeAlive(node=node, alive=True, unix_ns=0, stream_id=1, runs=[heartbeat]), now)


def test_invented_runs_shut_no_real_one_out():
    """Runs that never made a step give way, the oldest first; those that did stay."""
    watch = runs(runs_max=3)
    begin(watch, "real", steps=2)
    for number in range(10):
        begin(watch, f"invented-{number}", node=f"m{number}")
    assert list(watch.by_name) == ["real", "invented-8", "invented-9"]
    begin(watch, "another", node="n1", steps=2)
    assert list(watch.by_name) == ["real", "invented-9", "another"]
    assert watch.by_name["another"].machine.step_result.step == 1
    assert watch.refusals.counts["run"] == 0


def test_a_run_too_many_is_refused_where_all_have_made_steps():
    """It is counted, costs no exception, and comes in when there is room."""
    watch = runs(runs_max=2)
    begin(watch, "one", steps=2)
    begin(watch, "two", steps=2)
    begin(watch, "three", node="n3")
    assert (list(watch.by_name), watch.refusals.counts["run"]) == (["one", "two"], 1)
    watch.forget("one")
    begin(watch, "three", node="n3")
    assert list(watch.by_name) == ["two", "three"]


def test_a_run_with_an_open_incident_never_gives_way():
    """An earlier coordinator opened it; the run's first step here is still to come."""
    first = runs()
    faulty = generate(Scenario(degrees="dp=4", steps=60).with_fault("data", 2, seconds=0.2, begin=40))
    first.take(announce(0, 1, 2, 3, run="paged"), NOW)
    for step in range(60):
        first.take(faulty.batch(step, step + 1, run="paged"), NOW + step)
    memory = first.by_name["paged"].machine.memory()
    assert memory.incidents
    watch = runs({"paged": memory}, runs_max=1)
    begin(watch, "paged")
    begin(watch, "another", node="n1")
    assert list(watch.by_name) == ["paged"]


def test_a_run_that_gave_way_keeps_what_an_earlier_coordinator_knew():
    """It comes back with its next announcement, and goes on counting incidents where it was."""
    watch = runs({"known": SavedRun(incidents_total=7)}, runs_max=1)
    begin(watch, "known")
    begin(watch, "another", node="n1")
    assert list(watch.by_name) == ["another"]
    begin(watch, "known")
    assert watch.by_name["known"].machine.tracker.incidents_total == 7


def test_one_node_announces_only_so_many_runs():
    """One too many is counted; the others, and other nodes of the same run, are as before."""
    watch = runs()
    for number in range(RUNS_OF_NODE_MAX + 3):
        watch.take(announce(0, run=f"run-{number}"), NOW)
    assert len(watch.by_name) == RUNS_OF_NODE_MAX
    assert watch.refusals.counts["run_of_node"] == 3
    last = f"run-{RUNS_OF_NODE_MAX}"
    watch.take(announce(1, run=last, node="n1"), NOW)
    watch.take(announce(0, run=last), NOW)
    assert set(watch.by_name[last].membership.nodes) == {1}
    watch.forget("run-0")
    watch.take(announce(0, run=last), NOW)
    assert set(watch.by_name[last].membership.nodes) == {0, 1}


def end(watch, run, *, node="n0", now=NOW):
    """Announce the end of a run of four ranks."""
    return watch.take(announce(0, 1, 2, 3, run=run, node=node, state="finished"), now)


def test_ended_runs_of_a_node_give_way_to_its_next():
    """A sweep of short trainings: each is followed, though the node ends more than it may have at a time."""
    watch = runs()
    for number in range(3 * RUNS_OF_NODE_MAX):
        begin(watch, f"run-{number}", steps=2)
        assert watch.by_name[f"run-{number}"].machine.step_result.step == 1
        end(watch, f"run-{number}", now=NOW + 2)
    kept = [f"run-{number}" for number in range(2 * RUNS_OF_NODE_MAX, 3 * RUNS_OF_NODE_MAX)]
    assert (list(watch.by_name), watch.refusals.counts["run_of_node"]) == (kept, 0)


def test_a_run_that_gave_way_stays_away_until_it_trains_again():
    """Its node announces its end for half an hour more, which costs no other run its place."""
    watch = runs()
    for number in range(RUNS_OF_NODE_MAX + 1):
        begin(watch, f"run-{number}", steps=2)
        orders = end(watch, f"run-{number}", now=NOW + 2)
    followed = list(watch.by_name)
    assert "run-0" not in followed
    assert end(watch, "run-0", now=NOW + 3) == []
    assert list(watch.by_name) == followed
    orders = watch.take(announce(0, 1, 2, 3, run="run-0", attempt=2), NOW + 4)
    assert ("run-1", [ev.ForgetRun(cause_id="announcement")]) in orders
    assert list(watch.by_name) == [*followed[1:], "run-0"]


def test_runs_of_other_nodes_and_open_incidents_give_way_to_none():
    """What ended on several nodes, crashed or still trains keeps its place; the next run is refused and counted."""
    watch = runs()
    for number in range(RUNS_OF_NODE_MAX - 2):
        begin(watch, f"live-{number}", steps=2)
    watch.take(announce(0, 1, run="wide"), NOW)
    watch.take(announce(2, 3, run="wide", node="n1"), NOW)
    watch.take(announce(0, 1, run="wide", state="finished"), NOW + 1)
    watch.take(announce(2, 3, run="wide", node="n1", state="finished"), NOW + 1)
    begin(watch, "crashed", steps=2)
    crash = RankEnding(unix_ns=int((NOW + 2) * 1e9), kind=SIGNAL, code=signal.SIGSEGV)
    gone = announce(0, 1, 2, 3, run="crashed", state=GONE)
    watch.take(replace(gone, ranks=[replace(info, ending=crash) for info in gone.ranks]), NOW + 2)
    watch.tick(NOW + 30)
    assert watch.by_name["crashed"].machine.tracker.incidents
    followed = list(watch.by_name)
    begin(watch, "one-too-many")
    assert (list(watch.by_name), watch.refusals.counts["run_of_node"]) == (followed, 1)


def test_nodes_are_limited_over_all_runs(monkeypatch):
    """A node too many is counted; nodes that are known announce as before."""
    monkeypatch.setattr("coordinator.run_table.NODES_MAX", 3)
    watch = runs()
    for run, node in (("a", "n0"), ("a", "n1"), ("b", "n0"), ("b", "n2"), ("c", "n3"), ("a", "n1")):
        watch.take(announce(int(node[1]), run=run, node=node), NOW)
    assert {name: run.membership.node_count for name, run in watch.by_name.items()} == {"a": 2, "b": 1}
    assert watch.refusals.counts["node"] == 2


def test_ranks_are_limited_over_all_runs(monkeypatch):
    """Those of others that a node claims count too, and so do those that it adds later."""
    monkeypatch.setattr("coordinator.run_table.ANNOUNCED_RANKS_MAX", 6)
    watch = runs()
    watch.take(announce(0, 1, run="a"), NOW)
    watch.take(announce(0, 1, run="a", node="n1"), NOW)
    watch.take(announce(0, 1, 2, run="a", node="n2"), NOW)
    assert watch.by_name["a"].membership.ranks_of("n2") is None
    watch.take(announce(0, 1, 2, 3, run="a"), NOW)
    watch.take(announce(0, 1, 2, run="a", node="n1"), NOW)
    assert watch.by_name["a"].membership.ranks_of("n1") == (0, 1)
    assert watch.refusals.counts["node"] == 2
    watch.take(announce(0, run="a"), NOW)
    watch.take(announce(0, 1, 2, run="a", node="n1"), NOW)
    assert watch.by_name["a"].membership.announced_ranks == 4


def test_a_node_that_announces_nothing_is_no_node():
    """Its last word may reach a coordinator that never knew it; one that is known empties its list."""
    watch = runs()
    watch.take(announce(groups=[]), NOW)
    assert watch.by_name == {}
    begin(watch, "job")
    watch.take(announce(groups=[], node="n1"), NOW)
    watch.take(announce(groups=[]), NOW)
    membership = watch.by_name["job"].membership
    assert (membership.ranks_of("n1"), membership.ranks_of("n0")) == (None, ())
    assert (membership.node_count, membership.announced_ranks) == (1, 0)


def test_an_announcement_of_a_huge_world_costs_nothing():
    """One rank that claims a million others has no shape, no arrays, no page full of ranks."""
    watch = runs()
    begin(watch, "warm-up")
    forged = announce(0, run="forged", world=WORLD_SIZE_MAX)
    tracemalloc.start()
    try:
        watch.take(forged, NOW)
        watch.tick(NOW + 1)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    run = watch.by_name["forged"]
    assert run.topology == Topology(0, (), ())
    assert watch.snapshot_of(run).world_size == 0
    watch.take(HEALTHY.batch(0, 1, run="forged", ranks=(0,)), NOW)
    assert watch.rejected["rank"] == 1


def test_a_retained_announcement_may_be_as_old_as_its_period():
    """A coordinator that starts later finds the run by it; one of a run that ended before that is none."""
    keep_s = Policy().run.lost_keep_seconds + ANNOUNCE_REFRESH_SECONDS
    for age_s, is_known in ((keep_s - 1, True), (keep_s + 1, False)):
        watch = runs()
        watch.take(announce(0), START_UNIX_S + age_s)
        assert ("job" in watch.by_name) == is_known


def test_heartbeats_of_an_unknown_run_or_revision_change_nothing():
    """They may come before the announcement, or of a run that was refused."""
    watch = runs()
    assert beat(watch, "n0", [NOW], now=NOW) == []
    begin(watch, "job", steps=2)
    assert beat(watch, "n0", [NOW], now=NOW) == []
    assert beat(watch, "n0", [NOW] * 4, revision=7, now=NOW) == []
    assert watch.by_name["job"].membership.nodes == dict.fromkeys(range(4), "n0")


def test_a_heartbeat_moves_a_rank_to_the_node_that_restarted_it():
    """The old node is silent: with the rank, its new attempt is followed."""
    watch = runs()
    begin(watch, "job", steps=5)
    again = START_UNIX_S + 100
    watch.take(announce(0, 1, 2, 3, node="n1", attempt=int(again * 1e9), heartbeat_s=NOW), NOW + 100)
    run = watch.by_name["job"]
    assert set(run.membership.nodes.values()) == {"n0"}
    assert watch.refusals.counts["rank_claimed"] == 4
    beat(watch, "n1", [again] * 4, now=NOW + 110)
    assert set(run.membership.nodes.values()) == {"n1"}
    assert run.timeline.generation == 1


def test_groups_that_nodes_announce_later_are_laid_out_together():
    """Ranks are known before they first use their groups: a large job is laid out once for all nodes that add some."""
    world, per_node = 2048, 8
    watch = runs()
    nodes = [range(first, first + per_node) for first in range(0, world, per_node)]
    for ranks in nodes:
        watch.take(announce(*ranks, node=f"n{ranks[0]}", world=world, groups=[]), NOW)
    run = watch.by_name["job"]
    laid_out = []
    reshape = watch._reshape
    watch._reshape = lambda run, now_s: laid_out.append(now_s) or reshape(run, now_s)
    assert run.topology.domains == ()
    for ranks in nodes:
        own = [GroupInfo(kind="tp", name="tp", ranks=[[ranks[0], ranks[-1] + 1, 1]])]
        watch.take(announce(*ranks, node=f"n{ranks[0]}", world=world, groups=own), NOW)
    watch.tick(NOW + 1)
    assert laid_out == [NOW + 1]
    assert len(run.topology.domains) == len(nodes)


def test_the_end_of_a_run_is_one_event():
    """Nodes announce their ended ranks for half an hour more: that is no news, until a rank runs again."""
    watch = runs()
    begin(watch, "job", steps=2)
    run = watch.by_name["job"]
    events = []
    handle = run.machine.handle
    run.machine.handle = lambda event: events.append(type(event).__name__) or handle(event)
    ended = announce(0, 1, 2, 3, state="finished")
    for _ in range(3):
        watch.take(ended, NOW + 5)
    assert events.count("AnnounceEvent") == 1
    assert str(run.machine.state) == "finished"
    watch.take(announce(0, 1, 2, 3, attempt=2), NOW + 6)
    watch.take(ended, NOW + 7)
    assert events.count("AnnounceEvent") == 2


def test_a_recording_moves_ranks_as_the_live_coordinator_did():
    """Announcements and heartbeats come back from the journal as they were, and give the same owners."""
    writer, rows = JournalWriter(), []

    class Tap:
        def receive(self, what, now_s, run=""):
            if is_kept(what):
                rows.append(writer.write(Entry(len(rows), time_ns_of(now_s), what, run)))

    live = Runs(CoordinatorConfig(), Policy(), {}, lambda: 0.0, Tap())
    live.take(announce(0, 1, 2, 3), NOW)
    live.take(announce(0, 1, node="n1", attempt=2, heartbeat_s=NOW), NOW)
    beat(live, "n1", [NOW + 100] * 2, now=NOW + 100)
    entries = [read_entry(json.loads(json.dumps(row)), where="test") for row in rows]
    assert [entry.what for entry in entries if isinstance(entry.what, NodeAlive)]
    assert replay(entries).nodes["job"] == live.by_name["job"].membership.nodes == {0: "n1", 1: "n1", 2: "n0", 3: "n0"}


def test_degrees_that_do_not_fit_are_one_line_a_minute(caplog):
    """However often a run of another world is laid out."""
    watch = runs(domains="tp=64")
    with caplog.at_level(logging.WARNING):
        for second in range(180):
            rank = second % 4
            watch.take(announce(rank, node=f"n{rank}", attempt=second, world=4 + second % 3), NOW + second)
            watch.tick(NOW + second)
    assert watch.refusals.counts["degrees"] > 10
    assert len(caplog.records) == 3
    assert "tp*cp*dp*pp" in caplog.text


@pytest.mark.parametrize("runs_max", [4, 256])
def test_a_flood_of_invented_runs_is_bounded(runs_max, caplog):
    """Thousands of runs of hundreds of nodes: as many runs as are allowed, a log line a minute, the real run among them."""
    watch = runs(runs_max=runs_max)
    begin(watch, "real", steps=3)
    with caplog.at_level(logging.WARNING):
        for number in range(3000):
            watch.take(announce(0, run=f"r{number}", node=f"m{number % 500}", world=WORLD_SIZE_MAX), NOW)
        watch.tick(NOW + 60)
    assert len(watch.by_name) == runs_max
    assert "real" in watch.by_name
    assert len(caplog.records) <= 1


KEEP_S = int(Policy().run.lost_keep_seconds)


def test_a_run_that_never_makes_a_step_ends_while_its_node_announces_it():
    """It is kept as long as one that was lost, and comes back with a step or another attempt, not with the same again."""
    watch = runs()
    begin(watch, "idle")
    same = silent(announce(0, 1, 2, 3, run="idle"))
    let_pass(watch, KEEP_S, announced=[same])
    assert list(watch.by_name) == ["idle"]
    let_pass(watch, 3 * KEEP_S, since_s=NOW + KEEP_S, announced=[same])
    assert watch.by_name == {}
    later = NOW + 5 * KEEP_S
    for news in (announce(0, 1, 2, 3, run="idle"), silent(announce(0, 1, 2, 3, run="idle", attempt=2))):
        again = replace(news, ranks=[replace(info, heartbeat_unix_ns=int(later * 1e9)) for info in news.ranks])
        watch.take(again, later)
        assert list(watch.by_name) == ["idle"]
        watch.forget("idle")


def test_a_retained_announcement_of_a_killed_run_ends_too():
    """A coordinator that starts later finds it; no node announces it again, and no step will come."""
    watch = runs()
    watch.take(silent(announce(0, 1, 2, 3)), NOW + 1800)
    let_pass(watch, KEEP_S + 120, since_s=NOW + 1800)
    assert watch.by_name == {}


def test_a_run_that_was_lost_stays_forgotten_until_it_goes_on():
    """Its processes live and record nothing: announcing that again and again is no news; the next step is."""
    watch = runs()
    begin(watch, "job", steps=4)
    paused = silent(announce(0, 1, 2, 3), last_step=3)
    let_pass(watch, 4 * KEEP_S, since_s=NOW + 10, announced=[paused])
    assert watch.by_name == {}
    goes_on = announce(0, 1, 2, 3, heartbeat_s=NOW + 5 * KEEP_S)
    watch.take(goes_on, NOW + 5 * KEEP_S)
    assert list(watch.by_name) == ["job"]


def test_a_finished_run_that_is_still_announced_does_not_come_back():
    """Its rings lie there until somebody removes them; it was shown for as long as ended runs are."""
    watch = runs()
    begin(watch, "job", steps=4)
    ended = announce(0, 1, 2, 3, state="finished", heartbeat_s=NOW)
    watch.take(ended, NOW + 5)
    seen = []
    for second in range(10, 2 * KEEP_S, 60):
        if second % ANNOUNCE_REFRESH_SECONDS == 10:
            watch.take(ended, NOW + second)
        if any(isinstance(each, ev.ForgetRun) for _, given in watch.tick(NOW + second) for each in given):
            watch.forget("job")
            seen.append(second)
    assert len(seen) == 1
    assert watch.by_name == {}
