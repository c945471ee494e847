"""Computation and communication that alternate where they could overlap (Hermes, section 4.2.1)."""

from collections.abc import Mapping, Sequence
from statistics import median
from types import MappingProxyType

from lockstep.contracts.finding import MEDIUM, PARALLEL, Finding, NotEvaluated
from lockstep.diagnosis.evidence import ms
from lockstep.diagnosis.threshold import Threshold
from lockstep.trace.step_breakdown import Breakdown

POOR_OVERLAP = "poor_overlap"

OVERLAP_RATIO = Threshold(
    0.05,
    "ratio",
    "Hermes calls 2.66 % (section 5.2.1) and 38.1 of 890.9 ms, 4.3 % (appendix D), of a step a bottleneck, "
    "8.76 % and 11.19 % sufficient",
)
"""Overlap of computation and communication, as a share of the step, below which they count as alternating."""
WORTH_RATIO = Threshold(0.05, "ratio", "detection's floor: a step that is 5 % longer is worth an alert")
"""Largest share of the step that hiding one behind the other could save."""


def find_poor_overlap(
    by_rank: Mapping[int, Breakdown],
    transmission_ns: Mapping[int, int] = MappingProxyType({}),
    steps: Mapping[int, Sequence[Breakdown]] = MappingProxyType({}),
) -> list[Finding] | NotEvaluated:
    """Return whether computation and communication of the captured ranks alternate.

    The time that could be hidden is the shorter of the two exclusive times, on the rank where that is least. Overlap
    does not hide waiting for other ranks: `transmission_ns` is the time of a rank's collectives without it, by rank, if
    the ranks' collectives were matched. `steps` are the marked steps of each rank; the finding states in how many it
    occurs.
    """
    measured = {rank: each for rank, each in by_rank.items() if each.window_ns > 0}
    if not any(each.communication_active_ns for each in measured.values()):
        return NotEvaluated(rule=POOR_OVERLAP, reason=f"no communication in the windows of {len(by_rank)} ranks")
    ratio = median(each.compute_communication_overlap_ratio for each in measured.values())
    hideable_ns = {
        rank: min(each.compute_ns, each.communication_ns, transmission_ns.get(rank, each.communication_ns))
        for rank, each in measured.items()
    }
    rank = min(measured, key=lambda each: hideable_ns[each] / measured[each].window_ns)
    least, gain_ratio = measured[rank], hideable_ns[rank] / measured[rank].window_ns
    if ratio >= OVERLAP_RATIO.value or gain_ratio < WORTH_RATIO.value:
        return []
    among = f" (median of {len(measured)} ranks)" if len(measured) > 1 else ""
    overlapping = f"computation overlaps communication for {ratio:.1%} of the step{among}"
    alone = f"on rank {rank} computation alone takes {ms(least.compute_ns)}"
    known_ns = transmission_ns.get(rank)
    occurs = _occurrence(steps.get(rank, ()))
    waiting = "" if known_ns is None else f"; its collectives take {ms(known_ns)} without waiting for other ranks"
    return [
        Finding(
            bottleneck=PARALLEL,
            cause=POOR_OVERLAP,
            ranks=tuple(sorted(measured)),
            evidence=(
                f"{overlapping}, limit {OVERLAP_RATIO.value:.0%}",
                f"{alone} and communication alone {ms(least.communication_ns)} of {ms(least.window_ns)}{waiting}",
                *([] if occurs is None else [f"it occurs in {occurs[0]} of {occurs[1]} steps"]),
            ),
            steps=occurs,
            lost_ns=hideable_ns[rank],
            predicted_gain_ratio=gain_ratio,
            confidence=MEDIUM,
        )
    ]


def _occurrence(steps: Sequence[Breakdown]) -> tuple[int, int] | None:
    """Return (steps in which the two alternate, all steps); None if fewer than two are marked."""
    if len(steps) < 2:  # noqa: PLR2004
        return None
    poor = [each.compute_communication_overlap_ratio < OVERLAP_RATIO.value for each in steps]
    return sum(poor), len(poor)
