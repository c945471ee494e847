"""What fusing collectives with their neighbouring operators would save (SW-IntraCC, equations 9 to 11).

Unfused, the producer writes its part to memory and the consumer reads all parts from it; fused, both work directly on
the link's data. Sizes and groups come from the trace, the memory bandwidth from the vendor, the link bandwidth is the
best in the trace. Launches are left out, since the trace does not show their cost. An all-reduce counts as its two
halves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lockstep.contracts.finding import Finding, NotEvaluated
from lockstep.contracts.peaks import memory_bytes_per_second
from lockstep.diagnosis.communication_causes.collectives import RankCollectives, bus_factor
from lockstep.diagnosis.evidence import ms
from lockstep.simulator.hardware.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Link
from lockstep.simulator.hardware.intracard import fused_seconds, unfused_seconds

_HALVES = {ALL_GATHER: 1, REDUCE_SCATTER: 1, ALL_REDUCE: 2}
_GIGA = 1e9
_NS = 1e9

FusionFigures = tuple[RankCollectives, tuple[int, int], str]
"""A rank's collectives, its window in ns, and the name of its device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionSaving:
    """Saving in one rank's window: the collectives that can be fused, and their data movement before and after.

    Bandwidths are in bytes per second: of the device's memory, and of a link in one direction.
    """

    rank: int
    count: int
    unfused_s: float
    fused_s: float
    memory_bytes_per_second: float
    link_bytes_per_second: float

    @property
    def saved_ns(self) -> int:
        """Time that fusing saves, ns."""
        return round((self.unfused_s - self.fused_s) * _NS)


def fusion_saving(collectives: RankCollectives, window_ns: tuple[int, int], device: str) -> FusionSaving | None:
    """Return the saving of fusing the collectives in the window; None if sizes, memory or link bandwidth are unknown.

    The link bandwidth is the best bus bandwidth of these collectives: durations contain waiting, the best one least.
    """
    memory = memory_bytes_per_second(device)
    begin_ns, end_ns = window_ns
    inside = (collectives.start_ns >= begin_ns) & (collectives.start_ns < end_ns) & (collectives.duration_ns > 0)
    rows = [
        (kind, int(collectives.bytes[place]), collectives.group_sizes.get(collectives.groups[place], 0), place)
        for place in np.flatnonzero(inside & (collectives.bytes > 0)).tolist()
        if (kind := collectives.kinds[place]) in _HALVES
    ]
    rows = [row for row in rows if row[2] > 1]
    if memory is None or not rows:
        return None
    link = max(
        size * bus_factor(kind, n) / (int(collectives.duration_ns[place]) / _NS) for kind, size, n, place in rows
    )
    unfused_s = fused_s = 0.0
    for kind, size, n, _ in rows:
        figures = {"local_bytes_per_second": memory, "link": Link(bytes_per_second=link), "entities": n}
        unfused_s += _HALVES[kind] * unfused_seconds(size / n, **figures)  # type: ignore[arg-type]  # by their names
        fused_s += _HALVES[kind] * fused_seconds(size / n, **figures)  # type: ignore[arg-type]
    return FusionSaving(
        rank=collectives.rank,
        count=len(rows),
        unfused_s=unfused_s,
        fused_s=fused_s,
        memory_bytes_per_second=memory,
        link_bytes_per_second=link,
    )


def with_fusion_gain(
    found: list[Finding] | NotEvaluated, ranks: Sequence[FusionFigures]
) -> list[Finding] | NotEvaluated:
    """Add to findings about overlap what fusing would save, with the numbers of the rank where that is least."""
    if isinstance(found, NotEvaluated) or not found:
        return found
    savings = [saving for each in ranks if (saving := fusion_saving(*each)) is not None]
    if not savings:
        return found
    least = min(savings, key=lambda each: each.saved_ns)
    plural = "s" if least.count > 1 else ""
    sentence = (
        f"fusing {least.count} collective{plural} of rank {least.rank} with the operators next to them would take "
        f"{ms(least.saved_ns)} off {ms(least.unfused_s * _NS)} of data movement (memory at "
        f"{least.memory_bytes_per_second / _GIGA:.0f} GB/s, links at {least.link_bytes_per_second / _GIGA:.1f} GB/s)"
    )
    return [replace(each, fused_ns=least.saved_ns, evidence=(*each.evidence, sentence)) for each in found]
