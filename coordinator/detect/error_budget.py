"""Derives the limit of every test from the expected number of steps between false pages of a run.

Pure. One public setting, `budget.false_page_steps`, is split over the tests by their `SHARES` (Bonferroni: dependent or
not, all tests together page no more often than the sum of the shares allows), and within a test evenly over its series.
The limit of a CUSUM follows from its average run length, that of a level from the normal tail, that of a sequence of
long steps from how often chance produces one, and that of a count from Lorden's bound. Each bounds how often noise
alone meets that one condition. An alarm needs further conditions, so pages are rarer.

Settings that do not concern chance have no share: floors define which effects matter; clips and `stalled_steps` define
how many stalled steps are no fault, whatever the noise.
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
    "run_counts": 0.006,
    "hang": 0.02,
}
"""Shares of the budget by test, larger where latency depends on it. `units` are ranks, replicas and stages; `run_*` are
a slower run by means, by sequences of long steps, by the sum of residuals and by the number of single long steps;
`hang` is a late rank in a step log."""
ATTEMPT_STEPS = 10_000.0
"""Expected steps of an attempt before any attempt of the run has ended: a day of steps of 8 s."""
_OVERSHOOT_SIGMAS = 1.166  # mean overshoot of a discrete-time sum over its limit (Siegmund 1985)


def steps_between(test: str, false_page_steps: float) -> float:
    """Return the expected number of steps between false pages of one test."""
    return false_page_steps / SHARES[test]


def average_run_length(slack: float, limit: float) -> float:
    """Return the steps between alarms of a CUSUM of standard normal values less `slack` (Siegmund 1985, 10.21)."""
    exponent = 2 * slack * (limit + _OVERSHOOT_SIGMAS)
    return (math.exp(exponent) - exponent - 1) / (2 * slack**2)


def cusum_limit(slack: float, steps: float) -> float:
    """Return the limit of a CUSUM whose average run length is `steps`, a large number.

    Solves `average_run_length` without its two small terms. N series together need N times the steps.
    """
    return math.log(2 * slack**2 * steps) / (2 * slack) - _OVERSHOOT_SIGMAS


def level_sigmas(looks: float) -> float:
    """Return the number of standard deviations that a normal value exceeds once in `looks` independent looks."""
    return -NormalDist().inv_cdf(1 / looks)


def attempt_chance(test: str, false_page_steps: float, attempt_steps: float) -> float:
    """Return the allowed false-alarm probability of a test that looks once per attempt of `attempt_steps` steps."""
    return attempt_steps / steps_between(test, false_page_steps)


class AttemptLength:
    """Estimates the length of a run's attempts: the mean over ended attempts and a prior one of `ATTEMPT_STEPS`.

    `counts` are the number of ended attempts, their total steps, and the steps of the current attempt.
    """

    def __init__(self, counts: tuple[int, int, int] = (0, 0, 0)) -> None:
        self._ended, self._ended_steps, self._steps = counts

    @property
    def counts(self) -> tuple[int, int, int]:
        """State that outlives a restart of the coordinator."""
        return self._ended, self._ended_steps, self._steps

    def count_step(self) -> None:
        """Count a step of the current attempt."""
        self._steps += 1

    def end(self) -> None:
        """End the current attempt; one without steps does not count."""
        self._ended += self._steps > 0
        self._ended_steps += self._steps
        self._steps = 0

    @property
    def expected_steps(self) -> float:
        """Expected number of steps of an attempt."""
        return (ATTEMPT_STEPS + self._ended_steps) / (1 + self._ended)
