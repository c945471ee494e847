"""The vendor's step times from the tasks themselves, by arithmetic of intervals.

Computing is the time covered by tasks that are no collectives, communication that covered by collectives, overlapped
what both cover. This is what torch_npu's own overlap analysis does, and it agrees with step_trace_time.csv to the
rounding of the vendor's floats (0.03 us on recordings).
"""

import re

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.ascend.kernels import Kernels
from lockstep.trace.ascend.step_trace import RANK, StepTimes, no_times
from lockstep.trace.columns import ABSENT, TraceColumns, WorkKind
from lockstep.trace.intervals import Intervals, common, merged

_STEP = re.compile(r"ProfilerStep#(\d{1,18})", re.ASCII)
_RECEIVE = ("hcom_receive", "receive")
"""Beginnings of names of the operators whose time is a pipeline's bubble; torch_npu looks for the first."""


def step_times(kernels: Kernels, columns: TraceColumns | None = None) -> StepTimes:
    """Return the times of every step of one device's kernels.

    Collectives are the kernels' own rows of communication; where they have none (level 0 of some versions) those of
    `columns`, the same rank's trace, which belong to the step that began last before them. With `columns` preparing is
    known too, from the profiler's step annotations. A step's window goes from its first task to its last, its trailing
    gap to the next step is not free time of it.
    """
    communicates = kernels.communicates
    steps, begins_ns = _begins(kernels)
    computing = _by_step(
        steps, kernels.step[~communicates], kernels.start_ns[~communicates], kernels.end_ns[~communicates]
    )
    collectives, bubbles_ns = _collectives(kernels, steps, begins_ns, columns)
    rows = [_row(*each) for each in zip(computing, collectives, bubbles_ns, strict=True)]
    times = {field: np.array([row[field] for row in rows], np.int64) for field in (*_FIELDS, "first_ns")}
    return StepTimes(
        step=steps,
        device=no_times(len(steps)),
        kind=(RANK,) * len(steps),
        ranks=((),) * len(steps),
        preparing_ns=_preparing(steps, times.pop("first_ns"), columns),
        dropped_count=kernels.dropped_count,
        **times,
    )


_FIELDS = (
    "computing_ns",
    "not_overlapped_ns",
    "overlapped_ns",
    "communication_ns",
    "free_ns",
    "stage_ns",
    "bubble_ns",
    "not_overlapped_without_receive_ns",
)


def _begins(kernels: Kernels) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the steps and when the first task of each began."""
    steps, of_step = np.unique(kernels.step, return_inverse=True)
    begins_ns = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(begins_ns, of_step, kernels.start_ns)
    return steps, begins_ns


def _by_step(
    steps: NDArray[np.int64], of_task: NDArray[np.int64], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> list[Intervals]:
    """Return the set that each step's tasks cover; each task is looked at once, however many steps there are."""
    order = np.argsort(of_task, kind="stable")
    edges = np.searchsorted(of_task[order], steps, side="left"), np.searchsorted(of_task[order], steps, side="right")
    parts = (order[begin:end] for begin, end in zip(*(each.tolist() for each in edges), strict=True))
    return [merged(start_ns[part], end_ns[part]) for part in parts]


def _collectives(
    kernels: Kernels, steps: NDArray[np.int64], begins_ns: NDArray[np.int64], columns: TraceColumns | None
) -> tuple[list[Intervals], list[int]]:
    """Return the set of each step's collectives, and the sum of those that receive."""
    mask = kernels.communicates
    if mask.any() or columns is None:
        receives = np.array([each.startswith(_RECEIVE) for each in kernels.texts["name"]] or [False], np.bool_)
        start_ns, end_ns, receiving = kernels.start_ns[mask], kernels.end_ns[mask], receives[kernels.name[mask]]
        of_task = kernels.step[mask]
    else:
        mask = columns.work == WorkKind.COMMUNICATION
        start_ns, end_ns = columns.start_ns[mask], columns.end_ns[mask]
        receiving = columns.named(lambda name: name.startswith(_RECEIVE))[mask]
        order = np.argsort(begins_ns, kind="stable")
        at = np.maximum(np.searchsorted(begins_ns[order], start_ns, side="right") - 1, 0)
        of_task = steps[order][at] if len(steps) else np.zeros(len(start_ns), np.int64)
    bubbles_ns = np.zeros(len(steps), np.int64)
    known = receiving & np.isin(of_task, steps)
    np.add.at(bubbles_ns, np.searchsorted(steps, of_task[known]), (end_ns - start_ns)[known])
    return _by_step(steps, of_task, start_ns, end_ns), bubbles_ns.tolist()


def _row(computing: Intervals, communication: Intervals, bubble_ns: int) -> dict[str, int]:
    overlapped_ns = common(computing, communication).measure_ns()
    both = merged(*(np.concatenate(parts) for parts in zip(computing, communication, strict=True)))
    window_ns = int(both.end_ns[-1] - both.start_ns[0]) if len(both.start_ns) else 0
    not_overlapped_ns = communication.measure_ns() - overlapped_ns
    return {
        "computing_ns": computing.measure_ns(),
        "not_overlapped_ns": not_overlapped_ns,
        "overlapped_ns": overlapped_ns,
        "communication_ns": communication.measure_ns(),
        "free_ns": window_ns - both.measure_ns(),
        "stage_ns": window_ns - bubble_ns,
        "bubble_ns": bubble_ns,
        "not_overlapped_without_receive_ns": not_overlapped_ns - bubble_ns,
        "first_ns": int(both.start_ns[0]) if len(both.start_ns) else ABSENT,
    }


def _preparing(
    steps: NDArray[np.int64], first_ns: NDArray[np.int64], columns: TraceColumns | None
) -> NDArray[np.int64]:
    """Return the time from a step's annotation on the host to its first task."""
    preparing = no_times(len(steps))
    if columns is None:
        return preparing
    begins_ns: dict[int, int] = {}
    for row in np.flatnonzero(columns.named(lambda name: _STEP.fullmatch(name) is not None)).tolist():
        found = _STEP.fullmatch(columns.names[columns.name[row]])
        assert found is not None
        step, start_ns = int(found[1]), int(columns.start_ns[row])
        begins_ns[step] = min(begins_ns.get(step, start_ns), start_ns)
    for row, step in enumerate(steps.tolist()):
        if step in begins_ns and first_ns[row] != ABSENT:
            preparing[row] = max(int(first_ns[row]) - begins_ns[step], 0)
    return preparing
