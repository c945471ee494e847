# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""Effects of a place: what all ranks at one place do beyond their stage, e.g. read the batch or write logs.

Pure. A lasting term of the additive model, next to those of stage, replica, work and rank. A place is the position in a
replica and on a node; a training is laid out that way from its first step on, in all replicas or on all nodes. What
nine tenths of the ranks at a place have beyond the median place of their stage is the place's; what fewer have is a
rank's. A rank in alarm shows nothing of the layout, nor do the others of a small replica that has one: such a replica
is compared by one of them, whatever its own level is. An onset is clipped at the noise until it alarms. An effect is a
share of the work or a time: in a shorter step, as a warm-up fades, the same time is a larger ratio. Ranks that read a
batch scatter more than ranks that only compute, so noise is learnt per place as well.

Shapes: R ranks, L places, M sampled members of a place.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.ranks.groups import Groups
from coordinator.detect.state_dict import Learner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Marks = NDArray[np.bool_]

_SAMPLED = 8  # members; nine tenths exceed the second lowest, or the lowest of up to five
_SHARED_QUANTILE = 0.1
_YOUNG_WEIGHT = 2.0  # of a step: the first ones are warm-up, in which everything takes longer
_RATE = 1 / 16  # of a step, as in the long mean
_MOVES_RATE = 1 / 64  # of a step, as of noise
_YOUNG_STEPS = 8
_FAR_MOVES = 3.0  # usual differences; clip of one difference, since an onset or a stall is not noise
_NOISIER_FACTOR = 1.5  # two estimates from 64 differences rarely differ by more
_MOVES_MIN = 1e-6  # ratio; smaller differences are rounding errors
_PACE_MIN = 1e-9  # steps per second, below any


class PlaceEffects(Learner):
    """State of the `places` of one layout, each of at least two ranks; None if each rank is alone at its place."""

    LEARNT = ("_level_LM", "_last_LM", "_effect_L", "_pace_L", "_moves_L", "_steps")

    def __init__(self, places: Groups | None, stages: Groups, replicas: Groups | None = None) -> None:
        self.places = places
        self._member_LM = np.zeros((0, 1), dtype=np.int32) if places is None else _sampled(places)
        self._stage_L = stages.of(self._member_LM[:, 0].astype(np.intp))
        self._stages = Groups(self._stage_L)
        member_R = self._member_LM.ravel().astype(np.intp)
        stage_R = stages.of(member_R)
        self._peers = Groups(stage_R)
        if replicas is not None:
            cells = Groups(stage_R * replicas.count + replicas.of(member_R))
            self._peers = self._peers if (cells.sizes_G == 1).any() else cells
        self._level_LM = np.zeros(self._member_LM.shape, dtype=np.float32)
        self._last_LM = np.zeros_like(self._level_LM)
        self._moves_L = np.zeros(len(self._level_LM), dtype=np.float32)  # mean difference between two steps, ratio
        self._pace_L = np.zeros_like(self._moves_L)  # steps per second that the levels are ratios of
        self._steps = 0
        self._effect_L = np.zeros(len(self._level_LM), dtype=np.float32)

    @property
    def effect_R(self) -> "Floats | None":
        """What all ranks of each rank's place have beyond its stage, ratio, at least 0; None if no place has any."""
        return self._spread(self._effect_L) if self._effect_L.any() else None

    @property
    def differs_R(self) -> "Marks | None":
        """Which ranks have such an effect, None if none has."""
        effect_R = self.effect_R
        return None if effect_R is None else effect_R > 0

    @property
    def noise_factor_R(self) -> "Floats | None":
        """Noise of each rank's place relative to its stage, at least 1; None if no place is noisier."""
        if self.places is None:
            return None
        usual_L = self._stages.spread(self._stages.median(self._moves_L))
        factor_L = self._moves_L / np.maximum(usual_L, np.float32(_MOVES_MIN))
        is_noisier_L = factor_L > _NOISIER_FACTOR
        return self._spread(np.where(is_noisier_L, factor_L, np.float32(1))) if is_noisier_L.any() else None

    def _spread(self, figures_L: "Floats") -> "Floats":
        assert self.places is not None
        return self.places.spread(figures_L)

    def seconds_R(self, scale_P: "NDArray[np.floating]") -> "Floats | None":
        """Return the seconds of `effect_R` in a step, given those that a ratio of 1 stands for in each stage."""
        if not self._effect_L.any():
            return None
        scale_L = scale_P[self._stage_L]
        return self._spread((self._effect_L * scale_L * self._growth_L(scale_L)).astype(np.float32))

    def _growth_L(self, scale_L: "NDArray[np.floating]") -> "NDArray[np.floating]":
        """Return how many times as large a ratio the same time is as at the pace of the levels, at least 1."""
        return np.fmax(1 / (scale_L * np.maximum(self._pace_L, np.float32(_PACE_MIN))), 1)

    def learn(
        self,
        own_R: "Floats",
        scale_P: "NDArray[np.floating]",
        is_left_out_R: "Marks | None",
    ) -> None:
        """Add own work in one step, and what a ratio of 1 stands for in each stage, seconds, NaN if unknown.

        Nothing is learnt of ranks in `is_left_out_R`. Ranks are compared with the median of those that have the same
        layers and batch, if any has.
        """
        if self.places is None:
            return
        own_LM, scale_L = own_R[self._member_LM], scale_P[self._stage_L].astype(np.float32)
        is_left_out_LM = np.isnan(own_LM)
        if is_left_out_R is not None:
            is_left_out_LM |= is_left_out_R[self._member_LM]
        self._learn_noise(own_LM, scale_L, is_left_out_LM)
        self._learn_level(self._deviation_from_peers(own_LM) / scale_L[:, None], scale_L, is_left_out_LM)
        self._compare(None if is_left_out_R is None else is_left_out_R[self._member_LM])

    def _deviation_from_peers(self, values_LM: "Floats") -> "Floats":
        usual = self._peers.spread(self._peers.median(values_LM.ravel()).astype(np.float32, copy=False))
        deviation_LM: Floats = values_LM - usual.reshape(values_LM.shape)
        return deviation_LM

    def _learn_noise(self, own_LM: "Floats", scale_L: "Floats", is_left_out_LM: "Marks") -> None:
        """Learn what changes from step to step beyond the median change of the peers.

        Of two peers each has the noise of both in half of the steps: which one causes it is unknown.
        """
        self._steps += 1
        change_LM: Floats = own_LM - self._last_LM
        self._last_LM = own_LM
        if self._steps == 1:
            return
        moves_LM = np.abs(self._deviation_from_peers(change_LM)) / scale_L[:, None]
        if self._steps > _YOUNG_STEPS:
            np.minimum(moves_LM, _FAR_MOVES * self._moves_L[:, None], out=moves_LM)
        moves_LM[is_left_out_LM | np.isnan(moves_LM)] = 0
        change_L = moves_LM.mean(axis=1) - self._moves_L
        self._moves_L += change_L * np.float32(max(1 / (self._steps - 1), _MOVES_RATE))

    def _learn_level(self, now_LM: "Floats", scale_L: "Floats", is_left_out_LM: "Marks") -> None:
        rate = np.float32(max(_YOUNG_WEIGHT / (_YOUNG_WEIGHT + self._steps - 1), _RATE))
        usual_LM = self._level_LM * self._growth_L(scale_L).astype(np.float32)[:, None]
        change_LM = now_LM - usual_LM
        change_LM[is_left_out_LM | np.isnan(change_LM)] = 0
        if rate <= _RATE:
            most_L1 = _FAR_MOVES * self._moves_L[:, None]
            np.clip(change_LM, -most_L1, most_L1, out=change_LM)
        self._level_LM += (usual_LM + change_LM - self._level_LM) * rate
        pace_L: Floats = np.where(np.isnan(scale_L), self._pace_L, np.reciprocal(scale_L))
        self._pace_L += (pace_L - self._pace_L) * rate

    def _compare(self, is_left_out_LM: "Marks | None") -> None:
        """Update the effects; places of which nothing is known now keep theirs."""
        level_LM, (count, members) = self._level_LM, self._member_LM.shape
        known_L = np.full(count, members)
        if is_left_out_LM is not None:
            level_LM = np.where(is_left_out_LM, np.float32(np.nan), level_LM)
            known_L -= np.count_nonzero(is_left_out_LM, axis=1)
        ordered_LM, rows_L = np.sort(level_LM, axis=1), np.arange(count)
        lowest_L = ordered_LM[rows_L, np.rint(_SHARED_QUANTILE * np.maximum(known_L - 1, 0)).astype(np.intp)]
        middle_L = ordered_LM[rows_L, np.minimum(known_L // 2, members - 1)]
        above_L = lowest_L - self._stages.spread(self._stages.median(middle_L))
        self._effect_L = np.where(np.isnan(above_L), self._effect_L, np.maximum(above_L, np.float32(0)))


def _sampled(places: Groups) -> "NDArray[np.int32]":
    """Return the same number of sampled ranks of each place, array of shape (L, M)."""
    order_R = np.argsort(places.group_R, kind="stable")
    first_L = np.cumsum(places.sizes_G) - places.sizes_G
    members = min(int(places.sizes_G.min()), _SAMPLED)
    picked_LM = first_L[:, None] + np.arange(members) * places.sizes_G[:, None] // members
    return order_R[picked_LM].astype(np.int32)


def places_of(replicas: Groups | None, hosts: "Sequence[str]") -> Groups | None:
    """Return the ranks' places in their replicas and on their nodes, `hosts` by rank; None if all places are unique.

    The finest places with at least two ranks each: those of both, else of replicas, else of nodes.
    """
    in_replica = None if replicas is None else _places_in(replicas)
    in_node = _places_in(Groups(np.unique(np.array(hosts), return_inverse=True)[1])) if len(hosts) else None
    both = None
    if in_replica is not None and in_node is not None:
        both = Groups(in_replica.group_R * in_node.count + in_node.group_R)
    for places in (both, in_replica, in_node):
        if places is not None and places.count > 1 and int(places.sizes_G.min()) > 1:
            return places
    return None


def _places_in(groups: Groups) -> Groups:
    """Return each rank's position in its group, in ascending order of ranks."""
    order_R = np.argsort(groups.group_R, kind="stable")
    first_G = np.cumsum(groups.sizes_G) - groups.sizes_G
    place_R = np.empty(len(order_R), dtype=np.intp)
    place_R[order_R] = np.arange(len(order_R)) - np.repeat(first_G, groups.sizes_G)
    return Groups(place_R)
