"""Upper bound of the cost of slow communication: the part of it that no computation hides.

A link at half its speed during computation that takes longer costs a step nothing, and repairing it gains nothing.
Rules consider collectives and links alone; this module bounds their findings by the step's breakdown.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from lockstep.contracts.finding import COMMUNICATION, Finding
from lockstep.diagnosis.communication_causes.waiting import SLOW_RANK
from lockstep.diagnosis.evidence import ms
from lockstep.trace.columns import TraceMetadata
from lockstep.trace.step_breakdown import Breakdown

_WITHOUT_DEVICE = ("", "cpu")


def exposed_ns(metadata: TraceMetadata, breakdown: Breakdown) -> int | None:
    """Return how long a rank communicates in its window without a concurrent kernel, ns.

    None without a device: host backends use the cores that compute, so nothing is hidden for free.
    """
    if metadata.vendor in _WITHOUT_DEVICE:
        return None
    return breakdown.communication_active_ns - breakdown.compute_communication_overlap_ns


def bounded(findings: Iterable[Finding], exposed: Mapping[int, int | None]) -> list[Finding]:
    """Limit the loss of each finding on communication to what is exposed on its ranks.

    `exposed` is the result of `exposed_ns` by rank. Waiting for a slow rank is unchanged: its rule considers what the
    waiting ranks compute.
    """
    return [_bounded(each, exposed) for each in findings]


def _bounded(finding: Finding, exposed: Mapping[int, int | None]) -> Finding:
    limits = [exposed.get(rank) for rank in finding.ranks]
    known = [limit for limit in limits if limit is not None]
    if finding.bottleneck != COMMUNICATION or finding.cause == SLOW_RANK or not known or len(known) < len(limits):
        return finding
    most_ns = max(known)
    if (finding.lost_ns or 0) <= most_ns:
        return finding
    text = f"computation hides the rest: only {ms(most_ns)} of all communication are exposed"
    return replace(finding, lost_ns=most_ns, evidence=(*finding.evidence, text))
