"""Which stages are notified, by whom, and what a restart or a change of the leader does; the clock is the test's."""

import asyncio
from dataclasses import replace

import pytest

from coordinator.decide.incidents import CLOSED
from coordinator.leadership import Leadership
from coordinator.notify import make_notifier
from coordinator.notify.notifier import HANDOVER_S
from coordinator.notify.sender import DROPPED, QUEUE_MAX
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from coordinator.store import Store
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.messages import CoordinatorAlive
from tests.coordinator.notify.receiver import webhook_settings
from tests.coordinator.test_runs import FAULTY, NOW, play, two_nodes


class Watch:
    """Two nodes of which rank 2 is slow, and a notifier whose tasks run when the test lets time pass."""

    def __init__(self, tmp_path, store, *, leads=True, **settings):
        self.now_s, self.store = NOW + 43, store
        self.config = CoordinatorConfig(**webhook_settings(tmp_path, "http://127.0.0.1:9/hook") | settings)
        self.runs = Runs(self.config, Policy(), {}, lambda: 0.0)
        self.leadership = Leadership("b", 2)
        self.leadership.leads = leads
        self.tasks = []
        self.notifier = make_notifier(
            lambda: self.config,
            self.runs,
            store,
            self.leadership,
            spawn=lambda work, _: self.tasks.append(work),
            now_s=lambda: self.now_s,
        )
        two_nodes(self.runs)
        play(self.runs, FAULTY, 0, 43)

    @property
    def incident(self):
        (incident,) = self.runs.by_name["job"].machine.tracker.incidents.values()
        return incident

    def note_leader(self):
        message = CoordinatorAlive(coordinator="a", alive=True, incarnation=1, unix_ns=1, term=0)
        self.leadership.take(message, self.now_s)

    def tick(self, after_s=1.0):
        """Let time pass; return the stages that are handed to the sender, which keeps none."""
        self.now_s += after_s
        self.notifier.on_tick(self.now_s)
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            asyncio.run(task)
        queue = self.notifier.senders["webhook"]._queue
        offered = list(queue)
        queue.clear()
        return offered

    def settle(self, offered):
        """Have the sender report that these were sent."""
        for each in offered:
            asyncio.run(self.notifier.senders["webhook"]._settle(each))


@pytest.fixture
def store():
    """Return a store in memory, which two coordinators use one after the other."""
    store = Store("")
    yield store
    store.close()


def stages(offered):
    return [each.stage for each in offered]


def test_opened_function_closed(tmp_path, store):
    """One notification each, however often the incident changes."""
    watch = Watch(tmp_path, store)
    (opened,) = watch.tick()
    assert (opened.stage, opened.host, opened.incident.ranks) == ("opened", "host-n1", (2,))
    assert opened.devices_lost > 0
    watch.notifier.on_incident("job", replace(watch.incident, slowdown_ratio=9.0))
    assert watch.tick() == []
    known = replace(watch.incident, function="train.py(9): forward")
    for _ in range(2):
        watch.notifier.on_incident("job", known)
    assert stages(watch.tick()) == ["updated"]
    for _ in range(2):
        watch.notifier.on_incident("job", replace(known, state=CLOSED))
    assert stages(watch.tick()) == ["closed"]
    assert watch.tick() == []


def test_what_costs_too_little_is_left_out_until_it_costs_more(tmp_path, store):
    """Its end neither is reported."""
    watch = Watch(tmp_path, store, notify_min_devices_lost=100)
    assert watch.tick() == []
    watch.notifier.on_incident("job", replace(watch.incident, state=CLOSED))
    assert watch.tick() == []
    watch.config = replace(watch.config, notify_min_devices_lost=0)
    assert stages(watch.tick()) == ["opened"]


def test_nothing_is_sent_twice_after_a_restart(tmp_path, store):
    """And what was not sent before it is sent then, the end of an incident too."""
    first = Watch(tmp_path, store)
    first.settle(first.tick())
    second = Watch(tmp_path, store)
    assert second.incident.id == first.incident.id
    assert second.tick() == []
    closed = replace(second.incident, state=CLOSED, closed_unix_ns=int(second.now_s * 1e9))
    second.notifier.on_incident("job", closed)
    assert stages(second.tick()) == ["closed"]
    store.keep_incident(closed)
    third = Watch(tmp_path, store)
    third.runs.forget("job")
    offered = third.tick()
    assert stages(offered) == ["closed"]
    third.settle(offered)
    fourth = Watch(tmp_path, store)
    fourth.runs.forget("job")
    assert fourth.tick() == []


def test_a_follower_is_silent_and_its_restart_too(tmp_path, store):
    """It leaves to the leader what the leader had time to send."""
    follower = Watch(tmp_path, store, leads=False)
    for _ in range(8):
        follower.note_leader()
        assert follower.tick(10.0) == []
    follower.leadership.leads = True
    assert follower.tick() == []
    again = Watch(tmp_path, store)
    assert again.tick() == []


def test_a_follower_sends_what_its_leader_died_with(tmp_path, store):
    """It leads before it has left the incident to the other one."""
    follower = Watch(tmp_path, store, leads=False)
    follower.note_leader()
    assert follower.tick() == []
    assert follower.tick(HANDOVER_S - 2.0) == []
    follower.leadership.leads = True
    assert stages(follower.tick()) == ["opened"]


def test_a_coordinator_without_a_leader_waits_for_one(tmp_path, store):
    """Both were cut off from the broker: the one that leads afterwards sends; what waits has a bound."""
    watch = Watch(tmp_path, store, leads=False)
    for _ in range(3):
        assert watch.tick(HANDOVER_S) == []
    one = watch.incident
    for number in range(QUEUE_MAX):
        watch.notifier.on_incident("job", replace(one, id=f"job-{number}"))
    assert watch.notifier.counts()["webhook", DROPPED] == 1
    watch.leadership.leads = True
    assert len(watch.tick()) == QUEUE_MAX


def test_late_evidence_of_a_closed_incident_is_an_update(tmp_path, store):
    """The function came after the end."""
    watch = Watch(tmp_path, store)
    watch.tick()
    closed = replace(watch.incident, state=CLOSED)
    watch.runs.forget("job")
    watch.notifier.on_incident("job", closed)
    assert stages(watch.tick()) == ["closed"]
    watch.notifier.on_incident("job", replace(closed, function="f"))
    assert stages(watch.tick()) == ["updated"]


def test_it_is_off_by_default_and_secrets_are_checked_at_the_start(tmp_path, store):
    """A secret that cannot be used ends the start, and is not shown."""
    config = CoordinatorConfig()
    assert make_notifier(lambda: config, None, store, None) is None
    for key in ("notify_webhook_secret_file", "notify_slack_url_file"):
        file = tmp_path / "file"
        file.write_text("geheim")
        url = "http://127.0.0.1:9/" if "webhook" in key else ""
        bad = CoordinatorConfig(**{"notify_webhook_url": url, key: str(file)})
        with pytest.raises(ConfigError, match=key) as error:
            make_notifier(lambda bad=bad: bad, None, store, None)
        assert "geheim" not in str(error.value)
