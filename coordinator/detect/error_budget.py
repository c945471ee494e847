"""From the expected steps between false pages of a whole run to the limit of every test.

Pure. One public number, `budget.false_page_steps`, is spent on the tests by their `SHARES` (Bonferroni: dependent or
not, all together page no more often than the sum of the shares), and within a test on its series alike. A CUSUM's limit
follows from its average run length, a level's from the normal tail, a row of long steps' from how often chance brings
one, a count's from Lorden's bound. Each bounds how often noise alone passes that one condition; an alarm needs more, so
pages are rarer.

What is no matter of chance has no share: floors define which effects matter, clips and `stalled_steps` how many stalled
steps are no fault, whatever the noise.
"""

import math
from statistics import NormalDist

SHARES = {
    "units": 0.03,
    "links": 0.01,
    "parts": 0.35,
    "intermittent": 0.02,
    "static": 0.002,
    "run_means": 0.08,
    "run_rows": 0.36,
    "run_residuals": 0.12,
    "hang": 0.02,
}
"""Of the budget, by test: the larger where latency depends on it. `units` are ranks, replicas and stages; `run_*` are a
slower run by means, by rows of long steps and by the sum of residuals; `hang` is a late rank in a plain step log."""
ATTEMPT_STEPS = 10_000.0
"""Steps that an attempt is expected to have before a run has ended one: a day of steps of 8 s."""
_OVERSHOOT_SIGMAS = 1.166  # by how much a sum in steps passes its limit (Siegmund 1985)


def steps_between(test: str, false_page_steps: float) -> float:
    """Return the expected steps between false pages of one test, by name."""
    return false_page_steps / SHARES[test]


def average_run_length(slack: float, limit: float) -> float:
    """Return the steps between alarms of a CUSUM of standard normal values less `slack` (Siegmund 1985, 10.21)."""
    exponent = 2 * slack * (limit + _OVERSHOOT_SIGMAS)
    return (math.exp(exponent) - exponent - 1) / (2 * slack**2)


def cusum_limit(slack: float, steps: float) -> float:
    """Return the limit of a CUSUM whose average run length is `steps`, which are many.

    `average_run_length` without its two small terms, solved. Of N series give N times the steps.
    """
    return math.log(2 * slack**2 * steps) / (2 * slack) - _OVERSHOOT_SIGMAS


def level_sigmas(looks: float) -> float:
    """Return how many standard deviations a normal value exceeds once in so many independent looks."""
    return -NormalDist().inv_cdf(1 / looks)


def attempt_chance(test: str, false_page_steps: float, attempt_steps: float) -> float:
    """Return the chance that a test which looks once an attempt may be wrong, in attempts of so many steps."""
    return attempt_steps / steps_between(test, false_page_steps)


class AttemptLength:
    """How many steps a run's attempts have: the mean of those that have ended and of one of `ATTEMPT_STEPS`.

    `counts` are the attempts that have ended, their steps in all, and those of the present attempt.
    """

    def __init__(self, counts: tuple[int, int, int] = (0, 0, 0)) -> None:
        self._ended, self._ended_steps, self._steps = counts

    @property
    def counts(self) -> tuple[int, int, int]:
        """What outlives a restart of the coordinator."""
        return self._ended, self._ended_steps, self._steps

    def count_step(self) -> None:
        """Count a step of the present attempt."""
        self._steps += 1

    def end(self) -> None:
        """End the present attempt; one without steps is none."""
        self._ended += self._steps > 0
        self._ended_steps += self._steps
        self._steps = 0

    @property
    def expected_steps(self) -> float:
        """Steps that an attempt is expected to have."""
        return (ATTEMPT_STEPS + self._ended_steps) / (1 + self._ended)
