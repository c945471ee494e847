"""Schedules readings: when an incident opens, is diagnosed or names other ranks, and again `SETTLE_S` after its onset.

At most two readings run at a time; an incident never waits for one.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coordinator.decide import events as ev
from coordinator.decide.incidents import CLOSED
from coordinator.detect.anomalies import HANG
from coordinator.evidence.machines import devices_of
from coordinator.evidence.reader import Periods
from lockstep.serving.fault_isolation import FaultIsolation

if TYPE_CHECKING:
    from coordinator.decide.incidents import Incident
    from coordinator.evidence.reader import EvidenceReader
    from coordinator.intake.devices import DeviceTable
    from coordinator.run import Run
    from coordinator.runs import Runs

READINGS_MAX = 2
BEFORE_S, GUARD_S, AFTER_MAX_S = 600.0, 30.0, 600.0
"""Length of the period before, maximum length of the period after, and how long before the onset the two meet. A
fault precedes the first step that it slows, and the onset is known to within a few steps."""
SETTLE_S = 150.0
"""Time after the onset of the last reading: scrapes every 60 s give two samples by then, which a rate needs."""
_ONSET_MAX_S = 3600.0
_EVIDENCE = "evidence"
_QUARANTINE_S = 600.0  # of a run whose readings failed three times in a row because of a bug of ours


@dataclass(slots=True, kw_only=True)
class _Watched:
    """An open incident: its ranks and state at the last reading, and when the next one is due."""

    run: str
    ranks: tuple[int, ...]
    diagnosed: bool
    due_s: float | None
    """None if nothing is due until the incident changes."""
    is_reading: bool = False


class EvidenceScheduler:
    """Schedules readings. `spawn` starts a named task; `feed` passes an event to a run's machine."""

    def __init__(
        self,
        reader: "EvidenceReader",
        runs: "Runs",
        devices: "DeviceTable",
        *,
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
        feed: Callable[[str, ev.Event], None],
        now_s: Callable[[], float],
    ) -> None:
        self.reader = reader
        self._runs = runs
        self._spawn = spawn
        self._feed = feed
        self._now_s = now_s
        self.isolation = FaultIsolation((_EVIDENCE,), quarantine_s=_QUARANTINE_S)
        self._devices = devices
        self._watched: dict[str, _Watched] = {}

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the counts of queries and series, as fields of a snapshot."""
        return {
            "evidence_queries": dict(self.reader.client.counts),
            "evidence_refusals": dict(self.reader.refused),
        }

    def on_incident(self, run: str, incident: "Incident") -> None:
        """Note a new form of an incident; a reading that becomes due starts with the next tick."""
        if incident.state == CLOSED:
            self._watched.pop(incident.id, None)
            return
        known = self._watched.get(incident.id)
        if known is None:
            self._watched[incident.id] = _Watched(
                run=run, ranks=incident.ranks, diagnosed=incident.diagnosed, due_s=self._now_s()
            )
        elif known.ranks != incident.ranks or incident.diagnosed > known.diagnosed:
            known.ranks, known.diagnosed, known.due_s = incident.ranks, incident.diagnosed, self._now_s()

    def on_tick(self, now_s: float) -> None:
        """Start due readings, the longest overdue first, and forget incidents that are no longer open."""
        self._watched = {name: each for name, each in self._watched.items() if self._incident(name, each) is not None}
        reading = sum(each.is_reading for each in self._watched.values())
        due = [(each.due_s, name) for name, each in self._watched.items() if _is_due(each, now_s)]
        for _, name in sorted(due)[: max(0, READINGS_MAX - reading)]:
            self._start(name, self._watched[name], now_s)

    def _start(self, name: str, watched: _Watched, now_s: float) -> None:
        run, incident = self._runs.by_name[watched.run], self._incident(name, watched)
        assert incident is not None
        onset_s = onset_unix_s(run, incident)
        watched.is_reading = True
        watched.due_s = onset_s + SETTLE_S if now_s < onset_s + SETTLE_S else None
        if not self.isolation.admits(_EVIDENCE, watched.run, now_s):
            watched.is_reading = False
            return
        periods = periods_around(onset_s, now_s)
        self._spawn(self._read(name, watched, periods), f"evidence of {name}")

    async def _read(self, name: str, watched: _Watched, periods: Periods) -> None:
        with self.isolation.guard(_EVIDENCE, watched.run, self._now_s()):
            run, incident = self._runs.by_name.get(watched.run), self._incident(name, watched)
            if run is not None and incident is not None:
                devices = devices_of(run, incident, self._devices)
                machine = await self.reader.read(devices, periods, self._now_s())
                event = ev.MachineEvidenceEvent(
                    unix_s=self._now_s(), cause_id=f"evidence:{name}", incident_id=name, machine=machine
                )
                self._feed(watched.run, event)
        watched.is_reading = False

    def _incident(self, name: str, watched: _Watched) -> "Incident | None":
        run = self._runs.by_name.get(watched.run)
        return None if run is None else run.machine.tracker.incidents.get(name)


def _is_due(watched: _Watched, now_s: float) -> bool:
    return not watched.is_reading and watched.due_s is not None and watched.due_s <= now_s


def onset_unix_s(run: "Run", incident: "Incident") -> float:
    """Estimate when an incident began (unix seconds) from its steps and the run's step time, at most an hour back."""
    opened_s = incident.opened_unix_ns * 1e-9
    if incident.kind == HANG:
        return opened_s - min(incident.excess_seconds, _ONSET_MAX_S)
    if incident.onset_step is None or incident.detected_step is None:
        return opened_s
    step_result = run.machine.step_result
    step_s = (step_result.recent_step_seconds or step_result.step_seconds) if step_result else 0.0
    return opened_s - min(max(0, incident.detected_step - incident.onset_step) * step_s, _ONSET_MAX_S)


def periods_around(onset_s: float, now_s: float) -> Periods:
    """Return the periods to compare: ten minutes that end `GUARD_S` before the onset, and the time since."""
    after_end_s = min(now_s, onset_s + AFTER_MAX_S)
    return Periods(
        before_start_s=onset_s - GUARD_S - BEFORE_S,
        before_end_s=onset_s - GUARD_S,
        after_start_s=onset_s - GUARD_S,
        after_end_s=after_end_s,
    )
