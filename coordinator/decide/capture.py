"""One capture: its ranks, deadlines, the measurements it is compared with, and the results received so far.

Pure: part of the run's state machine, which alone changes it.
"""

import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from coordinator.decide.incidents import CaptureNote
from lockstep.contracts.capture import CaptureRequest
from lockstep.contracts.limits import PROFILE_DEADLINE_SECONDS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.settings.run_policy import ProfilePolicy
    from lockstep.contracts.messages import CaptureResult, TraceSummary
    from lockstep.diagnosis.verdict import Diagnosis

_TERMINAL = ("done", "refused")
_IDLE_STEPS = 3  # consecutive evaluated steps without an effect; noise can hide a fault for one or two


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredExcess:
    """Cost of an incident before its capture, seconds per step.

    The last `idle_steps` steps showed no effect of the fault.
    """

    step_seconds: float
    excess_seconds: float
    idle_steps: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the fault had ended."""
        return self.idle_steps >= _IDLE_STEPS


@dataclass(slots=True, kw_only=True)
class Capture:
    """A capture that is under way or over.

    `incident_id` is empty for a capture that an operator requested; otherwise the first `suspect_count` of `ranks` are
    suspects and the others their healthy peers. Nodes give up at `deadline_s`. At `expires_s` at the latest, the
    capture is diagnosed with the results received by then. `states` holds the latest result of each rank, `nodes` where
    it runs, and `notes` why its capture differs from the request. With `memory`, tensor allocations are recorded.
    `measured` is None before the first evaluated step of an incident's capture. Results of `withdrawn` ranks are not
    used as evidence. `diagnosis` is set only for an operator's capture; an incident stores its own.
    """

    request_id: int
    incident_id: str
    ranks: tuple[int, ...]
    first_step: int
    steps: int
    asked_s: float
    expires_s: float
    deadline_s: float
    suspect_count: int = 0
    shapes: bool = False
    memory: bool = False
    ended_s: float | None = None
    states: dict[int, str] = field(default_factory=dict)
    diagnosis: "Diagnosis | None" = None
    summaries: "dict[int, TraceSummary]" = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    cost_ns: dict[int, int] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    measured: MeasuredExcess | None = None
    withdrawn: frozenset[int] = frozenset()
    begun_step: int | None = None

    @property
    def suspects(self) -> tuple[int, ...]:
        """The suspect ranks."""
        return self.ranks[: self.suspect_count]

    @property
    def has_suspects(self) -> bool:
        """Whether every suspect has delivered; only peers to compare with may still be missing."""
        return bool(self.suspects) and all(rank in self.summaries for rank in self.suspects)

    @property
    def is_complete(self) -> bool:
        """Whether every rank has delivered or refused."""
        return all(rank in self.summaries or rank in self.refused for rank in self.ranks)

    @property
    def unanswered(self) -> tuple[int, ...]:
        """Ranks that are capturing or may still begin to."""
        return tuple(rank for rank in self.ranks if self.states.get(rank) not in _TERMINAL and rank not in self.refused)

    @property
    def has_begun(self) -> bool:
        """Whether any rank has begun to capture."""
        return self.begun_step is not None or bool(self.summaries)

    def request(self, now_s: float) -> CaptureRequest:
        """Return the request for the nodes of its ranks, with the time left until the deadline."""
        left_s = min(max(self.deadline_s - now_s, 0.0), PROFILE_DEADLINE_SECONDS_MAX)
        return CaptureRequest(
            request_id=self.request_id,
            ranks=list(self.ranks),
            first_step=self.first_step,
            steps=self.steps,
            shapes=self.shapes,
            memory=self.memory,
            deadline_seconds=left_s,
        )

    def withdrawal(self, now_s: float) -> CaptureRequest:
        """Return the request that ends the capture on the withdrawn ranks."""
        ranks = [rank for rank in self.ranks if rank in self.withdrawn]
        return replace(self.request(now_s), ranks=ranks, is_withdrawn=True)

    def measure(self, step: int, step_seconds: float, excess_seconds: float, *, is_acting: bool) -> None:
        """Record what the incident cost in an evaluated step, if that step is before the first captured one."""
        if step >= (self.first_step if self.begun_step is None else self.begun_step):
            return
        if is_acting or self.measured is None:
            self.measured = MeasuredExcess(step_seconds=step_seconds, excess_seconds=excess_seconds)
        else:
            self.measured = replace(self.measured, idle_steps=self.measured.idle_steps + 1)

    def capturing(self, step: int, now_s: float) -> frozenset[int]:
        """Return the ranks that the profiler may delay after step `step`: none before the first captured step."""
        if now_s >= self.deadline_s or (self.begun_step is None and step + 1 < self.first_step):
            return frozenset()
        return frozenset(self.unanswered)

    def summarising_nodes(self, now_s: float) -> frozenset[str]:
        """Return the nodes that are summarising its traces now, which takes CPU time from their ranks."""
        if now_s >= self.deadline_s:
            return frozenset()
        done = (rank for rank, state in self.states.items() if state == "done")
        return frozenset(self.nodes[rank] for rank in done if rank not in self.summaries and rank not in self.refused)

    @property
    def cost_seconds(self) -> float:
        """Training thread time that the capture has taken so far, summed over its ranks, seconds."""
        return sum(self.cost_ns.values()) / 1e9

    def take_answer(self, answer: "CaptureResult") -> None:
        """Apply the result of one of its ranks."""
        self.states[answer.rank] = answer.state
        self.nodes[answer.rank] = answer.node
        if answer.state in ("running", "done") and answer.first_step >= 0:
            self.begun_step = min(answer.first_step, self.begun_step or answer.first_step)
        self.cost_ns[answer.rank] = answer.cost_ns
        if answer.state == "refused":
            self.refused[answer.rank] = answer.reason or "no reason given"
        elif answer.state == "done" and answer.reason:
            self.notes[answer.rank] = answer.reason

    def take_summary(self, summary: "TraceSummary") -> None:
        """Store a rank's summary; a summary with an error counts as a refusal."""
        if summary.error:
            self.refused[summary.rank] = summary.error
        else:
            self.summaries[summary.rank] = summary

    def trouble(self) -> tuple[str, ...]:
        """Return what went wrong, as lines for the incident's evidence."""
        trouble = [f"rank {rank} was not profiled: {reason}" for rank, reason in sorted(self.refused.items())]
        trouble += [f"the capture of rank {rank} is incomplete: {why}" for rank, why in sorted(self.notes.items())]
        if not self.is_complete and not any(rank in self.summaries for rank in self.suspects):
            trouble.append(f"profile request {self.request_id} expired without an answer")
        if self.measured is not None and self.measured.is_over:
            trouble.append("the fault ended before the capture began: its steps are healthy ones")
        return tuple(trouble)

    def progress(self) -> dict[str, Any]:
        """Return the state of each rank, for display."""
        ranks = [self._progress_of(rank) for rank in self.ranks]
        diagnosis = None if self.diagnosis is None else asdict(self.diagnosis)
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
            "diagnosis": diagnosis,
        }

    def _progress_of(self, rank: int) -> dict[str, Any]:
        if rank in self.refused:
            state, reason = "refused", self.refused[rank]
        elif rank in self.summaries:
            state, reason = "summarised", self.notes.get(rank, "")
        elif self.ended_s is not None:
            state, reason = "expired", f"no result arrived after state {self.states.get(rank, 'asked')}"
        else:
            state, reason = self.states.get(rank, "asked"), self.notes.get(rank, "")
        suspect = None if not self.suspect_count else rank in self.suspects
        return {"rank": rank, "is_suspect": suspect, "state": state, "reason": reason}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form of a capture without summaries; empty if there are any.

        Summaries are not stored: if one of them is lost, it is better to request the capture again.
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
            "deadline_s": self.deadline_s,
            "suspect_count": self.suspect_count,
            "shapes": self.shapes,
            "memory": self.memory,
            "refused": {str(rank): reason for rank, reason in self.refused.items()},
            "cost_ns": {str(rank): cost for rank, cost in self.cost_ns.items()},
        }


def note_of(capture: Capture) -> CaptureNote:
    """Return the summary of a capture that its incident stores."""
    return CaptureNote(
        request_id=capture.request_id,
        ranks=capture.ranks,
        first_step=capture.first_step,
        steps=capture.steps,
        cost_seconds=capture.cost_seconds,
    )


def capture_from_json(value: "Mapping[str, Any]") -> Capture:
    """Return the capture of a JSON form (`Capture.to_json`)."""
    return Capture(
        request_id=int(value["request_id"]),
        incident_id=str(value["incident_id"]),
        ranks=tuple(value["ranks"]),
        first_step=int(value["first_step"]),
        steps=int(value["steps"]),
        asked_s=float(value["asked_s"]),
        expires_s=float(value["expires_s"]),
        deadline_s=float(value.get("deadline_s", value["expires_s"])),
        suspect_count=int(value["suspect_count"]),
        shapes=bool(value["shapes"]),
        memory=bool(value.get("memory", False)),
        refused={int(rank): reason for rank, reason in value["refused"].items()},
        cost_ns={int(rank): cost for rank, cost in value["cost_ns"].items()},
    )


def first_step_of(step: int, step_seconds: float, policy: "ProfilePolicy") -> int:
    """Return a first step far enough ahead for the request to reach every rank in time."""
    return step + max(policy.lead_steps, math.ceil(policy.lead_seconds / max(step_seconds, 1e-3)))
