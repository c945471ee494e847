"""Which call of the host launched which work of the device."""

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import ABSENT, DRIVER, RUNTIME, TraceColumns

NO_CORRELATION = 0
"""Kineto's value for an unknown correlation; ids of real calls begin at 1."""


def launches_of(columns: TraceColumns) -> NDArray[np.int64]:
    """Return by event the call that launched it, array of shape (n_events,); ABSENT where none is in the trace.

    A launch is the call of runtime or driver with the same correlation; of several (a runtime call that calls the
    driver) the first. One call can launch many (a captured graph).
    """
    return columns.kept("launches", lambda: _launches(columns))


def _launches(columns: TraceColumns) -> NDArray[np.int64]:
    launch = np.full(len(columns), ABSENT, np.int64)
    known = columns.correlation > NO_CORRELATION
    callers = np.flatnonzero(known & columns.of_categories(RUNTIME, DRIVER))
    launched = np.flatnonzero(known & columns.on_device)
    if not len(callers) or not len(launched):
        return launch
    callers = callers[np.lexsort((columns.start_ns[callers], columns.correlation[callers]))]
    correlations = columns.correlation[callers]
    at = np.searchsorted(correlations, columns.correlation[launched])
    at[at == len(callers)] = 0
    same = correlations[at] == columns.correlation[launched]
    launch[launched[same]] = callers[at[same]]
    return launch
