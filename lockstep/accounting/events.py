"""What happened in one step: the running step collects it, the breakdown reads it. Times are CLOCK_MONOTONIC ns."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from lockstep.accounting.state import BOOLEAN, COUNT, TIME_NS, DictForm, IntegerForm, ListForm, StateForm, TupleForm
from lockstep.contracts.limits import MONOTONIC_NS_MAX
from lockstep.contracts.records import DOMAIN_KINDS

DATA, FORWARD, BACKWARD, OPTIMIZER = range(4)
PHASE_COUNT = 4

IN_FLIGHT = 0
"""`IssuedCollective.done_ns` as long as no mark has noted its end."""
UNKNOWN_NS = -1
"""`IssuedCollective.done_ns` of one whose end will never be known: it blocks no thread here."""
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
    """What a collective moves: `bus_bytes` is what crosses the slowest link (contracts/bus_bytes.py)."""

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
    """Events of one step, each list in the order of appearance; `spans` and `collections` are disjoint and ascend.

    `blocked` are where the training thread was seen waiting for communication. Collectives `aside` are those that a
    device does in parallel with the training's own work: their issue blocks nothing; waits for them are in `blocked`.
    `unmeasured` has, by domain, what was carried out without being dispatched (a CUDA graph), so that the waits of that
    domain are not known.
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
