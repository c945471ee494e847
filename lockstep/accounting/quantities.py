"""What a step holds, by its batches or by what the training annotates, and whether something was evaluated in it.

Frameworks fetch evaluation batches with gradients enabled, so a batch does not show what it is for. But it has no
backward: a step with clearly more batches than backwards as usual held an evaluation.
"""

from collections.abc import Mapping
from typing import ClassVar

from lockstep.accounting.state import ANY_INTEGER, COUNT, DictForm, ListForm, StateForm, TupleForm, WordForm
from lockstep.contracts.marks import ANNOTATED
from lockstep.contracts.records import MISSING

BATCHES_MAX = 512
"""Batches of one step that are held one by one; an evaluation may fetch a million."""
_FOLDED = BATCHES_MAX // 2

Counts = tuple[int, int, int]
"""(samples, tokens, work) of a batch; MISSING is not known."""
_UNKNOWN: Counts = (MISSING, MISSING, MISSING)
_QUANTITY = WordForm(ANNOTATED)
_COUNTS = TupleForm(ANY_INTEGER, ANY_INTEGER, ANY_INTEGER)


class StepQuantities:
    """Counts of one rank's running step. What the training annotated once, only annotations count from then on."""

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
        """(step, surplus) of the last step whose surplus was not the usual one."""
        self.begin_step()

    def begin_step(self) -> None:
        """Forget what the running step held."""
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
        """Return (what the step holds, by ANNOTATED; whether something was evaluated in it) and begin the next one."""
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
        """Return how many batches of the step were evaluated: its first ones, evaluations run between two steps.

        One batch more than usual is a prefetch. Usual is what step 1 has, the first one seen whole, and from then on
        what comes twice in a row: a compiler that traces a model runs backwards of its own, once.
        """
        extra = surplus - self._usual
        is_new_usual = step <= 1 or self._odd == (step - 1, surplus)
        self._odd = (step, surplus)
        if is_new_usual:
            self._usual = surplus
        return extra if extra > 1 and not is_new_usual else 0


def _total(batches: list[Counts]) -> Counts:
    """Return the sums of what is known; MISSING where nothing is."""
    if len(batches) == 1:
        return batches[0]
    columns = ([value for value in values if value != MISSING] for values in zip(*batches, strict=True))
    samples, tokens, work = (sum(known) if known else MISSING for known in columns)
    return samples, tokens, work
