"""Queues writes to the store by incident and run, so a slow disk costs memory for at most one copy of each.

All parts of one write describe the same moment: incidents, the state of runs, and the settled offsets of the nodes'
streams.
"""

import asyncio
import logging
import sqlite3
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.bus import Bus
    from coordinator.decide.incidents import Incident
    from coordinator.decide.saved_run import SavedRun
    from coordinator.detect.anomalies import StepResult
    from coordinator.expected.healthy import KeptWindow
    from coordinator.intake.streams import Commit, Streams
    from coordinator.runs import Runs
    from coordinator.store import Store

_log = logging.getLogger(__name__)

LEARNT_STEPS = 50  # evaluated steps between two writes of learnt state: baselines take 64 steps to move
_SERIES_S = 60.0  # between two writes of a run's step series, of 20 to 100 KB each
_RETRY_S = 5.0


class StateWriter:
    """Writes the state of the coordinator. Use it on the event loop; a thread writes the store, one write at a time.

    `on_incident` is called with the run and each new form of an incident; it must return at once.
    """

    def __init__(
        self,
        runs: "Runs",
        bus: "Bus",
        store: "Store",
        streams: "Streams",
        on_incident: "Callable[[str, Incident], None] | None" = None,
    ) -> None:
        self._runs = runs
        self._on_incident = on_incident
        self._bus = bus
        self._store = store
        self._streams = streams
        self.incidents: dict[str, Incident] = {}
        """Incidents that wait to be written, by id."""
        self._memories: dict[str, SavedRun] = {}
        self._forgotten: set[str] = set()
        self._dropped: set[str] = set()
        self._commit: Commit | None = None
        self._remembered: dict[str, StepResult] = {}
        self._learnt_step: dict[str, int] = {}
        self._series_s: dict[str, float] = {}
        self._changed = asyncio.Event()

    def forget(self, name: str) -> None:
        """Schedule the deletion of the learnt state of a run that is over."""
        self._remembered.pop(name, None)
        self._learnt_step.pop(name, None)
        self._series_s.pop(name, None)
        self._forgotten.add(name)
        self._changed.set()

    def drop(self, name: str) -> None:
        """Schedule the deletion of everything stored for a run except its incidents."""
        self._dropped.add(name)
        self._changed.set()

    def keep(self, name: str, incident: "Incident | None") -> None:
        """Schedule the write of an incident and the state of its run; with None, only of the run's state."""
        if incident is not None:
            self.incidents[incident.id] = incident
            self._learnt_step.pop(name, None)  # store the detectors' state together with this decision
            if self._on_incident is not None:
                self._on_incident(name, incident)
        self.remember(changed=name)

    def remember(self, *, all_of_it: bool = False, changed: str = "") -> None:
        """Schedule the write of the runs' state changed since the last call: machines always, detectors now and then.

        The settled offsets of the nodes' streams are taken at the same moment. They are written together, and only then
        acknowledged. `changed` names a run whose machine has changed without evaluating a step.
        """
        for name, run in self._runs.by_name.items():
            step_result = run.machine.step_result
            is_moved = step_result is not None and (all_of_it or step_result is not self._remembered.get(name))
            if not is_moved and name != changed:
                continue
            is_due = False
            if step_result is not None:
                self._remembered[name] = step_result
                last = self._learnt_step.get(name)
                is_due = all_of_it or last is None or not last <= step_result.step < last + LEARNT_STEPS
            if is_due and step_result is not None:
                self._learnt_step[name] = step_result.step
                self.incidents |= run.machine.tracker.incidents  # their figures are those of this step
            is_series_due = step_result is not None and self._is_series_due(
                name, step_result.unix_s, all_of_it=all_of_it
            )
            self._note(name, run.memory(with_learnt=is_due, with_series=is_series_due))
        if self._commit is not None:
            self._streams.failed(self._commit)  # not written yet: the new one covers it
        self._commit = self._streams.settle()
        self._changed.set()

    def _is_series_due(self, name: str, step_end_s: float, *, all_of_it: bool) -> bool:
        """Whether the series of a run must be written now; the ranks' clocks may be set back."""
        is_due = all_of_it or abs(step_end_s - self._series_s.get(name, 0.0)) >= _SERIES_S
        if is_due:
            self._series_s[name] = step_end_s
        return is_due

    def _note(self, name: str, memory: "SavedRun") -> None:
        """Queue the state of a run; learnt arrays and series that are still unwritten are carried over."""
        waiting = self._memories.get(name)
        if waiting is not None:
            memory = replace(memory, learnt=memory.learnt or waiting.learnt, series=memory.series or waiting.series)
        self._memories[name] = memory
        self._forgotten.discard(name)
        self._dropped.discard(name)

    async def keep_window(self, name: str, window: "KeptWindow") -> None:
        """Write the healthy window that a run's model was fitted to.

        If that fails, the model is fitted again after a restart.
        """
        try:
            await asyncio.to_thread(self._store.keep_window, name, window)
        except sqlite3.Error as error:
            _log.warning("state store: %s; the healthy window of run %s is not stored", error, name)

    async def keep_writing(self) -> None:
        """Write queued state until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not await self.flush():
                await asyncio.sleep(_RETRY_S)  # the disk is full or gone, and no event signals that it is back
                self._changed.set()

    async def flush(self) -> bool:
        """Write the queued state; return whether all of it was written."""
        incidents, self.incidents = self.incidents, {}
        memories, self._memories = self._memories, {}
        forgotten, self._forgotten = self._forgotten, set()
        dropped, self._dropped = self._dropped, set()
        commit, self._commit = self._commit, None
        try:
            await asyncio.to_thread(self._write, list(incidents.values()), memories, commit, forgotten, dropped)
        except sqlite3.Error as error:
            _log.warning("state store: %s; %d incidents wait", error, len(incidents))
            self.incidents = incidents | self.incidents
            newer, self._memories = self._memories, memories
            for name, memory in newer.items():
                self._note(name, memory)
            self._forgotten |= forgotten - newer.keys()
            self._dropped |= dropped - newer.keys()
            if commit is not None:
                self._streams.failed(commit)
            return False
        if commit is not None:
            self._streams.committed(commit)
        self._bus.acknowledge()
        return True

    def _write(
        self,
        incidents: "list[Incident]",
        memories: "dict[str, SavedRun]",
        commit: "Commit | None",
        forgotten: set[str],
        dropped: set[str],
    ) -> None:
        self._store.keep(incidents, memories, commit)
        if forgotten or dropped:
            self._store.forget_learnt(forgotten | dropped)
        if dropped:
            self._store.forget_runs(dropped)
