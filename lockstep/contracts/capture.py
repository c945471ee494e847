"""A capture, from the coordinator to the training processes and back: one request, one result.

Both travel as messages on the bus, between coordinator and exporter, and as JSON in shared memory, between exporter and
agent: the request in the control block of the run's node, each result in the ring of its rank, for every shared file
has one writer.

A training process counts ends of backwards, of optimizers and of named steps (contracts/marks.py) and knows no step
numbers: those come from the accounting, in the exporter. A request has for each rank how the two are related.
"""

from dataclasses import MISSING, astuple, dataclass, field, fields
from typing import Annotated, Any, get_origin

from lockstep.contracts.bounds import (
    MESSAGE_VERSION,
    CaptureSteps,
    Count,
    DurationNs,
    Length,
    MonotonicNs,
    Name,
    OneOf,
    Range,
    Rank,
    RankOrNone,
    Reason,
    StepIndex,
    StepIndexOrNone,
    Version,
    unannotated,
    violation,
)
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import (
    PROFILE_DEADLINE_SECONDS_MAX,
    PROFILE_RANKS_MAX,
    PROFILE_STEPS_MAX,
    TRACE_MAX_BYTES,
)

NEXT_STEP = -1
"""`first_step` of a request that begins at the rank's next step boundary."""

RESULT_STATES = ("accepted", "running", "done", "refused")

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
class CaptureRequest:
    """What ranks of one node are to capture.

    `first_step` is a step index of this attempt, or NEXT_STEP. A rank that is past it begins at its next step.
    `device` asks for the activity of the rank's device besides that of the host, where there is one.

    From the coordinator it has `run`, `node` and `term`, the fencing number of the one that asks
    (`messages.CoordinatorAlive`). Coordinator and node give the capture up `deadline_seconds` after it was asked for.
    One that `is_withdrawn` ends the request of this number: its ranks that have not begun are not to capture.

    In a control block the place gives run and node, and `boundaries` has one entry for each of `ranks`, in their order.
    The `first_step` of a boundary is that of the request or, where that is NEXT_STEP or the rank is past it, any step
    that began before. A request without ranks takes the one before it back.
    """

    request_id: Count
    ranks: Annotated[list[Rank], Length(PROFILE_RANKS_MAX)]
    first_step: StepIndexOrNone
    steps: Annotated[int, Range(1, PROFILE_STEPS_MAX)]
    stacks: bool = True
    shapes: bool = False  # triples the time that stopping the profiler takes; stacks name the function without them
    memory: bool = False
    device: bool = True
    trace_max_bytes: Annotated[int, Range(0, TRACE_MAX_BYTES)] = 256 << 20
    boundaries: Annotated[list[StepBoundary], Length(PROFILE_RANKS_MAX)] = field(default_factory=list)
    run: Name = ""
    node: Name = ""
    term: Count = 0
    deadline_seconds: Annotated[float, Range(0, PROFILE_DEADLINE_SECONDS_MAX)] = 120.0
    is_withdrawn: bool = False
    version: Version = MESSAGE_VERSION

    def boundary_of(self, rank: int) -> StepBoundary | None:
        """Return the boundary of one of `ranks`, None where there is none."""
        return dict(zip(self.ranks, self.boundaries, strict=False)).get(rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureResult:
    """What became of a request at one rank, as far as it is known.

    `cost_ns` is the training thread's time spent on starting, stopping and writing, all of it outside the asked steps.
    `first_step` and `steps` are what was captured, `trace_bytes` the size of the file, `reason` why it was refused or,
    when done, why it ended before the asked steps. In a ring the place gives `run`, `node` and `rank`.
    """

    request_id: Count
    state: Annotated[str, OneOf(RESULT_STATES)]
    reason: Reason = ""
    first_step: StepIndexOrNone = NEXT_STEP
    steps: CaptureSteps = 0
    start_ns: MonotonicNs = 0
    end_ns: MonotonicNs = 0
    trace_bytes: Count = 0
    cost_ns: DurationNs = 0
    run: Name = ""
    node: Name = ""
    rank: RankOrNone = -1
    version: Version = MESSAGE_VERSION


def request_to_json(request: CaptureRequest) -> dict[str, Any]:
    """Return the JSON form of a request, without what has its default."""
    return _without_defaults(request) | {"boundaries": [list(astuple(boundary)) for boundary in request.boundaries]}


def result_to_json(result: CaptureResult) -> dict[str, Any]:
    """Return the JSON form of a result, without what has its default."""
    return _without_defaults(result)


def _without_defaults(value: CaptureRequest | CaptureResult) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}


def request_from_json(value: Any, *, where: str) -> CaptureRequest:
    """Return the request that a blob holds, every field checked.

    Raises
    ------
    MalformedError
        A field is missing, unknown, of another type or beyond its bound.
    """
    request = CaptureRequest(**_with_boundaries(_checked(CaptureRequest, value, where), where))
    if not all(type(rank) is int and not violation(rank, Rank) for rank in request.ranks):
        raise MalformedError("ranks", where=where, got=request.ranks, expected=f"up to {PROFILE_RANKS_MAX} ranks")
    if request.boundaries and len(request.boundaries) != len(request.ranks):
        got, expected = len(request.boundaries), f"one for each of {len(request.ranks)} ranks"
        raise MalformedError("boundaries", where=where, got=got, expected=expected)
    return request


def _with_boundaries(value: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of a request, with StepBoundary in place of lists."""
    names = [f.name for f in fields(StepBoundary)]
    boundaries = []
    for row in value.get("boundaries", []):
        if not isinstance(row, list) or len(row) != len(names):
            raise MalformedError("boundaries", where=where, got=repr(row), expected=f"lists of {', '.join(names)}")
        boundaries.append(StepBoundary(**_checked(StepBoundary, dict(zip(names, row, strict=True)), where)))
    return value | {"boundaries": boundaries}


def result_from_json(value: Any, *, where: str) -> CaptureResult:
    """Return the result that a blob holds, every field checked.

    Raises
    ------
    MalformedError
        A field is missing, unknown, of another type or beyond its bound.
    """
    return CaptureResult(**_checked(CaptureResult, value, where))


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
