"""A function's behaviour on one rank: PerfTracker, equation 1."""

from dataclasses import dataclass
from enum import StrEnum

BETA_MIN = 1e-4
"""Functions below this share of the window are left out: 1 % is what may be abnormal (equation 11), a hundredth of it
shows a healthy worker's level, and on real traces 99 % of all beta remains (measured)."""

OUTSIDE = "(no recorded call)"
"""The function of time in which the training thread is in no recorded call and nothing of higher priority runs: Python
itself where the trace has no stacks."""


class FunctionClass(StrEnum):
    """Which work a function does; in order of priority on the critical path (PerfTracker, section 4.2)."""

    COMPUTE = "compute"
    MEMORY = "memory"
    COLLECTIVE = "collective"
    HOST = "host"
    """Python functions of the training thread, and the operators and runtime calls they make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A function's behaviour over a window.

    `stack` holds its callers, outermost first, the innermost PATTERN_DEPTH_MAX of them, empty but for host functions:
    the same function called from elsewhere is another one. `beta` is the share of the window that it is on the critical
    path; `mu` and `sigma` the mean and deviation of its resource's usage over the critical durations of its executions,
    as shares of the peak, None without samples. `active_mu` is the mean of the busy samples alone and `gap_ratio` the
    share of the others.
    """

    function: str
    stack: tuple[str, ...] = ()
    kind: FunctionClass
    beta: float
    mu: float | None = None
    sigma: float | None = None
    active_mu: float | None = None
    gap_ratio: float | None = None

    @property
    def identity(self) -> tuple[FunctionClass, tuple[str, ...], str]:
        """What makes two ranks' patterns those of one function."""
        return self.kind, self.stack, self.function


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternSummary:
    """The functions of one rank that matter, largest beta first.

    `omitted_count` functions with together `omitted_beta` were left out, below BETA_MIN or beyond a size.
    """

    window_ns: int
    patterns: tuple[Pattern, ...]
    omitted_count: int = 0
    omitted_beta: float = 0.0
