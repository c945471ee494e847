"""Which host row launched which device row, and for which operator.

Three flows carry this: torch_to_npu (from an operator's start to a device row's), HostToDevice (from a time inside the
launching call to a device row's start), and the task queue's number, which an Enqueue and a Dequeue share. Here the row
that begins a launch gives its `correlation` to the whole launch; the operator gives its `external` to what it put into
the queue, to the calls that launched it and to the device rows.

Shape suffixes: E rows of the trace, H host rows looked at, Q moments asked for.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import ABSENT

Indexes = NDArray[np.int64]

_KEY_MAX = 1 << 62


@dataclass(frozen=True, slots=True)
class Flows:
    """Ends of flows of one kind: ids, thread codes and times, arrays of shape (n_ends,)."""

    id: NDArray[np.int64]
    thread: NDArray[np.int64]
    at_ns: NDArray[np.int64]
    begins: NDArray[np.bool_]

    def pairs(self) -> tuple[Indexes, Indexes]:
        """Return the begin and the end of each flow, as indexes into the arrays; ends without a begin are left out."""
        begins, ends = np.flatnonzero(self.begins), np.flatnonzero(~self.begins)
        order = begins[np.argsort(self.id[begins], kind="stable")]
        at = np.searchsorted(self.id[order], self.id[ends])
        at[at == len(order)] = 0
        if not len(order):
            return order, order
        found = self.id[order[at]] == self.id[ends]
        return order[at[found]], ends[found]


class Clock:
    """Combines threads and times into single keys, so that one sorted array serves all threads."""

    def __init__(self, threads: int, first_ns: int, last_ns: int) -> None:
        self._first_ns = first_ns
        self._span_ns = last_ns - first_ns + 2
        self.usable = threads * self._span_ns < _KEY_MAX
        """False if the trace's times are too far apart to come from one capture."""

    def keys(self, thread: NDArray[np.int64], at_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return one number for thread and moment; moments outside the trace become its edges."""
        return thread * self._span_ns + np.clip(at_ns - self._first_ns, 0, self._span_ns - 1)


def rows_at(keys_E: NDArray[np.int64], wanted_Q: NDArray[np.int64]) -> Indexes:  # noqa: N803
    """Return the index into `keys_E` of each wanted key, ABSENT where no row has it."""
    if not len(keys_E):
        return np.full(len(wanted_Q), ABSENT, np.int64)
    order = np.argsort(keys_E, kind="stable")
    at = np.minimum(np.searchsorted(keys_E[order], wanted_Q), len(order) - 1)
    found: Indexes = np.where(keys_E[order[at]] == wanted_Q, order[at], ABSENT)
    return found


def innermost(
    start_H: NDArray[np.int64],  # noqa: N803
    end_H: NDArray[np.int64],  # noqa: N803
    wanted_Q: NDArray[np.int64],  # noqa: N803
) -> Indexes:
    """Return the index of the innermost interval around each wanted key, ABSENT where there is none.

    Intervals nest within a thread; all arguments are keys of a `Clock`. An interval holds its start, not its end.
    """
    if not len(start_H):
        return np.full(len(wanted_Q), ABSENT, np.int64)
    order = np.lexsort((-end_H, start_H))
    starts, ends = start_H[order], np.sort(end_H)
    rank = np.searchsorted(starts, wanted_Q, side="right") - 1
    depth = np.arange(len(starts)) - np.searchsorted(ends, starts, side="right")
    wanted_depth = rank - np.searchsorted(ends, wanted_Q, side="right")
    by_depth = np.sort(depth * len(starts) + np.arange(len(starts)))  # by depth, then by start
    at = np.searchsorted(by_depth, wanted_depth * len(starts) + rank, side="right") - 1
    found = order[by_depth[np.maximum(at, 0)] % len(starts)]
    found = np.where((wanted_depth >= 0) & (at >= 0), found, ABSENT)
    inside = (found != ABSENT) & (start_H[found] <= wanted_Q) & (end_H[found] > wanted_Q)
    return np.where(inside, found, ABSENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRows:
    """What linking needs to know of the trace's rows; arrays of shape (n_rows,), masks by what a row is.

    `thread` is a code, `system_thread` a code of the operating system's thread, which Python's and CANN's rows share.
    `queued` and `connection` are ABSENT where a row has none.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    thread: NDArray[np.int64]
    system_thread: NDArray[np.int64]
    operator: NDArray[np.bool_]
    enqueue: NDArray[np.bool_]
    dequeue: NDArray[np.bool_]
    call: NDArray[np.bool_]
    device: NDArray[np.bool_]
    queued: NDArray[np.int64]
    connection: NDArray[np.int64]


def link(
    rows: LinkRows, to_npu: Flows, to_device: Flows, system_threads: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return correlation and external id of every row, int64 arrays of shape (n_rows,), ABSENT where unknown.

    `system_threads` is the operating system's thread of each thread code. An id is the index of the row that stands for
    all (the Enqueue, else the Dequeue, else the call; the operator) plus one: analyses take 0 for none.
    """
    correlation = np.full(len(rows.start_ns), ABSENT, np.int64)
    external = correlation.copy()
    clock = _clock(rows, len(system_threads))
    if clock is None:
        return correlation, external
    finder = _Finder(rows, clock, system_threads)
    operator = finder.operators_of_devices(to_npu)
    launcher = finder.launchers_of_devices(to_device)
    launched = np.flatnonzero(launcher != ABSENT)
    taken = finder.innermost_of(rows.dequeue, launcher[launched])
    taken = np.where(rows.dequeue[launcher[launched]], launcher[launched], taken)
    put = np.where(taken != ABSENT, finder.enqueues()[taken], ABSENT)
    root = np.where(put != ABSENT, put, np.where(taken != ABSENT, taken, launcher[launched]))
    guessed = finder.innermost_of(rows.operator, root)
    launched_by = operator[launched]
    owner = np.where(launched_by != ABSENT, launched_by, guessed)
    operator[launched] = owner
    for member in (launched, launcher[launched], taken, put):
        known = member != ABSENT
        correlation[member[known]] = root[known] + 1
        owned = known & (owner != ABSENT)
        external[member[owned]] = owner[owned] + 1
    known = operator != ABSENT
    external[known] = operator[known] + 1
    external[operator[known]] = operator[known] + 1
    external[np.flatnonzero(rows.operator & (external != ABSENT))] = (
        np.flatnonzero(rows.operator & (external != ABSENT)) + 1
    )
    return correlation, external


def _clock(rows: LinkRows, threads: int) -> Clock | None:
    if not len(rows.start_ns):
        return None
    clock = Clock(max(threads, 1), int(rows.start_ns.min()), int(rows.end_ns.max()))
    return clock if clock.usable else None


class _Finder:
    """Finds rows by time and thread."""

    def __init__(self, rows: LinkRows, clock: Clock, system_threads: NDArray[np.int64]) -> None:
        self._rows = rows
        self._clock = clock
        self._system_threads = system_threads
        self._devices = np.flatnonzero(rows.device)
        self._device_keys = clock.keys(rows.thread[self._devices], rows.start_ns[self._devices])

    def operators_of_devices(self, flows: Flows) -> Indexes:
        """Return by row the operator that a flow leads from, ABSENT for rows that none leads to."""
        begin, end = flows.pairs()
        operators = np.flatnonzero(self._rows.operator)
        keys = self._clock.keys(self._rows.thread[operators], self._rows.start_ns[operators])
        at = rows_at(keys, self._clock.keys(flows.thread[begin], flows.at_ns[begin]))
        return self._noted(flows, end, np.where(at != ABSENT, operators[at], ABSENT) if len(operators) else at)

    def launchers_of_devices(self, flows: Flows) -> Indexes:
        """Return by row the call that launched it: around a flow's begin, else with the same connection."""
        rows = self._rows
        begin, end = flows.pairs()
        wanted = self._clock.keys(self._system_threads[flows.thread[begin]], flows.at_ns[begin])
        found = self._innermost(rows.call, wanted)
        for otherwise in (rows.dequeue | rows.enqueue, rows.operator):
            found = np.where(found == ABSENT, self._innermost(otherwise, wanted), found)
        launcher = self._noted(flows, end, found)
        calls = np.flatnonzero(rows.call & (rows.connection != ABSENT))
        lost = self._devices[(launcher[self._devices] == ABSENT) & (rows.connection[self._devices] != ABSENT)]
        at = rows_at(rows.connection[calls], rows.connection[lost])
        launcher[lost[at != ABSENT]] = calls[at[at != ABSENT]]
        return launcher

    def innermost_of(self, mask: NDArray[np.bool_], inner: Indexes) -> Indexes:
        """Return for each row in `inner` the innermost masked row of its thread around its start."""
        return self._innermost(mask, self._clock.keys(self._rows.system_thread[inner], self._rows.start_ns[inner]))

    def enqueues(self) -> Indexes:
        """Return by row the Enqueue of a Dequeue, ABSENT for every other row."""
        found = np.full(len(self._rows.start_ns), ABSENT, np.int64)
        puts = np.flatnonzero(self._rows.enqueue & (self._rows.queued != ABSENT))
        takes = np.flatnonzero(self._rows.dequeue & (self._rows.queued != ABSENT))
        at = rows_at(self._rows.queued[puts], self._rows.queued[takes])
        found[takes[at != ABSENT]] = puts[at[at != ABSENT]]
        return found

    def _innermost(self, mask: NDArray[np.bool_], wanted: NDArray[np.int64]) -> Indexes:
        rows = np.flatnonzero(mask)
        thread = self._rows.system_thread[rows]
        begins = self._clock.keys(thread, self._rows.start_ns[rows])
        at = innermost(begins, self._clock.keys(thread, self._rows.end_ns[rows]), wanted)
        return np.where(at != ABSENT, rows[at], ABSENT) if len(rows) else at

    def _noted(self, flows: Flows, end: Indexes, value: Indexes) -> Indexes:
        """Return by row the value of the flow that leads to it."""
        found = np.full(len(self._rows.start_ns), ABSENT, np.int64)
        at = rows_at(self._device_keys, self._clock.keys(flows.thread[end], flows.at_ns[end]))
        known = at != ABSENT
        found[self._devices[at[known]]] = value[known]
        return found
