# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""Queues of work: the streams of the device, and the threads on which host backends run their collectives.

An *op* is an item of such work, numbered by lane and start. Shape suffixes: O all ops, D those of the device, or of
host backends, in order of their ends.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import ABSENT, Mask, TraceColumns, WorkKind

ALIGNED_NS = 20_000
"""Work that begins at most so long after other work ended may have waited for it: a wait on the device resolves in 2 to
8 us on the recorded NVIDIA devices and in 14 to 18 us on the MI300; and on a busy device much ends in any 100 us."""
_OVERLAPPING_MAX = 64
"""How far back the work before an op is looked for, where a writer puts work that overlaps on one stream."""

_LONG_AGO = -(1 << 62)

Numbers = NDArray[np.int64]


class DeviceBusyTime(NamedTuple):
    """When any stream of the device works, disjoint and in order, and the op; arrays of shape (n_pieces,)."""

    op: Numbers
    start_ns: Numbers
    end_ns: Numbers


class _Ended(NamedTuple):
    """Ops in order of their ends, and the last one before each that is of another lane; arrays of shape (n_ended,)."""

    op: Numbers
    end_ns: Numbers
    other: Numbers


class Lanes:
    """The ops of a trace; `event`, `lane`, `launch`, times and `work` are arrays of shape (n_ops,).

    `launch` is what `launches_of` returns. Lanes before `device_lanes` are streams of the device, the others threads.
    """

    def __init__(self, columns: TraceColumns, launch: Numbers) -> None:
        self.device_lanes = len(columns.streams)
        in_lane = (columns.on_device | (columns.work == WorkKind.COMMUNICATION)) & (columns.duration_ns > 0)
        events = np.flatnonzero(in_lane)
        stream = columns.stream[events].astype(np.int64)
        lane = np.where(stream != ABSENT, stream, self.device_lanes + columns.thread[events])
        order = np.lexsort((columns.start_ns[events], lane))
        self.event: Numbers = events[order].astype(np.int64)
        self.lane: Numbers = lane[order]
        self.first: Numbers = np.searchsorted(self.lane, np.arange(self.lane.max(initial=-1) + 2))
        self.start_ns: Numbers = columns.start_ns[self.event]
        self.end_ns: Numbers = columns.end_ns[self.event]
        self.work: NDArray[np.int8] = columns.work[self.event]
        self.launch: Numbers = launch[self.event]
        self.on_device: Mask = self.lane < self.device_lanes
        by_end = np.argsort(self.end_ns, kind="stable")
        self._ended = [self._in_order(by_end[self.on_device[by_end] == on_device]) for on_device in (False, True)]
        self.busy = self._busy()

    def __len__(self) -> int:
        return len(self.event)

    def _in_order(self, ops: Numbers) -> _Ended:
        """Return ops in order of their ends; ops of one lane in a row have the same one of another lane before them."""
        lane_D = self.lane[ops]
        begins = np.concatenate((np.ones(1, np.bool_), lane_D[1:] != lane_D[:-1]))[: len(ops)]
        other = np.maximum.accumulate(np.where(begins, np.arange(len(ops)), 0)) - 1
        return _Ended(ops, self.end_ns[ops], other)

    def _busy(self) -> DeviceBusyTime:
        """Return when any stream of the device works; where several do, the op that began first counts."""
        ops = np.flatnonzero(self.on_device)
        ops = ops[np.argsort(self.start_ns[ops], kind="stable")]
        reached_ns = np.maximum.accumulate(np.concatenate((np.array([_LONG_AGO]), self.end_ns[ops])))[:-1]
        own_start_ns = np.maximum(self.start_ns[ops], reached_ns)
        adds = own_start_ns < self.end_ns[ops]
        return DeviceBusyTime(ops[adds], own_start_ns[adds], self.end_ns[ops][adds])

    def span(self, lane: int) -> tuple[int, int]:
        """Return the first op of a lane and the one after its last."""
        return (int(self.first[lane]), int(self.first[lane + 1])) if 0 <= lane < len(self.first) - 1 else (0, 0)

    def under_way(self, time_ns: int) -> list[int]:
        """Return the last op of each lane that begins before a time and ends at or after it."""
        spans = map(self.span, range(len(self.first) - 1))
        last = [first + int(np.searchsorted(self.start_ns[first:end], time_ns)) - 1 for first, end in spans]
        return [op for lane, op in enumerate(last) if op >= self.first[lane] and self.end_ns[op] >= time_ns]

    def before(self) -> Numbers:
        """Return the op before each in its lane that had ended when it began, ABSENT for none; shape (n_ops,)."""
        first_O = self.first[self.lane]
        before_O = np.arange(len(self)) - 1
        looking = np.arange(len(self))
        for _ in range(_OVERLAPPING_MAX):
            before_O[looking[before_O[looking] < first_O[looking]]] = ABSENT
            looking = looking[before_O[looking] != ABSENT]
            looking = looking[self.end_ns[before_O[looking]] > self.start_ns[looking]]
            before_O[looking] -= 1
        before_O[looking] = ABSENT
        return before_O

    def ended_last(self, time_ns: Numbers | int, *, on_device: bool = True) -> Numbers:
        """Return the op of the device, or of host backends, that had ended last by each time, ABSENT for none."""
        ended = self._ended[on_device]
        if not len(ended.op):
            return np.full(np.shape(time_ns), ABSENT)
        at = np.searchsorted(ended.end_ns, time_ns, side="right") - 1
        return np.where(at >= 0, ended.op[at], ABSENT)

    def ended_elsewhere(self, ops: Numbers) -> Numbers:
        """Return the op of another stream that had ended last when each of some ops began, ABSENT for none."""
        ended = self._ended[True]
        at = np.searchsorted(ended.end_ns, self.start_ns[ops], side="right") - 1
        if not len(ended.op):
            return np.full(len(ops), ABSENT)
        at = np.where((at >= 0) & (self.lane[ended.op[at]] == self.lane[ops]), ended.other[at], at)
        return np.where(at >= 0, ended.op[at], ABSENT)
