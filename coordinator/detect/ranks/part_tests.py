# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Tests each part of own work as a series with its own noise, for jobs whose total own work is too noisy.

Pure. On shared hosts own work scatters by 5 to 15 %, nearly all of it in forward and backward, while the wait for data
scatters by a tenth of a percent of a step: there +13 % of a step in one part is significant for that part and not for
the total. A part is compared as the total is: less its stage's, less what the replica shares, over the stage's own
work. Medians replace the low quantile, which leaves healthy ranks of noisy values half a sigma above it. All parts have
one unit, so the largest deviation is the cause. Two effects are subtracted first: what all ranks at one place do in a
part (e.g. loading data for others), as for the total; and what a rank usually has less in its other parts, since a rank
may wait in another part than its peers and the same seconds appear elsewhere.

Each test is a CUSUM (Page 1954) with a slack of one sigma, half of the two sigma of backward's own noise that +13 % of
a step are at 8 %. Its limit follows from the steps between false pages of the whole run (Siegmund 1985).

Shapes: R ranks, P stages, D replicas, N series (parts x ranks).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.error_budget import cusum_limit, steps_between
from coordinator.detect.ranks.components import PARTS
from coordinator.detect.ranks.groups import Groups
from coordinator.detect.ranks.place_effects import PlaceEffects
from coordinator.detect.ranks.references import References
from coordinator.detect.ranks.series_cusum import CusumTest
from coordinator.detect.state_dict import nested, part_of
from coordinator.intake.views import OFF_CPU

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.detect.ranks.series_groups import SeriesGroup
    from coordinator.settings.policy import ExcessPolicy

    Parts = Mapping[str, NDArray[np.floating]]
    Places = NDArray[np.intp]

_SLACK_SIGMAS = 1.0
_STALLED_STEPS = 3.5  # significant steps of an alarm; on shared hosts a rank is descheduled for two or three
_CORRELATION_RATE = 1 / 16
_REST_STEPS = 16  # memory of what a rank's other parts take: noise of 8 % of own work is 1.4 % of it in such a mean
_SHARED_MIN = 0.5  # of the variance; above it, subtracting a pair's lower value removes more noise than it adds


def as_policy(policy: "ExcessPolicy", series: int) -> "ExcessPolicy":
    """Return the thresholds for parts: effects at least as large as a noisy job's threshold, and a small slack."""
    limit = cusum_limit(_SLACK_SIGMAS, series * steps_between("parts", policy.false_page_steps))
    return replace(
        policy,
        slack_sigmas=_SLACK_SIGMAS,
        clip_sigmas=_SLACK_SIGMAS + limit / _STALLED_STEPS,
        stalled_steps=_STALLED_STEPS,
        floor_ratio=policy.noisy_sigma,
    )


class PartTests:
    """State of one run's parts, named `names`, over the ranks of `stages` and `replicas` (None: ranks share no batch).

    `places` are those of ranks in replicas and on nodes, None if every rank's is its own.
    Steps must be given in ascending order.
    """

    def __init__(
        self,
        names: "Sequence[str]",
        stages: "Groups",
        replicas: "Groups | None",
        policy: "ExcessPolicy",
        *,
        places: "Groups | None" = None,
    ) -> None:
        self.names = tuple(names)
        self._stages = stages
        self._replicas = replicas
        self._references = References(stages, replicas)
        self._correlation = np.zeros(len(self.names))  # of the ranks of a replica, in each part
        self._steps = 0
        self._rest_KR = np.zeros((len(self.names), len(stages.group_R)), dtype=np.float32)  # of own work, ratio
        self._place_effects = tuple(PlaceEffects(places, stages, replicas) for _ in self.names)
        own = as_policy(policy, len(self.names) * len(stages.group_R))
        self.test = CusumTest([stages.group_R] * len(self.names), own, test="parts", learns_tail=True)

    def step(self, parts: "Parts", scale_P: "NDArray[np.floating]", step: int) -> None:
        """Evaluate one step; `parts` hold seconds of shape (R,), NaN where unknown, `scale_P` the stages' own work."""
        deviation_N = np.full(self.test.count, np.nan, dtype=np.float32)
        scale_R = self._stages.spread(scale_P.astype(np.float32))
        self._steps += 1
        factor_N = np.ones(self.test.count, dtype=np.float32)
        worked = {name: np.ascontiguousarray(parts[name], dtype=np.float32) for name in self.names if name in parts}
        seconds = dict(worked)
        for name, effects in zip(self.names, self._place_effects, strict=True):
            if name in worked and (effect_R := effects.seconds_R(scale_P)) is not None:
                seconds[name] = worked[name] - effect_R
        disjoint = [seconds_R for name, seconds_R in seconds.items() if name != OFF_CPU]
        own_R = self._above_stage(np.sum(disjoint, axis=0)) if disjoint else np.zeros(len(scale_R), dtype=np.float32)
        for place, (name, series_group) in enumerate(zip(self.names, self.test.series_groups, strict=True)):
            if name in seconds:
                less_R = self._usually_less(place, (own_R - self._above_stage(seconds[name])) / scale_R)
                rest_R = deviation_N[series_group.span]
                rest_R[:] = self._residual(place, seconds[name]) / scale_R + less_R
                effects, is_slow_R = self._place_effects[place], series_group.alarm_N
                if (factor_R := effects.noise_factor_R) is not None:
                    factor_N[series_group.span] = factor_R
                effects.learn(worked[name], scale_P, is_slow_R)
        if not np.isnan(deviation_N).all():
            self.test.step(deviation_N, step, noise_factor_N=factor_N)

    def _residual(self, place: int, own_R: "NDArray[np.float32]") -> "NDArray[np.float32]":
        """Return seconds beyond the stage's median, array of shape (R,), less what the rank's replica shares.

        The latter is subtracted only if a replica's ranks share most of their variance; otherwise it would add the
        median's noise to each of them.
        """
        rest_R = self._above_stage(own_R)
        if self._replicas is not None:
            rate = max(_CORRELATION_RATE, 1 / self._steps)
            healthy_R = rest_R.copy()
            healthy_R[self.columns] = np.nan  # a slow rank shows nothing of what its replica shares
            self._correlation[place] += rate * (_correlation(healthy_R, self._replicas) - self._correlation[place])
            if self._correlation[place] > _SHARED_MIN:
                reference_P, shared_D = self._references.split(own_R, Groups.median)
                assert shared_D is not None
                usual_R = self._stages.spread(reference_P) + self._replicas.spread(shared_D)
                rest_R = own_R - usual_R.astype(np.float32, copy=False)
        return rest_R

    def _above_stage(self, seconds_R: "NDArray[np.float32]") -> "NDArray[np.float32]":
        """Return seconds beyond the stage's median, array of shape (R,)."""
        usual_R = self._stages.spread(self._stages.median(seconds_R))
        above_R: NDArray[np.float32] = seconds_R - usual_R.astype(np.float32)
        return above_R

    def _usually_less(self, place: int, now_R: "NDArray[np.floating]") -> "NDArray[np.float32]":
        """Return how far all parts but one have been below the stage's, array of shape (R,), ratio, 0 or less.

        It is the mean over the last steps where that exceeds the smallest reported effect, reduced by that effect, so
        that noise of the other parts does not enter this one. It matters for ranks that are alone at their place, for
        which place effects cannot subtract it; no generated scenario has such ranks.
        """
        mean_R: NDArray[np.float32] = self._rest_KR[place]
        change_R = (now_R - mean_R) / min(self._steps, _REST_STEPS)
        mean_R += np.where(np.isnan(change_R), 0, change_R)
        floor = np.float32(self.test.limits.floor_ratio)
        return np.where(mean_R < -floor, mean_R - floor, np.float32(0))

    def set_policy(self, policy: "ExcessPolicy") -> None:
        """Apply other thresholds from the next step on."""
        self.test.set_policy(as_policy(policy, self.test.count))

    def state_dict(self) -> "dict[str, NDArray[np.generic]]":
        """Return the learnt state, arrays by name."""
        which = np.array([name in self.names for name in PARTS])
        own: dict[str, NDArray[np.generic]] = {"which": which, "rest": self._rest_KR}
        effects = zip(self.names, self._place_effects, strict=True)
        return own | nested({f"places.{name}": each.state_dict() for name, each in effects}) | self.test.state_dict()

    @classmethod
    def from_state_dict(
        cls,
        state: "Mapping[str, NDArray[np.generic]]",
        stages: "Groups",
        replicas: "Groups | None",
        policy: "ExcessPolicy",
        *,
        places: "Groups | None" = None,
    ) -> "PartTests | None":
        """Return the tests restored from the result of `state_dict`, None if it does not fit."""
        which = state.get("which")
        if which is None or which.shape != (len(PARTS),) or not which.any():
            return None
        names = [name for name, is_evaluated in zip(PARTS, which, strict=True) if is_evaluated]
        own = cls(names, stages, replicas, policy, places=places)
        rest_KR = state.get("rest")
        if rest_KR is not None and rest_KR.shape == own._rest_KR.shape:
            own._rest_KR = rest_KR.astype(np.float32)
            own._steps = _REST_STEPS
        for name, effects in zip(own.names, own._place_effects, strict=True):
            effects.load_state_dict(part_of(state, f"places.{name}"))
        return own if own.test.load_state_dict(state) else None

    @property
    def is_alarmed(self) -> bool:
        """Whether any part of any rank is in alarm."""
        return len(self.test.alarms) > 0

    @property
    def columns(self) -> "Places":
        """The ranks with a part in alarm, ascending."""
        columns: Places = np.unique(self.test.alarms.series_A % (self.test.count // len(self.names)))
        return columns

    def of(self, column: int) -> "dict[str, SeriesGroup]":
        """Return the parts of a rank that are in alarm, the largest deviation first."""
        found = {
            name: series_group
            for name, series_group in zip(self.names, self.test.series_groups, strict=True)
            if column in series_group
        }
        return dict(sorted(found.items(), key=lambda item: -item[1].level_and_onset(column)[0]))


def _correlation(values_R: "NDArray[np.floating]", groups: "Groups") -> float:
    """Return the intraclass correlation of a group's members: the share of the variance that they have in common.

    Fisher's analysis of variance: 1 - within / total, 0 where nothing varies.
    """
    known_R = ~np.isnan(values_R)
    count_G = groups.sums(known_R.astype(np.float64))
    freedom = float(np.maximum(count_G - 1, 0).sum())
    if freedom == 0:
        return 0.0
    centred_R = np.where(known_R, values_R - np.nanmean(values_R), 0.0)
    mean_G = groups.sums(centred_R) / np.maximum(count_G, 1)
    within = float((((centred_R - groups.spread(mean_G)) * known_R) ** 2).sum()) / freedom
    total = float((centred_R**2).sum()) / max(float(count_G.sum()) - 1, 1)
    return 1 - within / total if total > 0 else 0.0
