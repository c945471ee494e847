"""Executes instructions as named tasks, and feeds their results back as events. The only module that does so."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from coordinator.decide import events as ev
from coordinator.decide.incidents import Prediction
from coordinator.expected.advice_gains import within_loss
from coordinator.expected.healthy import KeptWindow
from coordinator.expected.model_fit import fit_model, predict_gain
from coordinator.run_isolation import HANDLE
from lockstep.contracts.errors import LockstepError
from lockstep.contracts.messages import StackRequest
from lockstep.diagnosis.explain import explain
from lockstep.diagnosis.verdict import INSUFFICIENT, Diagnosis
from lockstep.serving.fault_isolation import FaultIsolation
from lockstep.serving.messaging import BrokerError

if TYPE_CHECKING:
    from coordinator.bus import Bus
    from coordinator.leadership import Leadership
    from coordinator.runs import Orders, Run, Runs
    from coordinator.state_writer import StateWriter

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Order = TypeVar("_Order")

_COMPUTED = "computed"
"""Kind of isolated work: a diagnosis, a model or its forecast. Each is started once; none is ever quarantined."""
_REASON_MAX = 200  # characters of an error in an incident's evidence
_REASON_LONG_MAX = 500  # characters of the reason why there is no model: names file, field, got and expected


class Spawn(Protocol):
    """Starts a named task that the runtime owns."""

    def __call__(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start `work`; it runs until done or until the runtime ends."""


class Effects:
    """Executes the instructions of the state machines; `writer` stores the state that must outlive the process.

    `now_s` is the wall clock; results are fed back on the event loop. `isolation` counts the diagnoses and models that
    failed because of a bug of ours.
    """

    def __init__(
        self,
        runs: "Runs",
        bus: "Bus",
        writer: "StateWriter",
        spawn: Spawn,
        now_s: Callable[[], float],
        *,
        leadership: "Leadership",
    ) -> None:
        self.writer = writer
        self._runs = runs
        self._bus = bus
        self._spawn = spawn
        self._now_s = now_s
        self._leadership = leadership
        self.isolation = FaultIsolation((_COMPUTED,), failures_max=sys.maxsize)
        self._simulating = asyncio.Lock()  # simulations are CPU-bound: two at once would take twice as long each

    def _start(
        self, name: str, work: Callable[[str, _Order], Coroutine[Any, Any, None]], order: _Order, task_name: str
    ) -> None:
        """Start a task of a run; an exception ends that task only, and is counted as a fault of the run."""

        async def isolated() -> None:
            with self._runs.isolation.guard(HANDLE, name, self._now_s()):
                await work(name, order)

        self._spawn(isolated(), task_name)

    def perform(self, orders: "Orders") -> None:
        """Start all instructions in order, without waiting for them."""
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
                self.writer.keep(name, incident)
            case ev.RequestCapture():
                self.writer.keep(name, None)
                self._start(name, self._request, instruction, f"request {instruction.request.request_id}")
            case ev.Diagnose():
                about = instruction.incident_id or f"request {instruction.request_id}"
                self._start(name, self._diagnose, instruction, f"diagnosis of {about}")
            case ev.FitModel():
                self._start(name, self._fit, instruction, f"fit of {name}")
            case ev.Predict():
                self._start(name, self._predict, instruction, f"prediction of {instruction.incident_id}")
            case ev.PredictGain():
                self._predict_gain(name, instruction, instruction.prediction)
            case ev.ForgetRun():
                self._runs.forget(name)
                self.writer.forget(name)
            case ev.DropSavedRun():
                self.writer.drop(name)
            case _:
                self._perform_other(name, instruction)

    def _perform_other(self, name: str, instruction: ev.Instruction) -> None:
        if isinstance(instruction, ev.WithdrawCapture):
            self._start(name, self._withdraw, instruction, f"withdrawal of request {instruction.request.request_id}")
            return
        if isinstance(instruction, ev.RequestStacks):
            self._start(name, self._request_stacks, instruction, f"stacks, request {instruction.request_id}")
            return
        assert isinstance(instruction, ev.RefuseCapture)  # the caller that requested it reads it from the orders

    def take_over(self) -> None:
        """Repeat the capture requests that the former leader may not have sent.

        Nodes ignore a request they already have.
        """
        for name, run in self._runs.by_name.items():
            capture = run.machine.captures.current
            if capture is not None and not capture.states and not capture.refused:
                order = ev.RequestCapture(
                    cause_id=f"term:{self._leadership.term}",
                    request=capture.request(self._now_s()),
                    is_asked=not capture.incident_id,
                )
                self._start(name, self._request, order, f"request {capture.request_id}")

    async def _request(self, name: str, order: ev.RequestCapture) -> None:
        """Publish a capture request.

        Only the leader requests captures for incidents; the results reach all coordinators.
        """
        try:
            await self._publish(name, order)
        except BrokerError as error:
            _log.warning("run %s: request %d could not be sent: %s", name, order.request.request_id, error)
            failed = ev.CaptureFailedEvent(
                unix_s=self._now_s(),
                cause_id=order.cause_id,
                request_id=order.request.request_id,
                reason=f"the request could not be sent: {error!s:.{_REASON_MAX}}",
            )
            self.perform(self._runs.feed(name, failed))

    async def _withdraw(self, name: str, order: ev.WithdrawCapture) -> None:
        """Publish the withdrawal of a capture. If it is lost, the deadline of the request still ends the capture."""
        try:
            await self._publish(name, order)
        except BrokerError as error:
            _log.warning("run %s: request %d could not be withdrawn: %s", name, order.request.request_id, error)

    async def _publish(self, name: str, order: ev.RequestCapture | ev.WithdrawCapture) -> None:
        run = self._runs.by_name.get(name)
        if run is None or not (self._leadership.leads or order.is_asked):
            return
        for node, ranks in _by_node(run, order.request.ranks).items():
            request = replace(order.request, run=name, node=node, ranks=ranks, term=self._leadership.term)
            await self._bus.publish_request(request)

    async def _request_stacks(self, name: str, order: ev.RequestStacks) -> None:
        """Publish a request for stacks, if this coordinator leads. If it is lost, the next request replaces it."""
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
        result, reason = await self._computed(
            partial(
                explain,
                cause=order.cause,
                scope=order.scope,
                suspects=order.suspects,
                peers=order.peers,
                step_seconds=order.step_seconds,
                excess_seconds=order.excess_seconds,
            ),
            what=f"diagnosis of {order.incident_id or order.request_id}",
        )
        failure = (f"the diagnosis failed: {reason:.{_REASON_MAX}}",) if reason else ()
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
            kept = KeptWindow(digest=order.spec.digest, window=order.window, operators=order.operators)
            await self.writer.keep_window(name, kept)
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
            self._predict_gain(name, order, prediction)

    def _predict_gain(self, name: str, order: ev.Predict | ev.PredictGain, prediction: Prediction) -> None:
        event = ev.PredictedEvent(
            unix_s=self._now_s(),
            cause_id=order.cause_id,
            incident_id=order.incident_id,
            prediction=prediction,
        )
        self.perform(self._runs.feed(name, event))

    async def _computed(self, function: Callable[..., _T], *given: object, what: str) -> tuple[_T | None, str]:
        """Run `function` with `given` on a thread; return its result and "", or None and the reason of its failure.

        Specifications and summaries are external input: a failure must not stop the monitoring of the runs.
        """
        work = asyncio.ensure_future(asyncio.to_thread(function, *given))
        await asyncio.wait((work,))
        error = work.exception()
        if error is None:
            return work.result(), ""
        if isinstance(error, LockstepError) or not isinstance(error, Exception):
            _log.warning("%s: %s", what, error)
        else:
            self.isolation.fail(_COMPUTED, what, self._now_s(), error)
        return None, f"{str(error) or type(error).__name__:.{_REASON_LONG_MAX}}"


def _by_node(run: "Run", ranks: Sequence[int]) -> dict[str, list[int]]:
    nodes: dict[str, list[int]] = {}
    for rank in ranks:
        node = run.membership.nodes.get(rank)
        if node is not None:  # otherwise not announced again yet after our restart: the capture expires
            nodes.setdefault(node, []).append(rank)
    return nodes


def _diagnosed(
    order: ev.Diagnose, result: Diagnosis | None, failure: tuple[str, ...], now_s: float
) -> ev.DiagnosedEvent:
    named = result is not None and result.function != INSUFFICIENT
    advice = result.advice if result else ()
    return ev.DiagnosedEvent(
        unix_s=now_s,
        cause_id=order.cause_id,
        incident_id=order.incident_id,
        request_id=order.request_id,
        diagnosis_id=order.diagnosis_id,
        asked=result if not order.incident_id else None,
        function=result.function if result and named else "",
        operator=result.operator if result and named else "",
        evidence=(*failure, *(result.evidence if result else ())),
        advice=within_loss(advice, excess_seconds=order.excess_seconds, step_seconds=order.step_seconds),
        confidence=result.confidence if result else "",
        root_cause=result.root_cause if result else "",
        bottleneck=result.bottleneck if result else "",
    )
