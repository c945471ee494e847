"""Work in queues: the streams of the device, and the threads on which host backends run their collectives.

An *op* is a piece of such work, numbered by lane and start.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import ABSENT, TraceColumns, WorkKind
from lockstep.trace.critical_path.path import PathClass

ALIGNED_NS = 20_000
"""Work that begins at most so long after other work ended may have waited for it: a wait on the device resolves in 2 to
8 us on the recorded NVIDIA devices and in 14 to 18 us on the MI300; and on a busy device much ends in any 100 us."""
_OVERLAPPING_MAX = 64
"""How far back the work before an op is looked for, where a writer puts work that overlaps on one stream."""

_LONG_AGO = -(1 << 62)

_CLASSES: dict[int, PathClass] = {
    WorkKind.COMPUTE: PathClass.COMPUTE,
    WorkKind.MEMORY: PathClass.MEMORY,
    WorkKind.COMMUNICATION: PathClass.COMMUNICATION,
}


class Lanes:
    """The ops of a trace, in views of length n_ops which a walk reads one at a time.

    A view costs a third more per look than a list, and a list of a million integers 40 MB: windows look at little.

    `launch` is what `launches_of` returns. Lanes before `device_lanes` are streams of the device, the others threads.
    """

    def __init__(self, columns: TraceColumns, launch: NDArray[np.int64]) -> None:
        self.device_lanes = len(columns.streams)
        in_lane = (columns.on_device | (columns.work == WorkKind.COMMUNICATION)) & (columns.duration_ns > 0)
        events = np.flatnonzero(in_lane)
        stream = columns.stream[events].astype(np.int64)
        lane = np.where(stream != ABSENT, stream, self.device_lanes + columns.thread[events])
        order = np.lexsort((columns.start_ns[events], lane))
        events, lane = events[order], lane[order]
        self._first = np.searchsorted(lane, np.arange(lane.max(initial=-1) + 2)).tolist()
        start_ns, end_ns = columns.start_ns[events], columns.end_ns[events]
        self.event = events.astype(np.int64).data
        self.lane = lane.data
        self.start_ns = start_ns.data
        self.end_ns = end_ns.data
        self.work = columns.work[events].data
        self.launch = launch[events].data
        by_end = np.argsort(end_ns, kind="stable")
        on_device = lane[by_end] < self.device_lanes
        by_end_of = [by_end[~on_device], by_end[on_device]]
        self._by_end = [ops.data for ops in by_end_of]
        self._ends_ns = [end_ns[ops].data for ops in by_end_of]
        self._note_busy(start_ns, end_ns, lane < self.device_lanes)

    def _note_busy(self, start_ns: NDArray[np.int64], end_ns: NDArray[np.int64], on_device: NDArray[np.bool_]) -> None:
        """Note when any stream of the device works; where several do, the op that began first counts."""
        ops = np.flatnonzero(on_device)
        ops = ops[np.argsort(start_ns[ops], kind="stable")]
        reached_ns = np.maximum.accumulate(np.concatenate((np.array([_LONG_AGO]), end_ns[ops])))[:-1]
        own_start_ns = np.maximum(start_ns[ops], reached_ns)
        adds = own_start_ns < end_ns[ops]
        self._busy_op = ops[adds].data
        self._busy_start_ns = own_start_ns[adds].data
        self._busy_end_ns = end_ns[ops][adds].data

    def __len__(self) -> int:
        return len(self.event)

    def path_class(self, op: int) -> PathClass:
        """Return the class of an op."""
        return _CLASSES[self.work[op]]

    def is_device(self, op: int) -> bool:
        """Whether an op runs on the device."""
        return self.lane[op] < self.device_lanes

    def span(self, lane: int) -> tuple[int, int]:
        """Return the first op of a lane and the one after its last."""
        return (self._first[lane], self._first[lane + 1]) if 0 <= lane < len(self._first) - 1 else (0, 0)

    @property
    def lanes(self) -> range:
        """Return the numbers of all lanes."""
        return range(len(self._first) - 1)

    def busy_within(self, start_ns: int, end_ns: int) -> Iterator[tuple[int, int, int]]:
        """Yield when the device worked between two times, as (op, start, end), the last first, no time twice."""
        for place in range(bisect_left(self._busy_start_ns, end_ns) - 1, -1, -1):
            if self._busy_end_ns[place] <= start_ns:
                return
            yield (
                self._busy_op[place],
                max(self._busy_start_ns[place], start_ns),
                min(self._busy_end_ns[place], end_ns),
            )

    def last_before(self, lane: int, time_ns: int) -> int:
        """Return the last op of a lane that begins before a time, ABSENT for none."""
        first, last = self.span(lane)
        at = bisect_left(self.start_ns, time_ns, first, last) - 1
        return at if at >= first else ABSENT

    def before(self, op: int) -> int:
        """Return the op before this one in its lane that had ended when it began, ABSENT for none."""
        first = max(self._first[self.lane[op]], op - _OVERLAPPING_MAX)
        start_ns = self.start_ns[op]
        for other in range(op - 1, first - 1, -1):
            if self.end_ns[other] <= start_ns:
                return other
        return ABSENT

    def ended_by(self, time_ns: int, *, on_device: bool = True) -> Iterator[int]:
        """Yield the ops of the device, or of host backends, that had ended by then, the last first."""
        ops, ends_ns = self._by_end[on_device], self._ends_ns[on_device]
        for place in range(bisect_right(ends_ns, time_ns) - 1, -1, -1):
            yield ops[place]

    def aligned_with(self, op: int) -> int:
        """Return the op of another stream that ended last, in ALIGNED_NS before this one began; ABSENT for none."""
        start_ns = self.start_ns[op]
        for other in self.ended_by(start_ns):
            if self.end_ns[other] <= start_ns - ALIGNED_NS:
                break
            if self.lane[other] != self.lane[op]:
                return other
        return ABSENT
