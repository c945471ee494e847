"""What one run's model expects of it, and when the model is asked.

Pure: steps and what came of a fit in, instructions out; whoever performs them simulates off the event loop. A model is
fitted once, as soon as there is a healthy window of steps, and again when the run's layout or specification changes;
a restart of the run keeps it, for a job that begins with a fault must not teach what is expected. Without a
specification, a healthy window or a fit there is no number, but a state and its reason.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import TYPE_CHECKING, Any

from coordinator.decide import events as ev
from coordinator.detect.findings import SLOW_LINK, SLOW_RANK
from coordinator.expected.healthy import WINDOW_STEPS, HealthySteps, KeptWindow
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.metrics import EXPECTED_STATES
from lockstep.simulator.repair import LINK, RANK, Fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.decide.incidents import Incident
    from coordinator.detect.findings import Judgement
    from coordinator.intake.timeline import StepRow
    from coordinator.settings.specs import SpecText
    from lockstep.contracts.domains import Topology
    from lockstep.simulator.measured import Window
    from lockstep.simulator.online import OnlineModel

UNSPECIFIED, WAITING, FITTING, KNOWN, REFUSED = EXPECTED_STATES
_NEWS_RATIO = 0.1  # by which what an incident costs must have moved for its repair to be predicted again
_EVERY_STEPS = 8  # judged steps between two predictions of one incident
_SIZES = 16  # judged steps whose median is what an incident costs: single ones are noise


@dataclass(slots=True)
class _Watched:
    """An incident whose repair is predicted: how large it was lately, and when last asked."""

    sizes: deque[float] = field(default_factory=lambda: deque(maxlen=_SIZES))
    asked: Fault | None = None
    since: int = 0

    def look(self, fault: Fault) -> Fault | None:
        """Take the fault of a step; return it with its usual size if it is to be predicted now."""
        self.since += 1
        if self.asked is not None and _without_size(self.asked) != _without_size(fault):
            self.asked = None
            self.sizes.clear()
        self.sizes.append(_size(fault))
        usual = median_low(self.sizes)
        if self.asked is not None:
            is_news = abs(usual - _size(self.asked)) > _NEWS_RATIO * _size(self.asked)
            if self.since < _EVERY_STEPS or not is_news:
                return None
        is_rank = fault.kind == RANK
        self.asked = replace(fault, excess_seconds=usual) if is_rank else replace(fault, slowdown_ratio=usual)
        self.since = 0
        return self.asked


def _size(fault: Fault) -> float:
    return fault.excess_seconds if fault.kind == RANK else fault.slowdown_ratio


def _without_size(fault: Fault) -> Fault:
    return replace(fault, excess_seconds=0.0, slowdown_ratio=0.0)


class Expectation:
    """Of one run. `state` is one of EXPECTED_STATES, `reason` why there is no number, `model` the fitted one.

    Invariants: `model` is set exactly in state KNOWN; a fit is under way exactly in state FITTING.
    """

    def __init__(self, spec: "SpecText | None" = None, kept: KeptWindow | None = None) -> None:
        self.spec: SpecText | None = None
        self.model: OnlineModel | None = None
        self._kept = kept
        self._window: Window | None
        self._steps: HealthySteps | None = None
        self._shape: tuple[Topology, int] | None = None
        self._sizes: dict[str, int] = {}
        self._watched: dict[str, _Watched] = {}
        self._begin_anew(spec)

    def adopt(self, spec: "SpecText | None") -> None:
        """Take what the run is said to be from now on; the same as before changes nothing."""
        if spec != self.spec:
            self._begin_anew(spec)

    def _begin_anew(self, spec: "SpecText | None") -> None:
        self.spec, self.model, self._steps, self._window = spec, None, None, None
        self._watched = {}
        if spec is None:
            self.state, self.reason = UNSPECIFIED, "no specification of the job"
        else:
            self.state, self.reason = WAITING, f"fewer than {WINDOW_STEPS} healthy steps seen"

    def see(self, row: "StepRow", judgement: "Judgement", topology: "Topology", cause_id: str) -> list[ev.Instruction]:
        """Take a judged step; return the fit to be made, if one is due."""
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
            return self._fit(kept.window, cause_id)
        return self._gather(row, judgement, topology, cause_id)

    def _follow(self, topology: "Topology") -> None:
        """Begin anew where the run has another size or other degrees; kinds that nobody announces do not tell."""
        sizes = {"": topology.world_size}
        for domain in topology.domains:
            sizes[domain.kind] = max(sizes.get(domain.kind, 0), len(domain.ranks))
        if any(self._sizes.get(kind, size) != size for kind, size in sizes.items()):
            self._begin_anew(self.spec)
            self._sizes = {}
        self._sizes |= sizes

    def _gather(
        self, row: "StepRow", judgement: "Judgement", topology: "Topology", cause_id: str
    ) -> list[ev.Instruction]:
        if not _is_healthy(judgement, topology):
            return []
        if self._steps is None:
            self._steps = HealthySteps(topology, row.ranks)
        self._steps.add(row, judgement.step_seconds)
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
        assert self.spec is not None
        self.state, self.reason = FITTING, "the model is being fitted"
        self._steps, self._window = None, window
        return [ev.FitModel(cause_id=cause_id, spec=self.spec, window=window)]

    def begin_attempt(self) -> None:
        """Follow another attempt of the run: what was fitted stays, a window that was gathering does not."""
        self._steps = None

    def take(self, fitted: ev.FittedEvent) -> bool:
        """Take what came of a fit; return whether it is this run's present one, and has given a model."""
        if self.state != FITTING or fitted.spec != self.spec or fitted.window is not self._window:
            return False  # the run's size or what it is said to be has changed meanwhile
        self._window = None
        if fitted.model is None:
            self.state, self.reason = REFUSED, fitted.reason
            return False
        self.state, self.reason, self.model = KNOWN, "", fitted.model
        return True

    def repairs(self, incidents: "Sequence[Incident]", cause_id: str) -> list[ev.Instruction]:
        """Return the predictions to be made for what holds the run back now; to be asked after each judged step.

        An incident is asked about when it opens, when it becomes another one, and when what it costs has moved.
        """
        if self.model is None:
            return []
        faults = {incident.id: fault for incident in incidents if (fault := fault_of(incident)) is not None}
        self._watched = {incident_id: self._watched.get(incident_id, _Watched()) for incident_id in faults}
        due = [(incident_id, self._watched[incident_id].look(fault)) for incident_id, fault in faults.items()]
        return [
            ev.Predict(cause_id=cause_id, incident_id=incident_id, fault=fault, model=self.model)
            for incident_id, fault in due
            if fault is not None
        ]

    def to_json(self, measured_seconds: float | None) -> dict[str, Any]:
        """Return what is expected, beside what was measured lately; None for what is not known."""
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
            "parameters": dict(model.parameters) if model else {},
        }


def fault_of(incident: "Incident") -> Fault | None:
    """Return what a model can mend of an incident: its slow ranks, or its slow links; None where it is neither."""
    if incident.kind == SLOW_RANK and incident.ranks:
        return Fault(kind=RANK, ranks=incident.ranks, excess_seconds=incident.excess_seconds)
    if incident.kind == SLOW_LINK and incident.scope in ("group", "node") and incident.ranks:
        return Fault(
            kind=LINK,
            ranks=incident.ranks,
            slowdown_ratio=incident.slowdown_ratio,
            is_uplink=incident.scope == "node",
        )
    return None


def _is_healthy(judgement: "Judgement", topology: "Topology") -> bool:
    """Whether a step shows the run as it should be: judged, whole, and with nothing found."""
    return (
        judgement.is_warm
        and not judgement.is_disturbed
        and not judgement.fluctuating
        and not judgement.findings
        and judgement.ranks_reporting == topology.world_size
    )
