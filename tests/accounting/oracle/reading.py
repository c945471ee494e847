"""What the device says of a step that it is done with, as offsets from the step's start. Pure arithmetic on ns."""

from lockstep.agent.device.streams import Stamp
from tests.accounting.oracle.account import UNKNOWN_NS, Collective, Marks
from tests.accounting.oracle.axis import Flight
from tests.accounting.oracle.moments import Moment, StepEvents
from tests.accounting.oracle.record import Draft


class Reading:
    """What the device says of a step: offsets from its start, in ns; `marks` are (host, offset), ascending in both.

    `gap_ns` is the time from the end of the step measured last to this one's start.
    """

    __slots__ = ("flights", "gap_ns", "length_ns", "marks")

    def __init__(
        self, gap_ns: int, length_ns: int, marks: list[tuple[int, int]], flights: dict[Collective, Flight]
    ) -> None:
        self.gap_ns = gap_ns
        self.length_ns = length_ns
        self.marks = marks
        self.flights = flights


def read_flight(start: Stamp, began: Moment, ended: Moment | None) -> Flight:
    """Return a collective's offsets from the step's start, and whether it ran beside the training's own work."""
    assert began.offset_ns is not None
    if ended is None:
        return began.offset_ns, None, began.stream != start.stream
    assert ended.offset_ns is not None
    return began.offset_ns, max(ended.offset_ns, began.offset_ns), began.stream != start.stream


def note_unmeasured(marks: Marks, step: StepEvents) -> None:
    """Note the kinds of which something found no event; of a wait nobody knows for which kind it was."""
    kinds = set(step.unmeasured)
    if not step.waits_are_known:
        kinds.update(collective.kind for collective in (*marks.collectives, *marks.aside))
    for kind in kinds:
        marks.unmeasured.setdefault(kind, (0, 0, 0))


def ascending(draft: Draft, length_ns: int, marks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the marks between the step's two ends, their offsets made to ascend: drivers round them one by one."""
    points = [(draft.start_ns, 0)]
    reached = 0
    for host_ns, offset_ns in marks:
        if not draft.start_ns < host_ns <= draft.end_ns:  # a mark in the middle of a step's end
            continue
        reached = min(max(offset_ns, reached), length_ns)
        points.append((host_ns, reached))
    if points[-1] != (draft.end_ns, length_ns):
        points.append((draft.end_ns, length_ns))
    return points


def shifted(marks: Marks, shift_ns: int) -> Marks:
    """Return the marks of a step that was not measured, in host time and moved; no end of a collective is known."""
    moved = Marks()
    moved.unmeasured = marks.unmeasured
    moved.spans = [(phase, begin + shift_ns, end + shift_ns) for phase, begin, end in marks.spans]
    moved.gcs = [(begin + shift_ns, end + shift_ns) for begin, end in marks.gcs]
    for collective in marks.collectives:
        copy = Collective(
            collective.issue_ns + shift_ns,
            collective.kind,
            collective.payload_bytes,
            collective.bus_bytes,
            collective.synchronous,
        )
        copy.done_ns = UNKNOWN_NS
        moved.collectives.append(copy)
    return moved
