# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""In how many steps a rank is the one that the others wait for, and whether the noise of waiting explains it.

A scheduler takes a core from a healthy rank in one step and from another in the next: each is waited for indeed, and
none is slow. A fault comes back in step after step, and makes its rank later than the others are apart.

Shape suffixes: S collectives of one group, R ranks, T steps.
"""

from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.communication_causes.thresholds import CHANCE, REPEATED_STEPS, SPREADS, WORST_STEP


class Repetition(NamedTuple):
    """`blamed_R` is int64 of shape (n_ranks,): steps in which a rank caused most of the waiting, of `steps` in all.

    `steps` is 0 where nothing marks them. `worst_R` is float64: the share of what a rank caused in its worst step.
    `margin_R` is float64: by how much a rank is later than the latest other in the median step that it is blamed for,
    as a multiple of the spread of the others within these steps; infinite where they have none, as of two ranks.
    """

    blamed_R: NDArray[np.int64]
    worst_R: NDArray[np.float64]
    margin_R: NDArray[np.float64]
    steps: int

    @property
    def is_judged(self) -> bool:
        """Whether there are enough steps to show what comes back."""
        return self.steps >= REPEATED_STEPS.value

    def is_chance(self, at: int) -> bool:
        """Whether one step holds most of what a rank caused, or like ranks would be blamed as often or as much.

        Few steps show nothing, so it is False.
        """
        blamed = int(self.blamed_R[at])
        if not self.is_judged:
            return False
        if self.margin_R[at] < SPREADS.value:
            return True
        if blamed < self.steps and chance_of(blamed, self.steps, len(self.blamed_R)) > CHANCE.value:
            return True
        return bool(self.worst_R[at] > WORST_STEP.value)


def repetition(
    start_ns_S: NDArray[np.int64],
    last_S: NDArray[np.int64],
    waited_ns_SR: NDArray[np.float64],
    *,
    step_starts_ns_T: NDArray[np.int64],
) -> Repetition:
    """Return in how many steps each rank caused more than half of the waiting, and how far it stands out there.

    `start_ns_S` are the collectives' starts on the clock of `step_starts_ns_T`, `last_S` the rank that came last, an
    index into R, `waited_ns_SR` what each waited (NaN: not in it). Collectives before the first step do not count.
    """
    steps, ranks = len(step_starts_ns_T), waited_ns_SR.shape[1]
    if not steps:
        return Repetition(np.zeros(ranks, np.int64), np.zeros(ranks), np.zeros(ranks), 0)
    step_S = np.searchsorted(step_starts_ns_T, start_ns_S, side="right") - 1
    inside = step_S >= 0
    caused_TR, waited_TR = np.zeros((2, steps, ranks))
    np.add.at(caused_TR, (step_S[inside], last_S[inside]), np.nansum(waited_ns_SR, axis=1)[inside])
    whole = inside & ~np.isnan(waited_ns_SR).any(axis=1)
    np.add.at(waited_TR, step_S[whole], waited_ns_SR[whole])
    held = np.flatnonzero(caused_TR.sum(axis=1) > 0)
    caused_TR, waited_TR = caused_TR[held], waited_TR[held]
    most_T = caused_TR.argmax(axis=1)
    is_most = 2 * caused_TR.max(axis=1, initial=0) > caused_TR.sum(axis=1)
    blamed_R = np.bincount(most_T[is_most], minlength=ranks).astype(np.int64)
    worst_R = caused_TR.max(axis=0, initial=0) / np.maximum(caused_TR.sum(axis=0), 1.0)
    return Repetition(blamed_R, worst_R, _margins(waited_TR, most_T, is_most), len(held))


def _margins(
    waited_TR: NDArray[np.float64], most_T: NDArray[np.int64], is_most: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return `Repetition.margin_R`: who waits less came later by as much, for all leave a collective together."""
    margin_R = np.zeros(waited_TR.shape[1])
    for at in np.unique(most_T[is_most]):
        mine = waited_TR[is_most & (most_T == at)]
        others = np.delete(mine, at, axis=1)
        later = float(np.median(others.min(axis=1) - mine[:, at]))
        spread = float(np.sqrt(others.var(axis=1, ddof=1).mean())) if others.shape[1] > 1 else 0.0
        margin_R[at] = later / spread if spread else np.inf
    return margin_R


def chance_of(blamed: int, steps: int, ranks: int) -> float:
    """Return how likely it is that any of `ranks` is blamed in `blamed` or more of `steps` if each is as likely as all.

    The union bound over ranks of the binomial distribution's tail.
    """
    share = 1 / ranks
    tail = sum(comb(steps, count) * share**count * (1 - share) ** (steps - count) for count in range(blamed, steps + 1))
    return min(ranks * tail, 1.0)
