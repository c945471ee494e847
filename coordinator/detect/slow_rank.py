# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""Which ranks hold the others back: their own work, compared with peers that do the same.

Pure: arrays in, alarms out. The quantity is self time, step minus waits in every domain; step time is equal on all
ranks of a synchronous job, and the wait in one domain points at a whole replica. A rank is compared with its pipeline
stage (a longer last stage is no fault), after what its whole replica shares has been taken off in seconds (longer
sequences are no fault either). What a replica shares is tested as a series of its own.

Shapes: R ranks, P stages, D replicas.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.excess import ExcessTest
from coordinator.detect.groups import Groups, middle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from coordinator.policy import ExcessPolicy

_PAST_RATE = 1 / 16
_REFERENCE_STEPS = 8
_SECONDS_MIN = 1e-9  # resolution of a record; keeps work of 0 from dividing


class SlowRankTest:
    """Memory of the slow-rank test of one run.

    `stage_R` and `replica_R` give the group of each rank; ranks of one replica work on the same data.
    """

    def __init__(self, stage_R: "Sequence[int]", replica_R: "Sequence[int]", policy: "ExcessPolicy") -> None:
        self._stages = Groups(stage_R)
        self._replicas = Groups(replica_R)
        self._has_replicas = 1 < self._replicas.count < len(stage_R)
        self._alone_R = self._stages.sizes_G[self._stages.group_R] == 1
        self._past_R = np.full(len(stage_R), np.nan)
        self._references_KP = np.full((_REFERENCE_STEPS, self._stages.count), np.nan)
        self.ranks = ExcessTest(self._stages.group_R, policy)
        self.replicas = ExcessTest(np.zeros(self._replicas.count, dtype=np.intp), policy)
        self.scale_R = np.full(len(stage_R), np.nan)
        """Seconds that a ratio of 1 stands for: the reference, or its recent median if that is longer."""

    def step(self, self_R: "NDArray[np.float64]", step: int) -> None:
        """Judge one step; `self_R` holds self time in seconds, NaN where a rank has none that counts."""
        if np.isnan(self_R).all():
            return
        reference_R = self._reference(self_R)
        rest_R = self_R - reference_R
        if self._has_replicas:
            shared_D = self._replicas.reference(rest_R)
            rest_R = rest_R - shared_D[self._replicas.group_R]
            self.replicas.step(shared_D / np.nanmean(reference_R), step)
        self.ranks.step(rest_R / self.scale_R, step)
        learn_R = ~np.isnan(self_R) & ~self.ranks.suspicious_N
        moved_R = self._past_R + _PAST_RATE * (self_R - self._past_R)
        self._past_R = np.where(learn_R, np.where(np.isnan(self._past_R), self_R, moved_R), self._past_R)

    def _reference(self, self_R: "NDArray[np.float64]") -> "NDArray[np.float64]":
        """Return what each rank's self time should be, and remember the scale."""
        reference_P = self._stages.reference(self_R)
        if self._alone_R.any():
            # Nobody does the same work: the rank's own past, times what the step did to everybody.
            ratio_R = np.where(self._alone_R, self_R / np.maximum(self._past_R, _SECONDS_MIN), np.nan)
            common = Groups(np.zeros(len(self_R), dtype=np.intp)).reference(ratio_R)[0]
            expected_R = self._past_R * common
            alone_P = self._stages.sizes_G == 1
            own_P = self._stages.median(expected_R)
            reference_P = np.where(alone_P & ~np.isnan(own_P), own_P, reference_P)
        self._references_KP = np.concatenate((self._references_KP[1:], reference_P[None]))
        scale_P = np.fmax(reference_P, middle(self._references_KP))
        self.scale_R = np.maximum(scale_P, _SECONDS_MIN)[self._stages.group_R]
        expected: NDArray[np.float64] = reference_P[self._stages.group_R]
        return expected

    @property
    def slow_R(self) -> "NDArray[np.bool_]":
        """Ranks in alarm, those of a slow replica included."""
        if not self._has_replicas:
            return self.ranks.alarm_N
        slow: NDArray[np.bool_] = self.ranks.alarm_N | self.replicas.alarm_N[self._replicas.group_R]
        return slow

    def level_of(self, rank: int) -> tuple[float, int]:
        """Return (excess ratio, onset step) of a slow rank: its own alarm's, else its replica's."""
        if self.ranks.alarm_N[rank]:
            return float(self.ranks.level_N[rank]), int(self.ranks.onset_N[rank])
        replica = self._replicas.group_R[rank]
        return float(self.replicas.level_N[replica]), int(self.replicas.onset_N[replica])
