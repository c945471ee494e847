# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""Noise of healthy series, learnt from differences over time per noise group of series that scatter alike.

Pure. Uses differences over time and never the spread between series: a lasting fault cancels in a difference, so the
estimate holds when half the ranks are slow and in domains of two, where a median absolute deviation breaks down.

Shapes: N series, P noise groups.
"""

import math
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.state_dict import Learner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from coordinator.detect.ranks.noise_groups import NoiseGroups
    from coordinator.settings.policy import ExcessPolicy

    Floats = NDArray[np.float32]
    Figures = NDArray[np.float64]
    Places = NDArray[np.intp]

FAR_SIGMAS = 6.0
"""Clip of a difference: 4.2 sigma of a value, which Gaussian noise exceeds once in 40,000; larger ones are stalls or
onsets and count only this much."""
_MEDIAN_TO_SIGMA = 1.048  # Gaussian: the median of |a - b| is 0.954 sigma
_ZERO_SIGMAS = 0.1  # a series that moves by less between two steps counts as constant
_ZERO_EVERY = 4  # updates; the share of constant series changes slowly
_SIGMA_MIN = 1e-6  # ratio; smaller differences are rounding errors
_ONSET_STEPS = 3  # after which a shift far beyond noise has a high sum; otherwise it was a burst
_NONE = np.zeros(0, dtype=np.intp)
_QUANTILE = 0.4  # of differences: half of a small noise group may change at once without affecting it
_QUANTILE_ERROR = 0.5  # standard error of its position x sqrt(number of differences), on the low side
_QUANTILE_TO_SIGMA = 1.348  # Gaussian: the quantile is 0.742 sigma
_RATE = 0.7  # most weight of one step: about two steps count, so that one by chance has little effect
_COMMON_MIN = 3  # series for a common movement; of two, the one that is the reference does not move
_SAMPLED = 256  # series sampled per noise group, which give its scatter to 5 %
_SHORT = 6  # movements in a row; of fewer a quantile is one or two of them
_SAMPLES_MIN = 12  # movements needed for the scatter; short rows use those of several steps


class PresentScatter:
    """Present scatter of series, in rows of series that scatter alike: `sigma_K`, NaN until one has been seen.

    It is the median absolute movement of the series that move in this step, for short rows in the last few steps, less
    the common movement. So it holds while fewer than half of the series become slow or healthy at once, or all do
    together, and it follows noise that changes for all of them, which an average over many steps does not show.
    """

    def __init__(self, series: "Sequence[Places]") -> None:
        chosen = [own[:: -(-max(len(own), 1) // _SAMPLED)] for own in series]
        self._known_K = np.array([len(own) for own in chosen])
        self._rows_K = np.arange(len(chosen))
        width = int(self._known_K.max())
        self.chosen_KM = np.array([np.pad(own, (0, width - len(own)), mode="edge") for own in chosen], dtype=np.int32)
        """The sampled series, one row after another; shorter rows repeat their last series."""
        self._is_padding_KM = np.arange(width) >= self._known_K[:, None]
        self._caution_K = np.where(self._known_K < _SAMPLES_MIN, 0.0, _QUANTILE_ERROR * np.sqrt(self._known_K))
        self._rate_K = np.minimum(self._known_K / _SAMPLES_MIN, _RATE)
        self._has_common_K = self._known_K >= _COMMON_MIN
        self._short = np.flatnonzero(self._known_K < _SHORT)
        self._rate_K[self._short] = 1
        steps_S = -(-_SAMPLES_MIN // np.maximum(self._known_K[self._short], 1))
        width = int(self._known_K[self._short].max(initial=0))
        self._is_used_TS = np.arange(int(steps_S.max(initial=0)))[:, None] < steps_S
        self.last_TSM = np.full((*self._is_used_TS.shape, width), np.inf, dtype=np.float32)
        """Absolute movements of short rows in the last steps, the last one first; infinite where unknown."""
        self.sigma_K = np.full(len(chosen), np.nan)
        self.common_K: Figures = np.zeros(len(chosen))
        """Median movement in the last step, 0 for rows of fewer than three series."""

    def learn(self, difference_KM: "Floats") -> None:
        """Add the movements of the sampled series in one step: 0 if unknown, infinite in rows to leave out.

        Modifies `difference_KM`.
        """
        difference_KM[self._is_padding_KM] = np.inf  # sorted behind all others
        zero_count_K = _count_zero(difference_KM)
        difference_KM.sort(axis=1)
        common_K = difference_KM[self._rows_K, (_QUANTILE * (self._known_K - 1)).astype(np.intp)]
        is_known_K = np.isfinite(common_K)
        common_K[~(self._has_common_K & is_known_K)] = 0
        self.common_K = common_K.astype(np.float64)
        difference_KM -= common_K[:, None]
        np.abs(difference_KM, out=difference_KM)
        difference_KM.sort(axis=1)
        now_K = _moving_sigma(difference_KM, self._known_K * is_known_K, zero_count_K, self._caution_K)
        short = self._short
        if len(short):
            last_TSM = self.last_TSM
            last_TSM[1:] = last_TSM[:-1]
            last_TSM[0] = difference_KM[short, : last_TSM.shape[2]]
            used_STM = np.where(self._is_used_TS[:, :, None], last_TSM, np.float32(np.inf)).swapaxes(0, 1)
            used_SM = used_STM.reshape(len(short), -1)
            used_SM.sort(axis=1)
            now_K[short] = _moving_sigma(used_SM, np.isfinite(used_SM).sum(axis=1), _count_zero(used_SM), 0.0)
        before_K = np.where(np.isnan(self.sigma_K), now_K, self.sigma_K)
        self.sigma_K = np.where(np.isnan(now_K), before_K, before_K + self._rate_K * (now_K - before_K))


def _count_zero(difference_KM: "Floats") -> "Places":
    zero_count_K: Places = np.count_nonzero(np.abs(difference_KM) <= _SIGMA_MIN, axis=1)
    return zero_count_K


def _moving_sigma(
    sorted_KM: "Floats", known_K: "Places", zero_count_K: "Places", caution_K: "Figures | float"
) -> "Figures":
    """Return the scatter of rows of absolute movements, in ascending order, the unknown ones last.

    It is a quantile of the `known_K` first that are not among the `zero_count_K` of zero, `caution_K` places lower. NaN
    where none is known.
    """
    moving_K = known_K - zero_count_K
    middle_K = zero_count_K + np.maximum(_QUANTILE * (moving_K - 1) - caution_K, 0).astype(np.intp)
    middle_K = np.minimum(middle_K, np.maximum(known_K - 1, 0))
    share_K = moving_K / np.maximum(known_K, 1)
    # A single movement may be an onset.
    sigma_K: Figures = np.where(moving_K > 1, sorted_KM[np.arange(len(sorted_KM)), middle_K], 0) * (
        _QUANTILE_TO_SIGMA * share_K
    )
    sigma_K[known_K == 0] = np.nan
    return sigma_K


class PooledNoise(Learner):
    """Standard deviation per noise group; `sigma_P` is NaN until a noise group has been seen.

    Differences beyond a few sigma are stalls and onsets and are clipped, unless they are frequent: their share,
    `outlier_share_P`, widens the limit, so that noise that comes in bursts is learnt as such. Those of suspects are not
    counted: in a noise group of two, an onset alone would count as a burst and delay its own alarm. `zero_share_P` is
    the share of series that do not move from step to step, because they are the reference themselves.
    """

    LEARNT = ("updates_P", "samples_P", "sigma_P", "outlier_share_P", "zero_share_P")

    def __init__(self, noise_groups: "NoiseGroups") -> None:
        self._noise_groups = noise_groups
        self.updates_P = np.zeros(noise_groups.count)
        self.samples_P = np.zeros(noise_groups.count)
        self.sigma_P = np.full(noise_groups.count, np.nan)
        self.outlier_share_P = np.zeros(noise_groups.count)
        self.zero_share_P = np.zeros(noise_groups.count)
        self._outliers: deque[Places] = deque([_NONE] * _ONSET_STEPS, maxlen=_ONSET_STEPS)  # of the last updates

    @property
    def cautious_P(self) -> "Figures":
        """Sigma with a margin for the uncertainty of few samples, array of shape (P,)."""
        margin_P: Figures = np.maximum(self.samples_P, 1)
        np.sqrt(margin_P, out=margin_P)
        np.divide(2, margin_P, out=margin_P)
        margin_P += 1
        margin_P *= self.sigma_P
        return margin_P

    def learn(
        self,
        difference_N: "Floats",
        left_out: "Places | None",
        policy: "ExcessPolicy",
        *,
        suspicious: "Places" = _NONE,
        present_P: "Figures | None" = None,
    ) -> None:
        """Add absolute differences, except those of the series `left_out` (each listed once). Modifies `difference_N`.

        For series that are `suspicious` now, differences beyond noise some updates ago do not count as bursts. Where
        `present_P` is above the learnt noise, outliers are measured by it.
        """
        noise_groups = self._noise_groups
        count_P = noise_groups.sizes_P
        if left_out is not None and len(left_out):
            difference_N[left_out] = 0
            count_P = count_P - noise_groups.counts(left_out)
        count_P, rate_P = self._count(count_P, policy)
        if int(np.maximum.reduce(self.updates_P)) % _ZERO_EVERY == 0:
            self._count_zero(difference_N, left_out, rate_P, count_P)
        least = float(np.minimum.reduce(self.sigma_P))
        limit_P = FAR_SIGMAS * (self.sigma_P if present_P is None else np.maximum(self.sigma_P, present_P))
        if not least > _SIGMA_MIN:
            # If sigma is unknown or all figures were equal, a limit of 0 could never grow again.
            limit_P[~(self.sigma_P > _SIGMA_MIN)] = np.inf
        outliers = noise_groups.above(difference_N, limit_P, noise_groups.highest(difference_N))
        self._count_bursts(outliers, suspicious, rate_P, count_P)
        if len(outliers):
            widened_P = limit_P * (1 + policy.burst_factor * self.outlier_share_P)
            difference_N[outliers] = np.minimum(
                difference_N[outliers], widened_P.astype(np.float32)[noise_groups.of(outliers)]
            )
        mean_P = noise_groups.sums(difference_N)
        mean_P *= policy.difference_to_sigma
        mean_P /= count_P
        change_P = mean_P - self.sigma_P
        change_P *= rate_P
        if math.isnan(least):
            self._begin(difference_N, left_out, np.where(rate_P > 0, mean_P, np.nan))
            change_P[np.isnan(change_P)] = 0
        self.sigma_P += change_P

    def _count(self, count_P: "Figures", policy: "ExcessPolicy") -> "tuple[Figures, Figures]":
        """Count the samples of each noise group; return the counts, 1 for 0, and each group's learning rate."""
        self.samples_P += count_P
        if np.count_nonzero(count_P) == len(count_P):  # nearly always
            self.updates_P += 1
            return count_P, np.maximum(1 / self.updates_P, policy.noise_rate)
        seen_P = count_P > 0
        self.updates_P += seen_P
        rate_P = np.maximum(1 / np.maximum(self.updates_P, 1), policy.noise_rate)
        return np.maximum(count_P, 1), rate_P * seen_P

    def _count_zero(
        self, difference_N: "Floats", left_out: "Places | None", rate_P: "Figures", count_P: "Figures"
    ) -> None:
        """Learn how many series do not move; series left out have a difference of 0 and are subtracted."""
        zero_share_P = self._noise_groups.counts_below(difference_N, _ZERO_SIGMAS * self.sigma_P)
        if left_out is not None and len(left_out):
            zero_share_P -= self._noise_groups.counts(left_out)
        share_P = np.maximum(zero_share_P, 0) / count_P
        self.zero_share_P += np.minimum(_ZERO_EVERY * rate_P, 1) * (share_P - self.zero_share_P)

    def _count_bursts(self, outliers: "Places", suspicious: "Places", rate_P: "Figures", count_P: "Figures") -> None:
        """Learn the frequency of differences far beyond noise, except those that belong to suspects by now."""
        ended = self._outliers[0]
        self._outliers.append(outliers)
        self.outlier_share_P *= 1 - rate_P
        if len(ended):
            ended = ended[~np.isin(ended, suspicious)]
            self.outlier_share_P += rate_P * self._noise_groups.counts(ended) / count_P

    def _begin(self, difference_N: "Floats", left_out: "Places | None", mean_P: "Figures") -> None:
        """Initialise noise groups from their median difference, which a single wild one does not affect."""
        is_known_N = np.ones(len(difference_N), dtype=bool)
        if left_out is not None:
            is_known_N[left_out] = False
        for noise_group in np.isnan(self.sigma_P).nonzero()[0].tolist():
            members = self._noise_groups.members(noise_group)
            own = difference_N[members][is_known_N[members]]
            first = _MEDIAN_TO_SIGMA * float(np.median(own)) if len(own) else np.nan
            self.sigma_P[noise_group] = first if first > _SIGMA_MIN else mean_P[noise_group]
