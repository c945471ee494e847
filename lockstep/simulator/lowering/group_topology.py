"""Groups of ranks on the cluster's links: shared links, and the contention-free speed of collectives.

Every uplink is two links, out and in, with the same capacity. Collectives use both alike, sends one at each end. A
link's class is twice the class of its uplink, plus OUT or IN.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.hardware.cluster import IN, OUT, Cluster, Device, Level, link_usage
from lockstep.simulator.hardware.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    HIERARCHICAL,
    REDUCE_SCATTER,
    Link,
)
from lockstep.simulator.hardware.symmetry import GroupSet, Partition
from lockstep.simulator.lowering.link_model import LinkModel, Phase
from lockstep.simulator.models.model import Routing
from lockstep.simulator.strategy.mesh import Mesh, MeshAxis
from lockstep.simulator.strategy.placement import Transfer

FULL_GROUP = "whole"
INNER = "inner"
OUTER = "outer"

_NO_DEVICE = Device(name="", flops_per_second=1.0, memory_bytes_per_second=1.0, memory_bytes=1.0)


class GroupTopology:
    """The group sets of groups that a job uses on a cluster. Grows while the job is compiled, then makes a link model.

    Meshes of one shape share their group sets, so that stages that are alike cost what one costs.
    """

    def __init__(
        self,
        cluster: Cluster,
        algorithms: Mapping[str, str],
        meshes: Iterable[Mesh],
        *,
        routing: Routing | None = None,
    ) -> None:
        self.cluster = cluster
        self._routing = routing
        self._meshes = list(meshes)
        self.group_sets: list[GroupSet] = []
        self._links = cluster.links()
        self._algorithms = algorithms
        self._index: dict[object, int] = {}
        self._axes: dict[int, frozenset[str]] = {}
        self._phases: dict[tuple[Transfer, tuple[MeshAxis, ...]], list[Phase]] = {}

    def on(self, cluster: Cluster) -> "GroupTopology":
        """Return the same group sets on a cluster of the same shape, whose links have other health."""
        other = GroupTopology(cluster, self._algorithms, self._meshes, routing=self._routing)
        other.group_sets = list(self.group_sets)
        return other

    @property
    def capacity(self) -> NDArray[np.float64]:
        """Capacity of every uplink in either direction, bytes a second."""
        return self._links.capacity

    def axes_of(self, group_set: int) -> frozenset[str]:
        """Return the mesh axes along which a group set's groups run; none of a group set of sends."""
        return self._axes.get(group_set, frozenset())

    def phases(self, transfer: Transfer, mesh: Mesh) -> list[Phase]:
        """Return the collectives that perform `transfer` one after the other, by the algorithm of its kind."""
        key = (transfer, mesh.axes)
        if key not in self._phases:
            self._phases[key] = self._divide(transfer, mesh)
        return self._phases[key]

    def _divide(self, transfer: Transfer, mesh: Mesh) -> list[Phase]:
        if transfer.kind == ALL_REDUCE and self._algorithms.get(ALL_REDUCE) == HIERARCHICAL:
            # Groups of one rank pass no link, and none of those may be entered.
            n_inner, n_outer = (
                self._build_group_set(mesh, transfer.axes, part).groups.shape[1] for part in (INNER, OUTER)
            )
            if n_inner > 1 and n_outer > 1:
                inner, outer = (self._group_set(mesh, transfer.axes, part) for part in (INNER, OUTER))
                return [
                    Phase(REDUCE_SCATTER, inner, transfer.volume_bytes),
                    Phase(ALL_REDUCE, outer, transfer.volume_bytes / n_inner),
                    Phase(ALL_GATHER, inner, transfer.volume_bytes),
                ]
        return [Phase(transfer.kind, self._group_set(mesh, transfer.axes, FULL_GROUP), transfer.volume_bytes)]

    def sends(self, pairs: Sequence[tuple[Mesh, Mesh]]) -> list[int]:
        """Return for each pair of meshes the group set in which ranks of the first send to counterparts in the second.

        Pairs share a group set as long as no rank in it sends to two or is sent to by two.
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
        self.group_sets += [_sending(shape, tuple(ways), tuple(ways.values())) for ways in shared]
        return [number + len(self.group_sets) - len(shared) for number in found]

    def _group_set(self, mesh: Mesh, axes: frozenset[str], part: str) -> int:
        """Return the number of a group set, entered where it is not yet."""
        key = (mesh.axes, axes, part)
        if key not in self._index:
            self._index[key] = len(self.group_sets)
            self._axes[len(self.group_sets)] = axes
            self.group_sets.append(self._build_group_set(mesh, axes, part))
        return self._index[key]

    def _build_group_set(self, mesh: Mesh, axes: frozenset[str], part: str) -> GroupSet:
        """Return a group set, not entered."""
        alike = tuple(other for other in self._meshes if other.axes == mesh.axes)
        return _collective(self.cluster.shape, alike, axes, part)

    def link_model(self, partition: Partition) -> LinkModel:
        """Return the classes of `partition` on the links; no group set may be added afterwards."""
        return LinkModel(
            self.cluster, self._algorithms, self.group_sets, partition, self.capacity, routing=self._routing
        )


def clear_cache() -> None:
    """Clear the cached groups, as in a new process."""
    _collective.cache_clear()
    _sending.cache_clear()


def _bare(shape: tuple[tuple[int, bool], ...]) -> Cluster:
    levels = (Level(name="", fanout=n, link=Link(bytes_per_second=1.0), through=through) for n, through in shape)
    return Cluster(name="", device=_NO_DEVICE, levels=tuple(levels))


# What-ifs ask for the same groups again and again; a group set of ten thousand ranks takes about a megabyte.
@lru_cache(maxsize=32)
def _collective(
    shape: tuple[tuple[int, bool], ...], meshes: tuple[Mesh, ...], axes: frozenset[str], part: str
) -> GroupSet:
    cluster = _bare(shape)
    groups = np.concatenate([mesh.groups(axes) for mesh in meshes])
    if part != FULL_GROUP:
        groups = _divided(groups, part, cluster.levels[0].fanout)
    return GroupSet(groups, link_usage(cluster, cluster.links(), groups), directed=False)


@lru_cache(maxsize=32)
def _sending(shape: tuple[tuple[int, bool], ...], senders: tuple[Mesh, ...], receivers: tuple[Mesh, ...]) -> GroupSet:
    if senders[0].first > receivers[0].first:  # the way back passes the same links the other way
        there = _sending(shape, receivers, senders)
        usage = replace(there.usage, way=np.where(there.usage.way == OUT, IN, OUT))
        return GroupSet(np.ascontiguousarray(there.groups[:, ::-1]), usage, directed=True)
    cluster = _bare(shape)
    links = cluster.links()
    columns = [np.concatenate([mesh.ranks() for mesh in end]) for end in (senders, receivers)]
    groups = np.stack(columns, axis=1)
    usage = link_usage(cluster, links, np.sort(groups, axis=1))
    # A link below which the sender sits carries outwards, the others inwards.
    sizes = np.array([cluster.child_size(index) for index in range(len(cluster.levels))])
    home = groups[usage.group, 0] // sizes[usage.level] + links.offsets[usage.level]
    return GroupSet(groups, replace(usage, way=np.where(home == usage.link, OUT, IN)), directed=True)


def _divided(groups: NDArray[np.int64], part: str, fanout: int) -> NDArray[np.int64]:
    """Return the groups inside the domains of level 0, or those of counterparts between them."""
    domain = groups // fanout
    n_outer = int((np.diff(domain, axis=1) > 0).sum(axis=1).max()) + 1
    n_inner = groups.shape[1] // n_outer
    is_even = n_inner * n_outer == groups.shape[1]
    if is_even:
        shaped = domain.reshape(len(groups), n_outer, n_inner)
        is_even = bool((shaped == shaped[..., :1]).all())
    if not is_even:
        raise ConfigError(f"hierarchical all-reduce of {groups[0].tolist()}: got domains of unequal parts")
    cut = groups.reshape(len(groups), n_outer, n_inner)
    return cut.reshape(-1, n_inner) if part == INNER else cut.swapaxes(1, 2).reshape(-1, n_outer)
