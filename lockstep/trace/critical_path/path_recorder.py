# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Records a walk as it proceeds, and converts it to segments at its end, all at once.

The path of a GB of trace has 200,000 segments; building them one by one took half of the analysis
(benchmarks/trace_bench.py). Shape suffixes: V ops that the walk visited, R rows of a table of segments, P pieces of the
device's work in them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.trace import names
from lockstep.trace.columns import ABSENT, TraceColumns, WorkKind
from lockstep.trace.critical_path.allowed import Allowed
from lockstep.trace.critical_path.lanes import DeviceBusyTime, Lanes, Numbers
from lockstep.trace.critical_path.path import CODE_OF, CriticalPath, DependencyKind, PathClass
from lockstep.trace.host_timeline import Activity, HostThread
from lockstep.trace.prepared import PreparedTrace

IDLE_NAME = "idle"

_START, _END, _NAMED, _CLASS, _EVENT, _WHY = range(6)
"""Columns of a table of segments, int64: `_NAMED` is the event whose name it has, ABSENT for idle time."""
_NO_ROWS = np.zeros((0, 6), np.int64)
_GAP, _IDLE, _HOST, _COMPUTE = (
    CODE_OF[each] for each in (PathClass.GAP, PathClass.IDLE, PathClass.HOST, PathClass.COMPUTE)
)
_CLASS_OF_WORK = np.zeros(len(WorkKind), np.int64)
_CLASS_OF_WORK[[WorkKind.COMPUTE, WorkKind.MEMORY, WorkKind.COMMUNICATION]] = (
    *(_COMPUTE, CODE_OF[PathClass.MEMORY], CODE_OF[PathClass.COMMUNICATION]),
)


class PathRecorder:
    """The walked part of a window, from `reached_ns` to its end."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self.start_ns = start_ns
        self.reached_ns = end_ns
        self._window_ns = start_ns, end_ns
        self._ops: list[int] = []
        self._chains: list[tuple[int, int, int]] = []  # the first of its ops, until when, and why
        self._runs: list[tuple[int, int, int, int, int, int]] = []  # thread, first and last piece, since, until, why
        self._idle: list[tuple[int, int]] = []  # since, until

    def pass_ops(self, ops: Sequence[int], since_ns: int, why: DependencyKind) -> None:
        """Note ops each of which allowed the one before it to begin; the last one was allowed to at `since_ns`."""
        self._chains.append((len(self._ops), self.reached_ns, CODE_OF[why]))
        self._ops += ops
        self.reached_ns = max(since_ns, self.start_ns)

    def pass_pieces(self, thread: int, first: int, last: int, since_ns: int, why: DependencyKind) -> None:
        """Note pieces of a thread and the time between them; of the first piece what lies after `since_ns`."""
        since_ns = max(since_ns, self.start_ns)
        if since_ns < self.reached_ns:
            self._runs.append((thread, first, last, since_ns, self.reached_ns, CODE_OF[why]))
            self.reached_ns = since_ns

    def pass_idle(self, since_ns: int) -> None:
        """Note time of which no thread of the host records anything."""
        since_ns = max(since_ns, self.start_ns)
        if since_ns < self.reached_ns:
            self._idle.append((since_ns, self.reached_ns))
            self.reached_ns = since_ns

    def path(self, trace: PreparedTrace, lanes: Lanes, allowed: Allowed, *, waits_are_recorded: bool) -> CriticalPath:
        """Return what was passed as a path.

        While nothing on the path runs but the device does, its work is the path: who waits for a busy device is not
        idle. Where the trace records waits, what runs in a gap is known not to be waited for.
        """
        work, gaps = self._of_ops(lanes, allowed)
        pieces, between = self._of_pieces(trace.threads)
        idle = np.concatenate((between, _idle(*np.array(self._idle, np.int64).reshape(-1, 2).T)))
        gaps = gaps if waits_are_recorded else _with_device(gaps, lanes)
        rows = np.concatenate((work, gaps, pieces, _with_device(idle, lanes)))
        rows = rows[rows[:, _START] < rows[:, _END]]
        rows = rows[np.argsort(rows[:, _START], kind="stable")]
        name, texts = _named(trace.columns, rows[:, _NAMED])
        return CriticalPath(
            window_ns=self._window_ns,
            start_ns=rows[:, _START],
            end_ns=rows[:, _END],
            name=name,
            names=texts,
            path_class=rows[:, _CLASS].astype(np.int8),
            event=rows[:, _EVENT],
            why=rows[:, _WHY].astype(np.int8),
        )

    def _of_ops(self, lanes: Lanes, allowed: Allowed) -> tuple[Numbers, Numbers]:
        """Return the work of the ops that were visited, and the gaps before them."""
        ops_V = np.array(self._ops, np.int64)
        until_ns_V = np.empty_like(ops_V)
        why_V = np.empty_like(ops_V)
        since_ns_V = np.maximum(allowed.time_ns[ops_V], self.start_ns)
        until_ns_V[1:], why_V[1:] = since_ns_V[:-1], allowed.why[ops_V[:-1]]
        for first, until_ns, why in self._chains:
            until_ns_V[first], why_V[first] = until_ns, why
        start_ns_V, event_V = np.maximum(lanes.start_ns[ops_V], self.start_ns), lanes.event[ops_V]
        work = _table(start_ns_V, until_ns_V, event_V, _CLASS_OF_WORK[lanes.work[ops_V]], event_V, why_V)
        return work, _table(since_ns_V, start_ns_V, event_V, _GAP, event_V, allowed.why[ops_V])

    def _of_pieces(self, threads: Sequence[HostThread]) -> tuple[Numbers, Numbers]:
        """Return the pieces of threads that were passed, and what lay between them."""
        runs = np.array(self._runs, np.int64).reshape(-1, 6)
        found = [_pieces_of(thread, runs[runs[:, 0] == place, 1:]) for place, thread in enumerate(threads)]
        pieces, idle = (np.concatenate(rows) for rows in zip((_NO_ROWS, _NO_ROWS), *found, strict=True))
        idle[:, _START] = np.maximum(idle[:, _START], self.start_ns)
        return pieces, idle


def _pieces_of(thread: HostThread, runs: Numbers) -> tuple[Numbers, Numbers]:
    """Return the pieces of one thread in runs of them, and the time between pieces of one run."""
    first, last, since_ns, until_ns, why = runs.T
    counts = last - first + 1
    ends = np.cumsum(counts)
    piece = np.repeat(last - ends + 1, counts) + np.arange(len(counts) and ends[-1])
    path_class, event = np.where(thread.activity[piece] == Activity.COMPUTE, _COMPUTE, _HOST), thread.event[piece]
    through = CODE_OF[DependencyKind.THREAD]
    rows = _table(thread.start_ns[piece], thread.end_ns[piece], thread.owner[piece], path_class, event, through)
    rows[ends - counts, _START] = since_ns
    rows[ends - 1, _END], rows[ends - 1, _WHY] = until_ns, why
    follows = piece[1:] == piece[:-1] + 1
    follows[ends[:-1] - 1] = False
    return rows, _idle(rows[:-1, _END][follows], rows[1:, _START][follows])


def _idle(since_ns: Numbers, until_ns: Numbers) -> Numbers:
    return _table(since_ns, until_ns, ABSENT, _IDLE, ABSENT, CODE_OF[DependencyKind.THREAD])


def _table(*columns: NDArray[Any] | int) -> Numbers:
    return np.stack(np.broadcast_arrays(*columns), axis=1).astype(np.int64, copy=False)


def _with_device(still_R: Numbers, lanes: Lanes) -> Numbers:
    """Return rows in which nothing on the path runs, cut by what the device does meanwhile."""
    busy: DeviceBusyTime = lanes.busy
    low_R = np.searchsorted(busy.end_ns, still_R[:, _START], side="right")
    counts_R = np.maximum(np.searchsorted(busy.start_ns, still_R[:, _END]) - low_R, 0)
    row_P = np.repeat(np.arange(len(still_R)), counts_R)
    place_P = np.arange(len(row_P)) + (low_R - (np.cumsum(counts_R) - counts_R))[row_P]
    op_P = busy.op[place_P]
    start_ns_P = np.maximum(busy.start_ns[place_P], still_R[row_P, _START])
    end_ns_P = np.minimum(busy.end_ns[place_P], still_R[row_P, _END])
    event_P, path_class_P = lanes.event[op_P], _CLASS_OF_WORK[lanes.work[op_P]]
    work = _table(start_ns_P, end_ns_P, event_P, path_class_P, event_P, CODE_OF[DependencyKind.RAN_LAST])
    before, after = still_R[row_P], still_R.copy()  # what a row has left before each of its pieces, and after the last
    before[:, _END] = start_ns_P
    follows = np.flatnonzero(row_P[1:] == row_P[:-1])
    before[follows + 1, _START] = end_ns_P[follows]
    after[row_P, _START] = end_ns_P  # of several the last assignment counts
    return np.concatenate((work, before, after))


def _named(columns: TraceColumns, named: Numbers) -> tuple[NDArray[np.int64], list[str]]:
    """Return the tidy names of events as codes and texts; each of their names is looked at once."""
    code = np.full(len(named), ABSENT, np.int64)
    code[named != ABSENT] = columns.name[named[named != ABSENT]]
    used, place = np.unique(code, return_inverse=True)
    codes: dict[str, int] = {}
    texts = (IDLE_NAME if code == ABSENT else names.tidy(columns.names[code]) for code in used.tolist())
    code_of_used = np.array([codes.setdefault(text, len(codes)) for text in texts], np.int64)
    return code_of_used[place], list(codes)
