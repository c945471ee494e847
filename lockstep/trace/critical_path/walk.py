"""Walks from the end of a window back to its beginning.

On a lane: the op itself, then back to whatever allowed it to begin last (`allowed`): the previous op on its stream, its
launch, or work of another stream that it waited for. On the host: the innermost event of a thread, then what the thread
did before; from a call that waits, to what ended last during it; from a thread of which the trace records nothing, to
the one that ran last. The walk becomes segments at the end (`path_recorder`).
"""

from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from lockstep.trace.columns import ABSENT
from lockstep.trace.critical_path.allowed import NEVER_NS, Launches, allowed_by
from lockstep.trace.critical_path.lanes import Lanes, Numbers
from lockstep.trace.critical_path.path import DEPENDENCY_KINDS, CriticalPath, DependencyKind
from lockstep.trace.critical_path.path_recorder import PathRecorder
from lockstep.trace.critical_path.waits import TraceWaits
from lockstep.trace.host_timeline import Activity, HostThread
from lockstep.trace.prepared import PreparedTrace
from lockstep.trace.waiting import SHORTEST_WAIT_NS


class _Place(NamedTuple):
    """Position of the walk: an op or (op ABSENT) a thread of the host, the time, and why it went there."""

    time_ns: int
    why: DependencyKind
    op: int = ABSENT
    thread: int = 0


class _Thread:
    """One host thread's pieces to read one at a time, and those in which it does not wait for another thread.

    `first` is what `PathFinder` finds of all threads together.
    """

    first: memoryview

    def __init__(self, thread: HostThread) -> None:
        self.start_ns = thread.start_ns.data
        self.end_ns = thread.end_ns.data
        self.event = thread.event.data
        self.activity = thread.activity.data
        runs = thread.activity != Activity.WAITS_FOR_THREAD
        self._runs_from_ns = thread.start_ns[runs]
        self._runs_until_ns = thread.end_ns[runs]

    def piece_before(self, time_ns: int) -> int:
        """Return the last piece that begins before a time, ABSENT for none."""
        return bisect_left(self.start_ns, time_ns) - 1

    def ran_last(self, time_ns: int) -> int:
        """Return until when, at most until then, the thread last did something itself."""
        at = bisect_left(self._runs_from_ns.data, time_ns) - 1
        return min(int(self._runs_until_ns[at]), time_ns) if at >= 0 else NEVER_NS

    def ran_last_by(self, time_ns: Numbers) -> Numbers:
        """Return the same of many times."""
        at = np.searchsorted(self._runs_from_ns, time_ns) - 1
        known = at >= 0
        found = np.full(len(time_ns), NEVER_NS)
        found[known] = np.minimum(self._runs_until_ns[at[known]], time_ns[known])
        return found


class PathFinder:
    """Finds the critical paths of windows of one trace; what all windows need is prepared once."""

    def __init__(self, trace: PreparedTrace) -> None:
        self._trace = trace
        self._lanes = Lanes(trace.columns, trace.launch)
        self._waits = TraceWaits(trace.columns, self._lanes)
        self._threads = [_Thread(thread) for thread in trace.threads]
        for place, thread in enumerate(trace.threads):
            self._threads[place].first = self._first_pieces(place, thread).data
        has_threads = bool(self._threads)
        self._allowed = allowed_by(self._lanes, self._waits, self._launches(), has_threads=has_threads)
        self._allowed_ns, self._next = self._allowed.time_ns.data, self._allowed.op.data

    def _first_pieces(self, place: int, thread: HostThread) -> Numbers:
        """Return by piece of a thread the first one from which the walk goes on to it without leaving the thread.

        It leaves the thread at a wait, and where the thread stood still while anything else ran (`_ran_last`).
        """
        waits = np.isin(thread.activity, (Activity.WAITS_FOR_DEVICE, Activity.WAITS_FOR_THREAD))
        since_ns, until_ns = thread.end_ns[:-1], thread.start_ns[1:]
        leaves = waits[1:] | waits[:-1]
        for each in self._threads[:place] + self._threads[place + 1 :]:
            leaves |= (each.ran_last_by(until_ns) > since_ns) & (since_ns < until_ns)
        ended = self._lanes.ended_last(until_ns, on_device=False)
        was_long = (ended != ABSENT) & (until_ns - since_ns >= SHORTEST_WAIT_NS)
        leaves[was_long] |= self._lanes.end_ns[ended[was_long]] > since_ns[was_long]
        begins = np.concatenate((np.ones(1, np.bool_), leaves))[: len(waits)]
        return np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))

    def _launches(self) -> Launches:
        """Return when calls had launched ops: when they returned, or when the op began if that was sooner.

        A call that waits for its own copy began by waiting for what was on the stream: its beginning is all it did.
        """
        trace, lanes = self._trace, self._lanes
        start_ns, end_ns = trace.columns.start_ns[lanes.launch], trace.columns.end_ns[lanes.launch]
        launched_ns = np.where(self._waits.own_copies(), start_ns, end_ns)
        place = np.full(len(trace.columns.threads), ABSENT, np.int64)
        place[[thread.thread for thread in trace.threads]] = np.arange(len(trace.threads))
        thread = np.where(lanes.launch != ABSENT, place[trace.columns.thread[lanes.launch]], ABSENT)
        return Launches(np.minimum(launched_ns, lanes.start_ns), thread)

    def find(self, start_ns: int, end_ns: int) -> CriticalPath:
        """Return the critical path of a window; its segments sum to `end_ns - start_ns`."""
        walked = PathRecorder(start_ns, end_ns)
        place: _Place | None = self._last(walked)
        while place is not None and walked.reached_ns > start_ns:
            place = self._on_lanes(place, walked) if place.op != ABSENT else self._on_host(place, walked)
        recorded = self._waits.are_recorded
        return walked.path(self._trace, self._lanes, self._allowed, waits_are_recorded=recorded)

    def _last(self, walked: PathRecorder) -> _Place | None:
        """Return where the walk begins: on what ends with the window, else on what runs then, else on what ran last."""
        time_ns = walked.reached_ns
        under_way = self._lanes.under_way(time_ns)
        until_ns = [thread.ran_last(time_ns) for thread in self._threads]
        for op in under_way:
            if self._lanes.end_ns[op] == time_ns:
                return _Place(time_ns, DependencyKind.END, op)
        if time_ns in until_ns:
            return _Place(time_ns, DependencyKind.END, thread=until_ns.index(time_ns))
        if under_way:
            return _Place(time_ns, DependencyKind.END, max(under_way, key=lambda op: int(self._lanes.start_ns[op])))
        return self._stood_still(walked, ABSENT, NEVER_NS)

    def _on_lanes(self, place: _Place, walked: PathRecorder) -> _Place:
        """Go from an op to the one that allowed it to begin, until it was the host, or the window begins."""
        op, passed, begins_ns = place.op, [], walked.start_ns
        while op != ABSENT:
            passed.append(op)
            allowed_ns = self._allowed_ns[op]
            op = self._next[op] if allowed_ns > begins_ns else ABSENT
        walked.pass_ops(passed, allowed_ns, place.why)
        last = passed[-1]
        return _Place(allowed_ns, DEPENDENCY_KINDS[self._allowed.why[last]], thread=int(self._allowed.thread[last]))

    def _on_host(self, place: _Place, walked: PathRecorder) -> _Place | None:
        thread, time_ns = self._threads[place.thread], walked.reached_ns
        at = thread.piece_before(time_ns)
        if at == ABSENT or thread.end_ns[at] < time_ns:
            return self._stood_still(walked, place.thread, thread.end_ns[at] if at != ABSENT else NEVER_NS)
        found: _Place | None = None
        if thread.activity[at] == Activity.WAITS_FOR_DEVICE:
            op, why = self._waits.awaited(thread.event[at], thread.start_ns[at], time_ns)
            found = None if op == ABSENT else _Place(int(self._lanes.end_ns[op]), why, op)
        elif thread.activity[at] == Activity.WAITS_FOR_THREAD:
            found = self._ran_last(place.thread, thread.start_ns[at], time_ns)
        first = max(thread.first[at], thread.piece_before(walked.start_ns + 1))
        since_ns = found.time_ns if found else thread.start_ns[first]
        walked.pass_pieces(place.thread, at if found else first, at, since_ns, place.why)
        return found or _Place(since_ns, DependencyKind.THREAD, thread=place.thread)

    def _stood_still(self, walked: PathRecorder, thread: int, since_ns: int) -> _Place | None:
        """Go from a thread without records to what ran last meanwhile, else to what it did before."""
        found = self._ran_last(thread, since_ns, walked.reached_ns)
        if found is None and since_ns != NEVER_NS:
            found = _Place(since_ns, DependencyKind.THREAD, thread=thread)
        walked.pass_idle(found.time_ns if found else walked.start_ns)
        return found

    def _ran_last(self, thread: int, since_ns: int, time_ns: int) -> _Place | None:
        """Return which other thread, or collective of a host backend, was the last to run in a time; None for none."""
        others = [place for place in range(len(self._threads)) if place != thread]
        places = [
            _Place(self._threads[other].ran_last(time_ns), DependencyKind.RAN_LAST, thread=other) for other in others
        ]
        ended = []
        if time_ns - since_ns >= SHORTEST_WAIT_NS:
            ended.append(int(self._lanes.ended_last(time_ns, on_device=False)))
        if not self._threads or thread == ABSENT:
            ended.append(int(self._lanes.ended_last(time_ns)))
        places += [_Place(int(self._lanes.end_ns[op]), DependencyKind.RAN_LAST, op) for op in ended if op != ABSENT]
        last = max(places, key=lambda place: place.time_ns, default=None)
        return last if last and last.time_ns > since_ns else None
