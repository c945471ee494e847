# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""Compute time that a rank's amount of work explains: hot experts, gradient accumulation, uneven batches.

Pure. Within a pipeline stage compute is regressed on the work figure of the record (else tokens), and the common slope
is subtracted. Compute is used rather than self time because a checkpoint would bend the slope. The slope is a share: 1
if compute is proportional to the work, 0 if it is independent of it. The state is the seconds per unit of work, which
neither a batch ramp nor an attempt's warm-up changes, weighted by the information in each step. Each stage has its own:
tokens routed to experts cost the same seconds everywhere, accumulated batches cost more in a longer stage.

Shapes: R ranks, P stages.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.state_dict import Learner

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from coordinator.detect.ranks.groups import Groups
    from coordinator.settings.policy import WorkPolicy

_SECONDS_MIN = 1e-9  # resolution of a record
_SQUARE_MIN = 1e-30  # of work: avoids a division by zero in a stage whose ranks all have the same work
_MISFIT_SIGMAS = 5.0  # Student's t of the residuals' slope over work; one slow rank causes at most 3


class WorkCorrection(Learner):
    """State of one slope a stage; `policy` may be replaced."""

    LEARNT = ("_products_2P",)

    def __init__(self, stages: "Groups", policy: "WorkPolicy") -> None:
        self.policy = policy
        self._stages = stages
        self._products_2P = np.zeros((2, stages.count))  # sums of excess work squared, and of it x excess compute

    def seconds(
        self,
        compute_R: "NDArray[np.floating]",
        work_R: "NDArray[np.floating]",
        suspicious: "Callable[[], NDArray[np.intp]]",
    ) -> "NDArray[np.float32] | None":
        """Return the excess of compute that each rank's work explains (negative: shorter), None if all work is equal.

        Ranks that `suspicious` returns do not enter the slope; a rank without a work figure is not corrected.
        """
        policy = self.policy
        low, high = float(np.fmin.reduce(work_R)), float(np.fmax.reduce(work_R))
        if not high > low:  # all equal, or none known
            return None
        stages = self._stages
        usual_P = np.maximum(self._stages.median(work_R), _SECONDS_MIN)
        compute_P = np.maximum(self._stages.median(compute_R), _SECONDS_MIN)
        limit_R = stages.spread((1 + policy.spread_max) * usual_P)
        known_R = ~np.isnan(work_R)
        most_R = np.minimum(np.where(known_R, work_R, 0.0), limit_R)
        # Tokens are distributed: what one expert gets another does not, so the mean is stable while the median moves.
        mean_P = self._stages.sums(most_R) / np.maximum(self._stages.sums(known_R.astype(np.float64)), 1)
        more_R = (most_R - stages.spread(mean_P)) * known_R
        if not np.abs(more_R).max() > policy.spread_min * np.nanmax(usual_P):
            return None
        longer_R = compute_R - stages.spread(compute_P)
        teaches_R = (np.abs(longer_R) < stages.spread(policy.longer_max * compute_P)) & known_R & (most_R < limit_R)
        teaches_R[suspicious()] = False
        self._learn(more_R, np.nan_to_num(longer_R), teaches_R)
        most_P = np.nan_to_num(policy.slope_max * compute_P / usual_P)
        slope_P = np.clip(self._slope_P(), 0.0, most_P)
        shift_R: NDArray[np.float32] = (stages.spread(slope_P) * more_R).astype(np.float32)
        return shift_R

    def _learn(
        self, more_R: "NDArray[np.floating]", longer_R: "NDArray[np.floating]", teaches_R: "NDArray[np.bool_]"
    ) -> None:
        """Add one step's products; the ranks used have no NaN.

        If compute less the present slope still depends on the work, the slope was another one, e.g. that of a warm-up
        in which all work takes longer; it is then replaced by this step's.
        """
        weight_R = teaches_R.astype(np.float64)
        known_P = np.maximum(self._stages.sums(weight_R), 1)
        centred = []
        for value_R in (more_R, longer_R):
            mean_P = self._stages.sums(value_R * weight_R) / known_P
            centred.append((value_R - self._stages.spread(mean_P)) * weight_R)
        more_R, longer_R = centred
        square_P, product_P = (self._stages.sums(more_R * other_R) for other_R in (more_R, longer_R))
        left_R = longer_R - self._stages.spread(self._slope_P()) * more_R
        share_P = self._stages.sums(more_R * left_R) ** 2  # of the residual, that depends on the work
        share_P /= np.maximum(square_P * self._stages.sums(left_R**2), _SQUARE_MIN)
        limit_P = _MISFIT_SIGMAS**2 / (np.maximum(known_P - 2, 0) + _MISFIT_SIGMAS**2)
        self._products_2P *= (1 - self.policy.rate) * (share_P <= limit_P)
        self._products_2P += [square_P, product_P]

    def _slope_P(self) -> "NDArray[np.float64]":
        """Return the learnt seconds per unit of work in each stage."""
        square_P, product_P = self._products_2P
        slope_P: NDArray[np.float64] = product_P / np.maximum(square_P, _SQUARE_MIN)
        return slope_P
