# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Past work of each pipeline stage, the reference of a stage as a whole, which has no peers.

Pure. A stage's work is compared relative to the others: per-step variation of the work is common to all stages and
cancels. Steps of another pace, such as those of an evaluation, are work of another kind: they have a past of their own.

Shapes: P stages, K last steps.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.pace import RETURN_STEPS, SETTLED_STEPS
from coordinator.detect.ranks.groups import Groups, has_nan, middle
from coordinator.detect.state_dict import Learner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from coordinator.settings.policy import RankPolicy

    Figures = NDArray[np.floating]

SECONDS_MIN = 1e-9
"""Resolution of a record; avoids a division by a work of 0."""
_YOUNG_WEIGHT = 2.0  # a young past follows the last steps, since the first ones are warm-up


class StagePast(Learner):
    """State of the past of `stages` stages; `usual_P` is the recent work of each, seconds, NaN while unknown."""

    LEARNT = ("_past_P", "_references_KP", "_former_P", "_left_steps")

    def __init__(self, stages: int) -> None:
        self._all_stages = Groups(np.zeros(stages, dtype=np.intp))
        self._past_P = np.full(stages, np.nan)
        self._former_P = np.full(stages, np.nan)  # the past of the former pace, ...
        self._left_steps = 0  # ... which was left so many steps ago
        self._references_KP = np.full((SETTLED_STEPS, stages), np.nan)
        self.usual_P = middle(self._references_KP)

    def add(self, reference_P: "Figures") -> None:
        """Add one step's work of each stage, seconds, NaN if unknown."""
        self._references_KP[:-1] = self._references_KP[1:]
        self._references_KP[-1] = reference_P
        self.usual_P = middle(self._references_KP)

    def is_longer(self, reference_P: "Figures", ratio: float) -> bool:
        """Whether all stages work more than `ratio` longer than recently; unknown stages are ignored."""
        is_longer_P = reference_P > (1 + ratio) * self.usual_P
        known_P = ~(np.isnan(self.usual_P) | np.isnan(reference_P))
        return bool(np.count_nonzero(is_longer_P)) and bool(is_longer_P[known_P].all())

    def compare(self, reference_P: "Figures", floor_ratio: float, pace_ratio: float) -> "tuple[float, Figures]":
        """Return the growth of the stages' common work, and each stage's deviation beyond it, ratios.

        The past begins again once all stages have become faster by `floor_ratio` or slower by `pace_ratio`. A step
        whose common work differs from its past by more than `pace_ratio` is compared with the past of the former pace
        if it is like that; otherwise its deviations are NaN.
        """
        if has_nan(self._past_P):
            self._past_P = np.where(np.isnan(self._past_P), reference_P, self._past_P)
        self._left_steps += 1
        if self._left_steps > RETURN_STEPS:
            self._former_P[:] = np.nan
        has_moved = (self.usual_P < (1 - floor_ratio) * self._past_P) | (self.usual_P > (1 + pace_ratio) * self._past_P)
        if np.count_nonzero(has_moved) == len(has_moved):
            self._begin_again(floor_ratio, pace_ratio)
        common, ratio_P = self._growth(reference_P, self._past_P)
        if not _is_near(common, pace_ratio):
            if not _is_near(self._growth(reference_P, self._former_P)[0], pace_ratio):
                return common, np.full_like(ratio_P, np.nan)
            self._leave_for(self._former_P)
            self._references_KP[:-1] = np.nan  # of the pace that has ended
            common, ratio_P = self._growth(reference_P, self._past_P)
        return common, ratio_P / common - 1

    def less_explained(self, reference_P: "Figures", deviation_P: "Figures", common: float) -> "Figures":
        """Return the deviations, or those from a change that is as many seconds in all stages where these are less.

        A stage's work beyond the others is a share of the work or a time: as a warm-up fades that takes all stages the
        same time, a stage that works longer keeps a larger share of what is left.
        """
        change_P = reference_P - self._past_P
        above_P = change_P - self._all_stages.reference(change_P)[0]
        less_P: Figures = np.minimum(deviation_P, above_P / np.maximum(common * self._past_P, SECONDS_MIN))
        return less_P

    def _growth(self, reference_P: "Figures", past_P: "Figures") -> "tuple[float, Figures]":
        """Return the growth of the stages' common work over a past, and that of each stage, ratios."""
        ratio_P = reference_P / np.maximum(past_P, SECONDS_MIN)
        return float(self._all_stages.reference(ratio_P)[0]), ratio_P

    def _leave_for(self, past_P: "Figures") -> None:
        """Compare with another past from now on, and keep this one."""
        self._past_P, self._former_P, self._left_steps = past_P, self._past_P, 0

    def _begin_again(self, floor_ratio: float, pace_ratio: float) -> None:
        """Begin the past again with the last steps if the whole job has another pace, as after its warm-up.

        Per-step variation of the work is common to all stages and cancels, which leaves each stage's own.
        """
        ratio_KP = self._references_KP / np.maximum(self._past_P, SECONDS_MIN)
        if has_nan(ratio_KP):
            return
        common_K = np.median(ratio_KP, axis=1)
        level = float(np.median(common_K))
        if not all(_is_near(float(common) / level, pace_ratio) for common in common_K):
            return  # steps of two paces
        past_P = self._past_P * level * np.median(ratio_KP / common_K[:, None], axis=0)
        if not _is_near(level, pace_ratio):
            self._leave_for(past_P)
        elif level < 1 - floor_ratio:
            self._past_P = past_P

    def learn(
        self,
        common: float,
        deviation_P: "Figures",
        suspicious: "NDArray[np.intp]",
        *,
        evaluated_steps: int,
        policy: "RankPolicy",
    ) -> None:
        """Update the past by the stages' common growth, and each stage's by its deviation from that.

        A suspected stage is updated by the common growth only; otherwise it would fall behind in a batch ramp.
        """
        if np.isnan(common):
            return
        rate = max(policy.past_rate, _YOUNG_WEIGHT / (_YOUNG_WEIGHT + evaluated_steps))
        most = max(policy.past_step_max, rate)  # one long step of a stage must not become its past
        own_P = deviation_P.astype(np.float64)
        own_P[np.isnan(own_P)] = 0.0
        own_P[suspicious] = 0.0
        own_P = rate * np.minimum(np.maximum(own_P, -most), most)
        self._past_P = self._past_P * ((1 + rate * min(max(common - 1, -most), most)) * (1 + own_P))

    def load_state_dict(self, state: "Mapping[str, NDArray[np.generic]]") -> None:
        """Restore the result of `state_dict`; if any array does not fit, nothing is restored."""
        super().load_state_dict(state)
        self.usual_P = middle(self._references_KP)


def _is_near(growth: float, ratio: float) -> bool:
    """Whether a growth is neither more than `ratio` nor as much less; that of an unknown past is not."""
    return 1 / (1 + ratio) <= growth <= 1 + ratio
