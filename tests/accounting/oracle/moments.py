"""HOT (budget 1,500 ns a moment, of which most is the driver's): the events of one step, and where they were read.

A moment is a host time with the event that was queued then. A step of thousands of collectives has more of them than
events may be in use, so the oldest are read as soon as the device has passed them, and their events used again.
Events of one stream are passed in their order: asking the last one of each answers for all.

Here is what one step holds. How many may be in use, and who reads when, is timeline.py's.
"""

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from lockstep.agent.device.streams import Stamp, Stream
from tests.accounting.oracle.account import KIND_COUNT, Collective

if TYPE_CHECKING:
    from tests.accounting.oracle.record import Draft


class Moment:
    """A host time and its event; once that is read, the offset from the step's start instead, in ns."""

    __slots__ = ("host_ns", "offset_ns", "stamp", "stream")

    def __init__(self, host_ns: int, stamp: Stamp) -> None:
        self.host_ns = host_ns
        self.stamp: Stamp | None = stamp
        self.stream = stamp.stream
        self.offset_ns: int | None = None


class StepEvents:
    """The moments of one step. `start` is the event at the end of the step before; None is one that is missing.

    `marks` are those on the training's own stream; `flights` has the beginning of each collective, and its end where
    an event says it. `unread` are those whose events are in use, in the order in which they were queued, the step's
    own end not among them.
    """

    __slots__ = (
        "counts",
        "draft",
        "end",
        "flights",
        "is_whole",
        "marks",
        "start",
        "unmeasured",
        "unread",
        "waits_are_known",
    )

    def __init__(self, start: Stamp | None) -> None:
        self.start = start
        self.end: Stamp | None = None
        self.is_whole = start is not None
        """Whether it can still be measured."""
        self.marks: list[Moment] = []
        self.flights: dict[Collective, tuple[Moment, Moment | None]] = {}
        self.unread: deque[Moment] = deque()
        self.counts = [0] * KIND_COUNT
        """Collectives issued, by kind; of two threads at once one may be lost, which only moves a limit."""
        self.unmeasured: set[int] = set()
        """Kinds of which a collective has no event."""
        self.waits_are_known = True
        """Whether every wait that was seen has its two events."""
        self.draft: Draft

    def detach_end(self, end_ns: int) -> Stamp | None:
        """Return the event of the last mark if that is the step's end: the next step needs it longer than this one."""
        unread = self.unread
        if not self.marks or not unread or self.marks[-1] is not unread[-1] or unread[-1].host_ns != end_ns:
            return None
        self.marks.pop()
        return unread.pop().stamp

    def read(self, stream: Stream, count: int) -> bool:
        """Read the oldest `count` moments if the device has passed all of them; return whether it has.

        Raises
        ------
        RuntimeError
            The device failed.
        """
        assert self.start is not None
        last = {moment.stream: moment.stamp for moment in islice(self.unread, count)}
        for stamp in last.values():
            if stamp is not None and not stream.ready(stamp):
                return False
        free: list[Stamp] = []
        try:
            for _ in range(min(count, len(self.unread))):
                moment = self.unread.popleft()
                stamp, moment.stamp = moment.stamp, None
                assert stamp is not None
                free.append(stamp)
                moment.offset_ns = stream.elapsed_ns(self.start, stamp)
        except BaseException:  # the device failed, or a signal handler of the training raised: a moment has no offset
            self.is_whole = False
            raise
        finally:
            stream.reuse(free)
        return True

    def forget(self) -> None:
        """Let go of the moments of a step that will not be measured, as far as they were read."""
        self.is_whole = False
        self.marks = []
        self.flights = {}

    def release(self) -> list[Stamp]:
        """Return the events that are still in use, which nobody will ask for again."""
        unread, self.unread = self.unread, deque()
        return [moment.stamp for moment in unread if moment.stamp is not None]
