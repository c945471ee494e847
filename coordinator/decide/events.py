"""What a run's state machine takes in and gives out. Values only.

Every event carries the time it happened (unix seconds; the machine has no clock) and the id of what caused it, which
every instruction that follows carries on: one cause can be traced from a message to a page.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.decide.endings import Crash
    from coordinator.decide.incidents import Incident, Prediction
    from coordinator.decide.losses import Losses
    from coordinator.decide.machine_evidence import MachineEvidence
    from coordinator.detect.anomalies import Anomaly, StepResult
    from coordinator.detect.hangs.hang import Hang
    from coordinator.settings.policy import Policy
    from coordinator.settings.specs import SpecText
    from lockstep.contracts.domains import Topology
    from lockstep.contracts.finding import Advice
    from lockstep.contracts.messages import CaptureRequest, CaptureResult, RankStacks, TraceSummary
    from lockstep.diagnosis.verdict import Diagnosis
    from lockstep.simulator.calibration.measured import OperatorTimes, Window
    from lockstep.simulator.calibration.online import OnlineModel
    from lockstep.simulator.calibration.repair import MeasuredFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Parent of all events."""

    unix_s: float
    cause_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceEvent(Event):
    """Which ranks there are, on which nodes, how they communicate, and whether all of them have ended well."""

    topology: "Topology"
    ranks: tuple[int, ...]
    is_finished: bool
    nodes: "Mapping[int, str]" = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvaluatedEvent(Event):
    """A step is complete and evaluated."""

    step_result: "StepResult"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartedEvent(Event):
    """The run began another attempt; step indices begin again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickEvent(Event):
    """Time has passed. `is_alive`: nodes still show processes of the run alive, whether it makes steps or not."""

    is_alive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedEvent(Event):
    """The processes of the run have ended, not all of them well: by `crash`, or cancelled where that is None.

    `hostname` is where the rank that crashed ran, empty where unknown; `ended_ranks` counts those that ended by then.
    Where the run or this kind of incident is not watched, `is_silent`: the state changes, and no incident is opened.
    """

    crash: "Crash | None"
    hostname: str = ""
    ended_ranks: int = 0
    is_silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StallEvent(Event):
    """The run makes no step, and this is known of who has not arrived, if anything; follows from what came before."""

    hang: "Hang | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGrowthEvent(Event):
    """Whose memory grows after `step` of the run, by what nodes have reported; none where it grows no more."""

    anomalies: "tuple[Anomaly, ...]"
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossesEvent(Event):
    """The run is a log, of which the losses are known as a whole."""

    losses: "Losses"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChangedEvent(Event):
    """Other thresholds are in force from now on; what was learnt and opened under the old ones stays."""

    policy: "Policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedEvent(Event):
    """What an incident was decided from (`explain.py`)."""

    incident_id: str
    explanation: "dict[str, Any]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequestedEvent(Event):
    """An operator asks for a capture of `ranks`, which exist."""

    ranks: tuple[int, ...]
    steps: int
    shapes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFailedEvent(Event):
    """A request could not be sent."""

    request_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureResultEvent(Event):
    """What became of a request at a rank."""

    answer: "CaptureResult"


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryEvent(Event):
    """What is left of a rank's trace."""

    summary: "TraceSummary"


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksEvent(Event):
    """The stacks of a rank's process, or why there are none."""

    stacks: "RankStacks"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosedEvent(Event):
    """The diagnosis of an incident; `function` is empty where the evidence does not name one.

    Of a capture that an operator asked for `incident_id` is empty and `asked` the whole answer. `diagnosis_id` is that
    of the order.
    """

    incident_id: str
    request_id: int = 0
    diagnosis_id: int = 0
    asked: "Diagnosis | None" = None
    function: str
    operator: str
    evidence: tuple[str, ...]
    advice: "tuple[Advice, ...]"
    confidence: str
    root_cause: str = ""
    bottleneck: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedEvent(Event):
    """What the repair of an incident would give back, by the run's model or its records."""

    incident_id: str
    prediction: "Prediction"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineEvidenceEvent(Event):
    """What other exporters' series show of the machines of an incident."""

    incident_id: str
    machine: "MachineEvidence"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetHistoryEvent(Event):
    """How often the machines that an incident names were named before, a line each."""

    incident_id: str
    history: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedEvent(Event):
    """What came of `FitModel`: the model, or the reason why there is none. Not for a run's machine."""

    spec: "SpecText"
    window: "Window"
    model: "OnlineModel | None"
    reason: str = ""
    operators: "OperatorTimes | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """Parent of all instructions."""

    cause_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenIncident(Instruction):
    """Report and store a new incident."""

    incident: "Incident"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateIncident(Instruction):
    """Keep what has become of an incident: an open one, or one that closed before its evidence came."""

    incident: "Incident"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseIncident(Instruction):
    """Keep the end of an incident."""

    incident: "Incident"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCapture(Instruction):
    """Send each node its ranks' part of `request`; `is_asked`: for an operator."""

    request: "CaptureRequest"
    is_asked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawCapture(Instruction):
    """Send each node the withdrawal of a capture that cannot come, or that no one wants any more."""

    request: "CaptureRequest"
    is_asked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStacks(Instruction):
    """Ask the nodes of `ranks` for the stacks of their processes."""

    request_id: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseCapture(Instruction):
    """Report to the operator why no capture is made."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnose(Instruction):
    """Find function and advice of an incident; without summaries only advice for its cause.

    `incident_id` is empty for a capture that an operator asked for. `diagnosis_id` counts the orders of the run.
    """

    incident_id: str
    request_id: int
    diagnosis_id: int
    cause: str
    scope: str
    suspects: "tuple[TraceSummary, ...]"
    peers: "tuple[TraceSummary, ...]"
    step_seconds: float
    excess_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FitModel(Instruction):
    """Fit the run's model to a healthy window, and keep the window; `operators` are of healthy ranks, if captured."""

    spec: "SpecText"
    window: "Window"
    operators: "OperatorTimes | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Predict(Instruction):
    """Ask the run's model what the repair of an incident would give back."""

    incident_id: str
    fault: "MeasuredFault"
    model: "OnlineModel"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictGain(Instruction):
    """Give the run's machine what the repair of an incident would give back by the records (`PredictedEvent`)."""

    incident_id: str
    prediction: "Prediction"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRun(Instruction):
    """The run ended long ago, or made no step for as long; drop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSavedRun(Instruction):
    """What the run left behind is dropped; delete it from the store, all but its incidents."""
