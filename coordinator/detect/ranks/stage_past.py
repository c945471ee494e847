# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""How long a stage's work used to be among the stages: what stages are compared with, which have no peers.

Pure. Once all stages have become faster, as after a warm-up, the past begins there.

Shapes: R ranks, P stages, K last steps.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.ranks.contention import waiting_stages
from coordinator.detect.ranks.groups import Groups, has_nan, middle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from coordinator.settings.policy import RankPolicy

    Floats = NDArray[np.float32]
    Figures = NDArray[np.floating]

_REFERENCE_STEPS = 8
_YOUNG_WEIGHT = 2.0  # a young past follows the last steps: the first ones are warm-up
_SECONDS_MIN = 1e-9  # resolution of a record; keeps work of 0 from dividing


class StagePast:
    """State of the past of all stages; `usual_P` holds the median of each stage's last references, seconds."""

    def __init__(self, stages: Groups) -> None:
        self._stages = stages
        self._all_stages = Groups(np.zeros(stages.count, dtype=np.intp))
        self._past_P = np.full(stages.count, np.nan)
        self._references_KP = np.full((_REFERENCE_STEPS, stages.count), np.nan)
        self.usual_P = middle(self._references_KP)

    def add(self, reference_P: "Figures") -> None:
        """Add the stages' references of one step, seconds, NaN where unknown."""
        self._references_KP[:-1] = self._references_KP[1:]
        self._references_KP[-1] = reference_P
        self.usual_P = middle(self._references_KP)

    def compare(
        self, reference_P: "Figures", rest_R: "Floats", *, floor_ratio: float, sigma_P: "Figures"
    ) -> "tuple[float, NDArray[np.float64]]":
        """Return the stages' common work over what it used to be, and by how much each stage's is beyond that.

        NaN where that is what waiting for a rank makes of it: `rest_R` is each rank's deviation over its stage, ratio,
        `sigma_P` how those scatter. `floor_ratio` is the smallest effect that is reported.
        """
        if has_nan(self._past_P):
            self._past_P = np.where(np.isnan(self._past_P), reference_P, self._past_P)
        is_faster_P = self.usual_P < (1 - floor_ratio) * self._past_P
        if np.count_nonzero(is_faster_P) == len(is_faster_P):
            self._follow_improvement(floor_ratio)
        ratio_P = reference_P / np.maximum(self._past_P, _SECONDS_MIN)
        common = float(self._all_stages.reference(ratio_P)[0])
        deviation_P: NDArray[np.float64] = ratio_P / common - 1
        if np.count_nonzero(deviation_P > floor_ratio):
            deviation_P[waiting_stages(deviation_P, rest_R, self._stages, sigma_P)] = np.nan
        return common, deviation_P

    def _follow_improvement(self, floor_ratio: float) -> None:
        """Take the last steps as the stages' past where the whole job has become faster, as it does after its warm-up.

        What single steps have to do is the same for all stages and cancels; what is left of each stage is its own.
        """
        ratio_KP = self._references_KP / np.maximum(self._past_P, _SECONDS_MIN)
        if has_nan(ratio_KP):
            return
        common_K = np.median(ratio_KP, axis=1)
        level = float(np.median(common_K))
        if level < 1 - floor_ratio:
            self._past_P = self._past_P * level * np.median(ratio_KP / common_K[:, None], axis=0)

    def learn(
        self,
        common: float,
        deviation_P: "Figures",
        suspicious: "NDArray[np.intp]",
        evaluated_steps: int,
        policy: "RankPolicy",
    ) -> None:
        """Let the past follow what the stages do in common, and each stage's own what it does beyond that.

        A stage under suspicion keeps its own and follows the others: else it would fall behind in a batch ramp.
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

    def state_dict(self) -> "dict[str, NDArray[np.generic]]":
        """Return what was learnt, arrays by name."""
        return {"past": self._past_P, "references": self._references_KP}

    def load_state_dict(self, state: "Mapping[str, NDArray[np.generic]]") -> None:
        """Restore what `state_dict` returned; what does not fit is left alone."""
        for name, present in self.state_dict().items():
            if name in state and state[name].shape == present.shape:
                np.copyto(present, state[name].astype(present.dtype))
        self.usual_P = middle(self._references_KP)
