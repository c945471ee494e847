"""Where the time of a step goes: overlap, compute, communication, host and free time, which sum to the window.

Hermes, section 4.2.1 ("multi-component parallel analysis"). At each moment some of three classes are active:

compute        kernels, copies and fills on the device. Copies are the device's own work, and its three components have
               no place for a fourth; `memory_ns` states how much of the class is copies alone.
communication  collectives, on the device or on a host backend's own threads, waiting for other ranks included.
host           the threads that drive training (`host_timeline`), unless they stand in a call that waits for the device,
               for a collective or for each other: who waits does nothing in parallel. With stacks every frame counts,
               without them Python's own time is free time; compare captures of one kind only.

In a trace without a device the host computes: compute is then the time in operators of a library themselves (`aten::mm`
less what it calls), outside the loader, and host is the rest: Python, the autograd engine, scopes that somebody
annotated, the loader. Whole spans of operators will not do: some wrap all of `forward`, whatever Python sleeps in it.
Nor will operators that call nothing: `aten::mm` calls a trifle, and computes itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import TraceColumns, WorkKind
from lockstep.trace.host_timeline import Activity, when
from lockstep.trace.intervals import Intervals, merged
from lockstep.trace.prepared import PreparedTrace
from lockstep.trace.steps import Steps, windows_of

KERNELS, MEMORY, COMMUNICATION, HOST = (1 << bit for bit in range(4))
_COMPUTE = KERNELS | MEMORY
_STATES = np.arange(1 << 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """One window's account in integer ns: the first five sum to it.

    `compute_ns`, `communication_ns` and `host_ns` are the times when that class alone is active, `overlap_ns` when two
    or three are, `free_ns` when none is. The others are parts: `memory_ns` of `compute_ns` (copies and fills without a
    kernel), `compute_communication_overlap_ns` of `overlap_ns` (a kernel next to a collective, copies not counted).
    `compute_active_ns` and the like are the whole time in which a class is active, alone or not.
    """

    compute_ns: int
    communication_ns: int
    host_ns: int
    overlap_ns: int
    free_ns: int
    memory_ns: int
    compute_communication_overlap_ns: int
    compute_active_ns: int
    communication_active_ns: int
    host_active_ns: int

    @property
    def window_ns(self) -> int:
        """Return the length of the window."""
        return self.compute_ns + self.communication_ns + self.host_ns + self.overlap_ns + self.free_ns

    @property
    def overlap_ratio(self) -> float:
        """Return the share of the window with two or more classes, 0 in an empty window."""
        return self.overlap_ns / self.window_ns if self.window_ns else 0.0

    @property
    def compute_communication_overlap_ratio(self) -> float:
        """Return the share of the window with kernels during collectives, the quantity of Hermes' appendices."""
        return self.compute_communication_overlap_ns / self.window_ns if self.window_ns else 0.0

    def as_json(self) -> dict[str, int | float]:
        """Return the account under the keys of the report."""
        return {
            "compute_ns": self.compute_ns,
            "communication_ns": self.communication_ns,
            "host_ns": self.host_ns,
            "overlap_ns": self.overlap_ns,
            "free_ns": self.free_ns,
            "memory_ns": self.memory_ns,
            "overlap_ratio": self.overlap_ratio,
            "compute_communication_overlap_ratio": self.compute_communication_overlap_ratio,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBreakdowns:
    """The account of each step and of all of them; `windows` are the steps' as `windows_of` has them."""

    steps: Steps
    windows: Intervals
    per_step: list[Breakdown]
    whole: Breakdown
    """From the beginning of the first window to the end of the last, breaks between steps included."""
    host_unseen_ns: list[int]
    """By step the part of its window that lies after the last host event: where the device runs far behind, the host
    was recorded no longer, and what looks free or alone there may not have been."""


class ClassPieces:
    """Time in pieces in each of which the same sets are active, from the first edge to the last.

    `edges_ns` is int64 of shape (n_pieces + 1,), `state` int8 of shape (n_pieces,): bit i means that set i is active.
    """

    def __init__(self, sets: Sequence[Intervals]) -> None:
        times_ns = np.concatenate([edge_ns for each in sets for edge_ns in each])
        bits = [np.repeat(np.array([1, -1]) << bit, len(each.start_ns)) for bit, each in enumerate(sets)]
        order = np.argsort(times_ns, kind="stable")
        self.edges_ns: NDArray[np.int64] = times_ns[order].astype(np.int64)
        self.state: NDArray[np.int64] = np.cumsum(np.concatenate(bits)[order])[:-1]

    def shares_ns(self, start_ns: int, end_ns: int) -> NDArray[np.int64]:
        """Return the time in each state within a window, int64 array of shape (2 ** n_sets,); they sum to it."""
        if not len(self.state):
            shares_ns = np.zeros(len(_STATES), np.int64)
        else:
            first = max(int(np.searchsorted(self.edges_ns, start_ns, side="right")) - 1, 0)
            last = int(np.searchsorted(self.edges_ns, end_ns, side="left"))
            edges_ns = np.clip(self.edges_ns[first : last + 1], start_ns, end_ns)
            state = self.state[first:last]
            durations_ns = np.diff(edges_ns)[: len(state)]
            # Weights are summed in float64, exact below 2**53 ns: 104 days.
            shares_ns = np.bincount(state, durations_ns, len(_STATES)).astype(np.int64)
        shares_ns[0] = end_ns - start_ns - shares_ns[1:].sum()
        return shares_ns


class StepAccount:
    """The classes of one trace, swept once; then any window costs no more than its own pieces."""

    def __init__(self, trace: PreparedTrace) -> None:
        """Sweep the sets KERNELS, MEMORY, COMMUNICATION and HOST."""
        columns = trace.columns
        kernels, memory, communication = (
            _work(columns, work) for work in (WorkKind.COMPUTE, WorkKind.MEMORY, WorkKind.COMMUNICATION)
        )
        if not columns.on_device.any():
            kernels = when(trace.threads, Activity.COMPUTE)
        self.pieces = ClassPieces((kernels, memory, communication, when(trace.threads, Activity.HOST)))

    def within(self, start_ns: int, end_ns: int) -> Breakdown:
        """Return the account of a window."""
        return _account(self.pieces.shares_ns(start_ns, end_ns))


def break_down_steps(trace: PreparedTrace) -> StepBreakdowns:
    """Return the account of every step of a trace and of all of them together."""
    account = StepAccount(trace)
    columns, steps = trace.columns, trace.steps
    windows = windows_of(columns, steps)
    times = list(zip(windows.start_ns.tolist(), windows.end_ns.tolist(), strict=True))
    seen_ns = int(columns.end_ns[columns.thread == steps.thread].max(initial=times[0][0]))
    return StepBreakdowns(
        steps=steps,
        windows=windows,
        per_step=[account.within(*window) for window in times],
        whole=account.within(times[0][0], times[-1][1]),
        host_unseen_ns=[max(end_ns - max(start_ns, seen_ns), 0) for start_ns, end_ns in times],
    )


def _work(columns: TraceColumns, work: WorkKind) -> Intervals:
    found = columns.work == work
    return merged(columns.start_ns[found], columns.end_ns[found])


def _account(shares_ns: NDArray[np.int64]) -> Breakdown:
    computing = (_STATES & _COMPUTE) != 0
    communicating = (_STATES & COMMUNICATION) != 0
    hosting = (_STATES & HOST) != 0
    active = computing.astype(np.int8) + communicating + hosting

    def of(states: NDArray[np.bool_]) -> int:
        return int(shares_ns[states].sum())

    return Breakdown(
        compute_ns=of(computing & (active == 1)),
        communication_ns=of(communicating & (active == 1)),
        host_ns=of(hosting & (active == 1)),
        overlap_ns=of(active > 1),
        free_ns=of(active == 0),
        memory_ns=int(shares_ns[MEMORY]),
        compute_communication_overlap_ns=of(((_STATES & KERNELS) != 0) & communicating),
        compute_active_ns=of(computing),
        communication_active_ns=of(communicating),
        host_active_ns=of(hosting),
    )
