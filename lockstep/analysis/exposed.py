"""What slow communication costs at most: the part of it that no computation hides.

A link at half its speed during computation that takes longer costs a step nothing, and repairing it gains nothing.
Rules look at collectives and links alone; here their findings are held against the account of the step.
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
    """Return how long a rank communicates in its window without a kernel next to it.

    None without a device: host backends take the cores that compute, so nothing there is hidden for free.
    """
    if metadata.vendor in _WITHOUT_DEVICE:
        return None
    return breakdown.communication_active_ns - breakdown.compute_communication_overlap_ns


def bounded(findings: Iterable[Finding], exposed: Mapping[int, int | None]) -> list[Finding]:
    """Return findings of which none on communication loses more than is exposed on any of its ranks.

    `exposed` is by rank what `exposed_ns` returns. Waiting for a slow rank is left as it is: its rule looks at what
    those compute who wait.
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
