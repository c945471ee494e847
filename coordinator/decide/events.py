"""Events and instructions: the inputs and outputs of a run's state machine. Values only.

Every event carries its time (unix seconds; the machine has no clock) and the id of its cause, which every resulting
instruction inherits, so that a cause can be traced from a message to a notification.
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
    """Base class of all events."""

    unix_s: float
    cause_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceEvent(Event):
    """The run's shape was announced: its ranks, their nodes and domains, and whether all ranks have ended well."""

    topology: "Topology"
    ranks: tuple[int, ...]
    is_finished: bool
    nodes: "Mapping[int, str]" = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvaluatedEvent(Event):
    """A step was completed and evaluated."""

    step_result: "StepResult"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartedEvent(Event):
    """The run began another attempt; step indices begin again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickEvent(Event):
    """Time has passed. `is_alive`: nodes still report live processes of the run, whether or not it makes steps."""

    is_alive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedEvent(Event):
    """The processes of the run have ended, not all of them well: by `crash`, or cancelled if that is None.

    `hostname` is where the crashed rank ran, empty if unknown; `ended_ranks` counts the ranks that have ended so far.
    `is_silent`: change the state without opening an incident, because this run or this kind of incident is not
    monitored.
    """

    crash: "Crash | None"
    hostname: str = ""
    ended_ranks: int = 0
    is_silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StallEvent(Event):
    """The run makes no step; `hang` is what is known so far about the ranks that have not arrived, if anything."""

    hang: "Hang | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGrowthEvent(Event):
    """The ranks whose memory grows, as of `step`, by what nodes have reported; empty if none grows any more."""

    anomalies: "tuple[Anomaly, ...]"
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossesEvent(Event):
    """The run is replayed from a log, whose lost records are known in full."""

    losses: "Losses"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChangedEvent(Event):
    """Another policy is in force from now on; learnt state and open incidents stay."""

    policy: "Policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedEvent(Event):
    """The explanation of an incident was written (`explain.py`)."""

    incident_id: str
    explanation: "dict[str, Any]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequestedEvent(Event):
    """An operator requests a capture of `ranks`, all of which exist."""

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
    """A rank reported the state of a capture."""

    answer: "CaptureResult"


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryEvent(Event):
    """The summary of a rank's trace arrived."""

    summary: "TraceSummary"


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksEvent(Event):
    """The stacks of a rank's process arrived, or the reason why there are none."""

    stacks: "RankStacks"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosedEvent(Event):
    """A diagnosis is finished; `function` is empty if the evidence does not name one.

    For an operator's capture, `incident_id` is empty and `asked` is the complete diagnosis. `diagnosis_id` is that of
    the instruction (`Diagnose`).
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
    """The gain from repairing an incident was predicted, by the run's model or from its records."""

    incident_id: str
    prediction: "Prediction"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineEvidenceEvent(Event):
    """The series of other exporters were read for the machines of an incident."""

    incident_id: str
    machine: "MachineEvidence"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetHistoryEvent(Event):
    """How often earlier incidents named the machines of this one; one line per machine."""

    incident_id: str
    history: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedEvent(Event):
    """The result of `FitModel`: the model, or the reason why there is none. Not handled by a run's state machine."""

    spec: "SpecText"
    window: "Window"
    model: "OnlineModel | None"
    reason: str = ""
    operators: "OperatorTimes | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """Base class of all instructions."""

    cause_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenIncident(Instruction):
    """Report and store a new incident."""

    incident: "Incident"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateIncident(Instruction):
    """Store a changed incident: an open one, or one that closed before its evidence arrived."""

    incident: "Incident"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseIncident(Instruction):
    """Report and store the end of an incident."""

    incident: "Incident"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCapture(Instruction):
    """Send each node the part of `request` for its ranks; `is_asked`: an operator requested it."""

    request: "CaptureRequest"
    is_asked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawCapture(Instruction):
    """Send each node the withdrawal of a capture that can no longer succeed, or is no longer needed."""

    request: "CaptureRequest"
    is_asked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStacks(Instruction):
    """Request the stacks of the processes of `ranks` from their nodes."""

    request_id: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseCapture(Instruction):
    """Report to the operator why no capture is made."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnose(Instruction):
    """Find the function and the advice for an incident; without summaries, only advice for its cause.

    `incident_id` is empty for an operator's capture. `diagnosis_id` counts the diagnoses of the run.
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
    """Fit the run's model to a healthy window and store the window; `operators` are of healthy ranks, if captured."""

    spec: "SpecText"
    window: "Window"
    operators: "OperatorTimes | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Predict(Instruction):
    """Predict the gain from repairing an incident with the run's model."""

    incident_id: str
    fault: "MeasuredFault"
    model: "OnlineModel"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictGain(Instruction):
    """Pass the gain predicted from records to the run's state machine, as a `PredictedEvent`."""

    incident_id: str
    prediction: "Prediction"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRun(Instruction):
    """Drop a run that ended, or made its last step, long ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSavedRun(Instruction):
    """Delete everything of a run from the store except its incidents."""
