"""The profile order and answer that travel through shared memory, in the control block and in the rank's ring.

Ranks answer in their own ring file: every shared file has one writer.

A training process counts ends of backwards, of optimizers and of named steps (contracts/marks.py) and knows no step
numbers: those come from the accounting, in the exporter. An order holds for each rank how the two are related.
"""

from dataclasses import MISSING, asdict, astuple, dataclass, field, fields
from typing import Annotated, Any, get_origin

from lockstep.contracts.bounds import (
    CaptureSteps,
    Count,
    DurationNs,
    Length,
    MonotonicNs,
    OneOf,
    Range,
    Rank,
    Reason,
    StepIndex,
    StepIndexOrNone,
    unannotated,
    violation,
)
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import PROFILE_RANKS_MAX, PROFILE_STEPS_MAX, TRACE_MAX_BYTES

NEXT_STEP = -1
"""`first_step` of an order that begins at the rank's next step boundary."""

ANSWER_STATES = ("accepted", "running", "done", "refused")

BACKWARD, OPTIMIZER, STEP = END_KINDS = ("backward", "optimizer", "step")
"""The ends that a training process counts: those of `backward_ends`, `optimizer_ends` and `step_ends` in a block."""
ENDS_PER_STEP_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class StepBoundary:
    """How the steps of one rank follow from its count of one kind of end, as far as its steps stay alike.

    When the count is `first_end`, step `first_step` begins, and after every `ends_per_step` more the next one.
    """

    end_kind: Annotated[str, OneOf(END_KINDS)]
    ends_per_step: Annotated[int, Range(1, ENDS_PER_STEP_MAX)]
    first_end: Count
    first_step: StepIndex

    def step_after(self, ends: int) -> int | None:
        """Return the step that begins at the end number `ends`, None where that lies within a step or before all."""
        steps, within = divmod(ends - self.first_end, self.ends_per_step)
        return None if within or steps < 0 else self.first_step + steps

    def next_end(self, ends: int) -> int:
        """Return the count at the first boundary behind the end number `ends`."""
        if ends < self.first_end:
            return self.first_end
        return ends + self.ends_per_step - (ends - self.first_end) % self.ends_per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOrder:
    """What the ranks of one node are asked to capture.

    `first_step` is a step index of this attempt, or NEXT_STEP. A rank that is past it begins at its next step.
    `boundaries` has one entry for each of `ranks`, in their order. The `first_step` of a boundary is that of the order
    or, where the order is NEXT_STEP or the rank is past it, any step that began before.
    `device` asks for the activity of the rank's device besides that of the host, where there is one.
    """

    request_id: Count
    ranks: Annotated[list[Rank], Length(PROFILE_RANKS_MAX)]
    first_step: StepIndexOrNone
    steps: Annotated[int, Range(1, PROFILE_STEPS_MAX)]
    stacks: bool
    shapes: bool
    memory: bool
    trace_max_bytes: Annotated[int, Range(0, TRACE_MAX_BYTES)]
    device: bool = True
    boundaries: Annotated[list[StepBoundary], Length(PROFILE_RANKS_MAX)] = field(default_factory=list)

    def boundary_of(self, rank: int) -> StepBoundary | None:
        """Return the boundary of one of `ranks`, None where there is none."""
        return dict(zip(self.ranks, self.boundaries, strict=False)).get(rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderAnswer:
    """What one rank says of the order it last saw.

    `cost_ns` is the training thread's time spent on starting, stopping and writing, all of it outside the asked steps.
    `first_step` and `steps` are what was captured, `trace_bytes` the size of the file, `reason` why it was refused or,
    when done, why it ended before the asked steps.
    """

    request_id: Count
    state: Annotated[str, OneOf(ANSWER_STATES)]
    reason: Reason = ""
    first_step: StepIndexOrNone = NEXT_STEP
    steps: CaptureSteps = 0
    start_ns: MonotonicNs = 0
    end_ns: MonotonicNs = 0
    trace_bytes: Count = 0
    cost_ns: DurationNs = 0


def order_to_json(order: ProfileOrder) -> dict[str, Any]:
    """Return the JSON form of an order, without what has its default: an older rank knows only the rest."""
    value = {f.name: getattr(order, f.name) for f in fields(order) if getattr(order, f.name) != f.default}
    return value | {"boundaries": [list(astuple(boundary)) for boundary in order.boundaries]}


def answer_to_json(answer: OrderAnswer) -> dict[str, Any]:
    """Return the JSON form of an answer."""
    return asdict(answer)


def order_from_json(value: Any, *, where: str) -> ProfileOrder:
    """Return the order that a blob holds, every field checked.

    Raises
    ------
    MalformedError
        A field is missing, unknown, of another type or beyond its bound.
    """
    order = ProfileOrder(**_with_boundaries(_checked(ProfileOrder, value, where), where))
    if not all(type(rank) is int and not violation(rank, Rank) for rank in order.ranks):
        raise MalformedError("ranks", where=where, got=order.ranks, expected=f"up to {PROFILE_RANKS_MAX} ranks")
    if order.boundaries and len(order.boundaries) != len(order.ranks):
        got, expected = len(order.boundaries), f"one for each of {len(order.ranks)} ranks"
        raise MalformedError("boundaries", where=where, got=got, expected=expected)
    return order


def _with_boundaries(value: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of an order, with StepBoundary in place of lists."""
    names = [f.name for f in fields(StepBoundary)]
    boundaries = []
    for row in value.get("boundaries", []):
        if not isinstance(row, list) or len(row) != len(names):
            raise MalformedError("boundaries", where=where, got=repr(row), expected=f"lists of {', '.join(names)}")
        boundaries.append(StepBoundary(**_checked(StepBoundary, dict(zip(names, row, strict=True)), where)))
    return value | {"boundaries": boundaries}


def answer_from_json(value: Any, *, where: str) -> OrderAnswer:
    """Return the answer that a blob holds, every field checked.

    Raises
    ------
    MalformedError
        A field is missing, unknown, of another type or beyond its bound.
    """
    return OrderAnswer(**_checked(OrderAnswer, value, where))


def _checked(form: type, value: Any, where: str) -> dict[str, Any]:
    """Return `value` if it holds the fields of `form`, each within its type; those with a default may be missing."""
    if not isinstance(value, dict):
        raise MalformedError(form.__name__, where=where, got=type(value).__name__, expected="an object")
    hints = {f.name: f.type for f in fields(form)}
    required = {f.name for f in fields(form) if f.default is MISSING and f.default_factory is MISSING}
    if not required <= value.keys() <= hints.keys():
        raise MalformedError(f"fields of {form.__name__}", where=where, got=sorted(value), expected=sorted(hints))
    for name, content in value.items():
        plain, _ = unannotated(hints[name])
        kind = get_origin(plain) or plain
        if type(content) is not kind:
            raise MalformedError(name, where=where, got=repr(content), expected=kind.__name__)
        if expected := violation(content, hints[name]):
            raise MalformedError(name, where=where, got=repr(content), expected=expected)
    return value
