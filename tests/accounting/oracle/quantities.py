"""HOT (budget 1,000 ns a step): what a step holds, by its batches or by what the training says, and what was evaluated.

Frameworks fetch evaluation batches with gradients enabled, so a batch does not say what it is for (hooks/data.py asks
that first). But it has no backward: a step with clearly more batches than backwards as usual held an evaluation.
"""

from lockstep.contracts.records import MISSING, Flag
from tests.accounting.oracle.record import Draft

BATCHES_MAX = 512
"""Batches of one step that are kept apart; an evaluation may fetch a million."""
_FOLDED = BATCHES_MAX // 2
_EVALUATION = int(Flag.EVALUATION)
_NAMES = ("samples", "tokens", "work")

Counts = tuple[int, int, int]
"""(samples, tokens, work) of a batch; MISSING is not known."""


class Quantities:
    """Counts of one rank's running step. What the training annotated once, only annotations count from then on."""

    __slots__ = ("_annotated", "_backwards", "_batches", "_folded", "_folded_count", "_odd", "_said", "_usual")

    def __init__(self) -> None:
        self._annotated: frozenset[str] = frozenset()
        self._said: dict[str, int] = {}
        self._batches: list[Counts] = []
        self._folded: Counts = (MISSING, MISSING, MISSING)
        self._folded_count = self._backwards = self._usual = 0
        self._odd = (-1, 0)
        """(step, surplus) of the last step whose surplus was not the usual one."""

    def add_batch(self, samples: int, tokens: int, work: int) -> None:
        """Take a batch that was fetched with gradients enabled."""
        self._batches.append((samples, tokens, work))
        if len(self._batches) == BATCHES_MAX:
            self._folded = _total([self._folded, *self._batches[:_FOLDED]])
            self._folded_count += _FOLDED
            del self._batches[:_FOLDED]

    def add_backward(self) -> None:
        """Count a backward."""
        self._backwards += 1

    def annotate(self, name: str, value: int) -> None:
        """Add `value` to the step's samples, tokens, work or flops."""
        self._annotated |= {name}
        self._said[name] = self._said.get(name, 0) + value

    def end_step(self, draft: Draft) -> None:
        """Write what the step holds, and whether something was evaluated in it, into its draft; begin the next step."""
        batches, counts = self._batches, self._folded
        surplus = self._folded_count + len(batches) - self._backwards
        extra = 0 if surplus == self._usual else self._evaluated(draft.step, surplus)
        if extra:
            draft.flags |= _EVALUATION
            batches = batches[max(extra - self._folded_count, 0) :]
            counts = (MISSING, MISSING, MISSING)
        if len(batches) == 1 and not self._folded_count:
            draft.samples, draft.tokens, draft.work = batches[0]
        elif batches or self._folded_count:
            draft.samples, draft.tokens, draft.work = _total([counts, *batches])
        if self._annotated:
            for name in self._annotated:
                setattr(draft, name, self._said.get(name, MISSING))
            self._said.clear()
        if self._folded_count:
            self._folded = (MISSING, MISSING, MISSING)
            self._folded_count = 0
        self._batches = []
        self._backwards = 0

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
    samples, tokens, work = ([value for value in values if value != MISSING] for values in zip(*batches, strict=True))
    return (
        sum(samples) if samples else MISSING,
        sum(tokens) if tokens else MISSING,
        sum(work) if work else MISSING,
    )
