"""Decides which stages of incidents are notified. Each is sent once, by the leader of a pair only.

A follower notes the same stages and lets the leader send them. It keeps those of the last `HANDOVER_S` and sends them
if it has become the leader by then, so that no notification is lost with a leader. Receivers recognise a repetition by
its id.
"""

import asyncio
import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from coordinator.api.services import host_of
from coordinator.leadership import HEARTBEAT_S, SILENT_S
from coordinator.notify.notification import Notification, devices_lost, due_stage
from coordinator.notify.sender import DROPPED, QUEUE_MAX, NotificationSender
from lockstep.serving.fault_isolation import FaultIsolation

if TYPE_CHECKING:
    from coordinator.decide.incidents import Incident
    from coordinator.leadership import Leadership
    from coordinator.notify.targets import NotificationTarget
    from coordinator.run import Run
    from coordinator.runs import Runs
    from coordinator.settings.config import CoordinatorConfig
    from coordinator.store import Store

_log = logging.getLogger(__name__)

HANDOVER_S = SILENT_S + 2 * HEARTBEAT_S
"""How long a follower keeps notifications: a leader that died without a last will is detected after `SILENT_S`."""
_INCIDENTS_MAX = 20_000  # incidents whose stages are remembered, 500 bytes each
_NOTIFY = "notify"
_QUARANTINE_S = 600.0  # of a run for which a bug of ours failed three times in a row


class Notifier:
    """Notifies stages of incidents. `spawn` starts a named task; `config` returns the configuration in force."""

    def __init__(
        self,
        targets: "Iterable[NotificationTarget]",
        runs: "Runs",
        store: "Store",
        leadership: "Leadership",
        *,
        config: "Callable[[], CoordinatorConfig]",
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
        now_s: Callable[[], float],
    ) -> None:
        self.senders = {
            target.name: NotificationSender(target, settle=partial(self._settle, target.name), now_s=now_s)
            for target in targets
        }
        self.isolation = FaultIsolation((_NOTIFY,), quarantine_s=_QUARANTINE_S)
        self._runs = runs
        self._store = store
        self._leadership = leadership
        self._config = config
        self._spawn = spawn
        self._now_s = now_s
        self._covered: OrderedDict[tuple[str, str], set[str]] = OrderedDict()
        """Stages that were noted or settled, by target and incident; they are not noted again."""
        self._waiting: dict[str, list[Notification]] = {name: [] for name in self.senders}
        """Noted notifications by target, until a leader is known."""
        self._following_since_s: float | None = None

    def restore(self, settled: Iterable[tuple[str, str, str]], closed: "Iterable[Incident]") -> None:
        """Restore an earlier coordinator's settled stages, and notify incidents that closed before it could do so."""
        for target, incident_id, stage in settled:
            self._cover(target, incident_id, (stage,))
        for incident in closed:
            self.on_incident(incident.run, incident)

    def start(self) -> None:
        """Start the senders."""
        for name, sender in self.senders.items():
            self._spawn(sender.run(), f"notifications to {name}")

    def stop(self) -> None:
        """Stop after the attempts under way."""
        for sender in self.senders.values():
            sender.stop()

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the notifications by target and outcome."""
        return {(name, key): count for name, sender in self.senders.items() for key, count in sender.counts.items()}

    def isolations(self) -> tuple[FaultIsolation, ...]:
        """Return the counters of our own faults."""
        return self.isolation, *(sender.isolation for sender in self.senders.values())

    def on_incident(self, run: str, incident: "Incident") -> None:
        """Note the stage that a new form of an incident makes due."""
        now_s = self._now_s()
        if self.isolation.admits(_NOTIFY, run, now_s):
            with self.isolation.guard(_NOTIFY, run, now_s):
                self._note(self._runs.by_name.get(run), incident, now_s)

    def on_tick(self, now_s: float) -> None:
        """Note due stages of open incidents, and pass notifications to the senders if this coordinator leads."""
        for name, run in self._runs.by_name.items():
            for incident in run.machine.tracker.incidents.values():
                self.on_incident(name, incident)
        leads = self._leadership.leads
        if leads or not self._leadership.peers(now_s):
            self._following_since_s = None
        elif self._following_since_s is None:
            self._following_since_s = now_s
        if leads:
            self._send()
        elif self._following_since_s is not None and now_s - self._following_since_s >= HANDOVER_S:
            self._leave_to_leader(now_s)

    def _note(self, run: "Run | None", incident: "Incident", now_s: float) -> None:
        for target, waiting in self._waiting.items():
            covered = self._covered.get((target, incident.id), ())
            stage = due_stage(incident, covered)
            if not stage:
                continue
            lost = _devices_lost(run, incident)
            if not covered and lost is not None and lost < self._config().notify_min_devices_lost:
                continue
            notification = Notification(
                incident=incident,
                stage=stage,
                unix_s=now_s,
                host=host_of(run, incident) if run is not None else "",
                devices_lost=lost,
            )
            self._cover(target, incident.id, notification.covers)
            waiting.append(notification)
            if len(waiting) > QUEUE_MAX:  # no coordinator has led for long
                self.senders[target].counts[DROPPED] += 1
                del waiting[0]

    def _cover(self, target: str, incident_id: str, stages: Iterable[str]) -> None:
        self._covered.setdefault((target, incident_id), set()).update(stages)
        self._covered.move_to_end((target, incident_id))
        while len(self._covered) > _INCIDENTS_MAX * max(len(self.senders), 1):
            self._covered.popitem(last=False)

    def _send(self) -> None:
        for target, waiting in self._waiting.items():
            for notification in waiting:
                dropped = self.senders[target].offer(notification)
                if dropped is not None:
                    self._spawn(self._settle(target, dropped), f"dropped notification {dropped.id}")
            waiting.clear()

    def _leave_to_leader(self, now_s: float) -> None:
        for target, waiting in self._waiting.items():
            left = [each for each in waiting if now_s - each.unix_s >= HANDOVER_S]
            if left:
                self._waiting[target] = [each for each in waiting if now_s - each.unix_s < HANDOVER_S]
                self._spawn(self._settle(target, *left), f"notifications to {target} left to the leader")

    async def _settle(self, target: str, *notifications: Notification) -> None:
        rows = [(target, each.incident.id, stage) for each in notifications for stage in each.covers]
        try:
            await asyncio.to_thread(self._store.keep_notifications, rows, self._now_s())
        except sqlite3.Error as error:
            _log.warning("state store: %s; after a restart notifications may be sent again", error)


def _devices_lost(run: "Run | None", incident: "Incident") -> float | None:
    if run is None:
        return None
    step_result = run.machine.step_result
    return devices_lost(incident, run.membership.world_size, step_result.baseline_step_seconds if step_result else None)
