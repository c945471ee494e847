# ruff: noqa: N815  (names of arrays end in their shape, see the legend below)
"""Measurements of a run while it was healthy: the input of `online.py`.

Shapes: W steps, S pipeline stages.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.messages import TraceSummary
from lockstep.trace.patterns import FunctionClass

STEPS_MIN = 20
"""Half of them are fitted, and the ninth decile of the error of ten held-out ones is still an actual step."""
SCATTER_MAX_RATIO = 0.35
"""Robust standard deviation of a step over its median, above which a forecast would be meaningless."""
DRIFT_MAX_RATIO = 0.15
"""Largest difference between the medians of both halves; more is not one state that could be fitted."""
_TO_SIGMA = 1.4826  # a Gaussian's standard deviation over its median absolute deviation
_MATRIX = re.compile(
    r"(?<![a-z])(add|b|badd)?mm(?![a-z])|gemm|gemv|mma|matmul|(?<![a-z])linear|conv(?!ert)|winograd|scudnn|[dw]grad|fprop"
    r"|attention|flash|fmha|einsum|cutlass|nvjet|cijk"
)
"""Parts of the names of operators and kernels that are bound by arithmetic; all others move memory."""
RATIO_MAX = 1e3
"""Ratio of products to everything else, or its inverse; a capture beyond it has not recorded a model's step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Healthy steps, the oldest first; seconds.

    `step_W` is the duration of each step, `compute_SW` the median rank of each stage, `optimizer_SW` its part in the
    optimizer, NaN or None where that was not measured, `floor_W` what data, host and
    collections take of the stage where they take longest, `spread_W` by how much the slowest rank's own work is longer
    than the median rank's: what chance costs a step, which waits for the slowest. `exposed` maps a domain kind to
    arrays of shape (W,): what the last to arrive in a domain still waits, which is transfer that nothing hides.
    `shortest` maps it to the number of collectives times the shortest of them, on the rank where that is least.
    `members` holds the first and the last rank of one domain of each kind, `degrees` the sizes of the kinds that the
    run has announced.
    """

    step_W: NDArray[np.float64]
    compute_SW: NDArray[np.float64]
    floor_W: NDArray[np.float64]
    spread_W: NDArray[np.float64]
    exposed: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    shortest: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    world_size: int = 1
    degrees: Mapping[str, int] = field(default_factory=dict)
    optimizer_SW: NDArray[np.float64] | None = None

    @property
    def fitted(self) -> int:
        """Number of fitted steps: the first half. The others are held out."""
        return len(self.step_W) // 2

    def check(self) -> None:
        """Check that there is one healthy state to fit.

        Raises
        ------
        ConfigError
            Too few steps, steps that scatter too much, or a second half that differs from the first.
        """
        if len(self.step_W) < STEPS_MIN:
            raise ConfigError(f"healthy window: got {len(self.step_W)} steps, expected at least {STEPS_MIN}")
        if not (np.isfinite(self.step_W).all() and (self.step_W > 0).all()):
            raise ConfigError("healthy window: got a step without a duration, expected seconds above 0")
        first, second = np.median(self.step_W[: self.fitted]), np.median(self.step_W[self.fitted :])
        scatter = _TO_SIGMA * float(np.median(np.abs(self.step_W - np.median(self.step_W)))) / first
        if scatter > SCATTER_MAX_RATIO:
            raise ConfigError(
                f"healthy window: got steps that scatter by {scatter:.0%}, expected at most {SCATTER_MAX_RATIO:.0%}"
            )
        drift = second / first - 1
        if abs(drift) > DRIFT_MAX_RATIO:
            raise ConfigError(
                f"healthy window: got a second half {drift:+.0%} against the first, expected {DRIFT_MAX_RATIO:.0%}"
                " at most"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTimes:
    """Computing time of a healthy rank, seconds per step, in matrix products and in all other operators.

    The mean over `ranks`, over all if none are named.
    """

    matrix_seconds: float
    other_seconds: float
    ranks: tuple[int, ...] = ()


def operator_times(summary: TraceSummary) -> OperatorTimes | None:
    """Return how the operators of a capture divide; None where the summary holds none, or none of one sort.

    Where kernels of a device were recorded they count, as far as they were on the critical path, which every kernel
    that computes is (`FunctionClass`); elsewhere the training thread's operators, without what they call.
    """
    if summary.error or summary.steps < 1:
        return None
    times_ns = _device_ns(summary) or _thread_ns(summary)
    matrix_ns = sum(ns for name, ns in times_ns if _is_matrix(name))
    other_ns = sum(ns for name, ns in times_ns if not _is_matrix(name))
    if matrix_ns <= 0 or other_ns <= 0 or not 1 / RATIO_MAX <= matrix_ns / other_ns <= RATIO_MAX:
        return None
    scale = 1e-9 / summary.steps
    return OperatorTimes(matrix_seconds=matrix_ns * scale, other_seconds=other_ns * scale, ranks=(summary.rank,))


def mean_times(times: Sequence[OperatorTimes]) -> OperatorTimes:
    """Return the mean of captures of several ranks, at least one."""
    return OperatorTimes(
        matrix_seconds=fmean(each.matrix_seconds for each in times),
        other_seconds=fmean(each.other_seconds for each in times),
        ranks=tuple(rank for each in times for rank in each.ranks),
    )


def _device_ns(summary: TraceSummary) -> list[tuple[str, float]]:
    """Return the kernels that compute; none where the patterns hold none."""
    if summary.patterns is None:
        return []
    window_ns = summary.patterns.window_ns
    kernels = (each for each in summary.patterns.rows if each.kind == FunctionClass.COMPUTE)
    return [(each.function, each.beta_ppm * 1e-6 * window_ns) for each in kernels]


def _thread_ns(summary: TraceSummary) -> list[tuple[str, float]]:
    return [(node.name, node.self_ns) for node in summary.tree if node.kind == "operator"]


def _is_matrix(name: str) -> bool:
    return _MATRIX.search(name.lower()) is not None
