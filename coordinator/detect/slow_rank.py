# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""Which ranks hold the others back: their own work, compared with peers that do the same.

Pure: arrays in, alarms out. The quantity is self time, step minus waits in every domain; step time is equal on all
ranks of a synchronous job, and the wait in one domain points at a whole replica. What more work explains is taken off
first. A rank is then compared with its pipeline stage (a longer last stage is no fault), after what its whole replica
shares has been taken off in seconds (longer sequences are no fault either). What a replica shares, and what a stage's
work is among the stages', are tested as series of their own: a node may be the whole of either.

Shapes: R ranks, P stages, D replicas.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.excess import ExcessTest
from coordinator.detect.groups import Groups, middle
from coordinator.detect.keeping import joined, part_of
from coordinator.detect.work import WorkCorrection
from coordinator.policy import RankPolicy, WorkPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.policy import ExcessPolicy

    Floats = NDArray[np.float32]

_REFERENCE_STEPS = 8
_ABSENT_STEPS_MAX = 100  # counted so far only: it must fit into a byte
_YOUNG_WEIGHT = 2.0  # a young past follows the last steps: the first ones are warm-up
_SECONDS_MIN = 1e-9  # resolution of a record; keeps work of 0 from dividing


class SlowRankTest:
    """Memory of the slow-rank test of one run.

    `stage_R` and `replica_R` give the group of each rank; ranks of one replica work on the same data. `place_R` is the
    place of each in its expert domain: what all ranks of a place share, beyond what a work figure explains, is their
    expert's load and no fault.
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
    ) -> None:
        self.stage_groups = Groups(stage_R)
        self.replica_groups = Groups(replica_R)
        self.has_replicas = 1 < self.replica_groups.count < len(stage_R)
        self._places = self._places_of(place_R)
        self._all_stages = Groups(np.zeros(self.stage_groups.count, dtype=np.intp))
        self._past_P = np.full(self.stage_groups.count, np.nan)
        self._references_KP = np.full((_REFERENCE_STEPS, self.stage_groups.count), np.nan)
        self._pauses = 0
        self._absent_R = np.zeros(len(stage_R), dtype=np.uint8)  # steps in a row without a value
        self._policy = rank_policy or RankPolicy()
        self.work = WorkCorrection(self.stage_groups, work_policy or WorkPolicy())
        self.ranks = ExcessTest(self.stage_groups.group_R, policy)
        self.replicas = ExcessTest(np.zeros(self.replica_groups.count, dtype=np.intp), policy)
        stage_policy = replace(policy, alarm_sigmas=self._policy.stage_alarm_sigmas)
        self.stages = ExcessTest(np.zeros(self.stage_groups.count, dtype=np.intp), stage_policy, may_be_early=False)
        self.scale_P = np.full(self.stage_groups.count, np.nan)
        """Seconds that a ratio of 1 stands for: the stage's reference, or its recent median if that is longer."""
        self.shift_R: Floats | None = None
        """Seconds that each rank's work explained in the last step, None where all had the same to do."""
        self.imbalance_seconds = 0.0
        """What the replica with the most to do had longer than the others in the last step."""

    def adopt(self, policy: "ExcessPolicy", rank_policy: RankPolicy, work_policy: WorkPolicy) -> None:
        """Judge by other thresholds from the next step on."""
        self._policy, self.work.policy = rank_policy, work_policy
        self.ranks.policy = self.replicas.policy = policy
        self.stages.policy = replace(policy, alarm_sigmas=rank_policy.stage_alarm_sigmas)

    def step(
        self,
        self_R: "NDArray[np.floating]",
        step: int,
        *,
        compute_R: "NDArray[np.floating] | None" = None,
        work_R: "NDArray[np.floating] | None" = None,
    ) -> None:
        """Judge one step.

        `self_R` holds self time in seconds, NaN where a rank has none that counts; `compute_R` the part of it that
        follows `work_R`, the work figure of any unit.
        """
        if np.isnan(self_R).all():
            return
        own_R = self_R.astype(np.float32)
        self.shift_R = None
        if compute_R is not None and work_R is not None:
            self.shift_R = self.work.seconds(compute_R, work_R, ~self.ranks.suspicious_N)
        if self.shift_R is not None:
            own_R -= self.shift_R
        # How much of compute follows the work is not known in the first steps, in which a job warms up besides.
        self.ranks.may_be_early = self.replicas.may_be_early = self.shift_R is None
        reference_P = self.stage_groups.reference(own_R)
        if self._is_pause(reference_P):
            return
        group_R = self.stage_groups.group_R
        # A rank that does next to nothing is no measure of its partners: it lies, or has nothing to do in this job.
        idle_R = own_R < np.float32(self._policy.idle_ratio) * reference_P.astype(np.float32)[group_R]
        if idle_R.any():
            own_R[idle_R] = np.nan
            reference_P = self.stage_groups.reference(own_R)
        self._references_KP = np.concatenate((self._references_KP[1:], reference_P[None]))
        self.scale_P = np.maximum(np.fmax(reference_P, middle(self._references_KP)), _SECONDS_MIN)
        rest_R = own_R - reference_P.astype(np.float32)[group_R]
        if self.has_replicas:
            rest_R -= self._judge_replicas(rest_R, float(np.nanmean(reference_P)), step)
        elif self._places is not None:
            rest_R -= self._places.reference(rest_R)[self._places.group_R]
        rest_R /= self.scale_P.astype(np.float32)[group_R]
        self.ranks.step(rest_R, step)
        if self.stage_groups.count > 1:
            self._judge_stages(reference_P, step)

    def _is_pause(self, reference_P: "NDArray[np.floating]") -> bool:
        """Whether everybody's own work is suddenly so long that the job, and no rank, must be doing something else."""
        policy = self._policy
        usual_P = middle(self._references_KP)
        known_P = ~np.isnan(usual_P) & ~np.isnan(reference_P)
        is_quiet = float(np.nanmax(self.ranks.noise.sigma_P, initial=0)) < policy.pause_sigma
        longer = (reference_P[known_P] > (1 + policy.pause_ratio) * usual_P[known_P]).all() and known_P.any()
        paused = bool(longer) and is_quiet and self._pauses < policy.pause_steps
        self._pauses = self._pauses + 1 if paused else 0
        return paused

    def _judge_replicas(self, rest_R: "Floats", reference_seconds: float, step: int) -> "Floats":
        """Judge what each replica shares, and return it for each rank; NaN where too few of a replica are known."""
        groups = self.replica_groups
        shared_D = groups.reference(rest_R).astype(np.float32)
        absent_R = np.isnan(rest_R)
        alone_D: NDArray[np.bool_] | None = None
        if absent_R.any() or self._absent_R.any():
            alone_D = self._miss(absent_R, shared_D)
        known_D = shared_D[~np.isnan(shared_D)]
        self.imbalance_seconds = float(known_D.max(initial=0) - np.median(known_D)) if len(known_D) else 0.0
        own_D = shared_D
        if self._places is not None:
            own_D = shared_D - self._places.reference(shared_D).astype(np.float32)[self._places.group_R]
        if alone_D is not None and alone_D.any():
            own_D = np.where(alone_D, np.float32(np.nan), own_D)
            is_quiet = float(np.fmax.reduce(self.replicas.noise.sigma_P)) < self._policy.pause_sigma
            shared_D = np.where(alone_D, np.float32(0.0 if is_quiet else np.nan), shared_D)
        self.replicas.step(own_D / np.float32(reference_seconds), step)
        return shared_D[groups.group_R]

    def _miss(self, absent_R: "NDArray[np.bool_]", shared_D: "Floats") -> "NDArray[np.bool_]":
        """Take note of who is missing; return the replicas of which only one rank is left.

        What a small replica shares is not known in a step in which a member has just gone missing. Who stays away is
        forgotten, and who is left alone shares with nobody: it is compared with its stage, where batches are even.
        """
        groups, policy = self.replica_groups, self._policy
        self._absent_R = np.where(absent_R, np.minimum(self._absent_R + 1, _ABSENT_STEPS_MAX), 0).astype(np.uint8)
        is_new_R = absent_R & (self._absent_R <= policy.absent_steps)
        is_new_D = groups.sums(is_new_R.astype(np.float32)) > 0
        shared_D[is_new_D & (groups.sizes_G <= policy.whole_max)] = np.nan
        present_D = groups.sums((~absent_R).astype(np.float32))
        alone_D: NDArray[np.bool_] = (present_D == 1) & (groups.sizes_G > 1) & ~is_new_D
        return alone_D

    def _places_of(self, place_R: "Sequence[int] | None") -> Groups | None:
        """Return the places of the replicas, of the ranks where there are none; None where a place is one of them."""
        if place_R is None:
            return None
        places = np.asarray(place_R, dtype=np.intp)
        if self.has_replicas:
            place_D = np.zeros(self.replica_groups.count, dtype=np.intp)
            place_D[self.replica_groups.group_R] = places
            places = place_D
        groups = Groups(places)
        return groups if groups.count > 1 and int(groups.sizes_G.min()) > 1 else None

    def _judge_stages(self, reference_P: "NDArray[np.floating]", step: int) -> None:
        """Judge each stage's work by what it used to be among the stages."""
        self._past_P = np.where(np.isnan(self._past_P), reference_P, self._past_P)
        ratio_P = reference_P / np.maximum(self._past_P, _SECONDS_MIN)
        common = float(self._all_stages.reference(ratio_P)[0])
        self.stages.step(ratio_P / common - 1, step)
        learn_P = ~np.isnan(reference_P) & ~self.stages.suspicious_N
        rate = max(self._policy.past_rate, _YOUNG_WEIGHT / (_YOUNG_WEIGHT + self.stages.judged))
        most = max(self._policy.past_step_max, rate)  # one long step of a stage must not become its past
        moved_P = self._past_P * (1 + rate * np.clip(ratio_P - 1, -most, most))
        self._past_P = np.where(learn_P, moved_P, self._past_P)

    @property
    def is_paused(self) -> bool:
        """Whether the last step was a pause of the whole job, from which nothing is learnt."""
        return self._pauses > 0

    @property
    def is_warm(self) -> bool:
        """Whether noise is known well enough to name ranks."""
        return self.ranks.is_warm

    @property
    def is_alarmed(self) -> bool:
        """Whether any rank is named."""
        return bool(self.ranks.alarm_N.any() or self.replicas.alarm_N.any() or self.stages.alarm_N.any())

    @property
    def slow_R(self) -> "NDArray[np.bool_]":
        """Ranks in alarm, those of a slow replica or stage included."""
        slow_R: NDArray[np.bool_] = self.ranks.alarm_N.copy()
        if self.has_replicas and self.replicas.alarm_N.any():
            slow_R |= self.replicas.alarm_N[self.replica_groups.group_R]
        if self.stages.alarm_N.any():
            slow_R |= self.stages.alarm_N[self.stage_groups.group_R]
        return slow_R

    def verdict_of(self, column: int) -> "tuple[ExcessTest, int]":
        """Return the test that names a slow rank and its series there: its own, else its replica's or stage's."""
        if self.ranks.alarm_N[column]:
            return self.ranks, column
        replica = int(self.replica_groups.group_R[column])
        if self.has_replicas and self.replicas.alarm_N[replica]:
            return self.replicas, replica
        return self.stages, int(self.stage_groups.group_R[column])

    def scale_seconds(self, column: int) -> float:
        """Return the seconds that a ratio of 1 stands for, for one rank."""
        return float(self.scale_P[self.stage_groups.group_R[column]])

    def memory(self) -> "dict[str, NDArray[np.generic]]":
        """Return what was learnt, arrays by name."""
        own: dict[str, NDArray[np.generic]] = {"past": self._past_P, "references": self._references_KP}
        return own | joined({name: part.memory() for name, part in self._parts().items()})

    def recall(self, memory: "Mapping[str, NDArray[np.generic]]") -> None:
        """Take back what `memory` gave; what does not fit is left alone."""
        for name, part in self._parts().items():
            part.recall(part_of(memory, name))
        for name in ("past", "references"):
            present = self.memory()[name]
            if name in memory and memory[name].shape == present.shape:
                np.copyto(present, memory[name].astype(present.dtype))

    def _parts(self) -> "dict[str, ExcessTest | WorkCorrection]":
        return {"ranks": self.ranks, "replicas": self.replicas, "stages": self.stages, "work": self.work}
