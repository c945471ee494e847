"""Whether a capture may be made now, of whom, and what has come back of the one under way.

Pure: part of the run's state machine, changed through it only.
"""

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from coordinator.decide.incidents import ProfileNote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from coordinator.settings.policy import ProfilePolicy
    from lockstep.contracts.messages import ProfileAnswer, TraceSummary
    from lockstep.diagnosis import Diagnosis

_DAY_S = 86_400.0


@dataclass(slots=True, kw_only=True)
class Capture:
    """A request under way.

    `incident_id` is empty for one that an operator asked for; otherwise the first `suspect_count` of `ranks` are
    suspects and the others their healthy peers. `states` are what ranks said of it last, `notes` why a capture came
    out otherwise than asked. `diagnosis` is of one that an operator asked for; an incident keeps its own.
    """

    request_id: int
    incident_id: str
    ranks: tuple[int, ...]
    first_step: int
    steps: int
    asked_s: float
    expires_s: float
    suspect_count: int = 0
    shapes: bool = False
    ended_s: float | None = None
    states: dict[int, str] = field(default_factory=dict)
    diagnosis: "Diagnosis | None" = None
    summaries: "dict[int, TraceSummary]" = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    cost_ns: dict[int, int] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)

    @property
    def suspects(self) -> tuple[int, ...]:
        """The ranks that the capture is about."""
        return self.ranks[: self.suspect_count]

    @property
    def has_suspects(self) -> bool:
        """Whether every suspect has delivered: what is missing then is a comparison."""
        return bool(self.suspects) and all(rank in self.summaries for rank in self.suspects)

    @property
    def is_complete(self) -> bool:
        """Whether every rank has delivered or refused."""
        return all(rank in self.summaries or rank in self.refused for rank in self.ranks)

    @property
    def cost_seconds(self) -> float:
        """Training thread time that the capture has taken so far, over its ranks."""
        return sum(self.cost_ns.values()) / 1e9

    def take_answer(self, answer: "ProfileAnswer") -> None:
        """Take what a rank of this request says."""
        self.states[answer.rank] = answer.state
        self.cost_ns[answer.rank] = answer.cost_ns
        if answer.state == "refused":
            self.refused[answer.rank] = answer.reason or "no reason given"
        elif answer.state == "done" and answer.reason:
            self.notes[answer.rank] = answer.reason

    def take_summary(self, summary: "TraceSummary") -> None:
        """Take a rank's summary; one that carries an error counts as a refusal."""
        if summary.error:
            self.refused[summary.rank] = summary.error
        else:
            self.summaries[summary.rank] = summary

    def trouble(self) -> tuple[str, ...]:
        """Return what did not go as asked, for an incident's evidence."""
        trouble = [f"rank {rank} was not profiled: {reason}" for rank, reason in sorted(self.refused.items())]
        trouble += [f"the capture of rank {rank} is not as asked: {why}" for rank, why in sorted(self.notes.items())]
        if not self.is_complete and not any(rank in self.summaries for rank in self.suspects):
            trouble.append(f"profile request {self.request_id} expired without an answer")
        return tuple(trouble)

    def progress(self) -> dict[str, Any]:
        """Return where each rank stands, for people."""
        ranks = [self._progress_of(rank) for rank in self.ranks]
        told = None if self.diagnosis is None else asdict(self.diagnosis)
        return {
            "request_id": self.request_id,
            "incident_id": self.incident_id or None,
            "first_step": self.first_step,
            "steps": self.steps,
            "asked_unix_seconds": self.asked_s,
            "expires_unix_seconds": self.expires_s,
            "ended_unix_seconds": self.ended_s,
            "cost_seconds": self.cost_seconds,
            "ranks": ranks,
            "diagnosis": told,
        }

    def _progress_of(self, rank: int) -> dict[str, Any]:
        if rank in self.refused:
            state, reason = "refused", self.refused[rank]
        elif rank in self.summaries:
            state, reason = "summarised", self.notes.get(rank, "")
        elif self.ended_s is not None:
            state, reason = "expired", f"nothing came after it was {self.states.get(rank, 'asked')}"
        else:
            state, reason = self.states.get(rank, "asked"), self.notes.get(rank, "")
        suspect = None if not self.suspect_count else rank in self.suspects
        return {"rank": rank, "is_suspect": suspect, "state": state, "reason": reason}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form of a request that nobody has delivered to yet, empty otherwise.

        Traces are not kept: with one of them lost, the capture is better asked for again.
        """
        if self.summaries:
            return {}
        return {
            "request_id": self.request_id,
            "incident_id": self.incident_id,
            "ranks": list(self.ranks),
            "first_step": self.first_step,
            "steps": self.steps,
            "asked_s": self.asked_s,
            "expires_s": self.expires_s,
            "suspect_count": self.suspect_count,
            "shapes": self.shapes,
            "refused": {str(rank): reason for rank, reason in self.refused.items()},
            "cost_ns": {str(rank): cost for rank, cost in self.cost_ns.items()},
        }


def note_of(capture: Capture) -> ProfileNote:
    """Return what an incident keeps of a capture."""
    return ProfileNote(
        request_id=capture.request_id,
        ranks=capture.ranks,
        first_step=capture.first_step,
        steps=capture.steps,
        cost_seconds=capture.cost_seconds,
    )


def capture_from_json(value: "Mapping[str, Any]") -> Capture:
    """Return the request of a JSON form."""
    return Capture(
        request_id=int(value["request_id"]),
        incident_id=str(value["incident_id"]),
        ranks=tuple(value["ranks"]),
        first_step=int(value["first_step"]),
        steps=int(value["steps"]),
        asked_s=float(value["asked_s"]),
        expires_s=float(value["expires_s"]),
        suspect_count=int(value["suspect_count"]),
        shapes=bool(value["shapes"]),
        refused={int(rank): reason for rank, reason in value["refused"].items()},
        cost_ns={int(rank): cost for rank, cost in value["cost_ns"].items()},
    )


class CaptureBudget:
    """When captures were made; `counts` by what became of them, per rank (`metrics.PROFILE_STATES`).

    `policy` may be replaced.
    """

    def __init__(self, policy: "ProfilePolicy", times_s: "Iterable[float]" = ()) -> None:
        self.policy = policy
        self.times_s = list(times_s)
        self.counts: Counter[str] = Counter()

    def refusal(self, now_s: float) -> str:
        """Return why no capture may ever be made on its own today, empty if one may."""
        policy = self.policy
        if not policy.enabled:
            return "profiling is switched off"
        if len(self.times_s) >= policy.per_run:
            return f"the run has had its {policy.per_run} captures"
        if sum(now_s - time < _DAY_S for time in self.times_s) >= policy.per_day:
            return f"the run has had its {policy.per_day} captures of a day"
        return ""

    def is_cooling(self, now_s: float) -> bool:
        """Whether the last capture is too recent for another one."""
        return bool(self.times_s) and now_s - self.times_s[-1] < self.policy.cooldown_seconds

    def spend(self, now_s: float, ranks: int) -> None:
        """Count a request."""
        self.times_s.append(now_s)
        self.counts["requested"] += ranks

    def settle(self, capture: Capture) -> None:
        """Count what became of a request that is over."""
        self.counts["done"] += len(capture.summaries)
        self.counts["refused"] += len(capture.refused)
        self.counts["expired"] += sum(r not in capture.summaries and r not in capture.refused for r in capture.ranks)


def first_step_of(step: int, step_seconds: float, policy: "ProfilePolicy") -> int:
    """Return a step far enough ahead for the request to have reached every rank before it begins."""
    return step + max(policy.lead_steps, math.ceil(policy.lead_seconds / max(step_seconds, 1e-3)))
