"""The ops of a pass of one class of ranks, in order, and everything needed to build a pass."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.lowering.link_model import Phase

NO_OPERATION = -1
_Indices = NDArray[np.int64]


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
    def op_list(self) -> "OpList":
        """The pass as its summary needs it; none of its ops may be queued."""
        return OpList.from_ops(self.ops)

    @cached_property
    def template(self) -> "PassTemplate":
        """The pass as operations and edges."""
        return PassTemplate.from_ops(self.ops)

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
class OpList:
    """The ops of a pass: seconds at full speed, 0 of a feature, and number in `phases`, NO_OPERATION where it computes.

    `hides_s` is what is computed next to a feature. Arrays of shape (ops,). `counts` is how often each of `phases`
    comes. Compared by identity.
    """

    work_s: NDArray[np.float64]
    feature: NDArray[np.int64]
    hides_s: NDArray[np.float64]
    phases: tuple[Phase, ...]
    counts: tuple[int, ...]

    @classmethod
    def from_ops(cls, ops: Sequence[Op]) -> "OpList":
        """Return the list of ops of which none is queued."""
        numbers: dict[Phase, int] = {}
        feature, work = [], []
        for op in ops:
            feature.append(numbers.setdefault(op.phase, len(numbers)) if isinstance(op, Blocking) else NO_OPERATION)
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
    """The communications of a pass in groups of one group set, at `indices`.

    `kinds` are those that differ, whether they block and the phase; `which` is the number among them of each.
    """

    group_set: int
    indices: _Indices
    kinds: tuple[tuple[bool, Phase], ...]
    which: _Indices

    @classmethod
    def from_calls(cls, group_set: int, indices: Sequence[int], calls: Sequence[tuple[bool, Phase]]) -> "Calls":
        """Return what is called at `indices`."""
        numbers: dict[tuple[bool, Phase], int] = {}
        which = [numbers.setdefault(call, len(numbers)) for call in calls]
        return cls(group_set, np.array(indices), tuple(numbers), np.array(which))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTemplate:
    """A pass op by op: operations by index, and the edges between them, as pairs of indices.

    Of the `count` operations those at `computing` have `work_s` at full speed each; the others are in `calls`, by group
    set. `entering` wait for the end of the pass before, `first_queued` for the last in the queue before. The pass
    begins with `first` and ends with `last`; whatever comes next also waits for `awaited`, and for `last_queued` in the
    queue. NO_OPERATION where there is none.
    """

    count: int
    computing: _Indices
    work_s: NDArray[np.float64]
    calls: list[Calls]
    edges: tuple[_Indices, _Indices]
    entering: list[int]
    first: int
    last: int
    first_queued: int
    last_queued: int
    awaited: list[int]

    @classmethod
    def from_ops(cls, ops: Sequence[Op]) -> "PassTemplate":
        """Return the template of a pass; one without blocking ops has a computation of 0 s that passes the data on."""
        builder = _TemplateBuilder()
        for op in ops:
            builder.add(op)
        if builder.first == NO_OPERATION:
            builder.add(Compute(0.0))
        return builder.template()


class _TemplateBuilder:
    """Builds a template op by op."""

    def __init__(self) -> None:
        self.calls: list[tuple[bool, Phase] | float] = []
        self.edges: list[tuple[int, int]] = []
        self.entering: list[int] = []
        self.awaited: list[int] = []
        self.tickets: dict[int, int] = {}
        self.first = self.last = self.first_queued = self.queued = NO_OPERATION

    def add(self, op: Op) -> None:
        if isinstance(op, Compute):
            self._append(op.seconds)
        elif isinstance(op, Blocking):
            if op.hides_s:
                self._append((True, replace(op.phase, is_rendezvous=True)))
                start = self.last
            self._append((True, op.phase))
            if op.hides_s:
                self._overlap(op.hides_s, start)
        elif isinstance(op, Await):
            self.awaited.append(self.tickets[op.ticket])
        else:
            for index, phase in enumerate(op.phases):
                self._enqueue(phase, is_first=index == 0)
            if op.ticket is not None:
                self.tickets[op.ticket] = self.queued

    def _append(self, call: tuple[bool, Phase] | float) -> None:
        """Put an operation after the previous one and what it waits for."""
        index = len(self.calls)
        self.calls.append(call)
        self.edges += ((awaited, index) for awaited in self.awaited)
        self.awaited.clear()
        if self.first == NO_OPERATION:
            self.first = index
            self.entering.append(index)
        else:
            self.edges.append((self.last, index))
        self.last = index

    def _overlap(self, seconds: float, start: int) -> None:
        """Put a computation next to a communication: after the rendezvous `start`, and before what follows."""
        index = len(self.calls)
        self.calls.append(seconds)
        self.edges.append((start, index))
        self.awaited.append(index)

    def _enqueue(self, phase: Phase, *, is_first: bool) -> None:
        index = len(self.calls)
        self.calls.append((False, phase))
        if self.queued != NO_OPERATION:
            self.edges.append((self.queued, index))
        else:
            self.first_queued = index
        if is_first and self.last != NO_OPERATION:
            self.edges.append((self.last, index))
        elif is_first:
            self.entering.append(index)
        self.queued = index

    def template(self) -> PassTemplate:
        computing, work_s = [], []
        by_group_set: dict[int, tuple[list[int], list[tuple[bool, Phase]]]] = {}
        for index, call in enumerate(self.calls):
            if isinstance(call, float):
                computing.append(index)
                work_s.append(call)
            else:
                indices, calls = by_group_set.setdefault(call[1].group_set, ([], []))
                indices.append(index)
                calls.append(call)
        edges = np.array(self.edges, dtype=np.int64).reshape(-1, 2)
        return PassTemplate(
            count=len(self.calls),
            computing=np.array(computing, dtype=np.int64),
            work_s=np.array(work_s, dtype=np.float64),
            calls=[Calls.from_calls(group_set, *called) for group_set, called in by_group_set.items()],
            edges=(edges[:, 0], edges[:, 1]),
            entering=self.entering,
            first=self.first,
            last=self.last,
            first_queued=self.first_queued,
            last_queued=self.queued,
            awaited=self.awaited,
        )
