"""Determines the running step after marks were lost, from the counts of ends that every block carries.

Steps are numbered by their ends, which lost marks cannot show. But blocks count the ends of backwards and optimizer
steps since the attempt began. If the last REPEATS steps all had the same number of both, and the ends since the last
known step are a multiple of these numbers, that multiple is the number of steps that have ended; the attempt begins
with step 0. If the steps before the gap do not agree, as after the last step of an epoch, those after it may. If the
training names the ends of its steps, these are counted directly. In all other cases the number of steps is unknown: the
rank has no step numbers until its next attempt.
"""

from collections.abc import Mapping
from operator import sub
from typing import ClassVar, NamedTuple

from lockstep.accounting.iteration import REPEATS
from lockstep.accounting.state import COUNT, StateForm, TupleForm, WordForm
from lockstep.contracts.capture import BACKWARD, END_KINDS, ENDS_PER_STEP_MAX, OPTIMIZER, STEP, StepBoundary
from lockstep.contracts.marks import MarkKind


class EndCounts(NamedTuple):
    """Numbers of backwards, optimizer steps and named steps that have ended since the attempt began."""

    backwards: int = 0
    optimizers: int = 0
    steps: int = 0

    def after(self, kind: int) -> "EndCounts":
        """Return the counts after an end mark of this kind."""
        if kind == MarkKind.BACKWARD_END:
            return EndCounts(self.backwards + 1, self.optimizers, self.steps)
        if kind == MarkKind.STEP_END:
            return EndCounts(self.backwards, self.optimizers, self.steps + 1)
        return EndCounts(self.backwards, self.optimizers + 1, self.steps)

    def of(self, end_kind: str) -> int:
        """Return the count of one of END_KINDS."""
        return {BACKWARD: self.backwards, OPTIMIZER: self.optimizers, STEP: self.steps}[end_kind]


ENDS_FORM = TupleForm(COUNT, COUNT, COUNT, make=EndCounts)


class EndsPerStep:
    """The numbers of ends per step of one rank, as far as the last REPEATS steps agree.

    `known_step` began after `known_ends`: at the beginning of the attempt, or where a number was last known.
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
        """Which of END_KINDS ended the last step, and how many of that kind the step had."""
        self._ending_repeats = 0

    def end_step(self, ends: EndCounts, end_kind: str) -> None:
        """Note the counts at the end of a step, and which of END_KINDS ended it."""
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

    def forgotten(self, step: int | None) -> "EndsPerStep":
        """Return numbers to be learnt again; `step` began at the last noted end, None if its number is unknown."""
        return EndsPerStep(self._known_ends, self.known_step) if step is None else EndsPerStep(self._last, step)

    def resume(self, ends: EndCounts) -> None:
        """Note the counts at the end of the last of several steps."""
        self._last = ends

    def named_steps(self, ends: EndCounts) -> int:
        """Return how many steps have ended since the last noted one, if the training names the ends of its steps."""
        return ends.steps - self._last.steps

    def learnt_steps(self, ends: EndCounts) -> int:
        """Return the same for a learnt iteration; 0 if `ends` are not the counts at the end of a step."""
        if ends.steps != self._last.steps or not self.is_known:
            return 0
        backwards, optimizers = self._stride
        done = (ends.backwards - self._last.backwards, ends.optimizers - self._last.optimizers)
        count = done[1] // optimizers if optimizers else 0
        return count if done == (count * backwards, count * optimizers) else 0

    def all_steps(self, *, is_named: bool) -> int:
        """Return how many steps have ended in the attempt up to the last noted end.

        0 if unknown: the last steps do not agree, or the ends since the last known number include others.
        """
        backwards, optimizers = self._stride
        ended = EndCounts(*map(sub, self._last, self._known_ends))
        count = ended.steps if is_named else ended.optimizers // optimizers if optimizers else 0
        expected = EndCounts(count * backwards, count * optimizers, count if is_named else 0)
        return self.known_step + count if self.is_known and ended == expected else 0

    def boundary(self, running: int, step: int, *, is_named: bool) -> StepBoundary | None:
        """Return how the begin of `step` follows from the counts; the step `running` began at the last noted end.

        None if the last steps do not agree on the number of ends per step. A training that names its steps has one end
        each.
        """
        kind, per_step = (STEP, 1) if is_named else self._ending
        if not is_named and (self._ending_repeats < REPEATS or not 1 <= per_step <= ENDS_PER_STEP_MAX):
            return None
        return StepBoundary(kind, per_step, self._last.of(kind) + (step - running) * per_step, step)
