# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""The communication of one step as arrays: its collectives and waits. Not here: how marks are read.

Shapes: C collectives, W waits, V marks that begin or end a wait, E ends of collectives, Q ends in a stream's order.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from lockstep.accounting.events import StepEvents, Traffic

Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]
Moved = tuple[int, int, int, int]
"""(domain, collectives, payload bytes, bus bytes)."""


def all_hold(mask: Bools) -> bool:
    """Return `mask.all()`, three times as fast for a few hundred values."""
    return bool(np.count_nonzero(mask) == mask.size)


def any_holds(mask: Bools) -> bool:
    """Return `mask.any()`, likewise faster."""
    return bool(np.count_nonzero(mask))


@dataclass(slots=True)
class CommunicationPoints:
    """Marks of a step's communication for which a device has events: ordinals, and host times in ns, arrays of int64.

    issue_at_C, queued_at_C, queued_ns_C : of the issue mark, and of the end mark, -1 if there is none wait_at_V,
    wait_ns_V : begins and ends of waits
    """

    issue_at_C: Integers
    queued_at_C: Integers
    queued_ns_C: Integers
    wait_at_V: Integers
    wait_ns_V: Integers


@dataclass(frozen=True, slots=True)
class IssuePattern:
    """The collectives that a step issues, in order. Similar steps share one pattern. Arrays are read-only.

    domain_C, synchronous_C : of the collectives
    moved : (domain, collectives, payload bytes, bus bytes) of each domain
    by_domain_C : indices of the collectives grouped by domain, in the order of `moved`
    """

    domain_C: Integers
    synchronous_C: Bools
    moved: tuple[Moved, ...]
    by_domain_C: Integers


@dataclass(frozen=True, slots=True)
class CommunicationLayout:
    """Which marks of a step belong together, independent of their times. Similar steps share one layout.

    Arrays of int64; `_at` are positions among the step's marks of communication, the others indices.

    issue_at_C : of the collectives, in the order of marks
    former_at_E : marks of ends of collectives that this step has not issued, i.e. of former steps
    done_at_C : the marks at whose times collectives were done, except for those in flight_C and unknown_C
    flight_C, unknown_C : collectives whose end is not in the step, and those whose end is unknown
    begin_at_V, end_at_W : marks that begin a wait, and those that end one
    issued_W : number of collectives issued before each wait's end
    awaited_W, awaited_C : waits at whose end collectives were expected to be done, and these collectives
    queued_at_Q, queued_C : marks of DEVICE_QUEUED, and their collectives
    """

    issue_at_C: Integers
    former_at_E: Integers
    done_at_C: Integers
    flight_C: Integers
    unknown_C: Integers
    begin_at_V: Integers
    end_at_W: Integers
    issued_W: Integers
    awaited_W: Integers
    awaited_C: Integers
    queued_at_Q: Integers
    queued_C: Integers


@dataclass(slots=True)
class StepArrays:
    """The collectives and waits of a step; times in ns, arrays of int64.

    issue_ns_C, done_ns_C : as in IssuedCollective, in the order of issue times
    ordinal_C : of the collectives in the attempt
    domain_C, synchronous_C, moved, by_domain_C : as in IssuePattern
    begin_ns_W, end_ns_W, domain_W : as in StepEvents.blocked, in its order
    points : marks with device events; only of a rank with a device
    is_aside_C : whether a device runs it in parallel with the training's own work; None if it runs none so
    """

    issue_ns_C: Integers
    done_ns_C: Integers
    ordinal_C: Integers
    domain_C: Integers
    synchronous_C: Bools
    moved: tuple[Moved, ...]
    by_domain_C: Integers
    begin_ns_W: Integers
    end_ns_W: Integers
    domain_W: Integers
    points: CommunicationPoints | None = None
    is_aside_C: Bools | None = None

    def end(self, ordinal: int, done_ns: int) -> bool:
        """Note when a collective was done; return False if it is not of this step."""
        found_C = self.ordinal_C == ordinal
        self.done_ns_C[found_C] = done_ns
        return any_holds(found_C)


def pattern_of(traffic_C: Integers, traffic: list[Traffic]) -> IssuePattern:
    """Return the pattern of collectives; `traffic_C` are indices in `traffic`."""
    domain_C = np.array([each.domain for each in traffic], np.int64)[traffic_C]
    synchronous_C = np.array([each.synchronous for each in traffic], np.bool_)[traffic_C]
    moved: dict[int, Moved] = {}
    counts = np.bincount(traffic_C, minlength=len(traffic)).tolist()
    for more, (domain, payload_bytes, bus_bytes, _) in zip(counts, traffic, strict=True):
        _, times, payload, bus = moved.get(domain, (domain, 0, 0, 0))
        moved[domain] = (domain, times + more, payload + more * payload_bytes, bus + more * bus_bytes)
    by_domain_C = _by_domain(domain_C, moved.values())
    domain_C.flags.writeable = synchronous_C.flags.writeable = by_domain_C.flags.writeable = False
    return IssuePattern(domain_C, synchronous_C, tuple(moved.values()), by_domain_C)


def _by_domain(domain_C: Integers, moved: Iterable[Moved]) -> Integers:
    """Return the indices of collectives by their domains, in the order of `moved`."""
    return np.concatenate([np.empty(0, np.int64), *((domain_C == domain).nonzero()[0] for domain, *_ in moved)])


def arrays_of(events: StepEvents) -> StepArrays:
    """Return the communication of events that were read mark by mark."""
    collectives = events.collectives
    indices: defaultdict[Traffic, int] = defaultdict(count().__next__)
    traffic_C = np.array([indices[each.traffic] for each in collectives], np.int64)
    pattern = pattern_of(traffic_C, list(indices))
    times = [(each.issue_ns, each.done_ns) for each in collectives]
    issue_ns_C, done_ns_C = np.array(times, np.int64).reshape(-1, 2).T
    wait_W3 = np.array(events.blocked, np.int64).reshape(-1, 3)
    return StepArrays(
        issue_ns_C=issue_ns_C,
        done_ns_C=done_ns_C,
        ordinal_C=np.full(len(collectives), -1, np.int64),
        domain_C=pattern.domain_C,
        synchronous_C=pattern.synchronous_C,
        moved=pattern.moved,
        by_domain_C=pattern.by_domain_C,
        begin_ns_W=wait_W3[:, 0],
        end_ns_W=wait_W3[:, 1],
        domain_W=wait_W3[:, 2],
    )


def without_waits(arrays: StepArrays) -> StepArrays:
    """Return a copy without waits."""
    none_W = np.empty(0, np.int64)
    return replace(arrays, begin_ns_W=none_W, end_ns_W=none_W, domain_W=none_W)


def in_issue_order(arrays: StepArrays) -> StepArrays:
    """Return the arrays, sorted in place by issue time: two threads may issue out of order."""
    if all_hold(arrays.issue_ns_C[1:] >= arrays.issue_ns_C[:-1]):
        return arrays
    order_C = arrays.issue_ns_C.argsort(kind="stable")
    for name in ("issue_ns_C", "done_ns_C", "ordinal_C", "domain_C", "synchronous_C"):
        setattr(arrays, name, getattr(arrays, name)[order_C])
    arrays.by_domain_C = _by_domain(arrays.domain_C, arrays.moved)
    if arrays.is_aside_C is not None:
        arrays.is_aside_C = arrays.is_aside_C[order_C]
    points = arrays.points
    if points is not None:
        for name in ("issue_at_C", "queued_at_C", "queued_ns_C"):
            setattr(points, name, getattr(points, name)[order_C])
    return arrays
