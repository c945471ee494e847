"""Groups ranks by device type: only ranks with the same device do the same work at the same speed."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.analysis.merge import Refusal
from lockstep.analysis.rank import RankAnalysis

LOCALISATION = "localisation"
_NAMED_RANKS = 8


@dataclass(frozen=True, slots=True)
class DeviceType:
    """Ranks with devices of one type, in order; `name` is the device name in the traces, else its vendor."""

    name: str
    ranks: tuple[RankAnalysis, ...]

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the ranks' numbers."""
        return tuple(each.rank for each in self.ranks)


def device_types(ranks: Sequence[RankAnalysis]) -> list[DeviceType]:
    """Return the types, the one with most ranks first.

    The type is vendor and name of the rank's first device. Traces that name no device belong to the one type of their
    vendor that others name; where these name several, to a type of their own.
    """
    named: dict[str, set[str]] = defaultdict(set)
    for each in ranks:
        named[each.metadata.vendor].update(each.metadata.devices[:1])
    types: dict[tuple[str, str], list[RankAnalysis]] = defaultdict(list)
    for each in ranks:
        names = each.metadata.devices[:1] or tuple(named[each.metadata.vendor])
        types[each.metadata.vendor, names[0] if len(names) == 1 else ""].append(each)
    found = [
        DeviceType(name or vendor or "unknown device", tuple(sorted(mine, key=lambda each: each.rank)))
        for (vendor, name), mine in types.items()
    ]
    return sorted(found, key=lambda each: (-len(each.ranks), each.name))


def refusals_between(types: Sequence[DeviceType]) -> list[Refusal]:
    """Return, for each of several types, that its ranks were not compared with those of the others."""
    if len(types) < 2:  # noqa: PLR2004  (all ranks are alike)
        return []
    return [
        Refusal(
            rule=LOCALISATION,
            reason=f"ranks with {each.name} were compared with each other only: {_others(each, types)}",
            ranks=each.numbers,
        )
        for each in types
    ]


def _others(mine: DeviceType, types: Sequence[DeviceType]) -> str:
    known = []
    for each in types:
        if each is not mine:
            shown = ", ".join(map(str, each.numbers[:_NAMED_RANKS]))
            more = ", ..." if len(each.numbers) > _NAMED_RANKS else ""
            known.append(
                f"ranks {shown}{more} have {each.name}" if len(each.ranks) > 1 else f"rank {shown} has {each.name}"
            )
    return "; ".join(known)
