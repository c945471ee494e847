# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""For which rank each collective waits, and how long each rank waits in one collective but not in the one before.

Shape suffixes: S collectives of one group by start, R ranks.
"""

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


def awaited_first(
    last_S: NDArray[np.int64], waited_SR: Times, arrived_ns_SR: NDArray[np.int64], ends_ns_SR: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the rank for which each collective waits, indices of shape (n_collectives,); `last_S` arrive last.

    The last rank may be late only because it waited in the previous collective, which others left earlier: some ranks
    leave a broadcast at once and then wait for those still in it. If that explains most of the waiting, the rank for
    which the previous collective waited is returned.
    """
    row_S, late_S = np.arange(1, len(last_S)), last_S[1:]
    left_ns_S = ends_ns_SR[row_S - 1, late_S]
    delay_S = np.nan_to_num(waited_SR[row_S - 1, late_S]) * (arrived_ns_SR[row_S, late_S] >= left_ns_S)
    earlier_SR = np.clip(left_ns_S[:, None] - ends_ns_SR[:-1], 0, delay_S[:, None])
    now_SR = np.nan_to_num(waited_SR[1:])
    inherits_S = 2 * np.minimum(now_SR, earlier_SR).sum(axis=1) > now_SR.sum(axis=1)
    origin_S = np.maximum.accumulate(np.where(np.append(False, inherits_S), 0, np.arange(len(last_S))))
    return np.asarray(last_S[origin_S])


def waited_once_ns(arrived_ns_SR: NDArray[np.int64], waited_SR: Times) -> Times:
    """Return each rank's waiting in each collective that it has not already spent in those before it, ns."""
    ends_ns_SR = arrived_ns_SR + np.nan_to_num(waited_SR).astype(np.int64)
    reached_ns_SR = np.maximum.accumulate(ends_ns_SR, axis=0)
    reached_ns_SR = np.concatenate((arrived_ns_SR[:1], reached_ns_SR[:-1]))
    once_SR = np.maximum(ends_ns_SR - np.maximum(arrived_ns_SR, reached_ns_SR), 0)
    return np.where(np.isnan(waited_SR), np.nan, once_SR)
