# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""Batches joined: their bytes one after the other, and fields taken out of them.

Pure. Batches are small and many (8 ranks a node): what one costs is then that it is looked at, which is done once
(`apart`), and the copying of its bytes.

Shapes: N records taken together, F fields, B batches, L values of a record as sent.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from lockstep.contracts.records import MISSING
from lockstep.contracts.rows import names_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lockstep.contracts.messages import StepBatch

_AT_ONCE = 2048  # records taken apart at once: they stay in the processor's cache (measured: 1.6 times as fast as 8192)
_COPIES_KEPT = 256  # by layout and wanted fields: the nodes of a job send a handful of layouts


@dataclass(frozen=True, slots=True)
class Sent:
    """What batches hold, in their order: number of records, layout and bytes of each."""

    count_B: list[int]
    layout_B: list[str]
    records_B: list[bytes]

    def at(self, chosen: slice) -> "Sent":
        """Return some of them."""
        return Sent(self.count_B[chosen], self.layout_B[chosen], self.records_B[chosen])

    def layouts(self) -> list[str]:
        """Return the layouts, each once: nearly always one."""
        layouts = self.layout_B[:1]
        if layouts and self.layout_B.count(layouts[0]) < len(self.layout_B):
            layouts = list(dict.fromkeys(self.layout_B))
        return layouts

    def those(self, places: Sequence[int]) -> "Sent":
        """Return those at some places."""
        layout_B, records_B = self.layout_B, self.records_B
        return Sent(
            [self.count_B[place] for place in places],
            [layout_B[place] for place in places],
            [records_B[place] for place in places],
        )


def apart(batches: "Iterable[StepBatch]") -> Sent:
    """Return what those of the batches hold that are not empty."""
    each = list(batches)
    count_B = [batch.count for batch in each]
    if 0 in count_B:
        each = [batch for batch in each if batch.count]
        count_B = [batch.count for batch in each]
    return Sent(count_B, [batch.layout for batch in each], [batch.records for batch in each])


def table_of(
    batches: "Iterable[StepBatch]", wanted: Sequence[str], always: Sequence[str]
) -> "tuple[list[str], NDArray[np.int64]]":
    """Return values of the batches' records in their order: the names of the fields and an array of shape (F, N).

    The fields are those of `always`, and behind them those of `wanted` that any sender has. MISSING is what one left
    out.
    """
    sent = apart(batches)
    layouts = sent.layouts()
    known = set().union(*(names_of(layout) for layout in layouts))
    names = (*always, *(name for name in wanted if name in known))
    table_FN = np.empty((len(names), sum(sent.count_B)), dtype=np.int64)
    for part in parts_of(sent, layouts):
        part.write(table_FN, names)
    return list(names), table_FN


@dataclass(frozen=True, slots=True)
class Part:
    """Records of one layout as they were sent; `where` they stand among all."""

    rows_NL: "NDArray[np.int64]"
    layout: str
    where: "NDArray[np.intp] | slice"

    def write(self, out_FN: "NDArray[np.int64] | NDArray[np.float32]", names: tuple[str, ...]) -> None:
        """Write fields to the first rows of a table of all records."""
        for first, last, place in _copies(self.layout, names):
            if place is None:
                out_FN[first:last, self.where] = MISSING
            else:
                out_FN[first:last, self.where] = self.rows_NL[:, place : place + last - first].T


@lru_cache(_COPIES_KEPT)
def _copies(layout: str, names: tuple[str, ...]) -> list[tuple[int, int, int | None]]:
    """Return which rows of a table are written together: first, behind the last, first place in a record (or none).

    Fields that lie side by side in both go in one call, which is what single ones cost most of.
    """
    place_of = {name: place for place, name in enumerate(names_of(layout))}
    copies: list[tuple[int, int, int | None]] = []
    for row, name in enumerate(names):
        place = place_of.get(name)
        first, last, begin = copies[-1] if copies else (0, 0, None)
        follows = place is None if begin is None else place == begin + last - first
        if copies and follows:
            copies[-1] = (first, row + 1, begin)
        else:
            copies.append((row, row + 1, place))
    return copies


def parts_of(sent: Sent, layouts: Sequence[str]) -> "Iterator[Part]":
    """Yield the records of batches of these layouts, so many together as stay in the processor's cache."""
    if len(layouts) == 1:
        yield from _alike(sent, None)
    elif layouts:
        index_of = {layout: index for index, layout in enumerate(layouts)}
        index_B = np.array([index_of[layout] for layout in sent.layout_B])
        index_N = np.repeat(index_B, sent.count_B)
        for index in range(len(layouts)):
            members = np.flatnonzero(index_B == index).tolist()
            yield from _alike(sent.those(members), np.flatnonzero(index_N == index))


def _alike(sent: Sent, place_N: "NDArray[np.intp] | None") -> "Iterator[Part]":
    """Yield the records of batches of one layout; they stand at these places, None for one after the other."""
    layout = sent.layout_B[0]
    width = len(names_of(layout))
    at_once, first = max(1, _AT_ONCE // max(1, sent.count_B[0])), 0
    for begin in range(0, len(sent.records_B), at_once):
        joined = b"".join(sent.records_B[begin : begin + at_once])
        rows_NL = np.frombuffer(joined, dtype="<i8").reshape(-1, width)
        where = slice(first, first + len(rows_NL))
        first = where.stop
        yield Part(rows_NL, layout, where if place_N is None else place_N[where])
