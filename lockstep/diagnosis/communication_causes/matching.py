# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""Matches the collectives of many ranks.

Events are the same collective if group and sequence number agree. Without numbers, kinds, sizes and the time at which
ranks leave decide (`alignment`), so that swapped collectives, or collectives missing in one trace, do not shift the
others. A group whose ranks cannot be aligned is left out entirely and counted.

Shape suffixes: S collectives, R ranks.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.communication_causes.alignment import CollectiveSequence, align
from lockstep.diagnosis.communication_causes.collectives import Group, RankCollectives
from lockstep.simulator.hardware.collectives import SEND
from lockstep.trace.columns import ABSENT

Matched = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTable:
    """Matched collectives: rows by start, columns by rank (`ranks`, ascending).

    `start_ns`, `duration_ns` and `transit_ns` are int64 arrays of shape (n_collectives, n_ranks), ABSENT if a rank is
    not in the group or its trace lacks the collective. `arrived_ns` has the same form: when a rank called the
    collective if that is known for all its ranks, else its start. `bytes` and `size` (ranks of the group, ABSENT if
    unknown) have shape (n_collectives,). `left_out` counts unmatched events by group.
    """

    ranks: tuple[int, ...]
    kinds: list[str]
    groups: list[Group]
    start_ns: Matched
    duration_ns: Matched
    arrived_ns: Matched
    transit_ns: Matched
    bytes: Matched
    size: Matched
    clock_is_shared: bool
    left_out: dict[Group, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def present(self) -> NDArray[np.bool_]:
        """Return which ranks have which collective, bool of shape (n_collectives, n_ranks)."""
        has: NDArray[np.bool_] = self.duration_ns != ABSENT
        return has

    def rows_of(self, group: Group) -> NDArray[np.int64]:
        """Return the rows of one group, array of shape (n_rows,)."""
        return np.flatnonzero(np.fromiter((each == group for each in self.groups), np.bool_, len(self.groups)))


def match_collectives(parts: Sequence[RankCollectives]) -> CollectiveTable:
    """Return the collectives that at least two ranks share.

    Clocks count as shared if every trace has a wall clock and all name the same host. Sends and receives are left out:
    the two ranks of a pair record different groups of one, and their waiting is a separate question.
    """
    parts = sorted(parts, key=lambda part: part.rank)
    shared = all(part.clock_is_shared for part in parts) and len({part.host for part in parts}) == 1
    shared = shared and bool(parts and parts[0].host)
    places: dict[Group, dict[int, list[int]]] = defaultdict(dict)
    for column, part in enumerate(parts):
        for place, group in enumerate(part.groups):
            if part.kinds[place] != SEND:
                places[group].setdefault(column, []).append(place)
    rows: list[dict[int, int]] = []
    left_out: Counter[Group] = Counter()
    for group, by_column in places.items():
        matched = _matched(parts, by_column, shared=shared) if len(by_column) > 1 else []
        rows += matched
        left_out[group] = sum(map(len, by_column.values())) - sum(map(len, matched))
    return _table(parts, rows, shared=shared, left_out={group: count for group, count in left_out.items() if count})


def _matched(
    parts: Sequence[RankCollectives], by_column: dict[int, list[int]], *, shared: bool
) -> list[dict[int, int]]:
    """Return one group's rows; each entry is the index of the event in that column's rank."""
    keys = {column: _numbers(parts[column], places) for column, places in by_column.items()}
    if any(each is None for each in keys.values()):
        keys = _aligned(parts, by_column, shared=shared)
    rows: dict[object, dict[int, int]] = defaultdict(dict)
    for column, places in by_column.items():
        for key, place in zip(keys[column] or (), places, strict=bool(keys[column])):
            rows[key][column] = place
    return [row for row in rows.values() if len(row) > 1]


def _numbers(part: RankCollectives, places: list[int]) -> list[object] | None:
    """Return (sequence number, occurrence): collectives that torch coalesces share one number."""
    seen: Counter[int] = Counter()
    numbers: list[object] = []
    for number in part.sequence[places].tolist():
        if number == ABSENT:
            return None
        numbers.append((number, seen[number]))
        seen[number] += 1
    return numbers


def _aligned(
    parts: Sequence[RankCollectives], by_column: dict[int, list[int]], *, shared: bool
) -> dict[int, list[object] | None]:
    """Map each rank's events to those of the longest rank, None for a rank that cannot be aligned with it.

    An event without a partner gets a key of its own.
    """
    sides = {column: _side(parts[column], places) for column, places in by_column.items()}
    reference = max(by_column, key=lambda column: len(by_column[column]))
    keys: dict[int, list[object] | None] = {}
    for column, places in by_column.items():
        if column == reference:
            keys[column] = list(range(len(places)))
            continue
        partners = align(sides[reference], sides[column], shared=shared)
        keys[column] = None if partners is None else [partners.get(at, (column, at)) for at in range(len(places))]
    return keys


def _side(part: RankCollectives, places: list[int]) -> CollectiveSequence:
    signatures = list(zip([part.kinds[place] for place in places], part.bytes[places].tolist(), strict=True))
    return CollectiveSequence(signatures, (part.start_ns + part.duration_ns)[places])


def _table(
    parts: Sequence[RankCollectives], rows: list[dict[int, int]], *, shared: bool, left_out: dict[Group, int]
) -> CollectiveTable:
    start_SR, duration_SR, transit_SR, called_SR = np.full((4, len(rows), len(parts)), ABSENT, np.int64)
    first = [next(iter(row.items())) for row in rows]
    volume_S = np.full(len(rows), ABSENT, np.int64)
    for at, row in enumerate(rows):
        for column, place in row.items():
            part = parts[column]
            start_SR[at, column], duration_SR[at, column] = part.start_ns[place], part.duration_ns[place]
            volume_S[at] = max(volume_S[at], part.bytes[place])
            if part.transit_ns is not None:
                transit_SR[at, column] = part.transit_ns[place]
            if part.called_ns is not None:
                called_SR[at, column] = part.called_ns[place]
    is_called_S = ((called_SR != ABSENT) | (duration_SR == ABSENT)).all(axis=1)
    began = np.where(duration_SR == ABSENT, np.iinfo(np.int64).max, start_SR)
    order = np.argsort(began.min(axis=1, initial=np.iinfo(np.int64).max), kind="stable")
    groups = [parts[column].groups[place] for column, place in first]
    sizes = {group: size for part in parts for group, size in part.group_sizes.items()}
    return CollectiveTable(
        ranks=tuple(part.rank for part in parts),
        kinds=[parts[column].kinds[place] for column, place in (first[at] for at in order.tolist())],
        groups=[groups[at] for at in order.tolist()],
        start_ns=start_SR[order],
        duration_ns=duration_SR[order],
        arrived_ns=np.where(is_called_S[:, None], called_SR, start_SR)[order],
        transit_ns=transit_SR[order],
        bytes=volume_S[order],
        size=np.array([sizes.get(groups[at], ABSENT) for at in order.tolist()], np.int64),
        clock_is_shared=shared,
        left_out=left_out,
    )
