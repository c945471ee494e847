"""Which step is running after marks were lost, from the counts of ends that every block carries.

Steps are numbered by their ends, which lost marks cannot show. But blocks count the ends of backwards and optimizers
since the attempt began. Where the last REPEATS steps all had the same number of both, and what has ended since the last
known step is a multiple of these, so many steps have ended; the attempt's beginning is step 0. Where steps before the
gap do not agree, as after the last step of an epoch, those behind it may. Steps whose ends the training names are
counted themselves.
Anything else is not a number of steps: the rank has none until its next attempt.
"""

from collections.abc import Mapping
from operator import sub
from typing import ClassVar, NamedTuple

from lockstep.accounting.iteration import REPEATS
from lockstep.accounting.state import COUNT, StateForm, TupleForm, WordForm
from lockstep.contracts.capture import BACKWARD, END_KINDS, ENDS_PER_STEP_MAX, OPTIMIZER, STEP, StepBoundary
from lockstep.contracts.marks import MarkKind


class EndCounts(NamedTuple):
    """How many backwards, optimizer steps and named steps have ended since the attempt began."""

    backwards: int = 0
    optimizers: int = 0
    steps: int = 0

    def after(self, kind: int) -> "EndCounts":
        """Return the counts after a mark that is such an end."""
        if kind == MarkKind.BACKWARD_END:
            return EndCounts(self.backwards + 1, self.optimizers, self.steps)
        if kind == MarkKind.STEP_END:
            return EndCounts(self.backwards, self.optimizers, self.steps + 1)
        return EndCounts(self.backwards, self.optimizers + 1, self.steps)

    def of(self, end_kind: str) -> int:
        """Return the count of one of END_KINDS."""
        return {BACKWARD: self.backwards, OPTIMIZER: self.optimizers, STEP: self.steps}[end_kind]


ENDS_FORM = TupleForm(COUNT, COUNT, COUNT, make=EndCounts)


class Stride:
    """The ends of a step of one rank, as far as the last REPEATS steps agree on them.

    `known_step` began behind `known_ends`: at the attempt's beginning, or where a number was known last.
    """

    STATE: ClassVar[Mapping[str, StateForm]] = {
        "_known_ends": ENDS_FORM,
        "known_step": COUNT,
        "_last": ENDS_FORM,
        "_stride": TupleForm(COUNT, COUNT),
        "_repeats": COUNT,
        "_ending": TupleForm(WordForm(END_KINDS), COUNT),
        "_ending_repeats": COUNT,
    }

    def __init__(self, known_ends: EndCounts = EndCounts(), known_step: int = 0) -> None:  # noqa: B008  (immutable)
        self._known_ends = self._last = known_ends
        self.known_step = known_step
        self._stride = (0, 0)
        self._repeats = 0
        self._ending = (OPTIMIZER, 0)
        """Which of END_KINDS the last step ended with, and how many of them it had."""
        self._ending_repeats = 0

    def end_step(self, ends: EndCounts, end_kind: str) -> None:
        """Note the ends at the end of a step, and which of END_KINDS it was."""
        stride = (ends.backwards - self._last.backwards, ends.optimizers - self._last.optimizers)
        self._repeats = self._repeats + 1 if stride == self._stride else 1
        self._stride = stride
        ending = (end_kind, ends.of(end_kind) - self._last.of(end_kind))
        self._ending_repeats = self._ending_repeats + 1 if ending == self._ending else 1
        self._ending = ending
        self._last = ends

    @property
    def is_known(self) -> bool:
        """Whether the last steps agree."""
        return self._repeats >= REPEATS

    def forgotten(self, step: int | None) -> "Stride":
        """Return one to be learnt again, where `step` began at the last end noted; None if its number is not known."""
        return Stride(self._known_ends, self.known_step) if step is None else Stride(self._last, step)

    def resume(self, ends: EndCounts) -> None:
        """Note the ends at the end of a step, the last of several."""
        self._last = ends

    def named_steps(self, ends: EndCounts) -> int:
        """Return how many steps have ended since the last one noted, in a training that names the ends of its steps."""
        return ends.steps - self._last.steps

    def learnt_steps(self, ends: EndCounts) -> int:
        """Return the same for an iteration that is learnt; 0 where `ends` are not those of a step's end."""
        if ends.steps != self._last.steps or not self.is_known:
            return 0
        backwards, optimizers = self._stride
        done = (ends.backwards - self._last.backwards, ends.optimizers - self._last.optimizers)
        count = done[1] // optimizers if optimizers else 0
        return count if done == (count * backwards, count * optimizers) else 0

    def all_steps(self, *, is_named: bool) -> int:
        """Return how many steps have ended in the attempt up to the last end noted.

        0 where it is not known: the last steps do not agree, or not all ends since the last known number are theirs.
        """
        backwards, optimizers = self._stride
        ended = EndCounts(*map(sub, self._last, self._known_ends))
        count = ended.steps if is_named else ended.optimizers // optimizers if optimizers else 0
        expected = EndCounts(count * backwards, count * optimizers, count if is_named else 0)
        return self.known_step + count if self.is_known and ended == expected else 0

    def boundary(self, running: int, step: int, *, is_named: bool) -> StepBoundary | None:
        """Return how `step` follows from the ends, where the step `running` began at the last end noted.

        None where the last steps do not agree on how many of the ends that ends them a step has. A training that names
        its steps ends one at each.
        """
        kind, per_step = (STEP, 1) if is_named else self._ending
        if not is_named and (self._ending_repeats < REPEATS or not 1 <= per_step <= ENDS_PER_STEP_MAX):
            return None
        return StepBoundary(kind, per_step, self._last.of(kind) + (step - running) * per_step, step)
