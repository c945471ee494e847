"""Records the subjects that incidents name in the fleet's history, and adds earlier sightings to new incidents.

Pure except for the store, which tasks of the runtime write.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from coordinator.decide import events as ev
from coordinator.detect.anomalies import CRASH, HANG, SLOW_LINK, SLOW_RANK
from coordinator.fleet.history import (
    DEVICE,
    KEPT_S,
    LINK,
    NODE,
    FleetHistory,
    Sighting,
    Subject,
    SubjectRecord,
    history_line,
)
from lockstep.contracts.limits import SUSPECTS_MAX
from lockstep.serving.fault_isolation import FaultIsolation

if TYPE_CHECKING:
    from coordinator.decide.incidents import Incident
    from coordinator.intake.devices import DeviceTable
    from coordinator.run import Run
    from coordinator.runs import Runs
    from coordinator.store import Store

_log = logging.getLogger(__name__)

NODES_MAX = 8
"""If there are more nodes, the fault is in something they share. The same limit as for the commands on incident
pages."""
_OF_MACHINES = (SLOW_RANK, SLOW_LINK, HANG, CRASH)
_ENDS_OF_LINK = 2
UNWRITTEN_MAX = 10_000  # sightings queued while the disk is full; 3 MB
_REFRESH_S = 60.0
_FLEET = "fleet"
_QUARANTINE_S = 600.0  # of a run for which a bug of ours failed three times in a row


class FleetRecorder:
    """Records the subjects of incidents. `spawn` starts a named task; `feed` passes an event to a run's machine."""

    def __init__(
        self,
        history: FleetHistory,
        runs: "Runs",
        devices: "DeviceTable",
        store: "Store",
        *,
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
        feed: Callable[[str, ev.Event], None],
    ) -> None:
        self.history = history
        self._runs = runs
        self._devices = devices
        self._store = store
        self._spawn = spawn
        self._feed = feed
        self._changed: dict[str, tuple[str, Incident]] = {}
        self._unwritten: dict[tuple[Subject, str], Sighting] = {}
        self._seen: dict[str, tuple[object, ...]] = {}
        self._is_writing = False
        self._refreshed_s = float("-inf")
        self.frequent: tuple[SubjectRecord, ...] = ()
        """Subjects that were recently named at least twice, the most frequent first; for metrics."""
        self.isolation = FaultIsolation((_FLEET,), quarantine_s=_QUARANTINE_S)

    def on_incident(self, run: str, incident: "Incident") -> None:
        """Note a new form of an incident; it is processed on the next tick."""
        self._changed[incident.id] = (run, incident)

    def on_tick(self, now_s: float) -> None:
        """Process incidents that changed since the last tick: record their subjects, report earlier sightings."""
        changed, self._changed = self._changed, {}
        for name, incident in changed.values():
            run = self._runs.by_name.get(name)
            form = (incident.ranks, incident.kind, incident.cause)
            if run is None or self._seen.get(incident.id) == form:
                continue
            self._seen[incident.id] = form
            with self.isolation.guard(_FLEET, name, now_s):
                self._note(run, incident)
        open_ids = {each for run in self._runs.by_name.values() for each in run.machine.tracker.incidents}
        self._seen = {name: form for name, form in self._seen.items() if name in open_ids}
        if changed or now_s - self._refreshed_s > _REFRESH_S:
            self._refreshed_s = now_s
            self.history.trim(now_s)
            self.frequent = tuple(each for each in self.history.records(now_s)[:SUSPECTS_MAX] if each.recent > 1)
        if self._unwritten and not self._is_writing:
            self._is_writing = True
            self._spawn(self._write(now_s), "fleet history")

    def _note(self, run: "Run", incident: "Incident") -> None:
        opened_s = incident.opened_unix_ns * 1e-9
        lines = []
        for subject in subjects_of(run, incident, self._devices):
            sighting = Sighting(
                subject=subject,
                incident_id=incident.id,
                run=incident.run,
                incident_kind=incident.kind,
                cause=incident.cause,
                opened_unix_s=opened_s,
            )
            earlier = self.history.earlier(subject, incident.id, opened_s)
            if earlier:
                lines.append(history_line(subject, incident.run, earlier))
            self.history.add(sighting)
            self._unwritten[subject, incident.id] = sighting
        if tuple(lines) != incident.history:
            event = ev.FleetHistoryEvent(
                unix_s=opened_s, cause_id=f"fleet:{incident.id}", incident_id=incident.id, history=tuple(lines)
            )
            self._feed(run.name, event)

    async def _write(self, now_s: float) -> None:
        written, self._unwritten = self._unwritten, {}
        try:
            await asyncio.to_thread(self._store.keep_sightings, list(written.values()), now_s - KEPT_S)
        except sqlite3.Error as error:
            _log.warning("state store: %s; %d entries of the fleet's history wait", error, len(written))
            waiting = written | self._unwritten
            self._unwritten = dict(list(waiting.items())[-UNWRITTEN_MAX:])
        finally:
            self._is_writing = False


def subjects_of(run: "Run", incident: "Incident", devices: "DeviceTable") -> tuple[Subject, ...]:
    """Return the nodes, devices or link that an incident names; empty if no single machine is to blame."""
    if incident.kind not in _OF_MACHINES:
        return ()
    nodes = {rank: run.membership.nodes[rank] for rank in incident.ranks if rank in run.membership.nodes}
    named = sorted(set(nodes.values()))
    if incident.kind == SLOW_LINK and incident.scope == "group":
        return (Subject(LINK, " - ".join(named)),) if len(named) == _ENDS_OF_LINK else ()
    if incident.scope not in ("rank", "node") or not 0 < len(named) <= NODES_MAX:
        return ()
    uuids: Iterable[str] = (devices.uuid(run.name, node, rank) for rank, node in nodes.items())
    found = [Subject(NODE, node) for node in named]
    if incident.scope == "rank":
        found += [Subject(DEVICE, uuid) for uuid in dict.fromkeys(filter(None, uuids))]
    return tuple(found)
