"""The ops of a pass of one class of ranks, in order, and the forms from which a pass is built."""

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
    """The next ops need the queued phases with this ticket."""

    ticket: int


Op = Compute | Blocking | Queued | Await


@dataclass(frozen=True, eq=False)
class Pass:
    """The ops of a pass in order. Its derived forms are cached for all ranks and alternatives."""

    ops: tuple[Op, ...]

    @cached_property
    def op_list(self) -> "OpList":
        """The pass in the form for its summary; none of its ops may be queued."""
        return OpList.from_ops(self.ops)

    @cached_property
    def template(self) -> "PassTemplate":
        """The pass as operations and edges."""
        return PassTemplate.from_ops(self.ops)

    @cached_property
    def is_queuing(self) -> bool:
        """Whether the pass uses the gradient queue."""
        return any(isinstance(op, Queued) for op in self.ops)

    @cached_property
    def work_s(self) -> float:
        """Seconds of computation in the pass at full speed."""
        return sum(
            op.seconds if isinstance(op, Compute) else op.hides_s
            for op in self.ops
            if isinstance(op, Compute | Blocking)
        )

    @cached_property
    def group_sets(self) -> frozenset[tuple[int, bool]]:
        """The group sets in which the pass takes part, and whether it waits for them."""
        found = {(op.phase.group_set, True) for op in self.ops if isinstance(op, Blocking)}
        queued = {(phase.group_set, False) for op in self.ops if isinstance(op, Queued) for phase in op.phases}
        return frozenset(found | queued)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpList:
    """The ops of a pass as arrays of shape (ops,). Compared by identity.

    `work_s` is the seconds at full speed, 0 for a feature; `feature` its number in `phases`, NO_OPERATION for a
    computation; `hides_s` the computation in parallel to a feature. `counts` is the number of occurrences of each of
    `phases`.
    """

    work_s: NDArray[np.float64]
    feature: NDArray[np.int64]
    hides_s: NDArray[np.float64]
    phases: tuple[Phase, ...]
    counts: tuple[int, ...]

    @classmethod
    def from_ops(cls, ops: Sequence[Op]) -> "OpList":
        """Return the list of `ops`, none of which may be queued."""
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

    `kinds` are the distinct ones, with whether they block and their phase; `which` is the index in `kinds` of each.
    """

    group_set: int
    indices: _Indices
    kinds: tuple[tuple[bool, Phase], ...]
    which: _Indices

    @classmethod
    def from_calls(cls, group_set: int, indices: Sequence[int], calls: Sequence[tuple[bool, Phase]]) -> "Calls":
        """Return the communications at `indices`."""
        numbers: dict[tuple[bool, Phase], int] = {}
        which = [numbers.setdefault(call, len(numbers)) for call in calls]
        return cls(group_set, np.array(indices), tuple(numbers), np.array(which))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTemplate:
    """A pass op by op: operations by index, and the edges between them, as pairs of indices.

    Of the `count` operations, those at `computing` take `work_s` at full speed; the others are in `calls`, by group
    set. `entering` wait for the end of the previous pass, `first_queued` waits for the last of the previous pass in the
    queue. The pass begins with `first` and ends with `last`; the next pass also waits for `awaited`, and in the queue
    for `last_queued`. NO_OPERATION if there is none.
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
        """Return the template of a pass; one without computations and blocking ops gets a computation of 0 s."""
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
        """Append an operation after the previous one and the awaited ones."""
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
        """Add a computation in parallel to a communication: after the rendezvous `start`, before the next operation."""
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
