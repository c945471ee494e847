"""Finds ranks, groups and links that behave alike, so that one of each represents all.

Colour refinement finds the coarsest partition in which ranks of one class have the same program and speed and sit in
groups of the same classes, groups of one class have members and links of the same classes, and links of one class
have the same capacity and carry the same groups. Nothing that happens in a step distinguishes members of one class,
so simulating the classes is simulating all ranks (tests hold it against the partition that collapses nothing).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.hardware.cluster import Usage

_Hashes = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # increment and factors of splitmix64 (Steele et al. 2014)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))

_RECEIVES = np.uint64(1)
"""What distinguishes the receiver of a directed group from its sender."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupSet:
    """Groups that perform the same collectives: ranks by group, and the links that they pass. Compared by identity.

    `groups` has shape (groups, members), each rank at most once. In a `directed` group set the first member sends to
    the second, a rank at most once each; in others members are alike.
    """

    groups: NDArray[np.int64]
    usage: Usage
    directed: bool


@dataclass(frozen=True, slots=True)
class Partition:
    """Class of every rank, of every group by group set, and of every uplink: arrays of class numbers from 0 on.

    Ranks and links that no group set touches are in classes of their own kind and capacity.
    """

    ranks: NDArray[np.int64]
    groups: tuple[NDArray[np.int64], ...]
    links: NDArray[np.int64]


def no_collapse(n_ranks: int, group_sets: Sequence[GroupSet], n_links: int) -> Partition:
    """Return the partition in which every rank, group and link is a class of its own."""
    return Partition(np.arange(n_ranks), tuple(np.arange(len(f.groups)) for f in group_sets), np.arange(n_links))


def collapse(rank_kinds: NDArray[np.int64], group_sets: Sequence[GroupSet], capacity: NDArray[np.float64]) -> Partition:
    """Return the coarsest partition that gives the same step as none.

    `rank_kinds` numbers program and speed of each rank; `capacity` is that of each link, in bytes a second. The last
    few answers are kept: what-ifs that change no group, link or speed have the same.
    """
    kinds = np.ascontiguousarray(rank_kinds, dtype=np.int64)
    return _collapse(kinds.tobytes(), tuple(group_sets), np.ascontiguousarray(capacity, dtype=np.float64).tobytes())


def clear_cache() -> None:
    """Clear the cached partitions, as in a new process."""
    _collapse.cache_clear()
    _uses.cache_clear()


@lru_cache(maxsize=16)
def _collapse(kinds: bytes, group_sets: tuple[GroupSet, ...], capacities: bytes) -> Partition:
    rank_kinds, capacity = np.frombuffer(kinds, dtype=np.int64), np.frombuffer(capacities, dtype=np.float64)
    ranks = _mix(rank_kinds.astype(np.uint64))
    untouched = _mix(capacity.view(np.uint64))
    if not group_sets:
        return Partition(_numbers(ranks), (), _numbers(untouched))
    uses = _uses(group_sets)
    links = untouched[uses.touched]  # mixed, as every hash that meets a factor must be
    classes = (0, 0)
    while True:
        groups = _group_hashes(group_sets, ranks, links, uses)
        ranks = _rank_hashes(group_sets, ranks, groups)
        links = _mix(links + uses.by_link(np.concatenate(groups)[uses.group] * uses.factor))
        found = (len(_distinct(ranks)), len(_distinct(links)))
        if found == classes:
            break
        classes = found
    untouched[uses.touched] = links
    return Partition(_numbers(ranks), tuple(_numbers(hashes) for hashes in groups), _numbers(untouched))


class _Uses:
    """The uses of links by all groups of all group sets, numbered through, and their sums by group and by link."""

    def __init__(self, group_sets: Sequence[GroupSet]) -> None:
        sizes = [len(group_set.groups) for group_set in group_sets]
        offsets = np.cumsum(sizes) - sizes
        self.group = np.concatenate([f.usage.group + offset for f, offset in zip(group_sets, offsets, strict=True)])
        passed = np.concatenate([group_set.usage.link for group_set in group_sets])
        is_touched = np.zeros(int(passed.max()) + 1, dtype=bool)
        is_touched[passed] = True
        self.touched = np.flatnonzero(is_touched)
        self.link = (np.cumsum(is_touched) - 1)[passed]
        # Odd factors made of what a group does with a link: as good as mixing both, at a tenth of the cost.
        self.factor = _mix(np.concatenate([_shape(group_set.usage) for group_set in group_sets])) | np.uint64(1)
        self._bounds = np.cumsum(sizes)[:-1]
        self._group_starts = np.flatnonzero(_is_new(self.group))

    def by_group(self, values: _Hashes) -> list[_Hashes]:
        """Return the sums of the uses of each group, by group set; every group passes a link."""
        return np.split(np.add.reduceat(values, self._group_starts), self._bounds)

    def by_link(self, values: _Hashes) -> _Hashes:
        """Return the sums of the uses of each link that is touched."""
        total = np.zeros(len(self.touched), dtype=np.uint64)
        np.add.at(total, self.link, values)
        return total


@lru_cache(maxsize=16)
def _uses(group_sets: tuple[GroupSet, ...]) -> _Uses:
    """Return the uses of links, which health does not change."""
    return _Uses(group_sets)


def _group_hashes(group_sets: Sequence[GroupSet], ranks: _Hashes, links: _Hashes, uses: _Uses) -> list[_Hashes]:
    """Return a hash of each group: of its members' and of its links' with the use it makes of them."""
    mixed = _mix(ranks)
    loads = uses.by_group(links[uses.link] * uses.factor)
    found = []
    for index, (group_set, load) in enumerate(zip(group_sets, loads, strict=True)):
        if group_set.directed:
            sender, receiver = group_set.groups.T
            members = _mix(mixed)[sender] + _mix(mixed + _RECEIVES)[receiver]
        else:
            members = mixed[group_set.groups].sum(axis=1, dtype=np.uint64)
        found.append(_mix(members + load + np.uint64(index)))
    return found


def _rank_hashes(group_sets: Sequence[GroupSet], ranks: _Hashes, groups: list[_Hashes]) -> _Hashes:
    """Return new hashes of ranks: the old ones and those of their groups, with the place in a directed one."""
    ranks = ranks.copy()
    for group_set, hashes in zip(group_sets, groups, strict=True):
        if group_set.directed:
            sender, receiver = group_set.groups.T
            ranks[sender] += _mix(hashes)
            ranks[receiver] += _mix(hashes + _RECEIVES)
        else:
            ranks[group_set.groups.ravel()] += np.repeat(hashes, group_set.groups.shape[1])
    return _mix(ranks)


def _shape(usage: Usage) -> _Hashes:
    """Return what a group does with a link, as one number."""
    return ((usage.way << 60) + (usage.members << 30) + usage.beyond).astype(np.uint64)


def _distinct(hashes: _Hashes) -> _Hashes:
    """Return the values that there are, in order; a tenth of the cost of `np.unique`, which hashes them once more."""
    ordered = np.sort(hashes)
    return ordered[_is_new(ordered)]


def _is_new(ordered: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Return where a value differs from the one before."""
    new = np.ones(len(ordered), dtype=bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return new


def _numbers(hashes: _Hashes) -> NDArray[np.int64]:
    """Return class numbers in the order in which classes first appear."""
    place = np.searchsorted(_distinct(hashes), hashes)
    first = np.empty(int(place.max()) + 1, dtype=np.int64)
    first[place[::-1]] = np.arange(len(hashes))[::-1]
    number = np.empty_like(first)
    number[np.argsort(first)] = np.arange(len(first))
    return number[place]


def _mix(values: _Hashes) -> _Hashes:
    """Return splitmix64 of each value: equal for equal values, and for others only by an accident of 2**-64."""
    mixed = np.asarray(values + _GOLDEN, dtype=np.uint64)
    shifted = np.empty_like(mixed)
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        mixed ^= np.right_shift(mixed, shift, out=shifted)
        mixed *= factor
    mixed ^= np.right_shift(mixed, _SHIFTS[2], out=shifted)
    return mixed
