# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""Which ranks hold the others up: their own work, compared with that of peers that do the same.

Pure: arrays in, alarms out. The quantity is self time, i.e. step time minus the waits in every domain. Step time is
equal on all ranks of a synchronous job, and the wait in one domain indicates only a whole replica. What a rank's work
explains is subtracted first. A rank is then compared with its pipeline stage (a longer last stage is no fault), after
subtracting the seconds that its whole replica shares (longer sequences are no fault either). What a replica shares, and
a stage's work relative to the other stages, are tested as series of their own: a node may be the whole of either.

Shapes: R ranks, P stages, D replicas.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from coordinator.detect.error_budget import ATTEMPT_STEPS
from coordinator.detect.ranks.absence import Absence
from coordinator.detect.ranks.contention import waiting_stages
from coordinator.detect.ranks.groups import Groups, mean_of, median_of
from coordinator.detect.ranks.part_tests import PartTests
from coordinator.detect.ranks.place_effects import PlaceEffects, places_of
from coordinator.detect.ranks.references import References, expert_places, static_stand_in
from coordinator.detect.ranks.series_cusum import CusumTest
from coordinator.detect.ranks.series_groups import SeriesGroup
from coordinator.detect.ranks.stage_past import SECONDS_MIN, StagePast
from coordinator.detect.ranks.static_differences import FleetView, views_of_ranks
from coordinator.detect.ranks.work import WorkCorrection
from coordinator.detect.state_dict import nested, part_of
from coordinator.settings.policy import RankPolicy, WorkPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.detect.ranks.part_tests import Parts
    from coordinator.settings.policy import ExcessPolicy

    Floats = NDArray[np.float32]
    Places = NDArray[np.intp]

_MOVING_SHARE = 1 / 8  # of a stage's ranks: this many slow ranks shift its 30 % quantile by a stage's reported effect
_SHARED_MIN = 0.5  # of a group's deviation that each of its ranks must have
_UNEVEN_RATIO = 2.0  # above it, a slow rank is rarely the lowest of its stage except by its batch
_FAR_FLOORS = 4.0  # smallest effects, 10 % of a step: a single step with less is not slow


class Verdict(NamedTuple):
    """The series in alarm that names a rank, and the part of own work that it is of, empty if of all of it."""

    series_group: SeriesGroup
    series: int
    part: str = ""


class SlowRankTest:
    """State of the slow-rank test of one run.

    `stage_R` and `replica_R` give the group of each rank; ranks of one replica work on the same data. `place_R` is the
    place of each rank in its expert domain: what all ranks of a place share, beyond what a work figure explains, is
    their expert's load and no fault. `hosts` are the nodes of the ranks, if known. `attempt_steps` is the expected
    number of steps of the run's attempts.
    """

    def __init__(
        self,
        stage_R: "Sequence[int]",
        replica_R: "Sequence[int]",
        policy: "ExcessPolicy",
        *,
        rank_policy: RankPolicy | None = None,
        work_policy: WorkPolicy | None = None,
        place_R: "Sequence[int] | None" = None,
        hosts: "Sequence[str]" = (),
        attempt_steps: float = ATTEMPT_STEPS,
    ) -> None:
        self._count = len(stage_R)
        self.stage_groups = Groups(stage_R)
        self.replica_groups = Groups(replica_R)
        self.has_replicas = 1 < self.replica_groups.count < len(stage_R)
        self._batches = self.replica_groups if self.has_replicas else None
        self._references = References(self.stage_groups, self._batches)
        self._expert_places = expert_places(place_R, self._batches)
        self.place_effects = PlaceEffects(places_of(self._batches, hosts), self.stage_groups, self._batches)
        """Work beyond the stage that all ranks at one place of their replicas and nodes have."""
        self._past = StagePast(self.stage_groups.count)
        self._pauses = 0
        self._absence = Absence()
        self._policy = rank_policy or RankPolicy()
        self._excess_policy = policy
        self.parts: PartTests | None = None
        """Test of each part of own work, created once the total has proved noisy."""
        self.work = WorkCorrection(self.stage_groups, work_policy or WorkPolicy())
        self._lay_out(policy)
        self._test.limits.attempt_steps = attempt_steps
        self.scale_P = np.full(self.stage_groups.count, np.nan)
        """Seconds that a ratio of 1 stands for: the stage's reference, or its recent median if that is longer."""
        self.shift_R: Floats | None = None
        """Seconds that each rank's work explained in the last step, None if all had the same work."""
        self.far: dict[int, float] = {}
        """Ranks far beyond noise in the last step and not in alarm: deviation (ratio) by column."""
        self.imbalance_seconds = 0.0
        """Excess of the replica with the most work in the last step, seconds."""

    def _lay_out(self, policy: "ExcessPolicy") -> None:
        """Create one test of ranks, replicas and stages, as far as there are peers to compare."""
        counts = {
            "ranks": self._count,
            "replicas": self.replica_groups.count if self.has_replicas else 0,
            "stages": self.stage_groups.count if self.stage_groups.count > 1 else 0,
        }
        noise_groups = {name: np.zeros(count, dtype=np.intp) for name, count in counts.items() if count}
        noise_groups["ranks"] = self.stage_groups.group_R
        self._test = CusumTest(list(noise_groups.values()), policy, fleet_views=self._fleet_views)
        series_group_of = dict(zip(noise_groups, self._test.series_groups, strict=True))
        no_group = SeriesGroup(self._test, slice(self._test.count, self._test.count), slice(0, 0))
        self.ranks, self.replicas = series_group_of["ranks"], series_group_of.get("replicas", no_group)
        self.stages = series_group_of.get("stages", no_group)
        self.set_policy(policy, self._policy, self.work.policy)

    def _fleet_views(self, level_N: "Floats") -> list[FleetView]:
        groups = self.stage_groups, self._batches
        places = 0 if self._expert_places is None else self._expert_places.count
        return views_of_ranks(
            level_N, self.ranks, self.replicas, *groups, are_batches_even=not self._is_uneven, expert_places=places
        )

    def set_policy(self, policy: "ExcessPolicy", rank_policy: RankPolicy, work_policy: WorkPolicy) -> None:
        """Apply other thresholds from the next step on."""
        self._policy, self.work.policy, self._excess_policy = rank_policy, work_policy, policy
        if self.parts is not None:
            self.parts.set_policy(policy)
        self._test.set_policy(policy, alarm_sigmas=[(self.stages, policy.sum_of(rank_policy.stage_stalled_steps))])

    def step(
        self,
        self_R: "NDArray[np.floating]",
        step: int,
        *,
        compute_R: "NDArray[np.floating] | None" = None,
        work_R: "NDArray[np.floating] | None" = None,
        parts: "Callable[[NDArray[np.floating] | None], Parts] | None" = None,
    ) -> None:
        """Evaluate one step.

        `self_R` holds self time in seconds, NaN if a rank has no valid one; `compute_R` is the part of it that depends
        on `work_R`, the work figure in any unit. `parts` returns the seconds of each part, given those that work
        explains; it is called only if own work is noisy.
        """
        self.far = {}
        if np.isnan(np.fmax.reduce(self_R)):
            return
        deviation_N = np.empty(self._test.count, dtype=np.float32)
        own_R = deviation_N[self.ranks.span]
        own_R[:] = self_R
        self.shift_R = None
        if compute_R is not None and work_R is not None:
            self.shift_R = self.work.seconds(compute_R, work_R, lambda: self.ranks.suspicious)
        if self.shift_R is not None:
            own_R -= self.shift_R
        worked_R = own_R.copy()
        effect_R = self.place_effects.seconds_R(self.scale_P)
        if effect_R is not None:
            own_R -= effect_R
        if not self.ranks.is_warm:
            # How much of compute depends on the work is unknown in the first steps, which are also warm-up.
            self._test.forbid_early([self.stages] if self.shift_R is None else self._test.series_groups)
        reference_P, shared_D = self._references.split(own_R, by_cell=self._is_uneven)
        if self._is_pause(reference_P):
            return
        if self._leave_out_idle(own_R, reference_P):
            reference_P, shared_D = self._references.split(own_R, by_cell=self._is_uneven)
        self._past.add(reference_P)
        self.scale_P = np.maximum(np.fmax(reference_P, self._past.usual_P), SECONDS_MIN)
        self._compare(own_R, reference_P, shared_D, deviation_N[self.replicas.span])
        if self.stage_groups.count > 1:
            common, share_P = self._compare_stages(reference_P, own_R)
            deviation_N[self.stages.span] = self._past.less_explained(reference_P, share_P, common)
        self._test.step(deviation_N, step, unit_P=self._unit_P(reference_P), noise_factor_N=self._noise_factor_N())
        worked_R[np.isnan(own_R)] = np.nan
        self.place_effects.learn(worked_R, self.scale_P, self._is_no_layout_R())
        self._look_closer(parts, step)
        if self.stage_groups.count > 1:
            steps = self.stages.evaluated_steps
            self._past.learn(common, share_P, self.stages.suspicious, evaluated_steps=steps, policy=self._policy)

    @property
    def mirrored_alarms(self) -> tuple[int, ...]:
        """Numbers of ranks, replicas and stages that alarmed in the last step for being too fast."""
        return tuple(each.mirrored_alarms for each in (self.ranks, self.replicas, self.stages))

    @property
    def _is_uneven(self) -> bool:
        """Whether batches are uneven: the shared work of replicas scatters more than that of single ranks.

        Ranks that always are their replica's reference do not scatter: of pairs that differ, half of all ranks.
        """
        if not self.has_replicas:
            return False
        moving = 1 - np.minimum.reduce(self.ranks.zero_share_P)
        shared, single = np.fmax.reduce(self.replicas.sigma_P), np.fmax.reduce(self.ranks.sigma_P)
        return bool(moving * shared > _UNEVEN_RATIO * single)

    def _is_no_layout_R(self) -> "NDArray[np.bool_] | None":
        """Return which ranks show nothing of the layout: those in alarm and those in a small replica with one.

        Such a replica is compared by one of its other ranks, so their deviations are 0 whatever they do. None: no rank.
        """
        alarmed = self.ranks.alarms
        if not len(alarmed):
            return None
        if not self.has_replicas:
            return self.ranks.alarm_N
        is_D = (self.replica_groups.counts(alarmed) > 0) & (self.replica_groups.sizes_G <= self._policy.whole_max)
        is_R = self.replica_groups.spread(is_D)
        is_R[alarmed] = True
        return is_R

    def _unit_P(self, reference_P: "NDArray[np.floating]") -> "NDArray[np.floating]":
        """Return the seconds that a ratio of 1 stands for, for each noise group of the test."""
        unit_P = np.ones_like(self._test.limits.sigma_P)
        unit_P[self.ranks.noise_groups] = self.scale_P
        unit_P[self.replicas.noise_groups] = mean_of(reference_P)
        return unit_P

    def _noise_factor_N(self) -> "Floats | None":
        """Return the noise of each series relative to its noise group, None if all are alike."""
        factor_R = self.place_effects.noise_factor_R
        if factor_R is None:
            return None
        factor_N: Floats = np.ones(self._test.count, dtype=np.float32)
        factor_N[self.ranks.span] = factor_R
        return factor_N

    def _is_noisy(self) -> bool:
        """Whether to evaluate parts separately: own work scatters more than in a quiet job."""
        if self.parts is not None:
            return True
        policy = self._excess_policy
        is_known = self._test.evaluated_steps > policy.warm_up_steps
        return is_known and float(np.fmax.reduce(self.ranks.sigma_P)) > policy.early_sigma

    def _look_closer(self, parts: "Callable[[NDArray[np.floating] | None], Parts] | None", step: int) -> None:
        """Update the ranks far beyond noise in this step, and evaluate each part if the total is noisy."""
        if self.is_warm:
            self.far = self._test.far_of(self.ranks, _FAR_FLOORS * self._test.limits.floor_ratio)
        if parts is None or self.is_paused or not self._is_noisy():
            return
        seconds = parts(self.shift_R)
        if self.parts is None:
            groups, places = (self.stage_groups, self._batches), self.place_effects.places
            self.parts = PartTests(tuple(seconds), *groups, self._excess_policy, places=places)
        self.parts.step(seconds, self.scale_P, step)

    def _compare(
        self, own_R: "Floats", reference_P: "Floats", shared_D: "Floats | None", deviation_D: "Floats"
    ) -> None:
        """Convert each rank's seconds into its deviation from stage and replica, and store that of replicas."""
        rest, reference = self.stage_groups.broadcast(own_R, reference_P)
        rest -= reference
        if shared_D is not None:
            groups = self.replica_groups
            own_D, shared_D = self._shared(own_R, shared_D)
            if int(groups.sizes_G.min()) <= self._policy.whole_max:
                changed = self._test.changed(self.ranks)
                own_D = own_D - static_stand_in(groups, own_R, self._static_R, changed, self._policy.whole_max)
            np.divide(own_D, np.float32(mean_of(reference_P)), out=deviation_D)
            rest, shared = groups.broadcast(own_R, shared_D)
            rest -= shared
        elif self._expert_places is not None:
            rest, shared = self._expert_places.broadcast(own_R, self._expert_places.reference(own_R))
            rest -= shared
        rest, scale = self.stage_groups.broadcast(own_R, self.scale_P.astype(np.float32))
        rest /= scale

    def _static_R(self) -> "Floats":
        """Return each rank's static difference, seconds."""
        static_R: Floats = self._test.static_of(self.ranks) * self.stage_groups.spread(self.scale_P).astype(np.float32)
        return static_R

    def _leave_out_idle(self, own_R: "Floats", reference_P: "Floats") -> bool:
        """Exclude ranks that do almost nothing: they report wrongly or have no work here, and are no reference."""
        least = np.float32(self._policy.idle_ratio) * reference_P.astype(np.float32)
        if not np.count_nonzero(self.stage_groups.least(own_R) < least):
            return False
        own, limit = self.stage_groups.broadcast(own_R, least)
        own[own < limit] = np.nan
        return True

    def _is_pause(self, reference_P: "NDArray[np.floating]") -> bool:
        """Whether the own work of all ranks is suddenly so long that the job as a whole must be doing something else.

        On shared cores single steps look like that by chance, so there only the evaluation of parts is skipped.
        """
        policy = self._policy
        longer = self._past.is_longer(reference_P, policy.pause_ratio)
        self._pauses = self._pauses + 1 if longer and self._pauses < policy.pause_steps else 0
        return self.is_paused and float(np.nanmax(self.ranks.sigma_P, initial=0)) < policy.pause_sigma

    def _shared(self, rest_R: "Floats", shared_D: "Floats") -> "tuple[Floats, Floats]":
        """Return what each replica shares, arrays of shape (D,): one to evaluate, one to subtract from its ranks.

        NaN if too few of its ranks are known.
        """
        absent = self._absence.add(rest_R)
        alone_D = self._miss(absent, shared_D) if absent is not None else None
        known_D = shared_D[~np.isnan(shared_D)] if absent is not None else shared_D
        self.imbalance_seconds = 0.0
        if len(known_D):
            self.imbalance_seconds = float(np.maximum.reduce(known_D, initial=0) - np.float32(median_of(known_D)))
        own_D = shared_D
        if self._expert_places is not None:
            of_place_D = self._expert_places.spread(self._expert_places.reference(shared_D))
            own_D = shared_D - of_place_D.astype(np.float32, copy=False)
        if alone_D is not None and alone_D.any():
            own_D = np.where(alone_D, np.float32(np.nan), own_D)
            is_quiet = float(np.fmax.reduce(self.replicas.sigma_P)) < self._policy.pause_sigma
            shared_D = np.where(alone_D, np.float32(0.0 if is_quiet else np.nan), shared_D)
        return own_D, shared_D

    def _miss(self, absent: "Places", shared_D: "Floats") -> "NDArray[np.bool_]":
        """Forget what replicas with a missing member share, and return those with only one rank left.

        What a small replica shares is unknown in a step in which a member has just gone missing. A rank that stays away
        is dropped; a rank left alone shares with no one and is compared with its stage, if batches are even.
        """
        groups, policy = self.replica_groups, self._policy
        is_new_D = groups.counts(self._absence.since(policy.absent_steps)) > 0
        shared_D[is_new_D & (groups.sizes_G <= policy.whole_max)] = np.nan
        present_D = groups.sizes_G - groups.counts(absent)
        alone_D: NDArray[np.bool_] = (present_D == 1) & (groups.sizes_G > 1) & ~is_new_D
        return alone_D

    def _compare_stages(self, reference_P: "Floats", rest_R: "Floats") -> "tuple[float, NDArray[np.floating]]":
        """Return the growth of the stages' common work, and each stage's deviation beyond it, ratios.

        NaN for stages explained by waiting for a rank; `rest_R` is each rank's deviation from its stage, ratio.
        """
        common, deviation_P = self._past.compare(reference_P, self._test.limits.floor_ratio, self._policy.pause_ratio)
        if np.count_nonzero(deviation_P > self._test.limits.floor_ratio):
            deviation_P[waiting_stages(deviation_P, rest_R, self.stage_groups, self.ranks.sigma_P)] = np.nan
        return common, deviation_P

    @property
    def is_paused(self) -> bool:
        """Whether the last step was a pause of the whole job, from which step composition must not be learnt."""
        return self._pauses > 0

    @property
    def is_warm(self) -> bool:
        """Whether noise is known well enough to name ranks."""
        return self.ranks.is_warm

    @property
    def is_alarmed(self) -> bool:
        """Whether any rank is named."""
        return len(self._test.alarms) > 0 or self._has_slow_part()

    def _has_slow_part(self) -> bool:
        return self.parts is not None and self.parts.is_alarmed

    def suspected_seconds(self) -> float:
        """Return the largest deviation of a rank, replica or stage that may alarm in one of the next steps, seconds."""
        _, deviation = self._test.suspected()
        return float(np.maximum.reduce(deviation, initial=0) * np.fmax.reduce(self.scale_P, initial=0))

    @property
    def has_quiet(self) -> bool:
        """Whether any named rank works as fast as its peers again, and only its alarm has not ended."""
        return self._test.alarms.has_quiet or (self.parts is not None and self.parts.test.alarms.has_quiet)

    @property
    def slow_R(self) -> "NDArray[np.bool_]":
        """Ranks in alarm, including those of a slow replica or stage that share its excess."""
        slow_R: NDArray[np.bool_] = self.ranks.alarm_N
        if self.replicas.is_alarmed or self.stages.is_alarmed:
            mean_of, above_R = self._test.mean_of, self._test.mean_of(self.ranks)
            slow_R |= _sharing(self.replicas.alarm_N, mean_of(self.replicas), self.replica_groups, above_R)
            if self.has_replicas:
                above_R += self.replica_groups.spread(mean_of(self.replicas))
            slow_R |= _sharing(self._slow_stage_P(), mean_of(self.stages), self.stage_groups, above_R)
        if self.parts is not None:
            slow_R[self.parts.columns] = True
        return slow_R

    def _slow_stage_P(self) -> "NDArray[np.bool_]":
        """Stages in alarm, except those explained by one of their ranks: of few ranks, one moves the reference itself.

        If batches are uneven the reference is the rank with a short batch, which a slow rank rarely is.
        """
        slow_P: NDArray[np.bool_] = self.stages.alarm_N
        if self.has_replicas:  # a rank is suspicious some steps before it is named
            share_P = self.stage_groups.counts(np.unique(self.ranks.suspicious)) / self.stage_groups.sizes_G
            slow_P &= share_P < _MOVING_SHARE
        return slow_P

    @property
    def slow_columns(self) -> "Places":
        """The ranks that `slow_R` marks, ascending."""
        if self.replicas.is_alarmed or self.stages.is_alarmed or self._has_slow_part():
            return np.flatnonzero(self.slow_R)
        return self.ranks.alarms

    def verdict_of(self, column: int) -> Verdict:
        """Return the series that names a slow rank: the rank itself, else a part of it, its replica or its stage."""
        if column in self.ranks:
            return Verdict(self.ranks, column)
        for part, series_group in self.slow_parts(column).items():
            return Verdict(series_group, column, part)
        replica = self.replica_groups.group_of(column)
        if replica in self.replicas:
            return Verdict(self.replicas, replica)
        return Verdict(self.stages, self.stage_groups.group_of(column))

    def slow_parts(self, column: int) -> "dict[str, SeriesGroup]":
        """Return the parts of one rank that are in alarm separately, the largest deviation first."""
        return {} if self.parts is None else self.parts.of(column)

    def state_dict(self) -> "dict[str, NDArray[np.generic]]":
        """Return the learnt state, arrays by name."""
        single = {} if self.parts is None else self.parts.state_dict()
        return nested({"single": single} | {name: part.state_dict() for name, part in self._parts().items()})

    def load_state_dict(self, state: "Mapping[str, NDArray[np.generic]]") -> None:
        """Restore the result of `state_dict`; arrays that do not fit are ignored."""
        single = part_of(state, "single")
        if single:
            groups, places = (self.stage_groups, self._batches), self.place_effects.places
            self.parts = PartTests.from_state_dict(single, *groups, self._excess_policy, places=places)
        for name, part in self._parts().items():
            part.load_state_dict(part_of(state, name))

    def _parts(self) -> "dict[str, CusumTest | WorkCorrection | PlaceEffects | StagePast]":
        return {"test": self._test, "work": self.work, "places": self.place_effects, "stage_past": self._past}


def _sharing(slow_G: "NDArray[np.bool_]", mean_G: "Floats", groups: Groups, above_R: "Floats") -> "NDArray[np.bool_]":
    """Return the ranks of slow groups, less those that work faster than their group by half of its deviation.

    The low quantile of a replica of four is slow if three of them are. `mean_G` is the deviation of each group, ratio,
    and `above_R` how far each rank is above its group, both means over the same steps. Without a slow group: no rank.
    """
    if not slow_G.any():
        return np.zeros(len(above_R), dtype=bool)
    sharing_R: NDArray[np.bool_] = groups.spread(slow_G) & (above_R > -_SHARED_MIN * groups.spread(mean_G))
    return sharing_R
