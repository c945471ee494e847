"""Operators that are compiled during the step, and changing shapes that cause compilation (Hermes 4.2.2).

Compilation shows in its own spans: those of dynamo and inductor, of modules loaded into the device, and of CANN.
Changing shapes are no fault by themselves, since eager operators do not depend on them; they are one if something is
compiled for them.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.finding import CPU, HIGH, MEDIUM, Finding, NotEvaluated
from lockstep.diagnosis.host_causes import thresholds as limits
from lockstep.diagnosis.host_causes.nesting import Events, own_ns_by_name
from lockstep.diagnosis.host_causes.view import HostView
from lockstep.trace.columns import ABSENT, OPERATOR, Mask
from lockstep.trace.intervals import Intervals

COMPILATION, DYNAMIC_SHAPES = "compilation", "dynamic_shapes"

_COMPILES = re.compile(
    r"dynamo|entire_frame_compile|.* \(dynamo_timed\)|backend_compile|inductor_compile|compile_fx\w*"
    r"|(?:.*/)?torch/_(?:dynamo/convert_frame\.py\(\d+\): _compile|inductor/compile_fx\.py\(\d+\): compile_fx\w*)"
    r"|(?:.*/)?triton/(?:compiler/compiler|runtime/jit)\.py\(\d+\): (?:compile|_do_compile)"
    r"|(?:cu|cuda|hip)(?:Module|Library)(?:Load|LoadData|LoadDataEx|LoadFatBinary)\w*|nvrtcCompileProgram\w*"
    r"|hiprtcCompileProgram\w*|(?:.*@)?(?:aclopCompile\w*|opCompile\w*|OpCompile\w*|aclGenGraphAndDumpForOp)"
)
_CANN_COMPILES = "aclopCompile"
_ENGINE_PREFIX = "autograd::"
"""The engine's spans around backward operators: correct, but not code that anyone wrote."""
_SHOWN = 3


def is_compiling(name: str) -> bool:
    """Whether an event of this name is part of a compilation."""
    return _COMPILES.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangingShapes:
    """An operator with input shapes not seen in any earlier step, in `new_steps` of `steps` steps."""

    operator: str
    new_steps: int
    steps: int
    first_new_ns: int
    """When the operator first received the first of them."""
    examples: tuple[str, ...]


def evaluate_compilation(view: HostView) -> list[Finding] | NotEvaluated:
    """Return the cost of compilation in the window, and whether changing shapes cause it."""
    if not (view.host | view.calls).any():
        return NotEvaluated(rule=COMPILATION, reason="no host events in the window")
    compiles = view.named(is_compiling, view.host | view.calls)
    spans = view.spans(compiles)
    exposed = view.exposed(spans)
    lost_ns = exposed.measure_ns()
    cann_calls = np.count_nonzero(view.named(lambda name: _CANN_COMPILES in name, compiles))
    if view.share(lost_ns) < limits.COMPILE_RATIO.value and cann_calls < limits.COMPILE_CALLS.value:
        return []
    shapes = changing_shapes(view, spans)
    own_ns = own_ns_by_name(view, compiles & (view.columns.thread == _busiest_thread(view, compiles)))
    longest = ", ".join(f"{name} {spent_ns / 1e6:.1f} ms" for name, spent_ns in [*own_ns.items()][:_SHOWN])
    compiled = f"compiling holds the host {view.per_step(lost_ns)}, {view.meanwhile}: {longest}"
    changed = tuple(
        f"{each.operator} gets shapes never seen before in {each.new_steps} of {each.steps} steps: "
        + ", then ".join(each.examples)
        for each in shapes[:_SHOWN]
    )
    return [
        Finding(
            bottleneck=CPU,
            cause=DYNAMIC_SHAPES if shapes else COMPILATION,
            ranks=view.ranks,
            evidence=(compiled, *(changed or (_unchanged(view),))),
            subject=shapes[0].operator if shapes else next(iter(own_ns)),
            lost_ns=lost_ns,
            steps=view.occurrence(exposed),
            confidence=HIGH if shapes or _has_shapes(view) else MEDIUM,
        )
    ]


def changing_shapes(view: HostView, compiling: Intervals) -> list[ChangingShapes]:
    """Return the operators whose shapes keep changing between steps, those that change most first.

    Among operators that change equally often, the one that runs first comes first, since the others follow from it. The
    input of an operator in a step is the set of its shapes there, so layers of different width are no change. Operators
    inside `compiling` belong to the compiler and do not count. Empty without shapes or with too few steps.
    """
    columns, steps = view.columns, len(view.step_starts_ns)
    if steps < limits.CHANGING_STEPS.value:
        return []
    events = np.flatnonzero(_with_shapes(view) & ~_within(view, compiling))
    step = np.searchsorted(view.step_starts_ns, columns.start_ns[events], side="right") - 1
    events, step = events[step >= 0], step[step >= 0]
    order = np.lexsort((columns.shapes[events], step, columns.name[events]))
    events, step = events[order], step[order]
    firsts = np.flatnonzero(np.diff(columns.name[events], prepend=ABSENT))
    found = [
        changing
        for part, part_step in zip(np.split(events, firsts)[1:], np.split(step, firsts)[1:], strict=True)
        if (changing := _changing(view, part, part_step)) is not None
    ]
    return sorted(
        found, key=lambda each: (-each.new_steps, each.operator.startswith(_ENGINE_PREFIX), each.first_new_ns)
    )


def _changing(view: HostView, events: Events, step: NDArray[np.int64]) -> ChangingShapes | None:
    """Evaluate one operator from its events in order of their steps."""
    columns = view.columns
    steps = np.unique(step)
    shapes, first = np.unique(columns.shapes[events], return_index=True)  # a shape's first event is in its first step
    if min(len(steps), len(shapes)) < limits.CHANGING_STEPS.value:
        return None
    is_new = step[first] != steps[0]
    new_steps = np.unique(step[first[is_new]])
    if len(new_steps) < limits.CHANGING_RATIO.value * (len(steps) - 1):
        return None
    latest = shapes[is_new][np.argsort(first[is_new])][-_SHOWN:]
    return ChangingShapes(
        operator=columns.names[columns.name[events[0]]],
        new_steps=len(new_steps),
        steps=len(steps),
        first_new_ns=int(columns.start_ns[events[np.isin(columns.shapes[events], shapes[is_new])]].min()),
        examples=tuple(columns.shape_texts[code] for code in latest.tolist()),
    )


def _with_shapes(view: HostView) -> Mask:
    columns = view.columns
    found: Mask = view.host & (columns.category == columns.category_code(OPERATOR)) & (columns.shapes != ABSENT)
    return found


def _has_shapes(view: HostView) -> bool:
    return bool(_with_shapes(view).any()) and len(view.step_starts_ns) >= limits.CHANGING_STEPS.value


def _unchanged(view: HostView) -> str:
    if _has_shapes(view):
        return "no operator's shapes keep changing: this is first use, or something else asks for it again"
    return "whether shapes change is unknown: no input shapes, or fewer than 3 steps, were recorded"


def _within(view: HostView, spans: Intervals) -> Mask:
    if not len(spans.start_ns):
        return np.zeros(len(view.columns), np.bool_)
    at = np.searchsorted(spans.start_ns, view.columns.start_ns, side="right") - 1
    within: Mask = (at >= 0) & (view.columns.start_ns < spans.end_ns[at])
    return within


def _busiest_thread(view: HostView, events: Mask) -> int:
    spent_ns = np.bincount(view.columns.thread[events], view.columns.duration_ns[events])
    return int(spent_ns.argmax()) if len(spent_ns) else view.thread
