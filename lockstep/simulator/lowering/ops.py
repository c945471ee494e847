"""What a class of ranks does in a pass, one op after the other, and all that building needs to know of a pass."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.lowering.link_model import Phase

NOTHING = -1
_Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Compute:
    """Work of `seconds` at full speed."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Blocking:
    """A phase that the pass waits for, while it computes for `hides_s` at full speed."""

    phase: Phase
    hides_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Queued:
    """Phases in the gradient queue, one after the other. Those with a `ticket` are waited for."""

    phases: tuple[Phase, ...]
    ticket: int | None = None


@dataclass(frozen=True, slots=True)
class Await:
    """What follows needs the queued phases with this ticket."""

    ticket: int


Op = Compute | Blocking | Queued | Await


@dataclass(frozen=True, eq=False)
class Pass:
    """The ops of a pass in order. What is made of them is made once, however many ranks and alternatives ask."""

    ops: tuple[Op, ...]

    @cached_property
    def script(self) -> "Script":
        """The pass as an outline needs it; none of its ops may be queued."""
        return Script.of(self.ops)

    @cached_property
    def pattern(self) -> "PassTemplate":
        """The pass as operations and edges."""
        return PassTemplate.of(self.ops)

    @cached_property
    def is_queuing(self) -> bool:
        """Whether something of the pass goes into the gradient queue."""
        return any(isinstance(op, Queued) for op in self.ops)

    @cached_property
    def work_s(self) -> float:
        """The seconds that the pass computes at full speed."""
        return sum(
            op.seconds if isinstance(op, Compute) else op.hides_s
            for op in self.ops
            if isinstance(op, Compute | Blocking)
        )

    @cached_property
    def group_sets(self) -> frozenset[tuple[int, bool]]:
        """The group sets of groups that the pass takes part in, and whether it waits for them."""
        found = {(op.phase.group_set, True) for op in self.ops if isinstance(op, Blocking)}
        queued = {(phase.group_set, False) for op in self.ops if isinstance(op, Queued) for phase in op.phases}
        return frozenset(found | queued)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Script:
    """The ops of a pass: seconds at full speed, 0 of a feature, and number in `phases`, NOTHING where it computes.

    `hides_s` is what is computed next to a feature. Arrays of shape (ops,). `counts` is how often each of `phases`
    comes. Compared by identity.
    """

    work_s: NDArray[np.float64]
    feature: NDArray[np.int64]
    hides_s: NDArray[np.float64]
    phases: tuple[Phase, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, ops: Sequence[Op]) -> "Script":
        """Return the script of ops of which none is queued."""
        numbers: dict[Phase, int] = {}
        feature, work = [], []
        for op in ops:
            feature.append(numbers.setdefault(op.phase, len(numbers)) if isinstance(op, Blocking) else NOTHING)
            work.append(op.seconds if isinstance(op, Compute) else 0.0)
        return cls(
            work_s=np.array(work, dtype=np.float64),
            feature=np.array(feature, dtype=np.int64),
            hides_s=np.array([op.hides_s if isinstance(op, Blocking) else 0.0 for op in ops], dtype=np.float64),
            phases=tuple(numbers),
            counts=tuple(feature.count(number) for number in numbers.values()),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """The communications of a pass in groups of one group set, at `places`.

    `kinds` are those that differ, whether they block and the phase; `which` is the number among them of each.
    """

    group_set: int
    places: _Places
    kinds: tuple[tuple[bool, Phase], ...]
    which: _Places

    @classmethod
    def of(cls, group_set: int, places: Sequence[int], calls: Sequence[tuple[bool, Phase]]) -> "Calls":
        """Return what is called at `places`."""
        numbers: dict[tuple[bool, Phase], int] = {}
        which = [numbers.setdefault(call, len(numbers)) for call in calls]
        return cls(group_set, np.array(places), tuple(numbers), np.array(which))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTemplate:
    """A pass op by op: operations by place, and the edges between them, as pairs of places.

    Of the `count` operations those at `computing` have `work_s` at full speed each; the others are in `calls`, by
    group set. `entering` wait for the end of the pass
    before, `first_queued` for the last in the queue before. The pass begins with `first` and ends with `last`;
    whatever comes next also waits for `awaited`, and for `last_queued` in the queue. NOTHING where there is none.
    """

    count: int
    computing: _Places
    work_s: NDArray[np.float64]
    calls: list[Calls]
    edges: tuple[_Places, _Places]
    entering: list[int]
    first: int
    last: int
    first_queued: int
    last_queued: int
    awaited: list[int]

    @classmethod
    def of(cls, ops: Sequence[Op]) -> "PassTemplate":
        """Return the pattern of a pass; one without blocking ops has a computation of 0 s that passes the data on."""
        draft = _Draft()
        for op in ops:
            draft.add(op)
        if draft.first == NOTHING:
            draft.add(Compute(0.0))
        return draft.pattern()


class _Draft:
    """A pattern as its ops come by."""

    def __init__(self) -> None:
        self.calls: list[tuple[bool, Phase] | float] = []
        self.edges: list[tuple[int, int]] = []
        self.entering: list[int] = []
        self.awaited: list[int] = []
        self.tickets: dict[int, int] = {}
        self.first = self.last = self.first_queued = self.queued = NOTHING

    def add(self, op: Op) -> None:
        if isinstance(op, Compute):
            self._follow(op.seconds)
        elif isinstance(op, Blocking):
            if op.hides_s:
                self._follow((True, replace(op.phase, is_start=True)))
                start = self.last
            self._follow((True, op.phase))
            if op.hides_s:
                self._go_on(op.hides_s, start)
        elif isinstance(op, Await):
            self.awaited.append(self.tickets[op.ticket])
        else:
            for index, phase in enumerate(op.phases):
                self._enqueue(phase, is_first=index == 0)
            if op.ticket is not None:
                self.tickets[op.ticket] = self.queued

    def _follow(self, call: tuple[bool, Phase] | float) -> None:
        """Put an operation behind the one before and what it waits for."""
        place = len(self.calls)
        self.calls.append(call)
        self.edges += ((awaited, place) for awaited in self.awaited)
        self.awaited.clear()
        if self.first == NOTHING:
            self.first = place
            self.entering.append(place)
        else:
            self.edges.append((self.last, place))
        self.last = place

    def _go_on(self, seconds: float, start: int) -> None:
        """Put a computation next to a communication: behind the meeting `start`, and before what follows."""
        place = len(self.calls)
        self.calls.append(seconds)
        self.edges.append((start, place))
        self.awaited.append(place)

    def _enqueue(self, phase: Phase, *, is_first: bool) -> None:
        place = len(self.calls)
        self.calls.append((False, phase))
        if self.queued != NOTHING:
            self.edges.append((self.queued, place))
        else:
            self.first_queued = place
        if is_first and self.last != NOTHING:
            self.edges.append((self.last, place))
        elif is_first:
            self.entering.append(place)
        self.queued = place

    def pattern(self) -> PassTemplate:
        computing, work_s = [], []
        by_family: dict[int, tuple[list[int], list[tuple[bool, Phase]]]] = {}
        for place, call in enumerate(self.calls):
            if isinstance(call, float):
                computing.append(place)
                work_s.append(call)
            else:
                places, calls = by_family.setdefault(call[1].group_set, ([], []))
                places.append(place)
                calls.append(call)
        edges = np.array(self.edges, dtype=np.int64).reshape(-1, 2)
        return PassTemplate(
            count=len(self.calls),
            computing=np.array(computing, dtype=np.int64),
            work_s=np.array(work_s, dtype=np.float64),
            calls=[Calls.of(group_set, *called) for group_set, called in by_family.items()],
            edges=(edges[:, 0], edges[:, 1]),
            entering=self.entering,
            first=self.first,
            last=self.last,
            first_queued=self.first_queued,
            last_queued=self.queued,
            awaited=self.awaited,
        )
