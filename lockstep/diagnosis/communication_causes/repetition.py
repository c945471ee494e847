# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""In how many steps the others wait for a rank, and whether that exceeds chance.

A scheduler takes a core from one healthy rank in one step and from another in the next: each is indeed waited for, and
none is slow. A fault recurs step after step, and makes its rank later than the spread of the others.

Shape suffixes: S collectives of one group, R ranks, T steps.
"""

from collections.abc import Sequence
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.communication_causes.thresholds import CHANCE, REPEATED_STEPS, SPREADS, WORST_STEP


class Repetition(NamedTuple):
    """Waiting of a group by step: float64 arrays of shape (n_steps, n_ranks), ns.

    Steps without waiting are left out. `caused_TR` is the time that the others waited for a rank, `waited_TR` the time
    that it waited itself, in collectives of the whole group. Both are empty if steps are not marked.
    """

    caused_TR: NDArray[np.float64]
    waited_TR: NDArray[np.float64]

    @property
    def steps(self) -> int:
        """Return the number of steps with waiting."""
        return len(self.caused_TR)

    @property
    def has_enough_steps(self) -> bool:
        """Whether there are enough steps to detect repetition."""
        return self.steps >= REPEATED_STEPS.value

    def is_blamed(self, ranks: Sequence[int]) -> NDArray[np.bool_]:
        """Return in which steps these ranks (indices) together caused more than half of the waiting."""
        blamed: NDArray[np.bool_] = 2 * self.caused_TR[:, ranks].sum(axis=1) > self.caused_TR.sum(axis=1)
        return blamed

    def worst_ratio(self, ranks: Sequence[int]) -> float:
        """Return the share of these ranks' waiting that falls into their worst step."""
        caused_T = self.caused_TR[:, ranks].sum(axis=1)
        return float(caused_T.max(initial=0) / max(caused_T.sum(), 1.0))

    def margin(self, ranks: Sequence[int]) -> float:
        """Return how much later than the latest other rank all these ranks are, in the median step of their blame.

        As a multiple of the spread of the others within these steps or, if only one rank is left, of the spread over
        these steps: a fault takes about as long in each. Infinite if there is no spread. All ranks leave a collective
        together, so a rank that waits less arrived later by the difference.
        """
        waited = self.waited_TR[self.is_blamed(ranks)]
        others = np.delete(waited, ranks, axis=1)
        if not waited.size or not others.size:
            return 0.0
        later_T = others.min(axis=1) - waited[:, ranks].max(axis=1)
        if others.shape[1] > 1:
            spread = float(np.sqrt(others.var(axis=1, ddof=1).mean()))
        else:
            spread = float(later_T.std(ddof=1)) if len(later_T) > 1 else 0.0
        return float(np.median(later_T)) / spread if spread else np.inf

    def is_chance(self, ranks: Sequence[int]) -> bool:
        """Whether one step has most of the waiting caused by `ranks`, or healthy ranks would be blamed as often.

        False with too few steps.
        """
        if not self.has_enough_steps:
            return False
        if self.margin(ranks) < SPREADS.value or self.worst_ratio(ranks) > WORST_STEP.value:
            return True
        blamed = int(np.count_nonzero(self.is_blamed(ranks)))
        chance = chance_of(blamed, self.steps, self.caused_TR.shape[1], together=len(ranks))
        return blamed < self.steps and chance > CHANCE.value


def repetition(
    start_ns_S: NDArray[np.int64],
    last_S: NDArray[np.int64],
    waited_ns_SR: NDArray[np.float64],
    *,
    step_starts_ns_T: NDArray[np.int64],
) -> Repetition:
    """Return the waiting of a group by step.

    `start_ns_S` are the starts of the collectives on the clock of `step_starts_ns_T`, `last_S` the ranks that arrived
    last (indices into R), `waited_ns_SR` each rank's waiting (NaN: not in it). Collectives before the first step are
    ignored.
    """
    caused_TR, waited_TR = np.zeros((2, len(step_starts_ns_T), waited_ns_SR.shape[1]))
    step_S = np.searchsorted(step_starts_ns_T, start_ns_S, side="right") - 1
    inside = step_S >= 0
    np.add.at(caused_TR, (step_S[inside], last_S[inside]), np.nansum(waited_ns_SR, axis=1)[inside])
    whole = inside & ~np.isnan(waited_ns_SR).any(axis=1)
    np.add.at(waited_TR, step_S[whole], waited_ns_SR[whole])
    held = np.flatnonzero(caused_TR.sum(axis=1) > 0)
    return Repetition(caused_TR[held], waited_TR[held])


def chance_of(blamed: int, steps: int, ranks: int, *, together: int = 1) -> float:
    """Return the probability that any `together` of `ranks` are blamed in at least `blamed` of `steps` by chance.

    Assumes that all ranks are equally likely. The union bound over sets of ranks of the binomial tail.
    """
    share = together / ranks
    tail = sum(comb(steps, count) * share**count * (1 - share) ** (steps - count) for count in range(blamed, steps + 1))
    return min(comb(ranks, together) * tail, 1.0)
