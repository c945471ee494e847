"""Classes of groups on the links: the links that each passes, and its contention-free speed.

A link's class is twice the class of its uplink, plus OUT or IN.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.hardware.cluster import BOTH_WAYS, IN, OUT, Cluster
from lockstep.simulator.hardware.collectives import (
    ALL_TO_ALL,
    DEEPEP,
    DIRECT,
    HIERARCHICAL,
    HYBRIDEP,
    ONCE,
    RING,
    Link,
    collective_cost,
)
from lockstep.simulator.hardware.symmetry import GroupSet, Partition
from lockstep.simulator.models.model import Routing

_Row = tuple[int, int, int, int, int]
"""A use of links: their class, level, members below, those beyond, and way."""
_ON_A_LINK = {HIERARCHICAL: RING, DEEPEP: DIRECT, HYBRIDEP: DIRECT}
"""What algorithms of several levels are on the links of one."""
_HYBRIDEP_START_S, _HYBRIDEP_START_ACROSS_S = 0.055e-3, 0.33e-3
"""What an exchange of HybridEP takes besides its bytes, within a node and between nodes: the middle of what its kernels
take longer than their bytes need on B200 and GB200, and on 16 to 64 H100 with 8 or 16 multiprocessors
(deepseek-ai/DeepEP, README of Hybrid-EP). The 18 kernels on H100 are met to 3.9 % on average, without to 16 %."""
_WAYS = {BOTH_WAYS: (OUT, IN), OUT: (OUT,), IN: (IN,)}


@dataclass(frozen=True, slots=True)
class Phase:
    """A collective in the groups of a set (an index of `GroupTopology.group_sets`); `volume_bytes` as in `collectives`.

    One that `is_rendezvous` is only the rendezvous of the group, after which it begins. `latency_share` is that of
    the collective's latency that a part of it has.
    """

    kind: str
    group_set: int
    volume_bytes: float
    is_rendezvous: bool = False
    latency_share: float = 1.0


@dataclass(frozen=True, slots=True)
class Flow:
    """Use of the links by one class of groups during a collective.

    A collective of V bytes takes `latency_s` and then moves `ratio * V` bytes at no more than `cap` bytes a second, and
    at `alone` where no other flow is on its links. `uses` holds link classes and the bytes that pass each link of the
    class for every byte of the flow, all groups of the class together. `members` are the classes of its ranks.
    """

    kind: str
    latency_s: float
    ratio: float
    cap: float
    alone: float
    uses: tuple[tuple[int, float], ...]
    members: tuple[int, ...]

    def seconds(self, volume_bytes: float) -> float:
        """Return the time of the collective with the links to itself."""
        return self.latency_s + self.ratio * volume_bytes / self.alone


class LinkModel:
    """Flows by group set, class of groups and kind of collective, made once each.

    `capacity` is that of one link of each class, in bytes a second, `routing` that of the model's tokens. `group_of`
    maps by group set the class of ranks (in a directed one: of senders) to its class of groups.
    """

    def __init__(
        self,
        cluster: Cluster,
        algorithms: Mapping[str, str],
        group_sets: Sequence[GroupSet],
        partition: Partition,
        capacity: NDArray[np.float64],
        *,
        routing: Routing | None = None,
    ) -> None:
        self.cluster = cluster
        self._routing = routing
        representative = np.full(int(partition.links.max()) + 1, -1)
        representative[partition.links[::-1]] = np.arange(len(capacity))[::-1]
        self.capacity: list[float] = np.repeat(capacity[representative], 2).tolist()
        self._algorithms = algorithms
        self._flows: dict[tuple[int, int, str, float], list[Flow]] = {}
        self._sizes = [group_set.groups.shape[1] for group_set in group_sets]
        self._members: list[list[tuple[int, ...]]] = []
        self._rows: list[list[list[_Row]]] = []
        self._carried: list[dict[tuple[int, int, int], int]] = []
        self._passed: list[list[set[int]]] = []
        self.group_of: list[dict[int, int]] = []
        for group_set, classes in zip(group_sets, partition.groups, strict=True):
            _, first = np.unique(classes, return_index=True)
            members = _members(group_set, partition.ranks[group_set.groups[first]])
            rows = _rows(group_set, first, partition.links)
            joined = (row[:1] if group_set.directed else row for row in members)
            self.group_of.append({rank: group for group, row in enumerate(joined) for rank in row})
            self._members.append(members)
            self._rows.append(rows)
            self._passed.append([{2 * row[0] + way for row in own for way in _WAYS[row[4]]} for own in rows])
            self._carried.append(_carried(group_set, classes, partition.links, representative))

    def members(self, group_set: int, group: int) -> tuple[int, ...]:
        """Return the classes of a group's ranks, in a directed group set sender and receiver."""
        return self._members[group_set][group]

    def links_of(self, group_set: int, group: int) -> set[int]:
        """Return the classes of links that a class of groups passes."""
        return self._passed[group_set][group]

    def flow(
        self, group_set: int, group: int, kind: str, volume_bytes: float = 0.0, *, latency_share: float = 1.0
    ) -> Flow:
        """Return the flow of `kind` in the class `group` of `group_set` that is through with the volume first."""
        key = (group_set, group, kind, latency_share)
        flows = self._flows.get(key)
        if flows is None:
            level = self.cluster.levels[max((row[1] for row in self._rows[group_set][group]), default=0)]
            links = level.measured.get(self._sizes[group_set], (level.link,))
            flows = self._flows[key] = [self._make(key, link) for link in links]
        return flows[0] if len(flows) == 1 else min(flows, key=lambda flow: flow.seconds(volume_bytes))

    def _make(self, key: tuple[int, int, str, float], link: Link) -> Flow:
        group_set, group, kind, latency_share = key
        rows, n = self._rows[group_set][group], self._sizes[group_set]
        algorithm = self._algorithms.get(kind, RING)
        cost = collective_cost(kind, _ON_A_LINK.get(algorithm, algorithm), n)
        # Everybody to everybody: links see what crosses them.
        spread = kind == ALL_TO_ALL or algorithm == DIRECT
        levels = self.cluster.levels
        level = levels[max((row[1] for row in rows), default=0)]
        loads = [cost.ratio * (members * beyond / (n - 1) if spread else 1.0) for _, _, members, beyond, _ in rows]
        start_s = 0.0
        if algorithm in ONCE and rows:
            own = max((members for _, height, members, _, _ in rows if height == 1), default=n)
            loads = [
                load * self._once(n / own) if row[1] else self._once(n) * (1 - 1 / own)
                for load, row in zip(loads, rows, strict=True)
            ]
            if algorithm == HYBRIDEP:
                start_s = _HYBRIDEP_START_S if own == n else _HYBRIDEP_START_ACROSS_S
        ratio = max(loads, default=0.0)
        carried = self._carried[group_set]
        loaded: dict[int, float] = {}
        cap = alone = float("inf")
        for (number, height, members, _, way), load in zip(rows, loads, strict=True):
            at, share, capacity = levels[height], load / ratio, self.capacity[2 * number]
            cap = min(cap, capacity * min(1.0, members / at.lanes) / share)
            if at is level and link is not level.link:
                cap = min(cap, capacity / at.link.bytes_per_second * link.bytes_per_second)
            use = share * carried[group, number, way]
            for direction in _WAYS[way]:
                loaded[2 * number + direction] = use
        for number, use in loaded.items():
            alone = min(alone, self.capacity[number] / use)
        uses = tuple(sorted(loaded.items()))
        latency_s = (cost.latency_s(link) + start_s) * latency_share
        return Flow(kind, latency_s, ratio, cap, min(cap, alone), uses, self._members[group_set][group])

    def _once(self, parts: float) -> float:
        """Return the ratio of copies if each of `parts` of the ranks receives a token once, instead of each expert."""
        return self._routing.share_once_per_part(parts) if self._routing else 1.0


def _members(group_set: GroupSet, classes: NDArray[np.int64]) -> list[tuple[int, ...]]:
    """Return the classes of ranks in one group of each class, given those of all its members."""
    rows = classes.tolist()
    return [tuple(row) if group_set.directed else tuple(sorted(set(row))) for row in rows]


def _rows(group_set: GroupSet, first: NDArray[np.int64], links: NDArray[np.int64]) -> list[list[_Row]]:
    """Return the uses of links that one group of each class makes, the group at `first`.

    Rows that differ in nothing count once: a group of two hundred nodes passes two hundred equal links.
    """
    usage = group_set.usage
    begin, end = (np.searchsorted(usage.group, first, side=side) for side in ("left", "right"))
    counts = end - begin
    bounds = np.cumsum(counts)
    chosen = np.repeat(end - bounds, counts) + np.arange(int(counts.sum()))
    columns = [each[chosen].tolist() for each in (usage.level, usage.members, usage.beyond, usage.way)]
    rows = list(zip(links[usage.link[chosen]].tolist(), *columns, strict=True))
    ends = bounds.tolist()
    return [list(dict.fromkeys(rows[end - count : end])) for end, count in zip(ends, counts.tolist(), strict=True)]


def _carried(
    group_set: GroupSet, groups: NDArray[np.int64], links: NDArray[np.int64], representative: NDArray[np.int64]
) -> dict[tuple[int, int, int], int]:
    """Return how many groups of a class one uplink of a class carries, by (class of groups, class of links, way)."""
    usage = group_set.usage
    classes = links[usage.link]
    chosen = representative[classes] == usage.link
    shape = (int(groups.max()) + 1, len(representative), BOTH_WAYS + 1)
    flat = np.ravel_multi_index((groups[usage.group[chosen]], classes[chosen], usage.way[chosen]), shape)
    found, counts = np.unique(flat, return_counts=True)
    keys = zip(*(column.tolist() for column in np.unravel_index(found, shape)), strict=True)
    return dict(zip(keys, counts.tolist(), strict=True))
