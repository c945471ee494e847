"""How concurrent flows share links: max-min fairness by progressive filling.

Groups that share a link get equal parts of it. Capacity that one cannot use, because another link or its own protocol
limits it, goes to the others (Proteus, section VI-C, assumes equal parts).
"""

from collections.abc import Iterator, Mapping, Sequence

from lockstep.simulator.lowering.link_model import Flow

_Use = tuple[int, float]
"""A link, or a flow on a link, and the bytes that pass the link per byte of the flow."""


class FlowRates:
    """The flows that are on the links now, and their rates, bytes per second.

    Flows are numbers, and sets of them the bits of an integer. The same few flows meet again for every bucket, so rates
    are cached by the set of those that share links, directly or through others. `rates` is read-only.
    """

    def __init__(self, flows: Sequence[Flow], capacity: Sequence[float]) -> None:
        passing: dict[int, int] = {}
        for number, flow in enumerate(flows):
            for link, _ in flow.uses:
                passing[link] = passing.get(link, 0) | 1 << number
        self.rates = [flow.alone for flow in flows]
        self._alone, self._capacity = list(self.rates), capacity
        self._whole = [flow.uses for flow in flows]
        self._near = [0] * len(flows)
        for number, flow in enumerate(flows):
            for link, _ in flow.uses:
                self._near[number] |= passing[link]
        is_met = {link: bool(passed & (passed - 1)) for link, passed in passing.items()}
        self._uses = [tuple(use for use in flow.uses if is_met[use[0]]) for flow in flows]
        self._here = 0
        self._counts = [0] * len(flows)
        self._n_repeated = 0
        self._fair: dict[object, list[tuple[int, float]]] = {}

    def enter(self, number: int) -> Sequence[int]:
        """Put a flow on its links, maybe once more; return the flows whose rates have changed."""
        met = self._near[number] & self._here
        self._counts[number] += 1
        self._n_repeated += self._counts[number] == 2  # noqa: PLR2004 - the second time
        self._here |= 1 << number
        if met:
            return self._settle(met | 1 << number)
        self.rates[number] = self._alone[number]
        return ()

    def leave(self, number: int) -> Sequence[int]:
        """Take a flow off its links; return the flows whose rates have changed."""
        self._counts[number] -= 1
        if self._counts[number]:
            self._n_repeated -= self._counts[number] == 1
        else:
            self._here ^= 1 << number
        left = self._near[number] & self._here
        return self._settle(left) if left else ()

    def _settle(self, fresh: int) -> list[int]:
        """Share the links of all flows that are connected with these again."""
        found, near, here = 0, self._near, self._here
        while fresh:
            found |= fresh
            reached = 0
            while fresh:  # as in `_numbers`, which costs twice as much
                lowest = fresh & -fresh
                reached |= near[lowest.bit_length() - 1]
                fresh ^= lowest
            fresh = reached & here & ~found
        key: object = found
        if self._n_repeated:
            key = (found, *(self._counts[number] for number in _numbers(found)))
        if key not in self._fair:
            self._fair[key] = self._rates_of(found)
        rates, changed = self.rates, []
        for number, rate in self._fair[key]:
            if rates[number] != rate:
                rates[number] = rate
                changed.append(number)
        return changed

    def _rates_of(self, found: int) -> list[tuple[int, float]]:
        numbers = [number for number in _numbers(found) for _ in range(self._counts[number])]
        if len(numbers) == 1:
            return [(numbers[0], self._alone[numbers[0]])]
        caps = [self._alone[number] for number in numbers]
        # A flow that is there twice meets itself on every link.
        uses = [(self._uses if self._counts[number] == 1 else self._whole)[number] for number in numbers]
        return list(dict(zip(numbers, _fill(caps, uses, self._capacity), strict=True)).items())


def _numbers(bits: int) -> Iterator[int]:
    """Yield the places of the bits that are set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def fair_rates(flows: Sequence[Flow], capacity: Sequence[float]) -> list[float]:
    """Return bytes a second for each of `flows`, on links of `capacity` bytes a second.

    All rates grow together until a link is full or a flow at its cap; what is held back stops, the others go on.
    """
    alone = [min([flow.cap, *(capacity[link] / use for link, use in flow.uses)]) for flow in flows]
    return _fill(alone, [flow.uses for flow in flows], capacity)


def _fill(caps: Sequence[float], uses: Sequence[Sequence[_Use]], capacity: Sequence[float]) -> list[float]:
    """Return the rates of flows with `caps`, which are within what each has of its links alone, by their `uses`."""
    users: dict[int, list[_Use]] = {}
    for index, passed in enumerate(uses):
        for link, use in passed:
            users.setdefault(link, []).append((index, use))
    # Links of one flow hold no other back; of those that are passed alike, both ways mostly, the narrowest counts.
    left: dict[tuple[_Use, ...], float] = {}
    for link, those in users.items():
        if len(those) > 1:
            key = tuple(those)
            left[key] = min(left.get(key, capacity[link]), capacity[link])
    rates = [0.0] * len(caps)
    growing = set(range(len(caps)))
    while growing:
        level, stopped = _next_stop(caps, growing, left)
        growing -= stopped
        for index in stopped:
            rates[index] = level
        for passing in left:
            left[passing] -= level * sum(use for index, use in passing if index in stopped)
    return rates


def _next_stop(
    caps: Sequence[float], growing: set[int], left: Mapping[tuple[_Use, ...], float]
) -> tuple[float, set[int]]:
    """Return the rate at which the next flows stop growing, and which."""
    level = min(caps[index] for index in growing)
    stopped = {index for index in growing if caps[index] <= level}
    for passing, rest in left.items():
        load = sum(use for index, use in passing if index in growing)
        if not load:
            continue
        full = rest / load
        if full < level:
            level, stopped = full, {index for index, _ in passing if index in growing}
        elif full == level:
            stopped |= {index for index, _ in passing if index in growing}
    return level, stopped
