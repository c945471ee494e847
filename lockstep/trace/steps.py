"""Finds the steps of a trace, and assigns device work to them.

The device runs behind the host: on one recording it ends its work 0.94 of a step after the step ended on the host. So
work belongs to the step in which it was LAUNCHED, whenever it ran. Work launched before the trace began belongs to no
step but is busy time all the same (0 to 32 % of the device time of the recordings).
"""

import re
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import ABSENT, ANNOTATION, OPERATOR, PYTHON, Mask, TraceColumns, WorkKind
from lockstep.trace.intervals import Intervals, merged
from lockstep.trace.launches import launches_of

_MARK = re.compile(r"lockstep\.step#(\d{1,18})")
_SCHEDULED = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})")
_OPTIMIZER_PREFIX = "Optimizer.step#"
_BACKWARD = "run_backward"
_WHOLE_STEP_EVENTS = 0.5
"""A first or last step with fewer than this share of the median step's events was cut; among whole steps of the
recordings the fewest are 0.71 of the median."""
_CARRIED_MAX_RATIO = 0.05
"""A step that is 5 % longer is worth an alert (detection's floor); the recordings have below 1 %, 29 and 165 %."""
_STEPS_MIN = 3
"""With two steps it is unknown which one is usual."""


class StepSource(StrEnum):
    """The source of step boundaries, best first."""

    AGENT = "lockstep.step"
    """The agent's marks: points at the beginning of each step, and one at the end of the last."""
    PROFILER = "ProfilerStep"
    """The spans of a profiler schedule."""
    OPTIMIZER = "Optimizer.step"
    """The ends of optimizer steps; steps are counted from 0 then."""
    WHOLE = "whole"
    """No source: all of the trace is one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a trace in order of time, which do not overlap; arrays of shape (n_steps,).

    `number`, `start_ns` and `end_ns` are int64; times are those of the training thread. Numbers may have holes: a step
    whose end was not recorded is left out. `partial` states which steps are not whole: cut by the beginning or the end
    of the trace. `thread` is the code of the training thread, ABSENT in a trace without host events.
    """

    source: StepSource
    number: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    partial: Mask
    thread: int

    def __len__(self) -> int:
        return len(self.number)


def find_steps(columns: TraceColumns) -> Steps:
    """Return the steps by the best source that the trace has; at least one, an empty one in a trace without work.

    A first or last step is partial if its source does not show where it began or ended (OPTIMIZER, WHOLE), or if it
    holds less than half of the events of the median step, on the host or on the device. The first is as well if the
    device had still to work off what was launched before the trace began.
    """
    host = _host(columns)
    marks = host & columns.named(lambda name: _MARK.fullmatch(name) is not None)
    scheduled = host & columns.named(lambda name: _SCHEDULED.fullmatch(name) is not None) & (columns.duration_ns > 0)
    if np.count_nonzero(marks) > 1:
        thread = _most(columns, marks)
        found = _of_marks(columns, marks & (columns.thread == thread), thread)
        if len(found):
            return found
    if np.any(scheduled):
        thread = _most(columns, scheduled)
        return _of_spans(columns, scheduled & (columns.thread == thread), thread)
    thread = training_thread(columns)
    optimizer = host & (columns.thread == thread) & columns.named(lambda name: name.startswith(_OPTIMIZER_PREFIX))
    window_ns = _extent(columns)
    if np.count_nonzero(optimizer) > 1:
        return _of_optimizer(columns, optimizer, thread, window_ns)
    times = Intervals(np.array([window_ns[0]]), np.array([window_ns[1]]))
    return _made(StepSource.WHOLE, np.zeros(1, np.int64), times, thread, np.ones(1, np.bool_))


def training_thread(columns: TraceColumns) -> int:
    """Return the thread with most step marks, or optimizer steps, or time in backward, or frames, or host events.

    A capture of the device alone has calls of the runtime, whose thread it is then. ABSENT if the trace has no host
    event that lasts.
    """
    host = _host(columns) | (columns.work == WorkKind.HOST)
    lasting = host & (columns.duration_ns > 0)
    if not lasting.any():
        return ABSENT
    backward = lasting & columns.named(lambda name: _BACKWARD in name)
    counted = (
        host & columns.named(_is_boundary),
        lasting & columns.named(lambda name: name.startswith(_OPTIMIZER_PREFIX)),
        backward,
        lasting & (columns.category == columns.category_code(PYTHON)),
        lasting,
    )
    scores = [np.bincount(columns.thread[mask], minlength=len(columns.threads)).tolist() for mask in counted]
    backward_ns = np.bincount(columns.thread[backward], columns.duration_ns[backward], len(columns.threads))
    scores[2] = backward_ns.tolist()
    return max(range(len(columns.threads)), key=lambda thread: [score[thread] for score in scores])


def bind_to_steps(columns: TraceColumns, steps: Steps) -> NDArray[np.int64]:
    """Return by event the index of the step that it belongs to, array of shape (n_events,); ABSENT for none.

    Host events belong to the step in which they start, work of the device to the one in which its launch started; work
    without a launch in the trace belongs to none.
    """
    launch = launches_of(columns)
    launched_ns = np.where(launch == ABSENT, columns.start_ns, columns.start_ns[launch])
    step = step_at(steps, launched_ns)
    step[columns.on_device & (launch == ABSENT)] = ABSENT
    return step


def step_at(steps: Steps, time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the step at each of these times, ABSENT between, before and after steps."""
    at = np.searchsorted(steps.start_ns, time_ns, side="right") - 1
    at[(at >= 0) & (time_ns >= steps.end_ns[at])] = ABSENT
    return at.astype(np.int64)


def windows_of(columns: TraceColumns, steps: Steps, step: NDArray[np.int64] | None = None) -> Intervals:
    """Return the window of each step as the device sees it, two int64 arrays of shape (n_steps,), ns.

    A step ends when the host has left it and the device has done all its work, and none begins before the ones before
    it have ended on the device. So windows do not overlap, and steps without a break between them have windows without
    one. On the host alone these are the steps' own times. `step` is what `bind_to_steps` returns.
    """
    if step is None:
        step = bind_to_steps(columns, steps)
    launched = np.flatnonzero(columns.on_device & (step != ABSENT))
    done_ns = np.full(len(steps), np.iinfo(np.int64).min)
    np.maximum.at(done_ns, step[launched], columns.end_ns[launched])
    done_ns = np.maximum.accumulate(done_ns)
    begins_ns = steps.start_ns.copy()
    begins_ns[1:] = np.maximum(begins_ns[1:], done_ns[:-1])
    return Intervals(begins_ns, np.maximum(steps.end_ns, done_ns))


def _is_boundary(name: str) -> bool:
    return (_MARK.fullmatch(name) or _SCHEDULED.fullmatch(name)) is not None


def _host(columns: TraceColumns) -> Mask:
    host: Mask = columns.of_categories(PYTHON, OPERATOR, ANNOTATION)
    return host


def _most(columns: TraceColumns, mask: Mask) -> int:
    return int(np.bincount(columns.thread[mask]).argmax())


def _extent(columns: TraceColumns) -> tuple[int, int]:
    """Return when the first work began and the last ended: the profiler's own rows can lie far outside."""
    working = columns.work != WorkKind.NOTHING
    if not working.any():
        return 0, 0
    return int(columns.start_ns[working].min()), int(columns.end_ns[working].max())


def _numbers(columns: TraceColumns, events: NDArray[np.intp], pattern: re.Pattern[str]) -> NDArray[np.int64]:
    matches = (pattern.fullmatch(columns.names[code]) for code in columns.name[events].tolist())
    return np.array([int(match[1]) for match in matches if match], np.int64)


def _of_marks(columns: TraceColumns, marks: Mask, thread: int) -> Steps:
    """Make a step from each mark to the next if that has the next number: a hole hides where steps ended."""
    events = np.flatnonzero(marks)
    events = events[np.argsort(columns.start_ns[events], kind="stable")]
    number = _numbers(columns, events, _MARK)
    begins_ns = columns.start_ns[events]
    whole = (np.diff(number) == 1) & (np.diff(begins_ns) > 0)
    times = Intervals(begins_ns[:-1][whole], begins_ns[1:][whole])
    return _flagged(columns, StepSource.AGENT, number[:-1][whole], times, thread)


def _of_spans(columns: TraceColumns, scheduled: Mask, thread: int) -> Steps:
    spans = np.flatnonzero(scheduled)
    spans = spans[np.argsort(columns.start_ns[spans], kind="stable")]
    start_ns = columns.start_ns[spans]
    end_ns = columns.end_ns[spans]
    end_ns[:-1] = np.minimum(end_ns[:-1], start_ns[1:])  # clocks in whole us let a span end after the next one began
    lasting = end_ns > start_ns
    number = _numbers(columns, spans, _SCHEDULED)
    return _flagged(
        columns, StepSource.PROFILER, number[lasting], Intervals(start_ns[lasting], end_ns[lasting]), thread
    )


def _of_optimizer(columns: TraceColumns, optimizer: Mask, thread: int, window_ns: tuple[int, int]) -> Steps:
    """Make steps from end to end of the optimizer that steps least often, though more than once; nested ones apart.

    Where one wraps another both are annotated, and where two networks are trained in turn the slower one makes the
    loop. The first step and what follows the last end are cut.
    """
    names, counts = np.unique(columns.name[optimizer], return_counts=True)
    counts = np.where(counts > 1, counts, np.iinfo(np.int64).max)
    ends_ns = np.unique(columns.end_ns[optimizer & (columns.name == names[counts.argmin()])])
    edges_ns = np.concatenate(([window_ns[0]], ends_ns, [window_ns[1]]))
    edges_ns = edges_ns[np.concatenate(([True], np.diff(edges_ns) > 0))]
    partial = np.zeros(len(edges_ns) - 1, np.bool_)
    partial[0] = True
    partial[len(ends_ns) :] = True
    number = np.arange(len(partial))
    return _made(StepSource.OPTIMIZER, number, Intervals(edges_ns[:-1], edges_ns[1:]), thread, partial)


def _flagged(
    columns: TraceColumns, source: StepSource, numbers: NDArray[np.int64], times: Intervals, thread: int
) -> Steps:
    """Make the steps of a source that knows both ends, and flag a first and a last one that are not whole."""
    partial = np.zeros(len(numbers), np.bool_)
    steps = _made(source, numbers, times, thread, partial)
    if not len(steps):
        return steps
    step = bind_to_steps(columns, steps)
    for counted in (columns.thread == thread, columns.on_device):
        events = np.bincount(step[counted & (step != ABSENT)], minlength=len(steps))
        if len(steps) >= _STEPS_MIN:
            partial[[0, -1]] |= events[[0, -1]] < _WHOLE_STEP_EVENTS * np.median(events)
    partial[0] |= _carried_ns(columns, step) > _CARRIED_MAX_RATIO * (steps.end_ns[0] - steps.start_ns[0])
    return steps


def _carried_ns(columns: TraceColumns, step: NDArray[np.int64]) -> int:
    """Return how long the device worked without a launch before it began with what was launched in the trace."""
    device = columns.on_device
    launched = device & (step != ABSENT)
    if not launched.any():
        return 0
    carried = device & (step == ABSENT) & (columns.start_ns < columns.start_ns[launched].min())
    return merged(columns.start_ns[carried], columns.end_ns[carried]).measure_ns()


def _made(source: StepSource, numbers: NDArray[np.int64], times: Intervals, thread: int, partial: Mask) -> Steps:
    return Steps(
        source=source, number=numbers, start_ns=times.start_ns, end_ns=times.end_ns, thread=thread, partial=partial
    )
