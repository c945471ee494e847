"""Quantities of a step, from its batches or from annotations, and whether it contained an evaluation.

Frameworks fetch evaluation batches with gradients enabled, so a batch does not show its purpose. But it has no
backward: a step with clearly more batches than backwards, compared with the usual surplus, contained an evaluation.
"""

from collections.abc import Mapping
from typing import ClassVar

from lockstep.accounting.state import ANY_INTEGER, COUNT, DictForm, ListForm, StateForm, TupleForm, WordForm
from lockstep.contracts.marks import ANNOTATED
from lockstep.contracts.records import MISSING

BATCHES_MAX = 512
"""Limit of batches of one step that are stored individually; an evaluation may fetch a million."""
_FOLDED = BATCHES_MAX // 2

Counts = tuple[int, int, int]
"""(samples, tokens, work) of a batch; MISSING if unknown."""
_UNKNOWN: Counts = (MISSING, MISSING, MISSING)
_QUANTITY = WordForm(ANNOTATED)
_COUNTS = TupleForm(ANY_INTEGER, ANY_INTEGER, ANY_INTEGER)


class StepQuantities:
    """Counts of one rank's running step. Once the training annotates a quantity, only annotations count for it."""

    STATE: ClassVar[Mapping[str, StateForm]] = {
        "_annotated": ListForm(_QUANTITY, len(ANNOTATED), set),
        "_usual": ANY_INTEGER,
        "_odd": TupleForm(ANY_INTEGER, ANY_INTEGER),
        "_sums": DictForm(_QUANTITY, ANY_INTEGER, len(ANNOTATED)),
        "_batches": ListForm(_COUNTS, BATCHES_MAX),
        "_folded": _COUNTS,
        "_folded_count": COUNT,
        "_backwards": COUNT,
    }

    def __init__(self) -> None:
        self._annotated: set[str] = set()
        self._usual = 0
        self._odd = (-1, 0)
        """(step, surplus) of the last step with an unusual surplus."""
        self.begin_step()

    def begin_step(self) -> None:
        """Reset the counts of the running step."""
        self._sums: dict[str, int] = {}
        self._batches: list[Counts] = []
        self._folded = _UNKNOWN
        self._folded_count = self._backwards = 0

    def add_batch(self, counts: Counts) -> None:
        """Add a batch that was fetched with gradients enabled."""
        self._batches.append(counts)
        if len(self._batches) == BATCHES_MAX:
            self._folded = _total([self._folded, *self._batches[:_FOLDED]])
            self._folded_count += _FOLDED
            del self._batches[:_FOLDED]

    def add_backward(self) -> None:
        """Count a backward."""
        self._backwards += 1

    def annotate(self, quantity: int, value: int) -> None:
        """Add `value` to one of the step's ANNOTATED."""
        name = ANNOTATED[quantity]
        self._annotated.add(name)
        self._sums[name] = self._sums.get(name, 0) + value

    def end_step(self, step: int) -> tuple[dict[str, int], bool]:
        """Return the quantities by ANNOTATED and whether the step contained an evaluation, and begin the next step."""
        batches, counts = self._batches, self._folded
        surplus = self._folded_count + len(batches) - self._backwards
        evaluated = 0 if surplus == self._usual else self._evaluated(step, surplus)
        if evaluated:
            batches = batches[max(evaluated - self._folded_count, 0) :]
            counts = _UNKNOWN
        found = dict(zip(ANNOTATED, (*_total([counts, *batches]), MISSING), strict=True))
        for name in self._annotated:
            found[name] = self._sums.get(name, MISSING)
        self.begin_step()
        return found, evaluated > 0

    def _evaluated(self, step: int, surplus: int) -> int:
        """Return how many batches of the step are of an evaluation: its first ones, as evaluations run between steps.

        One batch more than usual is a prefetch. The usual surplus is that of step 1, the first complete one; later, any
        surplus that occurs twice in a row. A compiler that traces a model runs backwards of its own, once.
        """
        extra = surplus - self._usual
        is_new_usual = step <= 1 or self._odd == (step - 1, surplus)
        self._odd = (step, surplus)
        if is_new_usual:
            self._usual = surplus
        return extra if extra > 1 and not is_new_usual else 0


def _total(batches: list[Counts]) -> Counts:
    """Return the sums of the known values; MISSING if none is known."""
    if len(batches) == 1:
        return batches[0]
    columns = ([value for value in values if value != MISSING] for values in zip(*batches, strict=True))
    samples, tokens, work = (sum(known) if known else MISSING for known in columns)
    return samples, tokens, work
