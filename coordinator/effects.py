"""Turns instructions into named tasks and their results back into events; nothing else does.

Writes to the store are gathered by incident and run, so that a slow disk costs memory for one copy of each and no more.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from coordinator.decide import events as ev
from coordinator.decide.incidents import AdviceItem, Incident, Prediction
from coordinator.expected.advice_gains import within_loss
from coordinator.expected.fitting import fit_model, predict_gain
from coordinator.expected.healthy import KeptWindow
from coordinator.runs import HANDLE
from lockstep.contracts.errors import LockstepError
from lockstep.contracts.messages import ProfileRequest, StackRequest
from lockstep.diagnosis import INSUFFICIENT, Diagnosis, explain
from lockstep.serving.messaging import BrokerError

if TYPE_CHECKING:
    from coordinator.bus import Bus
    from coordinator.decide.memory import RunMemory
    from coordinator.detect.findings import Judgement
    from coordinator.intake.streams import Commit, Streams
    from coordinator.leadership import Leadership
    from coordinator.runs import Orders, Run, Runs
    from coordinator.store import Store

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Order = TypeVar("_Order")

LEARNT_STEPS = 50  # judged steps between two writes of what detectors have learnt: baselines take 64 steps to move
_RETRY_S = 5.0
_REASON_MAX = 200  # characters of an error in an incident's evidence
_REASON_LONG_MAX = 500  # of why there is no model: it names file, field, got and expected


class Spawn(Protocol):
    """Starts a named task that the runtime owns."""

    def __call__(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start `work`; it runs until done or until the runtime ends."""


class Effects:
    """Performs what machines ask for. `now_s` is the wall clock; results are fed back on the event loop."""

    def __init__(
        self,
        runs: "Runs",
        bus: "Bus",
        store: "Store",
        spawn: Spawn,
        now_s: Callable[[], float],
        *,
        streams: "Streams",
        leadership: "Leadership",
    ) -> None:
        self._runs = runs
        self._bus = bus
        self._streams = streams
        self._leadership = leadership
        self._store = store
        self._spawn = spawn
        self._now_s = now_s
        self._incidents: dict[str, Incident] = {}
        self._memories: dict[str, RunMemory] = {}
        self._forgotten: set[str] = set()
        self._dropped: set[str] = set()
        self._commit: Commit | None = None
        self._remembered: dict[str, Judgement] = {}
        self._learnt_step: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._simulating = asyncio.Lock()  # a simulation is pure computing: two at once would take twice as long each

    def _start(
        self, name: str, work: Callable[[str, _Order], Coroutine[Any, Any, None]], order: _Order, task_name: str
    ) -> None:
        """Start a task of a run; what it raises costs that task alone, and is counted as a fault of the run."""

        async def isolated() -> None:
            with self._runs.isolation.guard(HANDLE, name, self._now_s()):
                await work(name, order)

        self._spawn(isolated(), task_name)

    def perform(self, orders: "Orders") -> None:
        """Start all that is asked for, in order; returns at once."""
        for name, instructions in orders:
            for instruction in instructions:
                self._perform_one(name, instruction)

    def _perform_one(self, name: str, instruction: ev.Instruction) -> None:
        match instruction:
            case ev.OpenIncident() | ev.UpdateIncident() | ev.CloseIncident():
                incident = instruction.incident
                if not isinstance(instruction, ev.UpdateIncident):
                    _log.info(
                        "run %s: incident %s %s, %s by %s on ranks %s (%s)",
                        name,
                        incident.id,
                        incident.state,
                        incident.kind,
                        incident.cause,
                        list(incident.ranks),
                        instruction.cause_id,
                    )
                self._keep(name, incident)
            case ev.RequestProfile():
                self._keep(name, None)
                self._start(name, self._request, instruction, f"profile request {instruction.request_id}")
            case ev.Diagnose():
                about = instruction.incident_id or f"request {instruction.request_id}"
                self._start(name, self._diagnose, instruction, f"diagnosis of {about}")
            case ev.FitModel():
                self._start(name, self._fit, instruction, f"fit of {name}")
            case ev.Predict():
                self._start(name, self._predict, instruction, f"prediction of {instruction.incident_id}")
            case ev.TellGain():
                self._tell_gain(name, instruction, instruction.prediction)
            case ev.ForgetRun():
                self._runs.forget(name)
                self._remembered.pop(name, None)
                self._learnt_step.pop(name, None)
                self._forgotten.add(name)
                self._changed.set()
            case ev.DropMemory():
                self._dropped.add(name)
                self._changed.set()
            case _:
                self._perform_other(name, instruction)

    def _perform_other(self, name: str, instruction: ev.Instruction) -> None:
        if isinstance(instruction, ev.RequestStacks):
            self._start(name, self._request_stacks, instruction, f"stacks, request {instruction.request_id}")
            return
        assert isinstance(instruction, ev.RefuseProfile)  # its asker reads it from the orders

    def _keep(self, name: str, incident: Incident | None) -> None:
        if incident is not None:
            self._incidents[incident.id] = incident
            self._learnt_step.pop(name, None)  # what was decided now must find the detectors where they stood
        self.remember(changed=name)

    def remember(self, *, all_of_it: bool = False, changed: str = "") -> None:
        """Keep what runs know since the last call: of their machines each time, of their detectors now and then.

        With it goes how far the nodes' streams are settled at this moment: they are written together, and only then
        acknowledged. `changed` names a run whose machine has changed, though it may have judged nothing since.
        """
        for name, run in self._runs.by_name.items():
            judgement = run.machine.judgement
            is_moved = judgement is not None and (all_of_it or judgement is not self._remembered.get(name))
            if not is_moved and name != changed:
                continue
            is_due = False
            if judgement is not None:
                self._remembered[name] = judgement
                last = self._learnt_step.get(name)
                is_due = all_of_it or last is None or not last <= judgement.step < last + LEARNT_STEPS
            if is_due and judgement is not None:
                self._learnt_step[name] = judgement.step
                self._incidents |= run.machine.tracker.incidents  # their figures are those of this step
            self._note(name, run.memory(with_learnt=is_due))
        if self._commit is not None:
            self._streams.failed(self._commit)  # not written yet: the new one covers it
        self._commit = self._streams.settle()
        self._changed.set()

    def _note(self, name: str, memory: "RunMemory") -> None:
        """Put a memory in its place to be written; what was learnt and is not written yet stays with it."""
        waiting = self._memories.get(name)
        if memory.learnt is None and waiting is not None:
            memory = replace(memory, learnt=waiting.learnt)
        self._memories[name] = memory
        self._forgotten.discard(name)
        self._dropped.discard(name)

    async def keep_writing(self) -> None:
        """Write what has gathered, for ever; ends by cancellation."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not await self.flush():
                await asyncio.sleep(_RETRY_S)  # the disk is full or gone; nothing wakes us when it is back
                self._changed.set()

    async def flush(self) -> bool:
        """Write what has gathered; return whether all of it was written."""
        incidents, self._incidents = self._incidents, {}
        memories, self._memories = self._memories, {}
        forgotten, self._forgotten = self._forgotten, set()
        dropped, self._dropped = self._dropped, set()
        commit, self._commit = self._commit, None
        try:
            await asyncio.to_thread(self._write, list(incidents.values()), memories, commit, forgotten, dropped)
        except sqlite3.Error as error:
            _log.warning("state store: %s; %d incidents wait", error, len(incidents))
            self._incidents = incidents | self._incidents
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
        incidents: list[Incident],
        memories: "dict[str, RunMemory]",
        commit: "Commit | None",
        forgotten: set[str],
        dropped: set[str],
    ) -> None:
        self._store.keep(incidents, memories, commit)
        if forgotten or dropped:
            self._store.forget_learnt(forgotten | dropped)
        if dropped:
            self._store.forget_runs(dropped)

    def take_over(self) -> None:
        """Order the captures that a former leader may have died with; nodes ignore an order that they already have."""
        for name, run in self._runs.by_name.items():
            capture = run.machine.captures.current
            if capture is not None and not capture.states and not capture.refused:
                order = ev.RequestProfile(
                    cause_id=f"term:{self._leadership.term}",
                    request_id=capture.request_id,
                    ranks=capture.ranks,
                    first_step=capture.first_step,
                    steps=capture.steps,
                    shapes=capture.shapes,
                    is_asked=not capture.incident_id,
                )
                self._start(name, self._request, order, f"profile request {order.request_id}")

    async def _request(self, name: str, order: ev.RequestProfile) -> None:
        """Publish a capture request. One for an incident is the leader's: its answers reach all coordinators."""
        run = self._runs.by_name.get(name)
        if run is None or not (self._leadership.leads or order.is_asked):
            return
        try:
            for node, ranks in _by_node(run, order.ranks).items():
                request = ProfileRequest(
                    run=name,
                    node=node,
                    request_id=order.request_id,
                    ranks=ranks,
                    first_step=order.first_step,
                    steps=order.steps,
                    shapes=order.shapes,
                    term=self._leadership.term,
                )
                await self._bus.publish_request(request)
        except BrokerError as error:
            _log.warning("run %s: profile request %d could not be sent: %s", name, order.request_id, error)
            failed = ev.ProfileFailedEvent(
                unix_s=self._now_s(),
                cause_id=order.cause_id,
                request_id=order.request_id,
                reason=f"the request could not be sent: {error!s:.{_REASON_MAX}}",
            )
            self.perform(self._runs.feed(name, failed))

    async def _request_stacks(self, name: str, order: ev.RequestStacks) -> None:
        """Publish a request for stacks, the leader's alone. One that is lost is made up for by the next."""
        run = self._runs.by_name.get(name)
        if run is None or not self._leadership.leads:
            return
        try:
            for node, ranks in _by_node(run, order.ranks).items():
                await self._bus.publish_request(
                    StackRequest(
                        run=name, node=node, request_id=order.request_id, ranks=ranks, term=self._leadership.term
                    )
                )
        except BrokerError as error:
            _log.warning("run %s: request %d for stacks could not be sent: %s", name, order.request_id, error)

    async def _diagnose(self, name: str, order: ev.Diagnose) -> None:
        work = asyncio.ensure_future(
            asyncio.to_thread(
                explain,
                cause=order.cause,
                scope=order.scope,
                suspects=order.suspects,
                peers=order.peers,
                step_seconds=order.step_seconds,
                excess_seconds=order.excess_seconds,
            )
        )
        await asyncio.wait((work,))
        # Summaries come from outside: whatever goes wrong with one must not take the other runs' judge with it.
        error = work.exception()
        if error is not None:
            expected = isinstance(error, LockstepError)
            _log.error("diagnosis of %s failed: %r", order.incident_id, error, exc_info=None if expected else error)
        result = None if error is not None else work.result()
        failure = () if error is None else (f"the diagnosis failed: {error!s:.{_REASON_MAX}}",)
        event = _diagnosed(order, result, failure, self._now_s())
        self.perform(self._runs.feed(name, event))

    async def _fit(self, name: str, order: ev.FitModel) -> None:
        async with self._simulating:
            given = (order.spec, order.window, order.operators)
            model, reason = await self._computed(fit_model, *given, what=f"model of run {name}")
        if model is not None:
            _log.info(
                "run %s: expects steps of %.4g s +- %.0f %%",
                name,
                model.expected_step_seconds,
                100 * model.error_band_ratio,
            )
            try:
                kept = KeptWindow(digest=order.spec.digest, window=order.window, operators=order.operators)
                await asyncio.to_thread(self._store.keep_window, name, kept)
            except sqlite3.Error as error:
                _log.warning("state store: %s; the healthy window of run %s is not kept", error, name)
        fitted = ev.FittedEvent(
            unix_s=self._now_s(),
            cause_id=order.cause_id,
            spec=order.spec,
            window=order.window,
            operators=order.operators,
            model=model,
            reason=reason,
        )
        self.perform(self._runs.take_fitted(name, fitted))

    async def _predict(self, name: str, order: ev.Predict) -> None:
        async with self._simulating:
            gain, _ = await self._computed(
                predict_gain, order.model, order.fault, what=f"repair of {order.incident_id}"
            )
        if gain is not None:
            prediction = Prediction(
                gain_ratio=gain.gain_ratio,
                faulty_step_seconds=gain.faulty_step_seconds,
                repaired_step_seconds=gain.repaired_step_seconds,
                error_band_ratio=gain.error_band_ratio,
            )
            self._tell_gain(name, order, prediction)

    def _tell_gain(self, name: str, order: ev.Predict | ev.TellGain, prediction: Prediction) -> None:
        event = ev.PredictedEvent(
            unix_s=self._now_s(),
            cause_id=order.cause_id,
            incident_id=order.incident_id,
            prediction=prediction,
        )
        self.perform(self._runs.feed(name, event))

    async def _computed(self, function: Callable[..., _T], *given: object, what: str) -> tuple[_T | None, str]:
        """Return what `function` makes of `given` on a thread, or None and why: specifications come from outside."""
        work = asyncio.ensure_future(asyncio.to_thread(function, *given))
        await asyncio.wait((work,))
        error = work.exception()
        if error is None:
            return work.result(), ""
        expected = isinstance(error, LockstepError)
        _log.log(
            logging.WARNING if expected else logging.ERROR, "%s: %s", what, error, exc_info=None if expected else error
        )
        return None, f"{error!s:.{_REASON_LONG_MAX}}"


def _by_node(run: "Run", ranks: tuple[int, ...]) -> dict[str, list[int]]:
    nodes: dict[str, list[int]] = {}
    for rank in ranks:
        node = run.membership.nodes.get(rank)
        if node is not None:  # else its node is still to announce it, after a restart of ours: the capture expires
            nodes.setdefault(node, []).append(rank)
    return nodes


def _diagnosed(
    order: ev.Diagnose, result: Diagnosis | None, failure: tuple[str, ...], now_s: float
) -> ev.DiagnosedEvent:
    named = result is not None and result.function != INSUFFICIENT
    advice = (
        AdviceItem(
            suggestion=item.suggestion,
            how=item.how,
            predicted_gain_ratio=item.predicted_gain_ratio,
            source=item.source,
        )
        for item in (result.advice if result else ())
    )
    return ev.DiagnosedEvent(
        unix_s=now_s,
        cause_id=order.cause_id,
        incident_id=order.incident_id,
        request_id=order.request_id,
        asked=result if not order.incident_id else None,
        function=result.function if result and named else "",
        operator=result.operator if result and named else "",
        evidence=(*failure, *(result.evidence if result else ())),
        advice=within_loss(advice, excess_seconds=order.excess_seconds, step_seconds=order.step_seconds),
        confidence=result.confidence if result else "",
        root_cause=result.root_cause if result else "",
        bottleneck=result.bottleneck if result else "",
    )
