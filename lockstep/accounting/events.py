"""What happened in one step: the running step collects it, the breakdown reads it. Times are CLOCK_MONOTONIC ns."""

from typing import NamedTuple

DATA, FORWARD, BACKWARD, OPTIMIZER = range(4)
PHASE_COUNT = 4

IN_FLIGHT = 0
"""`IssuedCollective.done_ns` as long as nobody noted its end."""
UNKNOWN_NS = -1
"""`IssuedCollective.done_ns` of one whose end will never be known: it blocks nobody here."""
UNSEEN_NS = -2
"""The same where the waits for it are seen, on a device: it blocks only there."""

EVENTS_MAX = 16_384
"""Events of one sort in a step: three times what the largest known steps issue, and under 4 MB."""
COLLECTIONS_MAX = 4_096
"""Collections of garbage of one step; the first ones go when there are more."""

Span = tuple[int, int, int]
"""(phase, start ns, end ns); the spans of a step ascend and do not overlap."""
Interval = tuple[int, int]
"""(start ns, end ns)."""
Wait = tuple[int, int, int]
"""(start ns, end ns, domain); the domain is an index in DOMAIN_KINDS.

In `StepEvents.blocked` a negative domain `~d` is a guess: d was issued last, and the wait is of the domain of the
collective that was done when it ended.
"""


class Traffic(NamedTuple):
    """What a collective moves: `bus_bytes` is what crosses the slowest link for its payload (bus_bytes.py)."""

    domain: int
    payload_bytes: int
    bus_bytes: int
    synchronous: bool


class IssuedCollective:
    """One collective, of which many share their `traffic`."""

    __slots__ = ("done_ns", "issue_ns", "traffic")

    def __init__(self, issue_ns: int, traffic: Traffic) -> None:
        self.issue_ns = issue_ns
        self.done_ns = IN_FLIGHT
        self.traffic = traffic


Unmeasured = tuple[int, int, int]
"""(count, payload bytes, bus bytes) of collectives that were carried out without being dispatched."""


class StepEvents:
    """Events of one step, each list in the order of appearance; `spans` and `collections` are disjoint and ascend.

    `blocked` are where the training thread was seen waiting for communication. Collectives `aside` are those that a
    device does beside the training's own work: their issue blocks nothing, and what waits for them is in `blocked`.
    `unmeasured` has, by domain, what was carried out without being dispatched (a CUDA graph), so that the waits of that
    domain are not known.
    """

    __slots__ = ("aside", "blocked", "collections", "collectives", "spans", "unmeasured")

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.collectives: list[IssuedCollective] = []
        self.blocked: list[Wait] = []
        self.collections: list[Interval] = []
        self.unmeasured: dict[int, Unmeasured] = {}
        self.aside: list[IssuedCollective] = []
