"""The walk from the end of a window back to its beginning.

On a lane: the work itself, then back to whatever allowed it to begin last, be it the work before it on its stream, its
launch, or work of another stream that it waited for. On the host: the innermost event of a thread, then what the thread
did before it; from a call that waits to what ended last while it did; from a thread of which the trace records nothing
to the one that ran last. While nothing on the path runs but the device does, its work is the path: who waits for a busy
device is not idle.
"""

from bisect import bisect_left
from itertools import repeat
from typing import NamedTuple

from lockstep.trace import names
from lockstep.trace.columns import ABSENT
from lockstep.trace.critical_path.lanes import ALIGNED_NS, Lanes
from lockstep.trace.critical_path.path import CriticalPath, PathClass, Segment, Why
from lockstep.trace.critical_path.waits import Waits
from lockstep.trace.host_timeline import Activity, HostThread
from lockstep.trace.prepared import PreparedTrace
from lockstep.trace.waiting import SHORTEST_WAIT_NS

IDLE_NAME = "idle"
HANDED_OVER_NS = 100_000
"""A host backend's thread that takes its next collective within this time had it waiting: 7 to 30 us in the recordings
(once 153), and more than 2 ms where the thread was itself waiting for one."""

_LONG_AGO = -(1 << 63)
_END, _STREAM, _LAUNCH, _RECORDED_WAIT = Why.END, Why.STREAM, Why.LAUNCH, Why.RECORDED_WAIT
_THREAD, _ALIGNMENT, _RAN_LAST = Why.THREAD, Why.ALIGNMENT, Why.RAN_LAST
_COMPUTE, _HOST, _GAP, _IDLE = PathClass.COMPUTE, PathClass.HOST, PathClass.GAP, PathClass.IDLE
"""Members of enums cost ten times a global to look up, and every step of the walk needs some."""
_COMPUTES, _WAITS_FOR_DEVICE, _WAITS_FOR_THREAD = (
    int(each) for each in (Activity.COMPUTE, Activity.WAITS_FOR_DEVICE, Activity.WAITS_FOR_THREAD)
)


class _Place(NamedTuple):
    """Where the walk is, an op or (op ABSENT) a thread of the host, until when, and why it went there."""

    time_ns: int
    why: Why
    op: int = ABSENT
    thread: int = 0


class _Thread:
    """One host thread's pieces to read one at a time, and those in which it does not wait for another thread."""

    def __init__(self, thread: HostThread) -> None:
        self.start_ns = thread.start_ns.data
        self.end_ns = thread.end_ns.data
        self.event = thread.event.data
        self.owner = thread.owner.data
        self.activity = thread.activity.data
        runs = thread.activity != Activity.WAITS_FOR_THREAD
        self._runs_from_ns = thread.start_ns[runs].data
        self._runs_until_ns = thread.end_ns[runs].data

    def piece_before(self, time_ns: int) -> int:
        """Return the last piece that begins before a time, ABSENT for none."""
        return bisect_left(self.start_ns, time_ns) - 1

    def ran_last(self, time_ns: int) -> int:
        """Return until when, at most until then, the thread last did something itself."""
        at = bisect_left(self._runs_from_ns, time_ns) - 1
        return min(self._runs_until_ns[at], time_ns) if at >= 0 else _LONG_AGO


class PathFinder:
    """Finds the critical paths of windows of one trace; what all windows need is prepared once."""

    def __init__(self, trace: PreparedTrace) -> None:
        self._names = trace.columns.names
        self._name_of = trace.columns.name.data
        self._start_ns = trace.columns.start_ns.data
        self._duration_ns = trace.columns.duration_ns.data
        self._thread = trace.columns.thread.data
        self._lanes = Lanes(trace.columns, trace.launch)
        self._waits = Waits(trace.columns, self._lanes)
        self._threads = [_Thread(thread) for thread in trace.threads]
        self._thread_of = {thread.thread: place for place, thread in enumerate(trace.threads)}
        self._tidied: dict[int, str] = {}

    def find(self, start_ns: int, end_ns: int) -> CriticalPath:
        """Return the critical path of a window; its segments sum to `end_ns - start_ns`."""
        walked = _Walked(start_ns, end_ns)
        place: _Place | None = self._last(walked)
        while place is not None and walked.reached_ns > start_ns:
            place = self._on_lane(place, walked) if place.op != ABSENT else self._on_host(place, walked)
        return CriticalPath((start_ns, end_ns), walked.segments[::-1])

    def _last(self, walked: "_Walked") -> _Place | None:
        """Return where the walk begins: on what ends with the window, else on what runs then, else on what ran last."""
        time_ns = walked.reached_ns
        under_way = [op for op in map(self._lanes.last_before, self._lanes.lanes, repeat(time_ns)) if op != ABSENT]
        under_way = [op for op in under_way if self._lanes.end_ns[op] >= time_ns]
        until_ns = [thread.ran_last(time_ns) for thread in self._threads]
        for op in under_way:
            if self._lanes.end_ns[op] == time_ns:
                return _Place(time_ns, _END, op)
        if time_ns in until_ns:
            return _Place(time_ns, _END, thread=until_ns.index(time_ns))
        if under_way:
            return _Place(time_ns, _END, max(under_way, key=lambda op: self._lanes.start_ns[op]))
        return self._stood_still(walked, ABSENT, _LONG_AGO)

    def _on_lane(self, place: _Place, walked: "_Walked") -> _Place | None:
        op = place.op
        event, start_ns = self._lanes.event[op], self._lanes.start_ns[op]
        walked.hand_over(start_ns, self._name(event), self._lanes.path_class(op), event, place.why)
        allowed = self._allowed(op)
        if allowed is None:
            self._still(walked, walked.start_ns, Segment(self._name(event), _GAP, 0, 0, event, _STREAM))
        elif allowed.time_ns < start_ns:
            self._still(walked, allowed.time_ns, Segment(self._name(event), _GAP, 0, 0, event, allowed.why))
        return allowed

    def _still(self, walked: "_Walked", since_ns: int, still: Segment) -> None:
        """Hand time in which nothing on the path runs to what the device does meanwhile, the rest to `still`.

        A gap stays one where the trace records waits: what runs meanwhile is then known not to be waited for.
        """
        if still.path_class == _GAP and self._waits.are_recorded:
            walked.hand_over(since_ns, still.name, still.path_class, still.event, still.why)
            return
        for op, start_ns, end_ns in self._lanes.busy_within(max(since_ns, walked.start_ns), walked.reached_ns):
            walked.hand_over(end_ns, still.name, still.path_class, still.event, still.why)
            event = self._lanes.event[op]
            walked.hand_over(start_ns, self._name(event), self._lanes.path_class(op), event, _RAN_LAST)
        walked.hand_over(since_ns, still.name, still.path_class, still.event, still.why)

    def _allowed(self, op: int) -> _Place | None:
        """Return what allowed an op to begin last, and when; None if nothing in the trace can have.

        Of what allowed it at one and the same time a recorded wait goes first, then the stream, then the launch.
        """
        lanes, start_ns = self._lanes, self._lanes.start_ns[op]
        before = lanes.before(op)
        best = _Place(lanes.end_ns[before], _STREAM, before) if before != ABSENT else None
        if not lanes.is_device(op):
            return best if best and start_ns - best.time_ns <= HANDED_OVER_NS else self._unknown(start_ns)
        call = lanes.launch[op]
        if call != ABSENT and self._threads:
            launched = self._launched(op, call)
            best = launched if best is None or launched.time_ns > best.time_ns else best
        for other in self._waits.waited_for(op):
            until_ns = min(lanes.end_ns[other], start_ns)
            is_first = (
                best is None or until_ns > best.time_ns or (until_ns == best.time_ns and best.why != _RECORDED_WAIT)
            )
            if lanes.start_ns[other] < start_ns and is_first:
                best = _Place(until_ns, _RECORDED_WAIT, other)
        if self._waits.are_recorded or (best and start_ns - best.time_ns <= ALIGNED_NS):
            return best or self._unknown(start_ns)
        aligned = lanes.aligned_with(op)
        if aligned != ABSENT and (best is None or lanes.end_ns[aligned] > best.time_ns):
            return _Place(lanes.end_ns[aligned], _ALIGNMENT, aligned)
        return best or self._unknown(start_ns)

    def _launched(self, op: int, call: int) -> _Place:
        """Return when a call had launched an op: when it returned, or when the op began if that was sooner.

        A call that waits for its own copy began by waiting for what was on the stream: its beginning is all it did.
        """
        start_ns = self._start_ns[call]
        launched_ns = start_ns if self._waits.is_awaited(op) else start_ns + self._duration_ns[call]
        thread = self._thread_of[self._thread[call]]
        return _Place(min(launched_ns, self._lanes.start_ns[op]), _LAUNCH, thread=thread)

    def _unknown(self, time_ns: int) -> _Place | None:
        """Return where to go from work of which no record shows what allowed it to begin."""
        if self._threads:
            return _Place(time_ns, _RAN_LAST)
        last = next(self._lanes.ended_by(time_ns), ABSENT)
        return None if last == ABSENT else _Place(self._lanes.end_ns[last], _ALIGNMENT, last)

    def _on_host(self, place: _Place, walked: "_Walked") -> _Place | None:
        thread, time_ns = self._threads[place.thread], walked.reached_ns
        at = thread.piece_before(time_ns)
        if at == ABSENT or thread.end_ns[at] < time_ns:
            return self._stood_still(walked, place.thread, thread.end_ns[at] if at != ABSENT else _LONG_AGO)
        start_ns, event, activity = thread.start_ns[at], thread.event[at], thread.activity[at]
        name = self._name(thread.owner[at])
        found: _Place | None = None
        if activity == _WAITS_FOR_DEVICE:
            op, why = self._waits.awaited(event, start_ns, time_ns)
            found = None if op == ABSENT else _Place(self._lanes.end_ns[op], why, op)
        elif activity == _WAITS_FOR_THREAD:
            found = self._ran_last(place.thread, start_ns, time_ns)
        path_class = _COMPUTE if activity == _COMPUTES else _HOST
        walked.hand_over(found.time_ns if found else start_ns, name, path_class, event, place.why)
        return found or _Place(start_ns, _THREAD, thread=place.thread)

    def _stood_still(self, walked: "_Walked", thread: int, since_ns: int) -> _Place | None:
        """Go from a thread without records to what ran last meanwhile, else to what it did before."""
        found = self._ran_last(thread, since_ns, walked.reached_ns)
        if found is None and since_ns != _LONG_AGO:
            found = _Place(since_ns, _THREAD, thread=thread)
        self._still(
            walked, found.time_ns if found else walked.start_ns, Segment(IDLE_NAME, _IDLE, 0, 0, ABSENT, _THREAD)
        )
        return found

    def _ran_last(self, thread: int, since_ns: int, time_ns: int) -> _Place | None:
        """Return which other thread, or collective of a host backend, was the last to run in a time; None for none."""
        others = [place for place in range(len(self._threads)) if place != thread]
        places = [_Place(self._threads[other].ran_last(time_ns), _RAN_LAST, thread=other) for other in others]
        if time_ns - since_ns >= SHORTEST_WAIT_NS:
            ended = next(self._lanes.ended_by(time_ns, on_device=False), ABSENT)
            if ended != ABSENT:
                places.append(_Place(self._lanes.end_ns[ended], _RAN_LAST, ended))
        if not self._threads or thread == ABSENT:
            ended = next(self._lanes.ended_by(time_ns), ABSENT)
            if ended != ABSENT:
                places.append(_Place(self._lanes.end_ns[ended], _RAN_LAST, ended))
        last = max(places, key=lambda place: place.time_ns, default=None)
        return last if last and last.time_ns > since_ns else None

    def _name(self, event: int) -> str:
        code = self._name_of[event]
        tidied = self._tidied.get(code)
        if tidied is None:
            tidied = self._tidied[code] = names.tidy(self._names[code])
        return tidied


class _Walked:
    """What of a window has been walked: all from `reached_ns` to its end, in `segments`, the last one first."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self.start_ns = start_ns
        self.reached_ns = end_ns
        self.segments: list[Segment] = []

    def hand_over(self, since_ns: int, name: str, path_class: PathClass, event: int, why: Why) -> None:
        """Hand what lies between `since_ns` and what has been walked to one segment; nothing if nothing does."""
        since_ns = max(since_ns, self.start_ns)
        reached_ns = self.reached_ns
        if since_ns < reached_ns:
            self.segments.append(Segment(name, path_class, since_ns, reached_ns, event, why))
            self.reached_ns = since_ns
