"""Finds the training thread of a trace and its window, and builds its call tree."""

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lockstep.trace import names
from lockstep.trace.columns import ANNOTATION, OPERATOR, PYTHON, Mask, TraceColumns, WorkKind
from lockstep.trace.intervals import Intervals
from lockstep.trace.span_table import Build, SpanTable, fill
from lockstep.trace.spans import in_order
from lockstep.trace.tree import Call, CallTree
from lockstep.trace.waiting import WAIT_NAME, waits

_CATEGORIES = (PYTHON, OPERATOR, ANNOTATION)
_MARK = re.compile(r"lockstep\.step#\d+")
"""The agent's step boundaries: points, one at the beginning of each step and one at the end of the last."""
_SCHEDULED = re.compile(r"ProfilerStep#\d+")
"""The steps of a profiler schedule: spans."""
_OPTIMIZER_PREFIX = "Optimizer.step#"
_BACKWARD = "run_backward"
STEPS_MAX = 64
"""In a trace with more steps, only the first ones have totals of their own: enough to detect recurrence."""


def build_calls(columns: TraceColumns, build: Build | None = None) -> CallTree:
    """Return the call tree of the training thread.

    The window goes from the agent's first step mark to its last; without two of them over the steps of a profiler
    schedule; else from the thread's first event to its last. Spans are cut to it. Totals are noted at the beginning of
    each of the first `STEPS_MAX` steps. A trace without host events gives no
    nodes and an empty window. Events of no length are left out: the clock did not separate them from their neighbours.
    `build` is what `compiled_build` returns.
    """
    host = columns.of_categories(*_CATEGORIES)
    marks = host & columns.named(_matches(_MARK))
    host &= columns.duration_ns > 0
    if not host.any():
        return CallTree((0, 0), None)
    host &= columns.thread == _training_thread(columns, host, marks)
    scheduled = host & columns.named(_matches(_SCHEDULED))
    window_ns, steps = _window(columns, host, marks, scheduled)
    begins_ns = np.sort(columns.start_ns[marks][:-1] if np.count_nonzero(marks) > 1 else columns.start_ns[scheduled])
    of_backend = (columns.work == WorkKind.COMMUNICATION) & ~columns.on_device
    host &= ~of_backend
    waiting = waits(columns, host, of_backend)
    tree = CallTree(window_ns, steps, begins_ns=begins_ns.tolist())
    spans = _spans(columns, np.flatnonzero(host & ~marks & ~scheduled), waiting, window_ns)
    fill(tree, spans, begins_ns[1 : STEPS_MAX + 1], build)
    return tree


def collectives(columns: TraceColumns, window_ns: tuple[int, int]) -> dict[str, list[int]]:
    """Return, per name, count, total ns and shortest ns of the collectives that began in the window.

    A collective is what `work` has as communication: on the device its kernel, of host backends the annotation of
    their own threads.
    """
    inside = (columns.start_ns >= window_ns[0]) & (columns.start_ns < window_ns[1])
    found = np.flatnonzero((columns.work == WorkKind.COMMUNICATION) & inside)
    durations_ns: dict[str, list[int]] = {}
    for name, duration_ns in zip(columns.name[found].tolist(), columns.duration_ns[found].tolist(), strict=True):
        durations_ns.setdefault(names.tidy(columns.names[name]), []).append(duration_ns)
    return {name: [len(each), sum(each), min(each)] for name, each in durations_ns.items()}


def _matches(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda name: pattern.fullmatch(name) is not None


def _window(columns: TraceColumns, host: Mask, marks: Mask, scheduled: Mask) -> tuple[tuple[int, int], int | None]:
    """Return the window and the number of steps in it, None if nothing marks them."""
    begins_ns = columns.start_ns[marks]
    if len(begins_ns) > 1:
        return (int(begins_ns.min()), int(begins_ns.max())), len(begins_ns) - 1
    spanned = scheduled if scheduled.any() else host
    window_ns = int(columns.start_ns[spanned].min()), int(columns.end_ns[spanned].max())
    return window_ns, int(np.count_nonzero(scheduled)) or None


def _training_thread(columns: TraceColumns, host: Mask, marks: Mask) -> int:
    """Return the thread with most step marks, or optimizer steps, or time in backward, or frames, or events."""
    optimizer = host & columns.named(lambda name: name.startswith(_OPTIMIZER_PREFIX))
    backward = host & columns.named(lambda name: _BACKWARD in name)
    frames = host & (columns.category == columns.category_code(PYTHON))
    threads = len(columns.threads)
    scores = zip(
        np.bincount(columns.thread[marks], minlength=threads).tolist(),
        np.bincount(columns.thread[optimizer], minlength=threads).tolist(),
        np.bincount(columns.thread[backward], columns.duration_ns[backward], threads).tolist(),
        np.bincount(columns.thread[frames], minlength=threads).tolist(),
        np.bincount(columns.thread[host], minlength=threads).tolist(),
        strict=True,
    )
    return max(enumerate(scores), key=lambda item: item[1])[0]


def _spans(
    columns: TraceColumns, events: NDArray[np.intp], waiting: Intervals, window_ns: tuple[int, int]
) -> SpanTable:
    """Return the spans of `events` and of the waits, cut to the window, callers before callees."""
    start_ns = np.maximum(np.concatenate((columns.start_ns[events], waiting.start_ns)), window_ns[0])
    end_ns = np.minimum(np.concatenate((columns.end_ns[events], waiting.end_ns)), window_ns[1])
    order = in_order(start_ns, -end_ns)
    order = order[start_ns[order] < end_ns[order]]
    call, calls = _calls(columns, events)
    call = np.concatenate((call, np.full(len(waiting.start_ns), len(calls), np.int32)))
    wait = Call(names.COMMUNICATION_KIND, WAIT_NAME, is_annotation=False)
    return SpanTable(start_ns[order], end_ns[order], call[order], [*calls, wait])


def _calls(columns: TraceColumns, events: NDArray[np.intp]) -> tuple[NDArray[np.int32], list[Call]]:
    """Return what each event is a call of, as indices into the returned list; names are classified once each."""
    width = len(columns.categories)
    codes, positions = np.unique(
        columns.name[events].astype(np.int64) * width + columns.category[events], return_inverse=True
    )
    known: dict[tuple[str, str, bool], int] = {}  # names that are alike once tidy are one call
    places = []
    for code in codes.tolist():
        name, category = columns.names[code // width], columns.categories[code % width]
        key = names.kind_of(name, category), names.tidy(name), category == ANNOTATION
        places.append(known.setdefault(key, len(known)))
    return np.array(places, np.int32)[positions], [Call(*key) for key in known]
