"""The incident: what an operator sees of a problem of a run. A value; `state.py` creates and changes it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from coordinator.decide.machine_evidence import MachineEvidence, machine_evidence_from_json
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.finding import Advice

OPEN = "open"
CLOSED = "closed"
BY_MODEL, BY_BREAKDOWN, BY_RECORDS = "model", "breakdown", "records"
"""Source of a predicted gain: the run's model, the advice made from a capture, or the step records alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureNote:
    """The capture made for an incident; `cost_seconds` is training thread time, summed over its ranks."""

    request_id: int
    ranks: tuple[int, ...]
    first_step: int
    steps: int
    cost_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predicted gain from a repair, as a share of the step, and the step times before and after.

    `error_band_ratio` applies to both step times; it is None for a prediction from records.
    """

    gain_ratio: float
    faulty_step_seconds: float
    repaired_step_seconds: float
    error_band_ratio: float | None
    source: str = BY_MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """All that is known about an incident.

    `slowdown_ratio` is own work over the peers' minus 1 (for a run: step over its baseline minus 1).
    `lost_device_seconds` grows while it is open: by how much a step would be shorter without it, times the ranks of the
    job. `function` and `operator` are empty until a profile names them. `onset_step` is where it began and
    `detected_step` where it was found: steps of this attempt, None if no step is known. `stacks` is set for a hang: the
    merged stacks of its ranks' training threads as lines of text. `explanation` is the data behind the decision
    (`explain.py`), empty until it is written. `part` is that of `Anomaly`. `machine` is what other exporters' series
    show of its machines, None until they were read. `history` has a line for each of its machines that
    earlier incidents named.
    """

    id: str
    run: str
    kind: str
    cause: str
    scope: str
    ranks: tuple[int, ...]
    domain: tuple[str, str] | None
    onset_step: int | None
    detected_step: int | None
    opened_unix_ns: int
    slowdown_ratio: float
    excess_seconds: float
    evidence: tuple[str, ...]
    numbers: dict[str, float]
    lost_device_seconds: float = 0.0
    closed_step: int | None = None
    closed_unix_ns: int | None = None
    function: str = ""
    operator: str = ""
    root_cause: str = ""
    bottleneck: str = ""
    advice: tuple[Advice, ...] = ()
    confidence: str = ""
    part: str = ""
    diagnosed: bool = False
    profile_evidence: tuple[str, ...] = ()
    state: str = OPEN
    profile: CaptureNote | None = field(default=None)
    explanation: dict[str, Any] = field(default_factory=dict)
    prediction: Prediction | None = None
    stacks: tuple[str, ...] = ()
    machine: MachineEvidence | None = None
    history: tuple[str, ...] = ()

    @property
    def predicted_gain(self) -> tuple[float, str] | None:
        """Share of the step that a repair would gain, and the source of the prediction; None if unknown.

        The model takes precedence over the advice's breakdown of a capture, because it knows the dependencies. So do
        records, because they cover all ranks and all steps.
        """
        if self.prediction is not None:
            return self.prediction.gain_ratio, self.prediction.source
        best = max((item.predicted_gain_ratio or 0.0 for item in self.advice), default=0.0)
        return (best, BY_BREAKDOWN) if best > 0 else None


def to_json(incident: Incident) -> dict[str, Any]:
    """Return the JSON form that the API returns and the store keeps."""
    value = asdict(incident)
    value["ranks"] = list(incident.ranks)
    value["stacks"] = list(incident.stacks)
    value["history"] = list(incident.history)
    value["domain"] = None if incident.domain is None else {"kind": incident.domain[0], "id": incident.domain[1]}
    value["evidence"] = [*incident.evidence, *incident.profile_evidence]
    value["measured_evidence_count"] = len(incident.evidence)
    del value["profile_evidence"]
    value["advice"] = [asdict(item) for item in incident.advice]
    gain = incident.predicted_gain
    value["predicted_gain"] = None if gain is None else {"ratio": gain[0], "source": gain[1]}
    if incident.profile is not None:
        value["profile"]["ranks"] = list(incident.profile.ranks)
    return value


def to_brief_json(incident: Incident) -> dict[str, Any]:
    """Return the JSON form without the explanation: a thousand explanations take megabytes."""
    value = to_json(incident)
    del value["explanation"]
    return value


def from_json(value: Mapping[str, Any], *, where: str) -> Incident:
    """Return the incident of a JSON form.

    Raises
    ------
    MalformedError
        This version did not write it.
    """
    try:
        known = {item.name: value[item.name] for item in fields(Incident) if item.name in value}
        domain, profile, prediction = value["domain"], value["profile"], value.get("prediction")
        machine = value.get("machine")
        measured = value["measured_evidence_count"]
        known |= {
            "ranks": tuple(value["ranks"]),
            "stacks": tuple(value.get("stacks", ())),
            "history": tuple(value.get("history", ())),
            "domain": None if domain is None else (domain["kind"], domain["id"]),
            "evidence": tuple(value["evidence"][:measured]),
            "profile_evidence": tuple(value["evidence"][measured:]),
            "advice": tuple(Advice(**item) for item in value["advice"]),
            "prediction": None if prediction is None else Prediction(**prediction),
            "machine": None if machine is None else machine_evidence_from_json(machine),
            "profile": None if profile is None else CaptureNote(**{**profile, "ranks": tuple(profile["ranks"])}),
        }
        return Incident(**known)
    except (KeyError, TypeError) as error:
        raise MalformedError("incident", where=where, got=repr(error), expected="the fields of an incident") from error
