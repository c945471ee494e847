"""The events of one step: collected by the running step, read by the breakdown. Times are CLOCK_MONOTONIC ns."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from lockstep.accounting.state import BOOLEAN, COUNT, TIME_NS, DictForm, IntegerForm, ListForm, StateForm, TupleForm
from lockstep.contracts.limits import MONOTONIC_NS_MAX
from lockstep.contracts.records import DOMAIN_KINDS

DATA, FORWARD, BACKWARD, OPTIMIZER = range(4)
PHASE_COUNT = 4

IN_FLIGHT = 0
"""`IssuedCollective.done_ns` until a mark notes its end."""
UNKNOWN_NS = -1
"""`IssuedCollective.done_ns` if the end will never be known: the collective blocks no thread."""
UNSEEN_NS = -2
"""Likewise, but on a device its waits are observed: it blocks only there."""

EVENTS_MAX = 16_384
"""Limit of events of one sort in a step: three times the largest known steps, and below 4 MB."""
COLLECTIONS_MAX = 4_096
"""Limit of garbage collections in one step; the first ones are dropped beyond it."""

Span = tuple[int, int, int]
"""(phase, start ns, end ns); the spans of a step ascend and do not overlap."""
Interval = tuple[int, int]
"""(start ns, end ns)."""
Wait = tuple[int, int, int]
"""(start ns, end ns, domain); the domain is an index in DOMAIN_KINDS.

In `StepEvents.blocked` a negative domain `~d` is a guess: d was issued last; the actual domain is that of the
collective that was done when the wait ended.
"""


class Traffic(NamedTuple):
    """The traffic of a collective: `bus_bytes` cross the slowest link (contracts/bus_bytes.py)."""

    domain: int
    payload_bytes: int
    bus_bytes: int
    synchronous: bool


class IssuedCollective:
    """One collective; many share their `traffic`."""

    __slots__ = ("done_ns", "issue_ns", "traffic")

    def __init__(self, issue_ns: int, traffic: Traffic) -> None:
        self.issue_ns = issue_ns
        self.done_ns = IN_FLIGHT
        self.traffic = traffic


Unmeasured = tuple[int, int, int]
"""(count, payload bytes, bus bytes) of collectives that ran without being dispatched."""


_DOMAIN = IntegerForm(0, len(DOMAIN_KINDS) - 1)
_DOMAIN_OR_GUESS = IntegerForm(-len(DOMAIN_KINDS), len(DOMAIN_KINDS) - 1)


class _CollectiveForm:
    """The form of an IssuedCollective."""

    def __init__(self) -> None:
        self._row = TupleForm(TIME_NS, IntegerForm(UNKNOWN_NS, MONOTONIC_NS_MAX), _DOMAIN, COUNT, COUNT, BOOLEAN)

    def save(self, value: IssuedCollective) -> list[Any]:
        """Return a list."""
        return self._row.save((value.issue_ns, value.done_ns, *value.traffic))

    def load(self, value: Any, what: str, where: str) -> IssuedCollective:
        """Return the collective."""
        issue_ns, done_ns, *traffic = self._row.load(value, what, where)
        collective = IssuedCollective(issue_ns, Traffic(*traffic))
        collective.done_ns = done_ns
        return collective


class StepEvents:
    """Events of one step, each list in order of appearance; `spans` and `collections` are disjoint and ascend.

    `blocked` holds the observed waits of the training thread for communication. Collectives in `aside` run on a device
    in parallel with the training's own work: their issue blocks nothing, and waits for them are in `blocked`.
    `unmeasured` holds, by domain, collectives that ran without being dispatched (a CUDA graph); the waits of such a
    domain are unknown.
    """

    __slots__ = ("aside", "blocked", "collections", "collectives", "spans", "unmeasured")
    STATE: ClassVar[Mapping[str, StateForm]] = {
        "spans": ListForm(TupleForm(IntegerForm(0, PHASE_COUNT - 1), TIME_NS, TIME_NS), EVENTS_MAX),
        "collectives": ListForm(_CollectiveForm(), EVENTS_MAX),
        "aside": ListForm(_CollectiveForm(), EVENTS_MAX),
        "blocked": ListForm(TupleForm(TIME_NS, TIME_NS, _DOMAIN_OR_GUESS), EVENTS_MAX),
        "collections": ListForm(TupleForm(TIME_NS, TIME_NS), COLLECTIONS_MAX),
        "unmeasured": DictForm(_DOMAIN, TupleForm(COUNT, COUNT, COUNT), len(DOMAIN_KINDS)),
    }

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.collectives: list[IssuedCollective] = []
        self.blocked: list[Wait] = []
        self.collections: list[Interval] = []
        self.unmeasured: dict[int, Unmeasured] = {}
        self.aside: list[IssuedCollective] = []
