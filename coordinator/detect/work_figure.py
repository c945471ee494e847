# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Which amount in a record explains the length of a step: its work figure, its tokens or its FLOPs.

Pure. A work figure reported by the training comes first, then tokens: they are counted, while model FLOPs are mostly a
constant times the tokens and add nothing. If FLOPs per token change (wider attention windows, packed documents), the
training annotates its FLOPs, and steps are compared with FLOPs from then on. FLOPs are scaled to continue the tokens,
so that learnt levels and slopes stay valid.

Shapes: R ranks, S some of them.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.state_dict import Learner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.intake.timeline import StepRow

    Floats = NDArray[np.float32]

_CHANGE_MIN_RATIO = 0.005  # of FLOPs, and of FLOPs per token, between two steps; as for a run's work
_SAMPLE_RANKS = 1024


class WorkFigure(Learner):
    """State of one run: whether FLOPs add information to tokens, and how many tokens one FLOP stands for."""

    LEARNT = ("uses_flops", "_tokens_per_flop")

    def __init__(self) -> None:
        self.uses_flops = False
        """Whether FLOPs have proved to add information to tokens."""
        self._tokens_per_flop = 1.0
        self._before: tuple[Floats, Floats] | None = None  # FLOPs and tokens of sampled ranks in the step before

    def of_step(self, row: "StepRow") -> "Floats":
        """Return the amount to which each rank's compute should be proportional, shape (R,), no unit; NaN: unknown."""
        if row.flops is None:
            self._before = None
            return row.work
        if not self.uses_flops:
            every = 1 + len(row.flops) // _SAMPLE_RANKS
            now = row.flops[::every], row.tokens[::every]
            before, self._before = self._before, now
            if before is None or not _show_more(before, now):
                return row.work
            self.uses_flops, self._before = True, None
            scale = _mean_ratio(before)
            self._tokens_per_flop = scale if math.isfinite(scale) else 1.0
        scaled_R = row.flops * np.float32(self._tokens_per_flop)
        figure_R: Floats = np.where(np.isnan(scaled_R), row.work, scaled_R)
        return figure_R


def _show_more(before: "tuple[Floats, Floats]", now: "tuple[Floats, Floats]") -> bool:
    """Return whether some rank's FLOPs changed other than in proportion to its tokens."""
    changed_S = _changed(before[0], now[0])
    if not changed_S.any():
        return False
    with np.errstate(divide="ignore", invalid="ignore"):
        per_token = (before[0] / before[1], now[0] / now[1])
    unknown_S = np.isnan(before[1]) | np.isnan(now[1])
    return bool((changed_S & (_changed(*per_token) | unknown_S)).any())


def _changed(before_S: "Floats", now_S: "Floats") -> "NDArray[np.bool_]":
    """Return where a figure differs from the step before; figures unknown in either step do not."""
    changed_S: NDArray[np.bool_] = np.abs(now_S - before_S) > np.float32(_CHANGE_MIN_RATIO) * np.abs(before_S)
    return changed_S


def _mean_ratio(before: "tuple[Floats, Floats]") -> float:
    """Return the tokens per FLOP, NaN if no rank has both."""
    flops_S, tokens_S = before
    known_S = ~(np.isnan(flops_S) | np.isnan(tokens_S))
    total = float(flops_S[known_S].sum(dtype=np.float64))
    return float(tokens_S[known_S].sum(dtype=np.float64)) / total if total > 0 else math.nan
