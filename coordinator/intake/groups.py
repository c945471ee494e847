"""The process groups of one run, each stored once, no matter how many nodes announce it.

Pure. Nodes announce ranges of ranks: a data-parallel group of 100,000 ranks is three integers, and each of its 12,500
nodes announces it. Only the ranges of a group are stored. They are expanded to ranks once, on first use, and only if
the announced world is large enough to hold them.
"""

from array import array
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from lockstep.contracts.domains import Domain, count_members
from lockstep.contracts.records import DOMAIN_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockstep.contracts.messages import GroupInfo

NO_GROUP = -1
"""Id of an announced group that is not stored, because its kind is unknown or the limit is reached."""
MEMBERS_PER_RANK_MAX = 64
"""Limit of the members of all groups, per rank of the world. A rank is in one or two groups of each of seven kinds."""
SPANS_PER_RANK_MAX = 64
"""Limit of the ranges of all groups, per announced rank: a group without a stride has at most one range per two
ranks."""
SPANS_MIN = 1 << 14
"""Ranges that are allowed however few ranks are announced: 200 KB."""


class _Key(NamedTuple):
    """Identity of a group: two announced groups with equal keys are the same.

    `spans`: start, stop, step per range, int32.
    """

    kind: str
    name: str
    spans: bytes

    @property
    def span_count(self) -> int:
        return len(self.spans) // _SPAN_BYTES


_SPAN_BYTES = 3 * array("i").itemsize


@dataclass(slots=True, eq=False)
class _Group:
    """`nodes` is how many nodes currently announce the group; `domain` is None until its ranks are first needed."""

    key: _Key
    size: int
    last_rank: int
    nodes: int = 0
    domain: Domain | None = None

    def unpacked(self) -> Domain:
        if self.domain is None:
            bounds = array("i", self.key.spans).tolist()
            spans = zip(bounds[::3], bounds[1::3], bounds[2::3], strict=True)
            ranks = tuple(chain.from_iterable(range(*span) for span in spans))
            self.domain = Domain(self.key.kind, self.key.name, ranks)
        return self.domain


class GroupTable:
    """The groups of a run. Invariant: it holds exactly those that at least one node announces. Ids are never reused.

    `revision` grows when a group is added or removed.
    """

    def __init__(self) -> None:
        self.revision = 0
        self._ids: dict[_Key, int] = {}
        self._groups: dict[int, _Group] = {}
        self._span_count = 0
        self._next_id = 0

    def __len__(self) -> int:
        """Return the number of distinct groups."""
        return len(self._ids)

    def replace(
        self, former: "Iterable[int]", groups: "Sequence[GroupInfo]", *, world_size: int, rank_count: int, where: str
    ) -> tuple[int, ...]:
        """Replace a node's `former` groups by the announced ones; return their ids in the order announced.

        `world_size` is the largest that the node's ranks announce. `rank_count` is the number of announced ranks of the
        run; the limit of ranges grows with it.

        Raises
        ------
        MalformedError
            A group is not an ascending list of ranges, or has members outside of that world; nothing was changed.
        """
        announced = [_parse(group, world_size, where) for group in groups]
        spans_max = max(SPANS_MIN, SPANS_PER_RANK_MAX * rank_count)
        ids = tuple(NO_GROUP if group is None else self._add(group, spans_max) for group in announced)
        for group_id in former:
            self._remove(group_id)
        return ids

    def domain(self, group_id: int, world_size: int) -> Domain | None:
        """Return a group with its ranks; None if it was removed or has members outside of the world."""
        group = self._groups.get(group_id)
        return group.unpacked() if group is not None and group.last_rank < world_size else None

    def domains(self, world_size: int) -> list[Domain]:
        """Return the groups inside the world, unordered: each set of ranks once per kind, under its smallest name.

        If they have more members than `MEMBERS_PER_RANK_MAX` allows, groups that many nodes announce, relative to their
        size, are chosen first. A large group that only one node invents is thereby dropped.
        """
        least: dict[tuple[str, bytes], _Group] = {}
        nodes: dict[tuple[str, bytes], int] = {}
        for group in self._groups.values():
            if group.size > 1 and group.last_rank < world_size:
                ranks = (group.key.kind, group.key.spans)
                known = least.get(ranks)
                nodes[ranks] = nodes.get(ranks, 0) + group.nodes
                if known is None or group.key.name < known.key.name:
                    least[ranks] = group
        members_left = MEMBERS_PER_RANK_MAX * world_size
        groups = list(least.items())
        if sum(group.size for _, group in groups) > members_left:
            groups.sort(key=lambda each: (each[1].size / nodes[each[0]], each[0]))
        chosen = []
        for _, group in groups:
            if group.size <= members_left:
                members_left -= group.size
                chosen.append(group.unpacked())
        return chosen

    def _add(self, group: _Group, spans_max: int) -> int:
        group_id = self._ids.get(group.key)
        if group_id is None:
            if self._span_count + group.key.span_count > spans_max:
                return NO_GROUP
            group_id, self._next_id = self._next_id, self._next_id + 1
            self._ids[group.key] = group_id
            self._groups[group_id] = group
            self._span_count += group.key.span_count
            self.revision += 1
        self._groups[group_id].nodes += 1
        return group_id

    def _remove(self, group_id: int) -> None:
        if group_id == NO_GROUP:
            return
        group = self._groups[group_id]
        group.nodes -= 1
        if not group.nodes:
            del self._groups[group_id], self._ids[group.key]
            self._span_count -= group.key.span_count
            self.revision += 1


def _parse(group: "GroupInfo", world_size: int, where: str) -> _Group | None:
    """Return a group; None if it has no ranks or its kind is unknown to this version."""
    size = count_members(group.ranks, where=where, limit=world_size)
    if not size or group.kind not in DOMAIN_KINDS:
        return None
    start, stop, step = group.ranks[-1]
    spans = array("i", chain.from_iterable(group.ranks)).tobytes()
    return _Group(_Key(group.kind, group.name, spans), size, last_rank=start + (stop - 1 - start) // step * step)
