"""When ranks arrive at the collectives of a host backend (gloo, MPI, UCC): when the training thread calls them.

The backend's own event begins later, when one of its few threads starts the collective, after those called earlier and
once it gets a core. On a rank that waits, the second pair of buckets begins only when the last rank has arrived at the
first, so the backend's starts on early ranks follow those of the late one.
"""

from collections.abc import Callable, Sequence
from operator import methodcaller

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.hardware.collectives import ALL_REDUCE, REDUCE_SCATTER
from lockstep.trace.columns import ABSENT, OPERATOR, TraceColumns

_PREFIXES = ("c10d::", "_c10d_functional::")
"""Prefixes of the dispatcher's operators. In some versions of torch the second calls the first, so only one counts."""


def called_ns(
    columns: TraceColumns, events: NDArray[np.intp], kinds: Sequence[str], kind_of: Callable[[str], str]
) -> NDArray[np.int64]:
    """Return when each of these collectives was called, int64 ns of shape (n_events,), ABSENT if unknown.

    `events` are in order of start, `kinds` are their kinds, `kind_of` maps the name of a call to its kind. A backend
    starts the collectives of one kind in the order of their calls. A kind is left out if the numbers differ or if a
    collective would start before its call; so are collectives on devices, which a device reaches later than the host. A
    backend without a reduce-scatter, such as gloo, runs an all-reduce instead.
    """
    found = np.full(len(events), ABSENT, np.int64)
    on_host: NDArray[np.bool_] = ~columns.on_device[events]
    if not on_host.any():
        return found
    operators = columns.category == columns.category_code(OPERATOR)
    for prefix in _PREFIXES:
        calls = np.flatnonzero(operators & columns.named(methodcaller("startswith", prefix)))
        calls = calls[np.argsort(columns.start_ns[calls], kind="stable")]
        runs_as = {} if REDUCE_SCATTER in kinds else {REDUCE_SCATTER: ALL_REDUCE}
        called = [kind_of(columns.names[code]) for code in columns.name[calls].tolist()]
        call_kinds = np.array([runs_as.get(each, each) for each in called], dtype=object)
        for kind in set(kinds):
            places = np.flatnonzero(on_host & (np.array(kinds, dtype=object) == kind) & (found == ABSENT))
            start_ns = columns.start_ns[calls[call_kinds == kind]]
            if len(places) == len(start_ns) and bool((columns.start_ns[events[places]] >= start_ns).all()):
                found[places] = start_ns
    return found
