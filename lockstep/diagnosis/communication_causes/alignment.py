"""Matches the collectives of two ranks if no sequence number identifies them.

All ranks leave a collective at about the same time, so between two ranks the ends of all collectives differ by the
offset of their clocks (0 for a shared clock). Collectives of one kind and size keep their order; those of different
kinds or sizes may be swapped, and either trace may lack some. So each kind and size is aligned separately, on the
corrected clock; what remains of an uneven all-to-all, in which ranks have different sizes, is aligned by kind alone.

Ranks leave a collective with a root, such as a broadcast, at different times, up to a step apart. These are aligned by
order, between the others.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.communication_causes.collectives import ROOTED
from lockstep.simulator.hardware.collectives import ALL_TO_ALL

SHIFT_MAX = 64
"""Largest number of collectives by which one rank's capture may begin later than another's."""
LEAST_COMMON = 0.5
"""Share of the shorter capture's collectives that must have a partner."""
_LEAST_AGREEING = 0.15
"""The same for one shift of the whole order, without clocks: a missing or extra collective shifts all that follow."""
_CANDIDATES_MAX = 16
_LOOKED_AT = 512
"""Collectives used to find the clock offset: more add no information about a shift of at most `SHIFT_MAX`."""
_CLEARLY = 0.25
"""A shift is accepted if its ends scatter less than this share of every other's; steps are never exactly alike."""
_FEWER = 0.9
"""A shift that pairs less than this share of the best one's pairs is worse if its ends scatter more at all."""

Times = NDArray[np.int64]
Places = NDArray[np.int64]


Signature = tuple[str, int]


class CollectiveSequence(NamedTuple):
    """One rank's collectives of a group by start: kind and size of each, and their ends, int64 ns of shape (n,)."""

    signatures: Sequence[Signature]
    ends_ns: Times


class _Fit(NamedTuple):
    """A shift of one order against the other, the number of pairs, and the scatter of their ends."""

    shift: int
    pairs: int
    scatter_ns: float
    apart_ns: int


def align(one: CollectiveSequence, other: CollectiveSequence, *, shared: bool) -> dict[int, int] | None:
    """Map places of `other` to the places of `one` that are the same collective; None if the match is ambiguous.

    With a `shared` clock, ends are compared directly. Less than `LEAST_COMMON` of the shorter side matched is no match.
    """
    apart_ns = 0 if shared else clock_difference_ns(one, other)
    if apart_ns is None:
        return None
    found = _pairs(one, other, apart_ns)
    return found if len(found) >= _least(one, other) else None


def clock_difference_ns(one: CollectiveSequence, other: CollectiveSequence) -> int | None:
    """Return how far the clock of `one` is ahead of that of `other`, ns; None if several answers fit equally well.

    Tries shifts of one order against the other, starting with those at which most kinds and sizes agree. The accepted
    shift is the one whose ends scatter clearly least; failing that, no shift if both captures have equal length, or the
    only shift that fits.
    """
    is_even = len(one.signatures) == len(other.signatures)
    if len(_met(one)) and len(_met(other)):
        one, other = _only(one, _met(one)), _only(other, _met(other))
    one, other = (CollectiveSequence(each.signatures[:_LOOKED_AT], each.ends_ns[:_LOOKED_AT]) for each in (one, other))
    found: dict[int, _Fit] = {}
    for shift, apart_ns in _likely_shifts(one, other):
        refined_ns = apart_ns
        residual_ns = np.zeros(0, np.int64)
        for _ in range(2):  # the first median includes places that do not match
            refined_ns += int(np.median(residual_ns)) if len(residual_ns) else 0
            pairs = _pairs(one, other, refined_ns)
            theirs, mine = np.array(list(pairs), np.int64), np.array(list(pairs.values()), np.int64)
            residual_ns = one.ends_ns[mine] - other.ends_ns[theirs] - refined_ns
        if len(pairs) >= _least(one, other):
            found[shift] = _Fit(shift, len(pairs), float(np.median(np.abs(residual_ns))), refined_ns)
    return _chosen(found, is_even=is_even)


def _likely_shifts(one: CollectiveSequence, other: CollectiveSequence) -> list[tuple[int, int]]:
    """Return shifts and the clock offset at each, those at which most kinds and sizes agree first."""
    codes: dict[Signature, int] = {}
    mine, theirs = (
        np.array([codes.setdefault(each, len(codes)) for each in side.signatures], np.int64) for side in (one, other)
    )
    agreeing: list[tuple[int, int, int]] = []
    for shift in range(-SHIFT_MAX, SHIFT_MAX + 1):
        begin, end = max(shift, 0), min(len(mine), len(theirs) + shift)
        if end - begin < _least(one, other):
            continue
        same = np.flatnonzero(mine[begin:end] == theirs[begin - shift : end - shift])
        if len(same) >= _LEAST_AGREEING * (end - begin):
            apart_ns = one.ends_ns[begin + same] - other.ends_ns[begin - shift + same]
            agreeing.append((len(same), shift, _densest(apart_ns)))
    agreeing.sort(key=lambda each: (-each[0], abs(each[1])))
    return [(shift, apart_ns) for _, shift, apart_ns in agreeing[:_CANDIDATES_MAX]]


def _densest(values: Times) -> int:
    """Return the middle of the shortest interval with a third of the values; values outside have wrong partners."""
    ordered = np.sort(values)
    count = max(-(-len(ordered) // 3), 1)
    at = int((ordered[count - 1 :] - ordered[: len(ordered) - count + 1]).argmin())
    return int(ordered[at + count // 2])


def _chosen(found: dict[int, _Fit], *, is_even: bool) -> int | None:
    if not found:
        return None
    best = min(found.values(), key=lambda each: (each.scatter_ns, abs(each.shift)))
    others = (each for each in found.values() if abs(each.apart_ns - best.apart_ns) > 2 * best.scatter_ns)
    if all(_is_clearly_better(best, each) for each in others):
        return best.apart_ns
    return found[0].apart_ns if is_even and 0 in found else None


def _is_clearly_better(best: _Fit, other: _Fit) -> bool:
    fewer = other.pairs < _FEWER * best.pairs and other.scatter_ns > best.scatter_ns
    return fewer or best.scatter_ns < _CLEARLY * other.scatter_ns


def _least(one: CollectiveSequence, other: CollectiveSequence) -> float:
    return max(LEAST_COMMON * min(len(one.signatures), len(other.signatures)), 1)


def _pairs(one: CollectiveSequence, other: CollectiveSequence, apart_ns: int) -> dict[int, int]:
    """Map places of `other` to those of `one`, given how far the clock of `one` is ahead."""
    moved = other._replace(ends_ns=other.ends_ns + apart_ns)
    found = _laid_side_by_side(one, moved, _met(one), _met(other), _whole)
    taken = set(found.values())
    mine = [at for at, (kind, _) in enumerate(one.signatures) if kind == ALL_TO_ALL and at not in taken]
    theirs = [at for at, (kind, _) in enumerate(other.signatures) if kind == ALL_TO_ALL and at not in found]
    found |= _laid_side_by_side(one, moved, mine, theirs, _kind)
    return found | _laid_between(one, moved, found)


def _met(side: CollectiveSequence) -> list[int]:
    """Return the places of collectives that all ranks leave together."""
    return [at for at, (kind, _) in enumerate(side.signatures) if kind not in ROOTED]


def _only(side: CollectiveSequence, places: Sequence[int]) -> CollectiveSequence:
    return CollectiveSequence([side.signatures[at] for at in places], side.ends_ns[list(places)])


def _laid_between(one: CollectiveSequence, other: CollectiveSequence, met: dict[int, int]) -> dict[int, int]:
    """Map rooted collectives of `other` to those of `one` between the same matched ones, in order.

    By their ends if nothing was matched.
    """
    mine, theirs = (sorted(set(range(len(side.signatures))).difference(_met(side))) for side in (one, other))
    if not met:
        return _laid_side_by_side(one, other, mine, theirs, _whole)
    ours = _by_interval(one, mine, sorted(met.values()))
    found: dict[int, int] = {}
    for interval, places in _by_interval(other, theirs, sorted(met)).items():
        if interval in ours:
            pairs = _in_order(one.ends_ns, np.array(ours[interval]), other.ends_ns, np.array(places))
            found.update((theirs_at, ours_at) for ours_at, theirs_at in pairs)
    return found


def _by_interval(
    side: CollectiveSequence, places: Iterable[int], met: Sequence[int]
) -> dict[tuple[Signature, int], list[int]]:
    """Return places by kind and size and by how many of `met` lie before them."""
    found: dict[tuple[Signature, int], list[int]] = defaultdict(list)
    for place in places:
        found[side.signatures[place], bisect_left(met, place)].append(place)
    return found


def _whole(signature: Signature) -> Hashable:
    return signature


def _kind(signature: Signature) -> Hashable:
    return signature[0]


def _laid_side_by_side(
    one: CollectiveSequence,
    other: CollectiveSequence,
    mine: Iterable[int],
    theirs: Iterable[int],
    key: Callable[[Signature], Hashable],
) -> dict[int, int]:
    """Map these places of `other` to those of `one` with equal `key` that end at the same time."""
    ours = _by_key(one, mine, key)
    found: dict[int, int] = {}
    for signature, places in _by_key(other, theirs, key).items():
        if signature in ours:
            own = ours[signature]
            pairs = _paired(one.ends_ns[own], other.ends_ns[places], _spacing_ns(one, own, other, places))
            found.update((int(places[theirs_at]), int(own[ours_at])) for ours_at, theirs_at in pairs)
    return found


def _by_key(
    side: CollectiveSequence, among: Iterable[int], key: Callable[[Signature], Hashable]
) -> dict[Hashable, Places]:
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place in among:
        places[key(side.signatures[place])].append(place)
    return {signature: np.array(each, np.int64) for signature, each in places.items()}


def _spacing_ns(one: CollectiveSequence, mine: Places, other: CollectiveSequence, theirs: Places) -> float:
    """Return the mean time between collectives of one signature, between all of the group where there is one each."""
    ends = max((one.ends_ns[mine], other.ends_ns[theirs]), key=len)
    if len(ends) < 2:  # noqa: PLR2004  (one has no spacing)
        ends = max((one.ends_ns, other.ends_ns), key=len)
    return float(ends.max() - ends.min()) / max(len(ends) - 1, 1)


def _paired(mine_ns: Times, theirs_ns: Times, spacing_ns: float) -> list[tuple[int, int]]:
    """Return pairs of places that end at the same time: ends closer than half a spacing form one cluster.

    Within a cluster the order decides; surplus events of one side are dropped at the ends, where the fit is best.
    """
    time_ns = np.concatenate((mine_ns, theirs_ns))
    side = np.repeat((0, 1), (len(mine_ns), len(theirs_ns)))
    place = np.concatenate((np.arange(len(mine_ns)), np.arange(len(theirs_ns))))
    order = np.argsort(time_ns, kind="stable")
    bounds = np.flatnonzero(2 * np.diff(time_ns[order]) > spacing_ns) + 1
    pairs: list[tuple[int, int]] = []
    for cluster in np.split(order, bounds):
        ours, theirs = (np.sort(place[cluster[side[cluster] == each]]) for each in (0, 1))
        if len(ours) and len(theirs):
            pairs += _in_order(mine_ns, ours, theirs_ns, theirs)
    return pairs


def _in_order(mine_ns: Times, ours: Places, theirs_ns: Times, theirs: Places) -> list[tuple[int, int]]:
    count = min(len(ours), len(theirs))
    shifts = range(abs(len(ours) - len(theirs)) + 1)

    def cut(shift: int) -> tuple[Places, Places]:
        if len(ours) > len(theirs):
            return ours[shift : shift + count], theirs
        return ours, theirs[shift : shift + count]

    def apart_ns(shift: int) -> float:
        one, other = cut(shift)
        return float(np.abs(mine_ns[one] - theirs_ns[other]).sum())

    one, other = cut(min(shifts, key=apart_ns))
    return list(zip(one.tolist(), other.tolist(), strict=True))
