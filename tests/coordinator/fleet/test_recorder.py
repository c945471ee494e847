"""From an incident to the history, the store, the next incident, the page, the API and the metric."""

import asyncio
import json
import sqlite3
import time
from dataclasses import replace

import aiohttp
import pytest

from coordinator.decide import events as ev
from coordinator.fleet.history import FleetHistory, Subject
from coordinator.fleet.recorder import FleetRecorder, subjects_of
from coordinator.intake.devices import DeviceTable
from coordinator.record.journal import Entry, JournalWriter, is_kept, read_entry
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from coordinator.store import Store
from lockstep.contracts.facts import RankFacts
from lockstep.serving.local_broker import LocalBroker
from tests.coordinator.conftest import announce, running
from tests.coordinator.scenarios import Scenario, generate
from tests.coordinator.test_runs import FAULTY, NOW, play, two_nodes


class Fleet:
    """Runs in which rank 2, on node n1, is slow; a recorder whose tasks run at once, over a store."""

    def __init__(self, store=None, runs=("job",)):
        self.store = store or Store("")
        self.runs = Runs(CoordinatorConfig(), Policy(), {}, lambda: 0.0)
        self.devices = DeviceTable(lambda run, _: run in self.runs.by_name)
        self.tasks = []
        self.recorder = FleetRecorder(
            FleetHistory(self.store.load_sightings(), NOW),
            self.runs,
            self.devices,
            self.store,
            spawn=lambda work, _: self.tasks.append(work),
            feed=self.runs.feed,
        )
        for run in runs:
            two_nodes(self.runs, run=run)
            announcement = announce(2, 3, run=run, node="n1")
            ranks = [replace(info, facts=RankFacts(device_uuid=f"GPU-{info.rank}")) for info in announcement.ranks]
            self.devices.note(replace(announcement, ranks=ranks))
            play(self.runs, FAULTY, 0, 43, run=run)

    def incident(self, run="job"):
        (incident,) = self.runs.by_name[run].machine.tracker.incidents.values()
        return incident

    def note(self, run="job", **more):
        self.recorder.on_incident(run, replace(self.incident(run), **more))
        self.tick()

    def tick(self):
        self.recorder.on_tick(NOW + 60)
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            asyncio.run(task)

    def names(self):
        return [(*record.subject, record.recent) for record in self.recorder.history.records(NOW + 60)]


def test_node_and_device_are_kept_and_reported_in_the_next_run():
    """The second run on the node shows that; so does a coordinator that was restarted in between."""
    fleet = Fleet(runs=("one", "two"))
    fleet.note("one")
    assert fleet.incident("one").history == ()
    assert fleet.names() == [("device", "GPU-2", 1), ("node", "n1", 1)]
    assert fleet.recorder.frequent == ()
    again = Fleet(store=fleet.store, runs=("two",))
    again.note("two")
    assert again.incident("two").history == (
        "node n1 is named for the 2nd time in 14 days, in 1 other run (one): slow rank by data",
        "device GPU-2 is named for the 2nd time in 14 days, in 1 other run (one): slow rank by data",
    )
    assert [(*record.subject, record.recent) for record in again.recorder.frequent] == [
        ("device", "GPU-2", 2),
        ("node", "n1", 2),
    ]


def test_one_incident_is_counted_once():
    """Whatever becomes of its figures; another cause is the cause of the same sighting."""
    fleet = Fleet()
    for form in ({}, {"slowdown_ratio": 9.0}, {"cause": "compute"}):
        fleet.note(**form)
    assert fleet.names() == [("device", "GPU-2", 1), ("node", "n1", 1)]
    assert {each.cause for each in fleet.store.load_sightings()} == {"compute"}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({}, [("node", "n1"), ("device", "GPU-2")]),
        ({"scope": "node", "ranks": (2, 3)}, [("node", "n1")]),
        ({"kind": "crash", "ranks": (0,)}, [("node", "n0")]),
        ({"kind": "slow_link", "scope": "group", "ranks": (1, 2)}, [("link", "n0 - n1")]),
        ({"kind": "slow_link", "scope": "group", "ranks": (2, 3)}, []),
        ({"kind": "slow_link", "scope": "node", "ranks": (2, 3)}, [("node", "n1")]),
        ({"kind": "fluctuation", "scope": "job", "ranks": ()}, []),
        ({"ranks": (7,)}, []),
    ],
    ids=["rank", "node", "crash", "link", "inside a node", "a node's links", "the run", "unknown rank"],
)
def test_whom_an_incident_names(form, expected):
    """A single machine that may be to blame, or nothing."""
    fleet = Fleet()
    incident = replace(fleet.incident(), **form)
    assert subjects_of(fleet.runs.by_name["job"], incident, fleet.devices) == tuple(Subject(*each) for each in expected)


def test_a_full_disk_loses_nothing(monkeypatch):
    """What could not be written is written with the next."""
    fleet = Fleet()

    def fail(*_):
        raise sqlite3.OperationalError("disk full")

    keep = fleet.store.keep_sightings
    monkeypatch.setattr(fleet.store, "keep_sightings", fail)
    fleet.note()
    assert fleet.store.load_sightings() == []
    monkeypatch.setattr(fleet.store, "keep_sightings", keep)
    fleet.tick()
    assert len(fleet.store.load_sightings()) == 2


def test_a_bug_of_ours_costs_a_note(monkeypatch):
    """The coordinator goes on."""
    fleet = Fleet()
    monkeypatch.setattr(fleet.recorder.history, "earlier", lambda *_: 1 / 0)
    fleet.note()
    assert fleet.recorder.isolation.dropped["fleet", "failed"] == 1
    assert fleet.incident().history == ()


def test_the_device_table_keeps_what_runs_know():
    """And forgets it with them."""
    known = {("job", "n0")}
    table = DeviceTable(lambda run, node: (run, node) in known)
    infos = [replace(info, facts=RankFacts(device_uuid="GPU-0")) for info in announce(0).ranks]
    for node in ("n0", "n1"):
        table.note(replace(announce(0, node=node), ranks=infos))
    assert (table.uuid("job", "n0", 0), table.uuid("job", "n1", 0), len(table)) == ("GPU-0", "", 1)
    known.clear()
    table.trim()
    assert len(table) == 0


def test_a_recording_has_it():
    """As an entry of its journal."""
    event = ev.FleetHistoryEvent(unix_s=5e-9, cause_id="c", incident_id="i", history=("node n1 is named",))
    entry = Entry(1, 5, event, run="job")
    assert is_kept(event)
    assert read_entry(JournalWriter().write(entry), where="test") == entry


async def test_the_page_the_api_and_the_metric_show_it(tmp_path):
    """Of two runs of one coordinator, and escaped: names come from the bus."""
    faulty = generate(Scenario(degrees="dp=4", steps=80).with_fault("compute", 2, seconds=0.4, begin=40))
    now, node = time.time(), "n<1>"
    async with running(broker=LocalBroker(), state_directory=str(tmp_path)) as coordinator:
        for run in ("one", "two"):
            coordinator._on_message(announce(0, 1, 2, 3, run=run, node=node, heartbeat_s=now), None)
            for step in range(50):
                batch = faulty.batch(step, step + 1, start_s=now, run=run, node=node)
                coordinator._effects.perform(coordinator._runs.take(batch, now + step))
            coordinator.on_tick(time.time())
        texts = {}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{coordinator.http_port}") as client:
            for path in ("/fleet", "/api/v1/fleet", "/metrics", "/runs/two"):
                async with client.get(path) as response:
                    texts[path] = await response.text()
                    assert response.status == 200
    assert "n&lt;1&gt;" in texts["/fleet"]
    assert "<1>" not in texts["/fleet"]
    assert '<td data-name="for">2 x slow rank by compute</td>' in texts["/fleet"]  # a card a row on a narrow screen
    (subject,) = json.loads(texts["/api/v1/fleet"])["subjects"]
    assert (subject["kind"], subject["name"], subject["recent_incidents"]) == ("node", node, 2)
    assert sorted(subject["runs"]) == sorted(each["run"] for each in subject["incidents"]) == ["one", "two"]
    assert 'lockstep_fleet_recent_incidents{subject="n<1>",subject_kind="node"} 2.0' in texts["/metrics"]
    assert "Earlier incidents" in texts["/runs/two"]
    assert "named for the 2nd time in 14 days, in 1 other run (one)" in texts["/runs/two"]
    store = Store(str(tmp_path))
    assert len(store.load_sightings()) == 2
    store.close()
