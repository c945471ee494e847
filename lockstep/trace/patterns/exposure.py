# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""How long functions are on the critical path: what no function of higher priority covers (PerfTracker, equation 3).

Times are relative to the window, [0, window). Shape suffixes: E events, P pieces of time, F functions.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import MalformedError
from lockstep.trace.intervals import Intervals, Times, merged

_TIMES_MAX = 1 << 62  # functions times window: each function gets a window of its own on one axis of int64


class CoveredTime:
    """Time that is covered by a set of intervals, asked by its running measure F(t)."""

    def __init__(self, covering: Intervals) -> None:
        self._start_ns, self._end_ns = covering
        lengths_ns = self._end_ns - self._start_ns
        self._before_ns = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths_ns)))

    def until(self, times_ns: Times) -> Times:
        """Return the covered time before each of `times_ns`."""
        begun = np.searchsorted(self._start_ns, times_ns, side="right")
        reached_ns = self._before_ns[begun]
        beyond_ns = np.maximum(self._end_ns[begun - 1] - times_ns, 0) if len(self._end_ns) else np.zeros_like(times_ns)
        return np.where(begun > 0, reached_ns - beyond_ns, 0)

    def free(self, start_ns: Times, end_ns: Times) -> Times:
        """Return how much of each [start, end) is not covered."""
        return (end_ns - start_ns) - (self.until(end_ns) - self.until(start_ns))


class FunctionPieces(NamedTuple):
    """When functions run, executions at the same time counted once; arrays of shape (n_pieces,)."""

    function: NDArray[np.int64]
    start_ns: Times
    end_ns: Times


def pieces(function_E: NDArray[np.int64], start_ns_E: Times, end_ns_E: Times, window_ns: int) -> FunctionPieces:
    """Return the disjoint pieces of time of each function.

    Raises
    ------
    MalformedError
        The window is too long for so many functions; no capture comes near.
    """
    span_ns = window_ns + 1
    functions = int(function_E.max()) + 1 if len(function_E) else 0
    if functions * span_ns >= _TIMES_MAX:
        expected = f"less than {_TIMES_MAX // functions} for {functions} functions"
        raise MalformedError("window in ns", where="trace", got=window_ns, expected=expected)
    shift_ns_E = function_E * span_ns
    found = merged(start_ns_E + shift_ns_E, end_ns_E + shift_ns_E)
    function_P = found.start_ns // span_ns
    shift_ns_P = function_P * span_ns
    return FunctionPieces(function_P, found.start_ns - shift_ns_P, found.end_ns - shift_ns_P)


def exposed(found: FunctionPieces, covered: CoveredTime, functions: int) -> Times:
    """Return, per function, how long it runs while `covered` does not, ns, shape (n_functions,)."""
    free_ns_P = covered.free(found.start_ns, found.end_ns)
    return np.rint(np.bincount(found.function, free_ns_P, functions)).astype(np.int64)
