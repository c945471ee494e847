"""Groups of ranks on the cluster's links: who shares what, and how fast a collective runs while nobody else does.

Every uplink is two links, out and in, with the same capacity. Collectives use both alike, sends one at each end. A
link's class is twice the class of its uplink, plus OUT or IN.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.cluster import BOTH_WAYS, IN, OUT, Cluster, Device, Level, link_usage
from lockstep.simulator.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    DIRECT,
    HIERARCHICAL,
    REDUCE_SCATTER,
    RING,
    Link,
    collective_cost,
)
from lockstep.simulator.mesh import Axis, Mesh
from lockstep.simulator.placement import Transfer
from lockstep.simulator.symmetry import Family, Partition

WHOLE = "whole"
INNER = "inner"
OUTER = "outer"

_NO_DEVICE = Device(name="", flops_per_second=1.0, memory_bytes_per_second=1.0, memory_bytes=1.0)


@dataclass(frozen=True, slots=True)
class Phase:
    """A collective in the groups of one family (an index of `Fabric.families`); `volume_bytes` as in `collectives`."""

    kind: str
    family: int
    volume_bytes: float


@dataclass(frozen=True, slots=True)
class Flow:
    """What one class of groups does on the links while it performs a collective.

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


class Fabric:
    """The families of groups that a job uses on a cluster. Grows while the job is compiled, then makes a board.

    Meshes of one shape share their families, so that stages that are alike cost what one costs.
    """

    def __init__(self, cluster: Cluster, algorithms: Mapping[str, str], meshes: Iterable[Mesh]) -> None:
        self.cluster = cluster
        self._meshes = list(meshes)
        self.families: list[Family] = []
        self._links = cluster.links()
        self._algorithms = algorithms
        self._index: dict[object, int] = {}
        self._phases: dict[tuple[Transfer, tuple[Axis, ...]], list[Phase]] = {}

    def on(self, cluster: Cluster) -> "Fabric":
        """Return the same families on a cluster of the same shape, whose links have other health."""
        other = Fabric(cluster, self._algorithms, self._meshes)
        other.families = list(self.families)
        return other

    @property
    def capacity(self) -> NDArray[np.float64]:
        """Capacity of every uplink in either direction, bytes a second."""
        return self._links.capacity

    def phases(self, transfer: Transfer, mesh: Mesh) -> list[Phase]:
        """Return the collectives that perform `transfer` one after the other, by the algorithm of its kind."""
        key = (transfer, mesh.axes)
        if key not in self._phases:
            self._phases[key] = self._divide(transfer, mesh)
        return self._phases[key]

    def _divide(self, transfer: Transfer, mesh: Mesh) -> list[Phase]:
        whole = self._family(mesh, transfer.axes, WHOLE)
        if transfer.kind == ALL_REDUCE and self._algorithms.get(ALL_REDUCE) == HIERARCHICAL:
            inner, outer = (self._family(mesh, transfer.axes, part) for part in (INNER, OUTER))
            n_inner = self.families[inner].groups.shape[1]
            if n_inner > 1 and self.families[outer].groups.shape[1] > 1:
                return [
                    Phase(REDUCE_SCATTER, inner, transfer.volume_bytes),
                    Phase(ALL_REDUCE, outer, transfer.volume_bytes / n_inner),
                    Phase(ALL_GATHER, inner, transfer.volume_bytes),
                ]
        return [Phase(transfer.kind, whole, transfer.volume_bytes)]

    def sends(self, pairs: Sequence[tuple[Mesh, Mesh]]) -> list[int]:
        """Return for each pair of meshes the family in which ranks of the first send to counterparts in the second.

        Pairs share a family as long as nobody in it sends to two or is sent to by two.
        """
        shared: list[dict[Mesh, Mesh]] = []
        found = []
        for sender, receiver in pairs:
            if len(sender) != len(receiver):
                raise ConfigError(f"meshes of neighbouring stages: got {len(sender)} and {len(receiver)} ranks")
            fits = (
                number
                for number, ways in enumerate(shared)
                if ways.get(sender) == receiver or (sender not in ways and receiver not in ways.values())
            )
            number = next(fits, len(shared))
            if number == len(shared):
                shared.append({})
            shared[number][sender] = receiver
            found.append(number)
        shape = self.cluster.shape
        self.families += [_sending(shape, tuple(ways), tuple(ways.values())) for ways in shared]
        return [number + len(self.families) - len(shared) for number in found]

    def _family(self, mesh: Mesh, axes: frozenset[str], part: str) -> int:
        key = (mesh.axes, axes, part)
        if key not in self._index:
            alike = tuple(other for other in self._meshes if other.axes == mesh.axes)
            self._index[key] = len(self.families)
            self.families.append(_collective(self.cluster.shape, alike, axes, part))
        return self._index[key]

    def board(self, partition: Partition) -> "Board":
        """Return the classes of `partition` on the links; no family may be added afterwards."""
        return Board(self.cluster, self._algorithms, self.families, partition, self.capacity)


class Board:
    """Flows by family, class of groups and kind of collective, made once each."""

    def __init__(
        self,
        cluster: Cluster,
        algorithms: Mapping[str, str],
        families: list[Family],
        partition: Partition,
        capacity: NDArray[np.float64],
    ) -> None:
        self.cluster = cluster
        self.families = families
        self.partition = partition
        n_classes = int(partition.links.max()) + 1
        representative = np.full(n_classes, -1)
        representative[partition.links[::-1]] = np.arange(len(capacity))[::-1]
        self.capacity: list[float] = np.repeat(capacity[representative], 2).tolist()
        """Bytes a second of one link of each class."""
        self._algorithms = algorithms
        self._flows: dict[tuple[int, int, str], list[Flow]] = {}
        self._uses: dict[tuple[int, int], list[tuple[int, ...]]] = {}
        self._carried = [
            _carried(family, classes, partition.links, representative)
            for family, classes in zip(families, partition.groups, strict=True)
        ]
        self._passed: list[dict[int, set[int]]] = [{} for _ in families]
        for passed, carried in zip(self._passed, self._carried, strict=True):
            for group, link, way in carried:
                ways = (OUT, IN) if way == BOTH_WAYS else (way,)
                passed.setdefault(group, set()).update(2 * link + direction for direction in ways)
        self._first = [np.unique(classes, return_index=True)[1] for classes in partition.groups]
        self.group_of: list[dict[int, int]] = []
        """By family: class of ranks (in a directed one: of senders) to its class of groups."""
        for family, first in zip(families, self._first, strict=True):
            seats = partition.ranks[family.groups[first]]
            if family.directed:
                seats = seats[:, :1]
            self.group_of.append({int(rank): group for group, row in enumerate(seats) for rank in row})

    def members(self, family: int, group: int) -> tuple[int, ...]:
        """Return the classes of a group's ranks, in a directed family sender and receiver."""
        groups = self.families[family].groups[self._first[family][group]]
        classes = self.partition.ranks[groups].tolist()
        return tuple(classes) if self.families[family].directed else tuple(sorted(set(classes)))

    def links_of(self, family: int, group: int) -> set[int]:
        """Return the classes of links that a class of groups passes."""
        return self._passed[family].get(group, set())

    def flow(self, family: int, group: int, kind: str, volume_bytes: float = 0.0) -> Flow:
        """Return the flow of `kind` in the class `group` of `family` that is through with the volume first."""
        key = (family, group, kind)
        if key not in self._flows:
            rows = self._uses_of(family, group)
            level = self.cluster.levels[max((row[1] for row in rows), default=0)]
            links = level.measured.get(self.families[family].groups.shape[1], (level.link,))
            self._flows[key] = [self._make(family, group, kind, link, rows) for link in links]
        flows = self._flows[key]
        return flows[0] if len(flows) == 1 else min(flows, key=lambda flow: flow.seconds(volume_bytes))

    def _uses_of(self, family: int, group: int) -> list[tuple[int, ...]]:
        """Return class of links, level, members, beyond and way of each use that one group of the class makes.

        Rows that differ in nothing count once: a group of two hundred nodes passes two hundred equal links.
        """
        if (family, group) not in self._uses:
            usage = self.families[family].usage
            representative = int(self._first[family][group])
            one = slice(*np.searchsorted(usage.group, [representative, representative + 1]))
            columns = [each[one].tolist() for each in (usage.level, usage.members, usage.beyond, usage.way)]
            links = self.partition.links[usage.link[one]].tolist()
            self._uses[family, group] = list(dict.fromkeys(zip(links, *columns, strict=True)))
        return self._uses[family, group]

    def _make(self, family: int, group: int, kind: str, link: Link, rows: list[tuple[int, ...]]) -> Flow:
        n = self.families[family].groups.shape[1]
        algorithm = self._algorithms.get(kind, RING)
        cost = collective_cost(kind, RING if algorithm == HIERARCHICAL else algorithm, n)
        # Everybody to everybody: links see what crosses them.
        spread = kind == ALL_TO_ALL or algorithm == DIRECT
        level = self.cluster.levels[max((row[1] for row in rows), default=0)]
        loads = [cost.ratio * (members * beyond / (n - 1) if spread else 1.0) for _, _, members, beyond, _ in rows]
        ratio = max(loads, default=0.0)
        carried = self._carried[family]
        loaded: dict[int, float] = {}
        caps = []
        for (number, height, members, _, way), load in zip(rows, loads, strict=True):
            at, share, capacity = self.cluster.levels[height], load / ratio, self.capacity[2 * number]
            caps.append(capacity * min(1.0, members / at.lanes) / share)
            if at is level and link is not level.link:
                caps.append(capacity / at.link.bytes_per_second * link.bytes_per_second)
            for direction in (OUT, IN) if way == BOTH_WAYS else (way,):
                loaded[2 * number + direction] = share * carried[group, number, way]
        cap = min(caps, default=float("inf"))
        alone = min([cap, *(self.capacity[number] / use for number, use in loaded.items())])
        uses_by_link = tuple(sorted(loaded.items()))
        return Flow(kind, cost.latency_s(link), ratio, cap, alone, uses_by_link, self.members(family, group))


def forget() -> None:
    """Drop the groups that are kept from one forecast to the next, as a new process has none."""
    _collective.cache_clear()
    _sending.cache_clear()


def _bare(shape: tuple[tuple[int, bool], ...]) -> Cluster:
    levels = (Level(name="", fanout=n, link=Link(bytes_per_second=1.0), through=through) for n, through in shape)
    return Cluster(name="", device=_NO_DEVICE, levels=tuple(levels))


# What-ifs ask for the same groups again and again; a family of ten thousand ranks takes about a megabyte.
@lru_cache(maxsize=32)
def _collective(
    shape: tuple[tuple[int, bool], ...], meshes: tuple[Mesh, ...], axes: frozenset[str], part: str
) -> Family:
    cluster = _bare(shape)
    groups = np.concatenate([mesh.groups(axes) for mesh in meshes])
    if part != WHOLE:
        groups = _divided(groups, part, cluster.levels[0].fanout)
    return Family(groups, link_usage(cluster, cluster.links(), groups), directed=False)


@lru_cache(maxsize=32)
def _sending(shape: tuple[tuple[int, bool], ...], senders: tuple[Mesh, ...], receivers: tuple[Mesh, ...]) -> Family:
    if senders[0].first > receivers[0].first:  # the way back passes the same links the other way
        there = _sending(shape, receivers, senders)
        usage = replace(there.usage, way=np.where(there.usage.way == OUT, IN, OUT))
        return Family(np.ascontiguousarray(there.groups[:, ::-1]), usage, directed=True)
    cluster = _bare(shape)
    links = cluster.links()
    columns = [np.concatenate([mesh.ranks() for mesh in end]) for end in (senders, receivers)]
    groups = np.stack(columns, axis=1)
    usage = link_usage(cluster, links, np.sort(groups, axis=1))
    # A link below which the sender sits carries outwards, the others inwards.
    sizes = np.array([cluster.child_size(index) for index in range(len(cluster.levels))])
    home = groups[usage.group, 0] // sizes[usage.level] + links.offsets[usage.level]
    return Family(groups, replace(usage, way=np.where(home == usage.link, OUT, IN)), directed=True)


def _divided(groups: NDArray[np.int64], part: str, fanout: int) -> NDArray[np.int64]:
    """Return the groups inside the domains of level 0, or those of counterparts between them."""
    domain = groups // fanout
    n_outer = int((np.diff(domain, axis=1) > 0).sum(axis=1).max()) + 1
    n_inner = groups.shape[1] // n_outer
    shaped = domain.reshape(len(groups), n_outer, -1) if n_inner * n_outer == groups.shape[1] else domain[..., None]
    if (shaped != shaped[..., :1]).any() or shaped.shape[2] != n_inner:
        raise ConfigError(f"hierarchical all-reduce of {groups[0].tolist()}: got domains of unequal parts")
    cut = groups.reshape(len(groups), n_outer, n_inner)
    return cut.reshape(-1, n_inner) if part == INNER else cut.swapaxes(1, 2).reshape(-1, n_outer)


def _carried(
    family: Family, groups: NDArray[np.int64], links: NDArray[np.int64], representative: NDArray[np.int64]
) -> dict[tuple[int, int, int], int]:
    """Return how many groups of a class one uplink of a class carries, by (class of groups, class of links, way)."""
    usage = family.usage
    classes = links[usage.link]
    chosen = representative[classes] == usage.link
    shape = (int(groups.max()) + 1, len(representative), BOTH_WAYS + 1)
    flat = np.ravel_multi_index((groups[usage.group[chosen]], classes[chosen], usage.way[chosen]), shape)
    found, counts = np.unique(flat, return_counts=True)
    keys = zip(*(column.tolist() for column in np.unravel_index(found, shape)), strict=True)
    return dict(zip(keys, counts.tolist(), strict=True))
