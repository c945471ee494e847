"""Attributes the unaccounted time of steps in a log that another program wrote.

Pure: columns of int64 in, ns; MISSING if not measured.
"""

from typing import TYPE_CHECKING

import numpy as np

from lockstep.contracts.records import MISSING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_DAY_NS = 86_400 * 10**9  # no step and no part of one is longer
_REST_PARTS = 20  # a foreign log may account for too little or too much by one part in 20 of a step


def attribute_unaccounted(
    columns: "dict[str, NDArray[np.int64]]", parts: "Sequence[str]", waits: "Sequence[str]"
) -> None:
    """Make parts and waits sum to the step, in place: unaccounted time becomes host time.

    A step is off by a few percent if clocks are coarse or the log knows fewer parts. One that is off by more lacks a
    kind of waits; it stays unchanged, and the later check rejects it.
    """
    if not columns.keys() >= {*parts}:
        return
    duration_ns = columns["duration_ns"]
    own = [columns[name] for name in parts]
    known = np.logical_and.reduce([values != MISSING for values in (duration_ns, *own)])
    spent_ns = np.zeros(len(duration_ns), dtype=np.int64)
    for values in (*own, *(columns[name] for name in waits if name in columns)):
        spent_ns += np.where((values > 0) & (values <= _DAY_NS), values, 0)
    rest_ns = np.where(known & (duration_ns <= _DAY_NS), duration_ns - spent_ns, 0)
    small = np.abs(rest_ns) <= duration_ns // _REST_PARTS
    columns["host_ns"] = np.where(known & small, columns["host_ns"] + np.maximum(rest_ns, 0), columns["host_ns"])
    less_ns = np.minimum(np.maximum(-rest_ns, 0), np.maximum(columns["compute_ns"], 0))
    columns["compute_ns"] = np.where(known & small, columns["compute_ns"] - less_ns, columns["compute_ns"])
