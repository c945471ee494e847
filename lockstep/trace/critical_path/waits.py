"""Waits that the profiler records: `cuda_sync` rows, and copies that a call waits for.

torch records `cuda_sync` rows on request (enable_cuda_sync_events). Correlations increase in the order of calls, so of
two calls the one with the higher correlation is later.
"""

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import ABSENT, Mask, SyncArguments, TraceColumns, WorkKind
from lockstep.trace.critical_path.lanes import Lanes
from lockstep.trace.critical_path.path import DependencyKind

_STREAM_WAIT = "Stream Wait"


class TraceWaits:
    """The waits of one trace, in terms of its lanes."""

    def __init__(self, columns: TraceColumns, lanes: Lanes) -> None:
        self._columns = columns
        self._lanes = lanes
        self._streams = {stream: lane for lane, stream in enumerate(columns.streams)}
        copies = np.flatnonzero((lanes.work == WorkKind.MEMORY) & (lanes.launch != ABSENT))
        self._own_copy = dict(zip(lanes.launch[copies].tolist(), copies.tolist(), strict=True))
        self._sync_of = {
            int(columns.correlation[event]): event for event in columns.syncs if columns.correlation[event] != ABSENT
        }
        self._order = [self._orders(lane) for lane in range(lanes.device_lanes)]
        self.waited_for: dict[int, list[int]] = {}
        """By op the ops of other streams that it waited for by the profiler's record."""
        self.are_recorded = False
        """Whether the trace records waits between streams, in which case nothing is guessed from times."""
        for event, arguments in columns.syncs.items():
            if arguments.kind.startswith(_STREAM_WAIT) and columns.stream[event] != ABSENT:
                self.are_recorded = True
                self._note(int(columns.stream[event]), int(columns.correlation[event]), arguments)

    def own_copies(self) -> Mask:
        """Return which ops are copies for which the call that launched them waits, array of shape (n_ops,)."""
        lanes, columns = self._lanes, self._columns
        copies = np.array(list(self._own_copy.values()), np.int64)
        copies = copies[lanes.end_ns[copies] <= columns.end_ns[lanes.launch[copies]]]
        own = np.zeros(len(lanes), np.bool_)
        own[copies] = True
        return own

    def awaited(self, call: int, start_ns: int, end_ns: int) -> tuple[int, DependencyKind]:
        """Return the op whose end a call that synchronises waited for within a piece of time, and how that is known.

        ABSENT if nothing ended in it that the call can have waited for.
        """
        lanes = self._lanes
        sync = self._sync_of.get(int(self._columns.correlation[call]), ABSENT)
        if sync != ABSENT:
            op, why = self._awaited_by(sync, end_ns), DependencyKind.RECORDED_WAIT
        elif call in self._own_copy:
            op, why = self._own_copy[call], DependencyKind.RECORDED_WAIT
        else:
            op, why = int(lanes.ended_last(end_ns)), DependencyKind.RAN_LAST
        return (op, why) if op != ABSENT and start_ns < lanes.end_ns[op] <= end_ns else (ABSENT, why)

    def _awaited_by(self, sync: int, end_ns: int) -> int:
        """Return what a recorded wait of the host waited for: an event, a stream, or else all of the device."""
        arguments = self._columns.syncs[sync]
        lane = int(self._columns.stream[sync])
        if arguments.waits_on_correlation != ABSENT:
            return self._launched_before(self._lane(arguments.waits_on_stream, lane), arguments.waits_on_correlation)
        if lane == ABSENT:
            return int(self._lanes.ended_last(end_ns))
        first, last = self._lanes.span(lane)
        at = bisect_right(self._lanes.end_ns, end_ns, first, last) - 1
        return at if at >= first else ABSENT

    def _note(self, lane: int, correlation: int, arguments: SyncArguments) -> None:
        """Note what the next work launched on a stream waited for: all that was on the other before its event."""
        target = self._launched_before(self._lane(arguments.waits_on_stream, lane), arguments.waits_on_correlation)
        first, last = self._lanes.span(lane)
        op = first + int(np.searchsorted(self._order[lane], correlation, side="right"))
        if target != ABSENT and op < last:
            self.waited_for.setdefault(op, []).append(target)

    def _launched_before(self, lane: int, correlation: int) -> int:
        """Return the last op of a lane that was launched before a call, ABSENT for none."""
        if ABSENT in {lane, correlation}:
            return ABSENT
        at = int(np.searchsorted(self._order[lane], correlation)) - 1
        return self._lanes.span(lane)[0] + at if at >= 0 else ABSENT

    def _lane(self, stream: int, concurrent: int) -> int:
        """Return the lane of a stream on the device of another lane, the first device if that is ABSENT."""
        device = self._columns.streams[concurrent][0] if concurrent != ABSENT else 0
        return self._streams.get((device, stream), ABSENT)

    def _orders(self, lane: int) -> NDArray[np.int64]:
        """Return the correlations of a lane's ops, made to grow where a graph's one launch stands for many."""
        first, last = self._lanes.span(lane)
        correlations = self._columns.correlation[self._lanes.event[first:last]]
        return np.maximum.accumulate(correlations) if len(correlations) else correlations
