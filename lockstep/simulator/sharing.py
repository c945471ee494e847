"""How concurrent flows share links: max-min fairness by progressive filling.

Groups that share a link get equal parts of it, and what one cannot use, because another link or its own protocol
holds it back, goes to the others (Proteus, section VI-C, assumes the equal parts).
"""

from collections.abc import Mapping, Sequence

from lockstep.simulator.fabric import Flow


def fair_rates(flows: Sequence[Flow], capacity: Sequence[float]) -> list[float]:
    """Return bytes a second for each of `flows`, on links of `capacity` bytes a second.

    All rates grow together until a link is full or a flow at its cap; what is held back stops, the others go on.
    """
    rates = [0.0] * len(flows)
    loads: dict[int, dict[int, float]] = {}
    for index, flow in enumerate(flows):
        for link, use in flow.uses:
            loads.setdefault(link, {})[index] = use
    left = {link: capacity[link] for link in loads}
    growing = set(range(len(flows)))
    while growing:
        level, stopped = _next_stop(flows, growing, loads, left)
        for index in stopped:
            rates[index] = level
            growing.discard(index)
            for link, use in flows[index].uses:
                left[link] -= use * level
                del loads[link][index]
    return rates


def _next_stop(
    flows: Sequence[Flow], growing: set[int], loads: Mapping[int, Mapping[int, float]], left: Mapping[int, float]
) -> tuple[float, set[int]]:
    """Return the rate at which the next flows stop growing, and which."""
    level = min(flows[index].cap for index in growing)
    stopped = {index for index in growing if flows[index].cap <= level}
    for link, users in loads.items():
        if not users:
            continue
        full = left[link] / sum(users.values())
        if full < level:
            level, stopped = full, set(users)
        elif full == level:
            stopped |= set(users)
    return level, stopped
