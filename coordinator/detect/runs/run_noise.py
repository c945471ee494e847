"""Noise and autocorrelation of a single series, learnt from differences over time.

Pure. Uses differences because a lasting fault cancels in them, and two lags because step times are not independent: on
shared machines one slow step is followed by another, so a mean of many steps scatters more than single steps suggest.
"""

import math
from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from coordinator.detect.state_dict import Learner

if TYPE_CHECKING:
    from coordinator.settings.policy import FluctuationPolicy

FAR_STEPS = 16  # values this far apart are independent: a correlation of 0.8 has decayed to 0.03
_DIFFERENCE_TO_SIGMA = 0.886  # Gaussian: E|a - b| = 1.128 sigma
_CLIP_SIGMAS = 3.0  # of a difference; with 6, jobs with one stalled step in ten would learn stalls as noise
_FIRST = 8  # differences whose median is used until there is a sigma to clip by
_MEDIAN_OF_DIFFERENCE = 0.954  # Gaussian: the median of |a - b|, in sigmas
_CORRELATION_MAX = 0.97  # above it, the formula below divides by almost zero
_CORRELATION_PRIOR = 0.5  # reference: noise that all ranks of a job have in common
_PRIOR_SAMPLES = 24
_DIFFERENCE_SCATTER = 0.75  # of a mean of n absolute differences, relative to it, times sqrt(n)
_CORRELATION_MOST = 0.99
_ITERATIONS = 4  # to the correlation of noise that is alike over the long lag; with 0.95, the error is 0.004
_DOUBT = 0.5  # less than that: with more, +5 % takes 9 steps
_SIGMA_MIN = 1e-4  # of a step; clocks and schedulers make more


class _Spread(Learner):
    """Mean of absolute differences, expressed as the standard deviation of the values."""

    LEARNT = ("sigma", "count", "first")

    def __init__(self) -> None:
        self.sigma = 0.0
        self.count = 0
        self.first: deque[float] = deque(maxlen=_FIRST)

    def learn(self, difference: float, rate: float) -> None:
        self.count += 1
        if self.count <= _FIRST:
            self.first.append(difference)
            self.sigma = median(self.first) / _MEDIAN_OF_DIFFERENCE
            return
        difference = min(difference, _CLIP_SIGMAS * self.sigma)
        self.sigma += (_DIFFERENCE_TO_SIGMA * difference - self.sigma) * max(1 / self.count, rate)


class SeriesNoise(Learner):
    """State of the noise of one series; values of different eras, e.g. before and during a fault, are never compared.

    Neighbours are compared at once, so that a series that turns noisy is detected. Values a long lag apart are compared
    only once a fault among them would have been reported, because a shift would look like noise over a long lag.
    """

    LEARNT = ("_near", "_far", "_before", "_held", "_last")

    def __init__(self) -> None:
        self._held: deque[float] = deque()
        self._last: deque[float] = deque(maxlen=FAR_STEPS)
        self._before = math.nan
        self._near = _Spread()
        self._far = _Spread()

    def learn(self, value: float, policy: "FluctuationPolicy") -> None:
        """Add one value of the series."""
        if not math.isnan(self._before):
            self._near.learn(abs(value - self._before), policy.noise_rate)
        self._before = value
        self._held.append(value)
        if len(self._held) > min(policy.noise_hold_steps, self._far.count):
            self._release(policy)

    def _release(self, policy: "FluctuationPolicy") -> None:
        value = self._held.popleft()
        if len(self._last) == FAR_STEPS:
            self._far.learn(abs(value - self._last[0]), policy.noise_rate)
        self._last.append(value)

    def begin_era(self, policy: "FluctuationPolicy", values: int = 0) -> None:
        """Begin an era; the last `values` values are part of it."""
        while len(self._held) > values:
            self._release(policy)
        self._last.clear()
        if not values:
            self._before = math.nan

    def drop(self, values: int) -> None:
        """Drop the last values, which belong to a transition to another level; the next is compared with the rest."""
        for _ in range(min(values, len(self._held))):
            self._held.pop()
        self._before = math.nan

    @property
    def samples(self) -> int:
        """Number of differences over the long lag so far."""
        return self._far.count

    @property
    def near_sigma(self) -> float:
        """Standard deviation estimated from neighbours, without what they have in common."""
        return max(self._near.sigma, _SIGMA_MIN)

    @property
    def sigma(self) -> float:
        """Standard deviation of single values."""
        usual = self.near_sigma / math.sqrt(1 - _CORRELATION_PRIOR)
        count = self._far.count
        blend = (count * self._far.sigma + _PRIOR_SAMPLES * usual) / (count + _PRIOR_SAMPLES)
        return max(blend, self.near_sigma)

    @property
    def correlation(self) -> float:
        """Correlation of neighbouring values, 0 to 1."""
        return min(max(1 - (self.near_sigma / self.sigma) ** 2, 0.0), _CORRELATION_MAX)

    def residual_variance(self, policy: "FluctuationPolicy", errors: float) -> float:
        """Return the long-run variance of an AR(1) model's residuals, if noise remembers for longer than was learnt.

        The model takes the learnt correlation. The true one may be higher by `errors` standard errors, which follow
        from the scatter of the mean difference over the long lag, and because slow noise is alike even there.
        """
        alike = self.correlation
        slow = max(alike, _CORRELATION_PRIOR)
        alone = (min(self.samples, 2 / policy.noise_rate) + _PRIOR_SAMPLES) * (1 - slow) / (1 + slow)
        scatter = 2 * (1 - alike) * _DIFFERENCE_SCATTER / math.sqrt(alone)
        apart = max(1 - alike - errors * scatter, 1 - _CORRELATION_MOST)
        most = 1 - apart
        for _ in range(_ITERATIONS):
            most = 1 - apart * (1 - most**FAR_STEPS)
        return (1 - alike) * (1 + most) / ((1 + alike) * (1 - most))

    def sigma_of_mean(self, steps: int) -> float:
        """Return the standard deviation of a mean of `steps` values, with a margin for few samples."""
        alike = self.correlation
        alone = max((self.samples + _PRIOR_SAMPLES) * (1 - alike) / (1 + alike), 1.0)  # independent samples
        cautious = self.sigma * (1 + _DOUBT / math.sqrt(alone))
        fades = 2 * alike * (1 - alike**steps) / (steps * (1 - alike) ** 2)
        return cautious * math.sqrt(((1 + alike) / (1 - alike) - fades) / steps)
