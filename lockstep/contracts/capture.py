"""The capture request and the capture result, on the whole path between the coordinator and the training processes.

Between coordinator and exporter both are messages on the bus. Between exporter and agent both are JSON in shared
memory: the request in the control block of the run's node, each result in the ring of its rank, because every shared
file has one writer.

A training process counts the ends of backwards, of optimizers and of named steps (contracts/marks.py) and does not know
step numbers; those come from the accounting, in the exporter. For each rank, a request states how the two are related.
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
    """Maps one rank's count of one kind of end to step numbers, as long as its steps stay alike.

    Step `first_step` begins when the count is `first_end`, and the next step after every further `ends_per_step` ends.
    """

    end_kind: Annotated[str, OneOf(END_KINDS)]
    ends_per_step: Annotated[int, Range(1, ENDS_PER_STEP_MAX)]
    first_end: Count
    first_step: StepIndex

    def step_after(self, ends: int) -> int | None:
        """Return the step that begins at end number `ends`; None within a step and before the first one."""
        steps, within = divmod(ends - self.first_end, self.ends_per_step)
        return None if within or steps < 0 else self.first_step + steps

    def next_end(self, ends: int) -> int:
        """Return the count at the first boundary after end number `ends`."""
        if ends < self.first_end:
            return self.first_end
        return ends + self.ends_per_step - (ends - self.first_end) % self.ends_per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest:
    """A request that ranks of one node capture some steps.

    `first_step` is a step index of this attempt, or NEXT_STEP. A rank that is past it begins at its next step. `device`
    requests the activity of the rank's device in addition to the host's, if there is a device.

    The coordinator sets `run`, `node` and `term`, its own fencing token (`messages.CoordinatorAlive`). Coordinator and
    node abandon the capture `deadline_seconds` after the request. If `is_withdrawn` is set, the request of this id
    ends, and ranks that have not begun must not capture.

    In a control block, the file's place gives run and node, and `boundaries` has one entry for each of `ranks`, in the
    same order. The `first_step` of a boundary is that of the request. If that is NEXT_STEP or the rank is past it, it
    is any earlier step. A request without ranks withdraws the one before it.
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
        """Return the boundary of one of `ranks`, or None if there is none."""
        return dict(zip(self.ranks, self.boundaries, strict=False)).get(rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureResult:
    """The result of a capture request at one rank, as far as it is known.

    `cost_ns` is the training thread's time for starting, stopping and writing, all of it outside the requested steps.
    `first_step` and `steps` are what was captured, and `trace_bytes` is the size of the file. `reason` is why the
    request was refused or, when done, why the capture ended early. In a ring, the file's place gives `run`, `node` and
    `rank`.
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
    """Return the JSON form of a request, without fields that have their default."""
    return _without_defaults(request) | {"boundaries": [list(astuple(boundary)) for boundary in request.boundaries]}


def result_to_json(result: CaptureResult) -> dict[str, Any]:
    """Return the JSON form of a result, without fields that have their default."""
    return _without_defaults(result)


def _without_defaults(value: CaptureRequest | CaptureResult) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}


def request_from_json(value: Any, *, where: str) -> CaptureRequest:
    """Return the request in a blob, with every field checked.

    Raises
    ------
    MalformedError
        A field is missing, unknown, of the wrong type or out of bounds.
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
    """Return the result in a blob, with every field checked.

    Raises
    ------
    MalformedError
        A field is missing, unknown, of the wrong type or out of bounds.
    """
    return CaptureResult(**_checked(CaptureResult, value, where))


def _checked(form: type, value: Any, where: str) -> dict[str, Any]:
    """Return `value` if it holds the fields of `form`, each valid; fields with a default may be missing."""
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
