"""When ranks arrive at the collectives of a host backend (gloo, MPI, UCC): where the training thread calls them.

The backend's own event begins later: where one of its few threads takes the collective up, after those called before it
and once it gets a core. Of a rank that waits, the second pair of buckets begins when the last rank has arrived at the
first, so the backend's starts of early ranks follow the late one's.
"""

from collections.abc import Callable, Sequence
from operator import methodcaller

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.hardware.collectives import ALL_REDUCE, REDUCE_SCATTER
from lockstep.trace.columns import ABSENT, OPERATOR, TraceColumns

_PREFIXES = ("c10d::", "_c10d_functional::")
"""Of the dispatcher's operators. In some versions of torch the second call the first, so only one prefix counts."""


def called_ns(
    columns: TraceColumns, events: NDArray[np.intp], kinds: Sequence[str], kind_of: Callable[[str], str]
) -> NDArray[np.int64]:
    """Return when each of these collectives was called, int64 ns of shape (n_events,), ABSENT where it is unknown.

    `events` are in order of start, `kinds` what they do, `kind_of` what the call of a name does. A backend starts the
    collectives of one kind in the order of their calls. Where their numbers differ, or one would start before its call,
    the kind is left out; so are collectives on devices, which a rank's device reaches later than its host. A backend
    without a reduce-scatter, as gloo, runs an all-reduce in its place.
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
