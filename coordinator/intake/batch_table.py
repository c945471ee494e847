# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""Converts step batches into one table with a column per field and the records of all batches in order.

Pure. Consecutive batches of the same layout, the usual case, form one table as soon as their bytes are joined.

Shapes: N records of all batches, F fields, L values of a record as sent.
"""

from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from lockstep.contracts.records import MISSING
from lockstep.contracts.rows import names_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lockstep.contracts.messages import StepBatch

    BatchTable = dict[str, NDArray[np.int64]]

_LAYOUTS_KEPT = 256  # one per layout and fields: the nodes of a job send a handful of layouts


def read_batches(
    batches: "Sequence[StepBatch]", required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> "BatchTable":
    """Return the records of decoded batches as int64 arrays of shape (N,) by field; MISSING if a value was not sent.

    The fields are all of `required`, and those of `optional` that at least one batch has.
    """
    sent = {name for layout in {batch.layout for batch in batches} for name in names_of(layout)}
    names = (*required, *(name for name in optional if name in sent))
    parts = [np.empty((0, len(names)), dtype=np.int64)]
    for layout, alike in groupby(batches, key=attrgetter("layout")):
        places, absent = _places(layout, names)
        joined = b"".join(batch.records for batch in alike)
        rows_NL = np.frombuffer(joined, dtype="<i8").reshape(-1, len(names_of(layout)))
        part_NF = rows_NL.take(places, axis=1)
        if absent:
            part_NF[:, absent] = MISSING
        parts.append(part_NF)
    return dict(zip(names, np.ascontiguousarray(np.concatenate(parts).T), strict=True))


def last_step(batch: "StepBatch") -> int:
    """Return the last step that a batch holds records of; -1 if it holds none."""
    names = names_of(batch.layout)
    if not batch.count or "step" not in names:
        return -1
    values = memoryview(batch.records).cast("q")  # native byte order: every supported platform is little-endian
    return max(values[names.index("step") :: len(names)])


@lru_cache(_LAYOUTS_KEPT)
def _places(layout: str, names: tuple[str, ...]) -> "tuple[NDArray[np.intp], list[int]]":
    """Return the index of each field in a record (0 if the layout lacks it), and which fields the layout lacks."""
    place_of = {name: place for place, name in enumerate(names_of(layout))}
    places = np.array([place_of.get(name, 0) for name in names], dtype=np.intp)
    return places, [index for index, name in enumerate(names) if name not in place_of]
