"""From the heartbeats of a node to an incident of memory that grows, and to its end."""

import json

import pytest

from coordinator.decide import events as ev
from coordinator.page.cards import card
from coordinator.record.journal import Entry, JournalWriter, read_entry, time_ns_of
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from coordinator.settings.run_policy import DetectorPolicy, ProfilePolicy
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.memory_report import RetainedAllocation
from lockstep.contracts.messages import CaptureRequest, NodeAlive, RunHeartbeat, TraceSummary
from lockstep.contracts.topics import ALIVE, node_topic
from tests.coordinator.conftest import START_UNIX_S, announce
from tests.coordinator.scenarios import Scenario, generate
from tests.support.memory_reports import GIB, ReportedRanks, flat, leak

NOW = START_UNIX_S + 10
HEALTHY = generate(Scenario(degrees="dp=4", steps=400))
STEP_S = 0.1


class Job:
    """Four ranks on one node, one of which leaks from step 100 on; `play` goes on by ten steps a second."""

    def __init__(self, policy: Policy | None = None, *, available_bytes: int = 64 * GIB) -> None:
        self.runs = Runs(CoordinatorConfig(), policy or Policy(), {}, lambda: 0.0)
        self.memory = ReportedRanks({0: flat, 1: flat, 2: leak, 3: flat}, available_bytes=available_bytes)
        self.runs.take(announce(0, 1, 2, 3), NOW)
        self.step = 0
        self.orders: list[ev.Instruction] = []

    @property
    def now(self) -> float:
        return NOW + self.step * STEP_S

    def play(self, steps: int, *, reports: bool = True) -> None:
        for _ in range(steps // 10):
            self.take(HEALTHY.batch(self.step, self.step + 10))
            self.step += 10
            self.memory.advance(10)
            if reports:
                self.beat()
            self.note(self.runs.tick(self.now))

    def beat(self, node: str = "n0") -> None:
        heartbeat = RunHeartbeat(
            run="job", revision=0, alive_unix_ns=[int(self.now * 1e9)] * 4, memory=self.memory.reports()
        )
        alive = NodeAlive(node=node, alive=True, unix_ns=0, stream_id=1, runs=[heartbeat])
        topic = node_topic(node, ALIVE)
        received = decode(topic, encode(alive))
        assert received == alive
        self.take(received)

    def take(self, message) -> None:
        self.note(self.runs.take(message, self.now))

    def note(self, orders) -> None:
        self.orders += [instruction for _, instructions in orders for instruction in instructions]

    def incidents(self, form) -> list:
        return [order.incident for order in self.orders if isinstance(order, form)]

    @property
    def snapshot(self):
        return self.runs.snapshot_of(self.runs.by_name["job"])


def test_a_leak_opens_an_incident_within_200_steps_and_leaves_the_run_healthy():
    """It slows no step: the run's state does not change."""
    job = Job(available_bytes=8 * GIB)
    job.play(300)
    [opened] = job.incidents(ev.OpenIncident)
    assert (opened.kind, opened.cause, opened.ranks) == ("memory_growth", "host_memory", (2,))
    assert 100 < opened.detected_step <= 300
    assert job.snapshot.state == "healthy"
    step_s = job.snapshot.recent_step_seconds
    assert job.snapshot.memory_remaining_seconds == pytest.approx(8 * 1024 / 5 * step_s, rel=0.1)
    assert job.snapshot.lost_device_seconds == 0


def test_an_incident_explains_itself_and_has_a_page():
    """By slopes, not by the duration of steps; the card shows growth and forecast."""
    job = Job(available_bytes=8 * GIB)
    job.play(400)
    incident = job.incidents(ev.UpdateIncident)[-1]
    assert incident.explanation["quantity"].startswith("slope of memory")
    assert "memory.peers_factor" in incident.explanation["thresholds"]
    shown = str(card(incident, CoordinatorConfig(), with_run=True))
    assert "Memory growth: rank 2" in shown
    assert "5 MiB a step; its limit is" in shown


def summary_of(order: CaptureRequest, rank: int, kept: dict[str, int]) -> TraceSummary:
    return TraceSummary(
        run="job",
        node="n0",
        rank=rank,
        request_id=order.request_id,
        window_ns=10**9,
        steps=3,
        trace_bytes=1,
        event_count=1,
        tree=[],
        kept=[RetainedAllocation(function=name, bytes=size, count=2) for name, size in kept.items()],
    )


def requested(job: Job) -> CaptureRequest:
    [order] = [order for order in job.orders if isinstance(order, ev.RequestCapture)]
    return order.request


def test_a_memory_capture_names_the_function_that_allocated():
    """Of the suspect and its peers; what peers keep as well is no leak of one rank."""
    job = Job()
    job.play(400)
    order = requested(job)
    assert (order.memory, order.ranks[0]) == (True, 2)
    for rank in order.ranks:
        kept = {"train.py(9): cache": 30 << 20}
        job.take(summary_of(order, rank, kept | ({"train.py(88): keep": 15 << 20} if rank == 2 else {})))
    incident = job.incidents(ev.UpdateIncident)[-1]
    assert (incident.kind, incident.function, incident.diagnosed) == ("memory_growth", "train.py(88): keep", True)
    [line] = incident.profile_evidence
    assert line.startswith("2 tensors (15 MiB) that rank 2 allocated in train.py(88): keep")
    assert "keep (train.py:88)" in incident.advice[0].suggestion
    job.play(0)
    assert not [order for order in job.orders if isinstance(order, ev.Diagnose)]


def test_a_capture_that_shows_no_tensor_names_what_it_cannot_see():
    """Objects of Python are allocated past torch."""
    job = Job()
    job.play(400)
    order = requested(job)
    for rank in order.ranks:
        job.take(summary_of(order, rank, {}))
    incident = job.incidents(ev.UpdateIncident)[-1]
    assert incident.function == ""
    assert "Python objects and NumPy arrays" in incident.profile_evidence[0]


def test_without_captures_the_incident_stands_by_itself():
    """Profiling is switched off."""
    job = Job(Policy(profile=ProfilePolicy(enabled=False)))
    job.play(400)
    incident = job.incidents(ev.UpdateIncident)[-1]
    assert incident.diagnosed
    assert incident.profile_evidence[0].startswith("not profiled: ")


def test_an_incident_is_kept_up_to_date_and_closes_when_nothing_grows_any_more():
    """Every 30 s while it lasts; a minute after the last sign of growth it is over."""
    job = Job()
    job.play(400)
    [opened] = job.incidents(ev.OpenIncident)
    job.memory._sizes = dict.fromkeys(range(4), flat)
    before = len(job.incidents(ev.UpdateIncident))
    assert before >= 1  # of what it was decided from
    job.memory.advance(4000)
    job.beat()
    job.note(job.runs.tick(job.now + 1))
    assert job.incidents(ev.CloseIncident) == []
    job.note(job.runs.tick(job.now + 61))
    [closed] = job.incidents(ev.CloseIncident)
    assert closed.id == opened.id
    assert job.snapshot.memory_remaining_seconds is None


def test_another_attempt_begins_with_other_processes():
    """What leaked has gone with them."""
    job = Job()
    job.play(400)
    job.take(announce(0, 1, 2, 3, attempt=2))
    job.take(HEALTHY.batch(0, 10, start_s=START_UNIX_S + 10_000))
    job.note(job.runs.tick(job.now + 1))
    assert [incident.kind for incident in job.incidents(ev.CloseIncident)] == ["memory_growth"]


def test_reports_of_ranks_that_are_another_nodes_count_for_nothing():
    """Who a node is, the broker knows; it cannot speak for others."""
    job = Job()
    for _ in range(30):
        job.play(10, reports=False)
        job.beat("n7")
    assert job.incidents(ev.OpenIncident) == []


def test_the_switch_of_the_detector():
    """Off, nothing is opened; the run is monitored all the same."""
    job = Job(Policy(detectors=DetectorPolicy(memory_growth=False)))
    job.play(400)
    assert job.incidents(ev.OpenIncident) == []


def test_a_journal_keeps_heartbeats_with_their_memory():
    """So a recording replays to the same incident."""
    job = Job()
    job.play(200)
    alive = NodeAlive(
        node="n0",
        alive=True,
        unix_ns=0,
        stream_id=1,
        runs=[RunHeartbeat(run="job", revision=0, alive_unix_ns=[1] * 4, memory=job.memory.reports())],
    )
    row = JournalWriter().write(Entry(0, time_ns_of(NOW), alive))
    assert read_entry(json.loads(json.dumps(row)), where="journal").what == alive
