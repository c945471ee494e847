"""Manages the model of one run: when it is fitted, and when it predicts.

Pure: steps and results of fits in, instructions out; their executor simulates off the event loop. A model is fitted as
soon as there is a healthy window of steps, and again when the run's layout or specification changes. It is fitted to
the same window once more when a capture of healthy ranks provides their operator times. A restart of the run keeps the
model, so that a job that begins with a fault does not redefine the expectation. Without a specification, a healthy
window or a successful fit there is no number, but a state and its reason.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import TYPE_CHECKING, Any

from coordinator.decide import events as ev
from coordinator.detect.anomalies import FLUCTUATION, SLOW_LINK, SLOW_RANK
from coordinator.expected.healthy import WINDOW_STEPS, HealthySteps, KeptWindow
from coordinator.expected.predicted_gain import loss_of
from coordinator.intake.views import OFF_CPU
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.metrics import EXPECTED_STATES
from lockstep.simulator.calibration.repair import COMPUTING, FLOOR, LINK, RANK, MeasuredFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.decide.incidents import Incident
    from coordinator.detect.anomalies import StepResult
    from coordinator.intake.timeline import StepRow
    from coordinator.settings.specs import SpecText
    from lockstep.contracts.domains import Topology
    from lockstep.simulator.calibration.measured import OperatorTimes, Window
    from lockstep.simulator.calibration.online import OnlineModel

UNSPECIFIED, WAITING, FITTING, KNOWN, REFUSED = EXPECTED_STATES
_NEWS_RATIO = 0.1  # relative change of an incident's cost after which its repair is predicted again
_EVERY_STEPS = 8  # least evaluated steps between two predictions for one incident
_OF_ALL = {"compute": COMPUTING, "data": FLOOR, "host": FLOOR, "gc": FLOOR, OFF_CPU: FLOOR}
_SIZES = 16  # evaluated steps over which the median is the cost of an incident: single steps are noisy


@dataclass(slots=True)
class _Watched:
    """An incident whose repair is predicted: its recent sizes, and the fault and size of the last prediction."""

    sizes: deque[float] = field(default_factory=lambda: deque(maxlen=_SIZES))
    asked: tuple[object, float] | None = None
    since: int = 0

    def add_size(self, fault: object, size: float) -> float | None:
        """Add the size of the fault in a step; return its median size if the repair must be predicted now."""
        self.since += 1
        if self.asked is not None and self.asked[0] != fault:
            self.asked = None
            self.sizes.clear()
        self.sizes.append(size)
        usual = median_low(self.sizes)
        if self.asked is not None:
            is_news = abs(usual - self.asked[1]) > _NEWS_RATIO * self.asked[1]
            if self.since < _EVERY_STEPS or not is_news:
                return None
        self.asked = (fault, usual)
        self.since = 0
        return usual


class Expectation:
    """The expectation of one run. `state` is one of EXPECTED_STATES; `reason` states why there is no model.

    Invariants: `model` is set exactly in state KNOWN; the first fit is under way exactly in state FITTING.
    """

    def __init__(self, spec: "SpecText | None" = None, kept: KeptWindow | None = None) -> None:
        self.spec: SpecText | None = None
        self.model: OnlineModel | None = None
        self._kept = kept
        self._window: Window | None
        self._operators: OperatorTimes | None = None
        self._tried: OperatorTimes | None = None
        """The `_operators` that the last fit used."""
        self._steps: HealthySteps | None = None
        self._shape: tuple[Topology, int] | None = None
        self._sizes: dict[str, int] = {}
        self._watched: dict[str, _Watched] = {}
        self._restart(spec)

    def adopt(self, spec: "SpecText | None") -> None:
        """Use this specification from now on; an unchanged one has no effect."""
        if spec != self.spec:
            self._restart(spec)

    def _restart(self, spec: "SpecText | None") -> None:
        self.spec, self.model, self._steps, self._window = spec, None, None, None
        self._watched = {}
        if spec is None:
            self.state, self.reason = UNSPECIFIED, "no specification of the job"
        else:
            self.state, self.reason = WAITING, f"fewer than {WINDOW_STEPS} healthy steps seen"

    def see(
        self, row: "StepRow", step_result: "StepResult", topology: "Topology", cause_id: str
    ) -> list[ev.Instruction]:
        """Apply an evaluated step; return the fit to start, if one is due."""
        if self.spec is None:
            return []
        shape = (topology, len(row.ranks))
        if shape != self._shape:
            self._shape, self._steps = shape, None
            self._follow(topology)
        if self.state != WAITING:
            return []
        kept, self._kept = self._kept, None
        if kept is not None and kept.digest == self.spec.digest and kept.window.world_size == topology.world_size:
            self._operators = self._operators or kept.operators
            return self._fit(kept.window, cause_id)
        return self._gather(row, step_result, topology, cause_id)

    def _follow(self, topology: "Topology") -> None:
        """Start over if the run's size or degrees changed; kinds that are not announced do not count."""
        sizes = {"": topology.world_size}
        for domain in topology.domains:
            sizes[domain.kind] = max(sizes.get(domain.kind, 0), len(domain.ranks))
        if any(self._sizes.get(kind, size) != size for kind, size in sizes.items()):
            self._restart(self.spec)
            self._sizes, self._operators = {}, None
        self._sizes |= sizes

    def _gather(
        self, row: "StepRow", step_result: "StepResult", topology: "Topology", cause_id: str
    ) -> list[ev.Instruction]:
        if not _is_healthy(step_result, topology):
            return []
        if self._steps is None:
            self._steps = HealthySteps(topology, row.ranks)
        self._steps.add(row, step_result.step_seconds)
        if not self._steps.is_full:
            return []
        window = self._steps.window()
        try:
            window.check()
        except ConfigError as error:
            self.reason = str(error)
            self._steps.forget_half()
            return []
        return self._fit(window, cause_id)

    def _fit(self, window: "Window", cause_id: str) -> list[ev.Instruction]:
        self.state, self.reason = FITTING, "the model is being fitted"
        self._steps, self._window = None, window
        return [self._order(window, cause_id)]

    def _order(self, window: "Window", cause_id: str) -> ev.FitModel:
        assert self.spec is not None
        self._tried = self._operators
        return ev.FitModel(cause_id=cause_id, spec=self.spec, window=window, operators=self._operators)

    def add_operators(self, operators: "OperatorTimes") -> None:
        """Set the operator times of captured healthy ranks; like the window, the first ones are kept."""
        if self.spec is not None:  # without a specification, changes of the run's shape are not tracked
            self._operators = self._operators or operators

    def refit(self, cause_id: str) -> list[ev.Instruction]:
        """Return the fit to the same window with operator times that arrived later.

        The model stays in use meanwhile.
        """
        if self.state != KNOWN or self._window is None or self._operators is self._tried:
            return []
        return [self._order(self._window, cause_id)]

    def begin_attempt(self) -> None:
        """Follow another attempt of the run: the fitted model stays, an incomplete window is dropped."""
        self._steps = None

    def take(self, fitted: ev.FittedEvent) -> bool:
        """Apply the result of a fit; return whether it is the current one and produced a model."""
        is_ours = fitted.spec == self.spec and fitted.window is self._window and fitted.operators is self._tried
        if self.state not in (FITTING, KNOWN) or not is_ours:
            return False  # the run's size or its specification has changed meanwhile
        if fitted.model is None:
            if self.state == FITTING:
                self.state, self.reason, self._window = REFUSED, fitted.reason, None
            return False
        self.state, self.reason, self.model = KNOWN, "", fitted.model
        for watched in self._watched.values():
            watched.asked = None  # the new model may predict differently
        return True

    def repairs(
        self, incidents: "Sequence[Incident]", cause_id: str, baseline_seconds: float | None = None
    ) -> list[ev.Instruction]:
        """Return the predictions due for active incidents; call it after each evaluated step.

        A prediction is due when an incident opens, when its fault changes, and when its cost changes. If the model does
        not cover an incident, the records may; `baseline_seconds` is a step by the run's history.
        """
        self._watched = {each.id: self._watched.get(each.id, _Watched()) for each in incidents}
        due: list[ev.Instruction] = []
        for incident in incidents:
            fault = None if self.model is None else fault_of(incident)
            watched = self._watched[incident.id]
            if self.model is not None and fault is not None:
                usual = watched.add_size(_without_size(fault), _size(fault))
                if usual is not None:
                    sized = _with_size(fault, usual)
                    order = ev.Predict(cause_id=cause_id, incident_id=incident.id, fault=sized, model=self.model)
                    due.append(order)
            elif (loss := loss_of(incident, baseline_seconds)) is not None:
                usual = watched.add_size(incident.cause, loss.lost_seconds)
                if usual is not None:
                    gain = loss.prediction(usual)
                    due.append(ev.PredictGain(cause_id=cause_id, incident_id=incident.id, prediction=gain))
        return due

    def to_json(self, measured_seconds: float | None) -> dict[str, Any]:
        """Return the expected and the recently measured step time in JSON form; None for unknown values."""
        model = self.model
        expected_s = model.expected_step_seconds if model else None
        known = measured_seconds is not None and expected_s is not None
        return {
            "state": self.state,
            "reason": self.reason,
            "specification": self.spec.source if self.spec else None,
            "step_seconds": expected_s,
            "error_band_ratio": model.error_band_ratio if model else None,
            "measured_step_seconds": measured_seconds,
            "measured_over_expected_ratio": measured_seconds / expected_s if known else None,  # type: ignore[operator]
            "floor_seconds": model.floor_seconds if model else None,
            "spread_seconds": model.spread_seconds if model else None,
            "unexplained_ratio": model.unexplained_ratio if model else None,
            "fitted_steps": model.steps if model else None,
            "captured_ranks": list(model.captured_ranks) if model else [],
            "calibration": model.calibration if model else {},
        }


def fault_of(incident: "Incident") -> MeasuredFault | None:
    """Return the fault whose repair a model can simulate: slow ranks, slow links, or longer work of all ranks.

    None for other incidents: for a whole network, waits alone do not identify a link.
    """
    if incident.kind == SLOW_RANK and incident.ranks:
        return MeasuredFault(kind=RANK, ranks=incident.ranks, excess_seconds=incident.excess_seconds)
    if incident.kind == SLOW_LINK and incident.scope in ("group", "node") and incident.ranks:
        return MeasuredFault(
            kind=LINK,
            ranks=incident.ranks,
            slowdown_ratio=incident.slowdown_ratio,
            is_uplink=incident.scope == "node",
        )
    loss = loss_of(incident) if incident.kind == FLUCTUATION else None
    if loss is None or incident.cause not in _OF_ALL:
        return None
    return MeasuredFault(kind=_OF_ALL[incident.cause], excess_seconds=loss.lost_seconds)


def _size(fault: MeasuredFault) -> float:
    return fault.slowdown_ratio if fault.kind == LINK else fault.excess_seconds


def _with_size(fault: MeasuredFault, size: float) -> MeasuredFault:
    return replace(fault, slowdown_ratio=size) if fault.kind == LINK else replace(fault, excess_seconds=size)


def _without_size(fault: MeasuredFault) -> MeasuredFault:
    return replace(fault, excess_seconds=0.0, slowdown_ratio=0.0)


def _is_healthy(step_result: "StepResult", topology: "Topology") -> bool:
    """Whether a step shows a healthy run: warm, undisturbed, complete, and without anomalies."""
    return (
        step_result.is_warm
        and not step_result.is_disturbed
        and not step_result.fluctuating
        and not step_result.anomalies
        and step_result.ranks_reporting == topology.world_size
    )
