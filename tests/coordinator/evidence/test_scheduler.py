"""When evidence is read, for which machines and periods, and what becomes of it; the clock is the test's."""

import asyncio
from dataclasses import replace

import pytest

from coordinator.decide import events as ev
from coordinator.decide.incidents import CLOSED
from coordinator.decide.machine_evidence import MachineEvidence
from coordinator.evidence.machines import PEERS_MAX, devices_of
from coordinator.evidence.scheduler import BEFORE_S, GUARD_S, READINGS_MAX, SETTLE_S, EvidenceScheduler, periods_around
from coordinator.intake.devices import DeviceTable
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from lockstep.contracts.facts import RankFacts
from tests.coordinator.conftest import announce
from tests.coordinator.test_runs import FAULTY, NOW, play, two_nodes

EVIDENCE = MachineEvidence(read_unix_ns=1, note="1 signal compared", is_complete=True)


class Reader:
    """Answers with `answers`, one after the other, and notes what it was asked."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def read(self, devices, periods, now_s):
        self.asked.append((devices, periods, now_s))
        answer = self.answers.pop(0) if self.answers else EVIDENCE
        if isinstance(answer, Exception):
            raise answer
        return answer


class Watch:
    """Two nodes of which rank 2 is slow, a scheduler, and its tasks, which run when the test lets them."""

    def __init__(self, *answers):
        self.now_s = NOW + 43
        self.runs = Runs(CoordinatorConfig(), Policy(), {}, lambda: 0.0)
        two_nodes(self.runs)
        self.reader = Reader(*answers)
        self.tasks = []
        self.devices = DeviceTable(lambda run, _: run == "job")
        self.scheduler = EvidenceScheduler(
            self.reader,
            self.runs,
            self.devices,
            spawn=lambda work, _: self.tasks.append(work),
            feed=self.runs.feed,
            now_s=lambda: self.now_s,
        )
        play(self.runs, FAULTY, 0, 43)

    @property
    def incident(self):
        (incident,) = self.runs.by_name["job"].machine.tracker.incidents.values()
        return incident

    def note(self, incident=None):
        self.scheduler.on_incident("job", incident or self.incident)

    def tick(self, after_s=1.0):
        """Let time pass, and end what that started; return how many readings it was."""
        self.now_s += after_s
        self.scheduler.on_tick(self.now_s)
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            asyncio.run(task)
        return len(tasks)


def test_it_is_read_as_it_opens_after_it_settled_and_as_it_is_diagnosed():
    """And not again for what changes nothing of who or why."""
    watch = Watch()
    watch.note()
    assert watch.incident.machine is None
    assert watch.tick() == 1
    assert watch.incident.machine == EVIDENCE
    watch.note()
    assert watch.tick() == 0
    assert watch.tick(SETTLE_S) == 1
    assert watch.tick(SETTLE_S) == 0
    watch.note(replace(watch.incident, diagnosed=True))
    assert watch.tick() == 1
    watch.note(replace(watch.incident, diagnosed=True, ranks=(2, 3)))
    assert watch.tick() == 1
    assert watch.tick(SETTLE_S) == 0


def test_the_periods_meet_shortly_before_the_onset():
    """Ten minutes before it, and what follows: the slow step 40 was two steps before the incident opened."""
    watch = Watch()
    watch.note()
    watch.tick()
    _, periods, now_s = watch.reader.asked[0]
    step_s = watch.runs.by_name["job"].machine.step_result.recent_step_seconds
    onset_s = watch.incident.opened_unix_ns * 1e-9 - 2 * step_s
    assert periods.before_end_s == periods.after_start_s == pytest.approx(onset_s - GUARD_S)
    assert periods.before_end_s - periods.before_start_s == pytest.approx(BEFORE_S)
    assert periods.after_end_s == now_s
    assert periods_around(0.0, 1e6).after_end_s == 600.0


def test_suspects_are_compared_with_peers_of_other_hosts_first():
    """Each with the names of its host, its local rank, and its device where its node announced one."""
    watch = Watch()
    run = watch.runs.by_name["job"]
    announcement = announce(2, 3, node="n1")
    uuids = {2: "GPU-2", 3: ""}
    ranks = [replace(info, facts=RankFacts(device_uuid=uuids[info.rank])) for info in announcement.ranks]
    watch.devices.note(replace(announcement, ranks=ranks))
    devices = devices_of(run, watch.incident, watch.devices)
    assert [(each.ranks, each.is_suspect) for each in devices] == [
        ((2,), True),
        ((0,), False),
        ((1,), False),
        ((3,), False),
    ]
    assert (devices[0].hosts, devices[0].local_rank, devices[0].uuid) == ({"host-n1", "n1"}, 2, "GPU-2")
    assert devices[3].uuid == ""
    assert devices_of(run, replace(watch.incident, ranks=()), watch.devices) == ()
    assert devices_of(run, replace(watch.incident, ranks=(0, 1, 2, 3)), watch.devices) == ()
    assert len(devices) <= 1 + PEERS_MAX


def test_what_is_closed_or_forgotten_is_not_read():
    """Nor is one whose run is gone."""
    watch = Watch()
    watch.note()
    watch.note(replace(watch.incident, state=CLOSED))
    assert watch.tick() == 0
    watch.note()
    watch.runs.forget("job")
    assert watch.tick() == 0
    assert watch.scheduler._watched == {}


def test_two_readings_at_a_time():
    """Many incidents at once wait for each other, none is left out."""
    watch = Watch()
    book = watch.runs.by_name["job"].machine.tracker
    for number in range(5):
        incident = replace(
            watch.runs.by_name["job"].machine.tracker.incidents[next(iter(book.incidents))], id=f"i{number}"
        )
        book.incidents[incident.id] = incident
        watch.note(incident)
    assert [watch.tick() for _ in range(4)] == [READINGS_MAX, READINGS_MAX, 1, 0]


def test_a_failed_reading_takes_no_deviations_away():
    """Prometheus was down when the incident was diagnosed."""
    found = MachineEvidence(read_unix_ns=1, note="", is_complete=True, deviations=("a deviation",))
    failed = MachineEvidence(read_unix_ns=2, note="1 (timeout)", is_complete=False)
    later = MachineEvidence(read_unix_ns=3, note="nothing", is_complete=True)
    watch = Watch(found, failed, later)
    watch.note()
    for expected in (found, found, later):
        watch.tick()
        assert watch.incident.machine is expected
        watch.scheduler._watched[watch.incident.id].due_s = watch.now_s


def test_a_bug_of_ours_costs_a_reading_and_after_three_a_while():
    """The incident stays as it is, and the run is evaluated on."""
    watch = Watch(*[KeyError("bug")] * 4)
    watch.note()
    for _ in range(4):
        watch.tick()
        watch.scheduler._watched[watch.incident.id].due_s = watch.now_s
    assert len(watch.reader.asked) == 3
    assert watch.incident.machine is None
    assert watch.scheduler.isolation.dropped["evidence", "failed"] == 3


def test_evidence_of_an_incident_that_is_gone_is_dropped():
    """It closed while Prometheus was asked."""
    watch = Watch()
    event = ev.MachineEvidenceEvent(unix_s=1.0, cause_id="c", incident_id="gone", machine=EVIDENCE)
    assert watch.runs.feed("job", event) == [("job", [])]
