# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""In how many steps a rank is the one that the others wait for, and whether the noise of waiting explains it.

A scheduler takes a core from a healthy rank in one step and from another in the next: each is waited for indeed, and
none is slow. A fault comes back in step after step, and makes its rank later than the others are apart.

Shape suffixes: S collectives of one group, R ranks, T steps.
"""

from collections.abc import Sequence
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.communication_causes.thresholds import CHANCE, REPEATED_STEPS, SPREADS, WORST_STEP


class Repetition(NamedTuple):
    """What waiting the steps of a group have: float64 arrays of shape (n_steps, n_ranks), ns.

    Steps without waiting are left out. `caused_TR` is what the others waited for a rank, `waited_TR` what it waited
    itself, in collectives in which all take part. Both are empty where nothing marks the steps.
    """

    caused_TR: NDArray[np.float64]
    waited_TR: NDArray[np.float64]

    @property
    def steps(self) -> int:
        """Return the number of steps with waiting."""
        return len(self.caused_TR)

    @property
    def is_judged(self) -> bool:
        """Whether there are enough steps to show what comes back."""
        return self.steps >= REPEATED_STEPS.value

    def is_blamed(self, ranks: Sequence[int]) -> NDArray[np.bool_]:
        """Return in which steps these ranks, indices, together caused more than half of the waiting."""
        blamed: NDArray[np.bool_] = 2 * self.caused_TR[:, ranks].sum(axis=1) > self.caused_TR.sum(axis=1)
        return blamed

    def worst_ratio(self, ranks: Sequence[int]) -> float:
        """Return the share of what these ranks caused in their worst step."""
        caused_T = self.caused_TR[:, ranks].sum(axis=1)
        return float(caused_T.max(initial=0) / max(caused_T.sum(), 1.0))

    def margin(self, ranks: Sequence[int]) -> float:
        """Return by how much all these ranks are later than the latest other, in the median step they are blamed for.

        As a multiple of the spread of the others within these steps; infinite where they have none, as where only one
        rank is left. All leave a collective together, so who waits less came later by as much.
        """
        waited = self.waited_TR[self.is_blamed(ranks)]
        others = np.delete(waited, ranks, axis=1)
        if not waited.size or not others.size:
            return 0.0
        later = float(np.median(others.min(axis=1) - waited[:, ranks].max(axis=1)))
        spread = float(np.sqrt(others.var(axis=1, ddof=1).mean())) if others.shape[1] > 1 else 0.0
        return later / spread if spread else np.inf

    def is_chance(self, ranks: Sequence[int]) -> bool:
        """Whether one step holds most of what ranks caused, or like ranks would be blamed as often or as much.

        Few steps show nothing, so it is False.
        """
        if not self.is_judged:
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

    `start_ns_S` are the collectives' starts on the clock of `step_starts_ns_T`, `last_S` the rank that came last, an
    index into R, `waited_ns_SR` what each waited (NaN: not in it). Collectives before the first step do not count.
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
    """Return how likely it is that any `together` of `ranks` are blamed in `blamed` or more of `steps` by chance.

    Each rank is as likely as all others. The union bound over sets of ranks of the binomial distribution's tail.
    """
    share = together / ranks
    tail = sum(comb(steps, count) * share**count * (1 - share) ** (steps - count) for count in range(blamed, steps + 1))
    return min(comb(ranks, together) * tail, 1.0)
