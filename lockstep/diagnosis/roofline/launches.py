# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Attributes device time to operators and shapes.

A kernel names its operator (`external`), or its launch does (`correlation`), or the launch lies inside an operator of
its thread. Shape suffixes: K kernels, O operators (host), G groups of calls with one name and one set of shapes, F
figures of `KernelUse`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.roofline.kernel_use import KernelUse, use_of
from lockstep.trace.columns import ABSENT, OPERATOR, TraceColumns, WorkKind
from lockstep.trace.launches import launches_of

_BACK_MAX = 256
"""Operators before a launch that are looked at for the one around it: longer runs of siblings are rare."""

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedGroups:
    """Device time of compute kernels by operator and shapes; arrays of shape (n_groups,).

    `name` and `shapes` are codes of the trace (`shapes` ABSENT where not recorded), `calls` counts operators,
    `device_ns` sums their kernels, and `use` has how these use the device. `unattributed_ns` is the time of kernels
    whose operator the trace does not record.
    """

    name: NDArray[np.int32]
    shapes: NDArray[np.int32]
    calls: Index
    device_ns: Index
    use: list[KernelUse]
    unattributed_ns: int
    total_ns: int


def launched_groups(columns: TraceColumns) -> LaunchedGroups:
    """Return the device time of compute kernels by the operator that launched them."""
    kernel_K = np.flatnonzero(columns.on_device & (columns.work == WorkKind.COMPUTE))
    owner_K = launching_operators(columns, kernel_K)
    duration_ns_K = columns.duration_ns[kernel_K]
    known_K = owner_K != ABSENT
    operators, call_K = np.unique(owner_K[known_K], return_inverse=True)
    of_call_ns = np.zeros(len(operators), np.int64)
    np.add.at(of_call_ns, call_K, duration_ns_K[known_K])
    keys = np.stack((columns.name[operators], columns.shapes[operators]), axis=1)
    groups, group_of_call = np.unique(keys, axis=0, return_inverse=True)
    group_of_call = group_of_call.ravel()
    device_ns_G = np.zeros(len(groups), np.int64)
    np.add.at(device_ns_G, group_of_call, of_call_ns)
    use_GF = np.zeros((len(groups), len(KernelUse._fields)))
    np.add.at(use_GF, group_of_call[call_K], use_of(columns, kernel_K[known_K]))
    total_ns = int(duration_ns_K.sum())
    return LaunchedGroups(
        name=groups[:, 0],
        shapes=groups[:, 1],
        calls=np.bincount(group_of_call, minlength=len(groups)).astype(np.int64),
        device_ns=device_ns_G,
        use=[KernelUse(*each) for each in use_GF.tolist()],
        unattributed_ns=total_ns - int(of_call_ns.sum()),
        total_ns=total_ns,
    )


def launching_operators(columns: TraceColumns, kernel_K: Index) -> Index:
    """Return the index of each kernel's operator, array of shape (n_kernels,), ABSENT if unknown.

    In some traces operators and kernels have separate ids, which then name operators that begin after the launch. If
    most do, ids are ignored, and the operator is the innermost one around the launch.
    """
    return columns.kept("launching_operators", lambda: _launching_operators(columns))[kernel_K]


def _launching_operators(columns: TraceColumns) -> Index:
    operator_O = np.flatnonzero(columns.category == columns.category_code(OPERATOR))
    kernel_K = np.flatnonzero(columns.on_device)
    launch_K = launches_of(columns)[kernel_K]
    owner_K = np.full(len(kernel_K), ABSENT, np.int64)
    for named_K in (kernel_K, launch_K):
        open_K = np.flatnonzero((owner_K == ABSENT) & (named_K != ABSENT))
        found = _looked_up(columns.external, operator_O, columns.external[named_K[open_K]])
        owner_K[open_K] = _believed(columns, found, launch_K[open_K])
    open_K = np.flatnonzero((owner_K == ABSENT) & (launch_K != ABSENT))
    owner_K[open_K] = innermost_around(columns, operator_O, launch_K[open_K])
    owner = np.full(len(columns), ABSENT, np.int64)
    owner[kernel_K] = owner_K
    return owner


def _believed(columns: TraceColumns, operator: Index, launch: Index) -> Index:
    """Return the operators that can have made the launches, ABSENT for others.

    An operator begins before what it launches, and on the same thread it ends after it.
    """
    both = (operator != ABSENT) & (launch != ABSENT)
    is_wrong = columns.start_ns[operator] > columns.start_ns[launch]
    is_one_thread = columns.thread[operator] == columns.thread[launch]
    is_wrong |= is_one_thread & (columns.end_ns[operator] < columns.end_ns[launch])
    is_wrong &= both
    if 2 * np.count_nonzero(is_wrong) > np.count_nonzero(both):
        return np.full(len(operator), ABSENT, np.int64)
    return np.where(is_wrong, ABSENT, operator)


def _looked_up(key: Index, among: Index, wanted: Index) -> Index:
    """Return for each wanted key the first event of `among` that has it, ABSENT if none or the key is ABSENT."""
    found = np.full(len(wanted), ABSENT, np.int64)
    keys = key[among]
    among, keys = among[keys != ABSENT], keys[keys != ABSENT]
    if not len(among):
        return found
    order = np.argsort(keys, kind="stable")
    keys, among = keys[order], among[order]
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    hit = (keys[place] == wanted) & (wanted != ABSENT)
    found[hit] = among[place[hit]]
    return found


def innermost_around(columns: TraceColumns, operator_O: Index, launch: Index) -> Index:
    """Return for each event of `launch` the innermost of `operator_O` around it on its thread, ABSENT if none."""
    found = np.full(len(launch), ABSENT, np.int64)
    end_ns = columns.end_ns
    for thread in np.unique(columns.thread[launch]):
        mine = np.flatnonzero(columns.thread[launch] == thread)
        inner = operator_O[columns.thread[operator_O] == thread]
        inner = inner[np.lexsort((-columns.duration_ns[inner], columns.start_ns[inner]))]
        if not len(inner):
            continue
        at = np.searchsorted(columns.start_ns[inner], columns.start_ns[launch[mine]], side="right") - 1
        for _ in range(_BACK_MAX):
            mine, at = mine[at >= 0], at[at >= 0]
            if not len(mine):
                break
            covers = end_ns[inner[at]] >= end_ns[launch[mine]]
            found[mine[covers]] = inner[at[covers]]
            mine, at = mine[~covers], at[~covers] - 1
    return found
