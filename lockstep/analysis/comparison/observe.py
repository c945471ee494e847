"""Measures one rank's trace in each step: steps, parts, functions, kernels, collectives.

A function's time is self time on its thread, without waiting for collectives. Line numbers of Python frames are left
out, because they change with every edit.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.communication_causes.collectives import RankCollectives, collectives_of
from lockstep.trace import names
from lockstep.trace.columns import ABSENT, ANNOTATION, OPERATOR, PYTHON, Mask, TraceColumns, WorkKind
from lockstep.trace.patterns.functions import short
from lockstep.trace.prepared import PreparedTrace, prepare
from lockstep.trace.self_time import innermost_pieces, time_outside
from lockstep.trace.step_breakdown import break_down_steps
from lockstep.trace.steps import bind_to_steps, step_at
from lockstep.trace.waiting import waits

TOTAL = "(all)"
"""Name of the sum over one kind."""
_LINE = re.compile(r"\(\d+\): ")
_BOUNDARY = re.compile(r"lockstep\.step#\d+|ProfilerStep\s*#\s*\d+")
_PARTS = ("compute", "communication", "host", "overlap", "free")

Samples = NDArray[np.float64]


class QuantityKind(StrEnum):
    """What a quantity is of."""

    STEP = "step"
    PART = "part"
    FUNCTION = "function"
    KERNEL = "kernel"
    COUNT = "count"
    """Launched kernels, operators: their number in a step."""
    COLLECTIVE = "collective"


class ComparedQuantity(NamedTuple):
    """One compared quantity; ns, except for `QuantityKind.COUNT`."""

    kind: QuantityKind
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankObservation:
    """One rank's steps; each array has shape (n_steps,). A missing quantity was 0 in every step.

    Steps clipped by the trace are left out, unless all are.
    """

    rank: int
    steps: int
    samples: dict[ComparedQuantity, Samples]
    collectives: RankCollectives


def observe(columns: TraceColumns, rank: int) -> RankObservation:
    """Return what one rank's trace measures in each whole step."""
    trace = prepare(columns)
    account = break_down_steps(trace)
    kept = ~trace.steps.partial if not trace.steps.partial.all() else np.ones(len(trace.steps), np.bool_)
    samples = {
        ComparedQuantity(QuantityKind.STEP, "step"): (account.windows.end_ns - account.windows.start_ns).astype(
            np.float64
        )
    }
    for part in _PARTS:
        values = [getattr(each, f"{part}_ns") for each in account.per_step]
        samples[ComparedQuantity(QuantityKind.PART, part)] = np.array(values, np.float64)
    samples |= _functions(trace) | _kernels(trace)
    return RankObservation(
        rank=rank,
        steps=int(kept.sum()),
        samples={quantity: values[kept] for quantity, values in samples.items()},
        collectives=collectives_of(columns, rank=rank),
    )


def _functions(trace: PreparedTrace) -> dict[ComparedQuantity, Samples]:
    """Return the self time of host functions: of all events on the training thread, of operators on others."""
    columns, steps = trace.columns, trace.steps
    own = columns.thread == steps.thread
    operators = columns.category == columns.category_code(OPERATOR)
    lasting = (columns.duration_ns > 0) & ~columns.named(lambda name: _BOUNDARY.fullmatch(name) is not None)
    of_backend = (columns.work == WorkKind.COMMUNICATION) & ~columns.on_device
    host: Mask = own & lasting & columns.of_categories(PYTHON, OPERATOR, ANNOTATION) & ~of_backend
    pieces = innermost_pieces(columns, host | (operators & lasting))
    waiting = waits(columns, host, of_backend)
    in_training = own[pieces.event]
    own_ns = np.where(in_training, time_outside(pieces, waiting), pieces.end_ns - pieces.start_ns)
    at = step_at(steps, pieces.start_ns)
    texts = [_function_name(name) for name in columns.names]
    found = _summed(texts, columns.name[pieces.event], (at, own_ns), len(steps))
    started = np.flatnonzero(operators)
    at = step_at(steps, columns.start_ns[started])
    count = ComparedQuantity(QuantityKind.COUNT, "operators")
    return _of_kind(QuantityKind.FUNCTION, found, len(steps)) | {count: _counted(at, len(steps))}


def _counted(step: NDArray[np.int64], steps: int) -> Samples:
    return np.bincount(step[step != ABSENT], minlength=steps).astype(np.float64)


def _function_name(name: str) -> str:
    return _LINE.sub(": ", names.tidy(name))


def _kernels(trace: PreparedTrace) -> dict[ComparedQuantity, Samples]:
    """Return the time of kernels, copies and fills by name, and how many a step launches, collectives included."""
    columns, steps = trace.columns, trace.steps
    device = np.flatnonzero(columns.on_device)
    if not len(device):
        return {}
    at = bind_to_steps(columns, steps)[device]
    working = columns.work[device] != WorkKind.COMMUNICATION
    found = _summed(
        [short(name) for name in columns.names],
        columns.name[device[working]],
        (at[working], columns.duration_ns[device[working]]),
        len(steps),
    )
    return _of_kind(QuantityKind.KERNEL, found, len(steps)) | {
        ComparedQuantity(QuantityKind.COUNT, "kernels"): np.bincount(at[at != ABSENT], minlength=len(steps)).astype(
            np.float64
        )
    }


def _summed(
    texts: list[str], codes: NDArray[np.int32], of_step: tuple[NDArray[np.int64], NDArray[np.int64]], steps: int
) -> dict[str, Samples]:
    """Return the sum by name and step."""
    at, value_ns = of_step
    known = at != ABSENT
    keys = codes[known].astype(np.int64) * steps + at[known]
    sums = np.bincount(keys, value_ns[known], len(texts) * steps).reshape(len(texts), steps)
    found: dict[str, Samples] = defaultdict(lambda: np.zeros(steps))
    for code in np.flatnonzero(sums.any(axis=1)).tolist():
        found[texts[code]] += sums[code]
    return found


def _of_kind(kind: QuantityKind, found: dict[str, Samples], steps: int) -> dict[ComparedQuantity, Samples]:
    total = sum(found.values(), np.zeros(steps))
    return {ComparedQuantity(kind, TOTAL): total} | {
        ComparedQuantity(kind, name): values for name, values in found.items()
    }
