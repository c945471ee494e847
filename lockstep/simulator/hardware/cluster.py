"""The machine: devices, and the levels of links that join them from inside a card to the spine.

Level i joins `fanout` children into one domain; a child of level 0 is a device, a child of level i a domain of level
i - 1. Every child has one full-duplex uplink into its level. Ranks are laid out in order: rank r is device r.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.hardware.collectives import Link
from lockstep.simulator.hardware.products import Shape, Tiling, product_seconds

_SHARPNESS = 5.0
"""How sharply the longest of an operator's bounds rules: they join as a 5-norm. Of 3, 5 and 8 it meets the measured
products of tests/simulator/data/operators.csv (4.0, 3.1 and 3.0 % on A100) and vTrain's steps of one node (6.0, 5.8 and
5.8 % on 120 of the fitted half) well at once."""

OUT = 0
IN = 1
BOTH_WAYS = 2

_HEALTHY: Mapping[tuple[int, int], float] = {}
_FULL_SPEED: Mapping[int, float] = {}


def joined_seconds(*bounds_s: float) -> float:
    """Return how long takes what is bounded by each of `bounds_s`: about the longest."""
    return float(sum(bound_s**_SHARPNESS for bound_s in bounds_s) ** (1 / _SHARPNESS))


FLASH_1, FLASH_2, FLASH_3, FLASH_4 = (f"flash_attention_{version}" for version in (1, 2, 3, 4))
CUDNN, AITER = "cudnn", "aiter"
ATTENTION_KERNELS = (FLASH_1, FLASH_2, FLASH_3, FLASH_4, CUDNN, AITER)
"""Kernels of fused attention that a specification can name; each device has the speeds of those that are measured."""


@dataclass(frozen=True, slots=True)
class AttentionSpeed:
    """Speed of a kernel of fused attention, by the FLOPs that it executes, relative to that of a full wave."""

    kernel: str
    forward: float
    backward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator: peaks, and the few numbers for what operators get of them.

    An operator takes about the longest of its arithmetic and its memory traffic, each at its efficiency; the host needs
    `launch_s` to issue each, and goes ahead of the device. With a `tiling` products take the time of whole waves of
    tiles, of which `matrix_efficiency` is the share of the peak that a full one reaches; without, half of
    `matrix_efficiency` is reached by a product of `half_flops`: small ones fill a device badly. `grouped_fill` is that
    of a library's grouped products, if not the tiling's. `attention` has the speeds of kernels of fused attention,
    which share clocks and power with products, the usual kernel first; without any it is as fast as a full wave;
    `attention_ratio` is what it reaches of that, half of it with sequences of `attention_fill` tokens (of a device
    without `attention`). `optimizer_ratio` is the speed of an optimizer step relative to that of other operators with
    its traffic. `attention_kernel` names another one; `fp8_flops_per_second` is the peak of FP8 products, of which they
    reach `fp8_share` times what others reach of theirs, in backward `fp8_backward_share` of that, where libraries add
    in single precision. If `launch_blocking`, the host issues an operator when the one before has ended
    (CUDA_LAUNCH_BLOCKING=1), so that `launch_s` comes on top. `context_bytes` are what a process costs before it
    allocates, `communicator_bytes` the buffers of one communicator, `allocator_reserve_ratio` what the allocator holds
    beyond what comes and goes, `unusable_ratio` the share of the memory that the driver keeps. `overlap_factor` is
    Proteus's gamma: what computation and gradient communication each lose while both run.
    """

    name: str
    flops_per_second: float
    memory_bytes_per_second: float
    memory_bytes: float
    matrix_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    half_flops: float = 0.0
    launch_s: float = 0.0
    overlap_factor: float = 0.0
    tiling: Tiling | None = None
    grouped_fill: float | None = None
    attention: tuple[AttentionSpeed, ...] = ()
    attention_kernel: str | None = None
    attention_ratio: float = 1.0
    attention_fill: float = 0.0
    optimizer_ratio: float = 1.0
    fp8_flops_per_second: float | None = None
    fp8_share: float = 1.0
    fp8_backward_share: float = 1.0
    launch_blocking: bool = False
    context_bytes: float = 0.0
    communicator_bytes: float = 0.0
    allocator_reserve_ratio: float = 0.0
    unusable_ratio: float = 0.0

    @property
    def usable_memory_bytes(self) -> float:
        """What a process can get of the memory."""
        return self.memory_bytes * (1 - self.unusable_ratio)

    @property
    def reached_flops_per_second(self) -> float:
        """What large products reach of the peak."""
        return self.flops_per_second * self.matrix_efficiency

    @property
    def attention_speed(self) -> AttentionSpeed | None:
        """The speed of the kernel of fused attention; None where none is known of the device.

        Raises
        ------
        ConfigError
            `attention_kernel` is none of those that are known of the device.
        """
        if not self.attention or self.attention_kernel is None:
            return next(iter(self.attention), None)
        for speed in self.attention:
            if speed.kernel == self.attention_kernel:
                return speed
        known = ", ".join(speed.kernel for speed in self.attention)
        raise ConfigError(f"attention kernel of {self.name}: got {self.attention_kernel}, expected one of {known}")

    def arithmetic_seconds(self, flops: float, launches: float = 1.0, shapes: Sequence[Shape] = ()) -> float:
        """Return the time of `flops` that come as products of `shapes`, or as `launches` of unknown shape."""
        reached = self.reached_flops_per_second
        if shapes and self.tiling is not None:
            tiling = self.tiling
            if self.grouped_fill is not None:
                tiling = replace(tiling, grouped_fill=self.grouped_fill)
            return sum(product_seconds(shape, tiling, reached) for shape in shapes)
        return (flops + self.half_flops * launches * (flops > 0)) / reached

    def as_fp8(self, *, backward: bool = False) -> "Device":
        """Return the device with peak and efficiency of FP8 products, itself where it has none; tiles are the same."""
        if self.fp8_flops_per_second is None:
            return self
        efficiency = self.matrix_efficiency * self.fp8_share * (self.fp8_backward_share if backward else 1.0)
        return replace(self, flops_per_second=self.fp8_flops_per_second, matrix_efficiency=efficiency)

    def bound_seconds(self, arithmetic_s: float, moved_bytes: float, launches: float = 1.0) -> float:
        """Return the time of an operator that computes for `arithmetic_s` while it moves `moved_bytes`."""
        memory_s = self.memory_seconds(moved_bytes)
        return joined_seconds(arithmetic_s, memory_s, self.launch_s * launches)

    def memory_seconds(self, moved_bytes: float) -> float:
        """Return the time to move `moved_bytes` through the device's memory."""
        return moved_bytes / (self.memory_bytes_per_second * self.memory_efficiency)

    def occupied_share(self, multiprocessors: int | None) -> float:
        """Return the share of the device that a collective has to itself; if None, that of NCCL's collectives."""
        if multiprocessors is None or self.tiling is None:
            return self.overlap_factor / (1 + self.overlap_factor)
        return min(multiprocessors / self.tiling.multiprocessors, 1.0)

    def update_seconds(self, moved_bytes: float) -> float:
        """Return the time of an optimizer step whose traffic is `moved_bytes`, whatever the batch."""
        return self.bound_seconds(0.0, moved_bytes / self.optimizer_ratio)

    def seconds(self, flops: float, moved_bytes: float, launches: float = 1.0) -> float:
        """Return the time of an operator of `flops` of unknown shape that moves `moved_bytes`.

        One that comes as several products, as the backward pass of a linear layer does, has as many `launches`.
        """
        return self.bound_seconds(self.arithmetic_seconds(flops, launches), moved_bytes, launches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Links of one kind: `fanout` children, each with an uplink of `link`.

    `through` is true if traffic to the levels above passes these links as well (PCIe does, NVLink does not). `lanes` is
    the number of equal parts of an uplink of which a group's member in the child can use one: a node's network cards.
    `measured` replaces bandwidth and launch by group size, for groups inside one domain of this level: the correction
    factors of a measured fabric, as bytes a second on the bus. Of several links the one that is through first
    counts: libraries change their protocol with the size of a message. The ranks of a domain share its `cores` where
    they compute on a CPU; None where each has a device of its own.
    """

    name: str
    fanout: int
    link: Link
    through: bool = True
    lanes: int = 1
    measured: Mapping[int, tuple[Link, ...]] = field(default_factory=dict)
    cores: int | None = None

    def scaled(self, *, bandwidth: float = 1.0, latency: float = 1.0) -> "Level":
        """Return the level with bandwidths and latencies, the measured ones included, times these ratios."""
        if bandwidth == latency == 1.0:
            return self
        measured = {n: tuple(link.scaled(bandwidth, latency) for link in links) for n, links in self.measured.items()}
        return replace(self, link=self.link.scaled(bandwidth, latency), measured=measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Devices below levels of links, and what is wrong with them.

    `health` maps (level, child) to the share in (0, 1] of an uplink's bandwidth that is left, `speed` a rank to the
    share of its device's speed that is left. What is not named is whole.
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    health: Mapping[tuple[int, int], float] = field(default_factory=lambda: _HEALTHY)
    speed: Mapping[int, float] = field(default_factory=lambda: _FULL_SPEED)

    def __post_init__(self) -> None:
        for (level, child), share in self.health.items():
            if not (0 <= level < len(self.levels) and 0 <= child < self.size // self.child_size(level)):
                raise ConfigError(f"health of link {(level, child)} in {self.name}: no such link")
            _check_share(f"health of link {(level, child)} in {self.name}", share)
        for rank, share in self.speed.items():
            if not 0 <= rank < self.size:
                raise ConfigError(f"speed of rank {rank} in {self.name}: got {rank}, expected below {self.size}")
            _check_share(f"speed of rank {rank} in {self.name}", share)

    @property
    def size(self) -> int:
        """The number of devices."""
        return prod(level.fanout for level in self.levels)

    @property
    def shape(self) -> tuple[tuple[int, bool], ...]:
        """All that decides which links a group passes, healthy or not."""
        return tuple((level.fanout, level.through) for level in self.levels)

    def child_size(self, level: int) -> int:
        """Return how many devices are below one uplink of `level`."""
        return prod(below.fanout for below in self.levels[:level])

    def with_link(self, level: int, child: int, health: float) -> "Cluster":
        """Return the cluster with one uplink at `health`; 1.0 heals it."""
        return replace(self, health={**self.health, (level, child): health})

    def with_rank(self, rank: int, speed: float) -> "Cluster":
        """Return the cluster with one device at `speed`; 1.0 heals it."""
        return replace(self, speed={**self.speed, rank: speed})

    def core_share(self, ranks: int) -> float:
        """Return the share of a core that is least, in a job of so many ranks: 1 where each has a core or a device."""
        sizes = (self.child_size(index) * level.fanout for index, level in enumerate(self.levels))
        shares = (level.cores / min(size, ranks) for level, size in zip(self.levels, sizes, strict=True) if level.cores)
        return min(1.0, *shares, 1.0)

    def shared_by(self, ranks: int) -> "Cluster":
        """Return the cluster as a job of so many ranks has it: more ranks than cores compute and send in turn.

        The cores also copy and sum what ranks of one domain send each other, so that links inside it have the same
        share, and a rank that computes while it transfers wants two cores.
        """
        speed, health = dict(self.speed), dict(self.health)
        overlap_factor = self.device.overlap_factor
        for index, level in enumerate(self.levels):
            size = self.child_size(index) * level.fanout
            for first in range(0, ranks if level.cores else 0, size):
                members = range(first, min(first + size, ranks))
                cores = (level.cores or 0) / len(members)
                share = min(1.0, cores)
                if len(members) > 1:
                    overlap_factor = max(overlap_factor, share / min(1.0, cores / 2) - 1)
                for rank in members if share < 1 else ():
                    speed[rank] = speed.get(rank, 1.0) * share
                for child in {rank // self.child_size(index) for rank in members} if share < 1 else ():
                    health[index, child] = health.get((index, child), 1.0) * share
        if speed == self.speed and health == self.health and overlap_factor == self.device.overlap_factor:
            return self
        device = replace(self.device, overlap_factor=overlap_factor)
        return replace(self, device=device, health=health, speed=speed)

    def with_device(self, **changes: float | bool | str) -> "Cluster":
        """Return the cluster with other numbers of its device."""
        return replace(self, device=replace(self.device, **changes))  # type: ignore[arg-type]  # none is a name or tiling

    def links(self) -> "Links":
        """Return every uplink of the cluster, level by level."""
        counts = [self.size // self.child_size(index) for index in range(len(self.levels))]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        capacity = np.repeat([level.link.bytes_per_second for level in self.levels], counts)
        for (level, child), share in self.health.items():
            capacity[offsets[level] + child] *= share
        return Links(np.repeat(np.arange(len(counts)), counts), capacity, offsets)


@dataclass(frozen=True, slots=True)
class Links:
    """Uplinks: their level and capacity in bytes a second, arrays of shape (links,); level i begins at `offsets[i]`."""

    level: NDArray[np.int64]
    capacity: NDArray[np.float64]
    offsets: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Usage:
    """Which uplinks the groups of one group set pass: arrays of shape (uses,), sorted by group.

    `members` counts the group's members below the link, `beyond` those that they reach through it. `way` is BOTH_WAYS
    for collectives, which load both directions alike, OUT or IN for sends.
    """

    group: NDArray[np.int64]
    link: NDArray[np.int64]
    level: NDArray[np.int64]
    members: NDArray[np.int64]
    beyond: NDArray[np.int64]
    way: NDArray[np.int64]


def link_usage(cluster: Cluster, links: Links, groups: NDArray[np.int64]) -> Usage:
    """Return the uplinks that `groups`, of shape (groups, members) and ascending in each row, pass.

    A group passes a child's uplink if the child holds members that talk to others of the same domain, or, where links
    lead `through`, to any other.
    """
    parts = [_level_usage(cluster, links, groups, index) for index in range(len(cluster.levels))]
    joined = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    order = np.argsort(joined[0], kind="stable")
    return Usage(*(column[order] for column in joined))


def _level_usage(
    cluster: Cluster, links: Links, groups: NDArray[np.int64], index: int
) -> tuple[NDArray[np.int64], ...]:
    """Return `Usage`'s columns for one level."""
    n_groups, size = groups.shape
    level, child_size = cluster.levels[index], cluster.child_size(index)
    nothing = np.empty(0, dtype=np.int64)
    domain = groups // (child_size * level.fanout)
    if not level.through and (domain[:, 1:] != domain[:, :-1]).all():  # everyone by himself in his domain
        return (nothing,) * 6
    child = groups // child_size
    first = np.ones(groups.shape, dtype=bool)
    first[:, 1:] = child[:, 1:] != child[:, :-1]
    starts = np.flatnonzero(first.ravel())
    if len(starts) == n_groups:  # every group below one link: nothing leaves it
        return (nothing,) * 6
    members = np.diff(starts, append=n_groups * size)
    group = starts // size
    child = child.ravel()[starts]
    # Runs of (group, domain): members in the domain, to know which are reached through the link.
    key = group * (cluster.size // child_size // level.fanout + 1) + child // level.fanout
    new = np.flatnonzero(np.diff(key, prepend=-1))
    in_domain = np.repeat(np.add.reduceat(members, new), np.diff(new, append=len(key)))
    beyond = (size if level.through else in_domain) - members
    used = beyond > 0
    n_used = int(used.sum())
    return (
        group[used],
        child[used] + links.offsets[index],
        np.full(n_used, index, dtype=np.int64),
        members[used],
        beyond[used],
        np.full(n_used, BOTH_WAYS, dtype=np.int64),
    )


def _check_share(what: str, share: float) -> None:
    if not 0 < share <= 1:
        raise ConfigError(f"{what}: got {share}, expected a share in (0, 1]")
