"""Selects the reported causes that explain an incident: those that its suspects have beyond their peers.

A cause that healthy ranks have as well may cost all ranks time, but does not explain why this one is slower. A job that
is slower as a whole has no healthy ranks; there a cause counts if most captured ranks share it. CPU counters of the
nodes are compared in `cpu_share`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from lockstep.contracts.finding import IO, Finding
from lockstep.contracts.messages import TraceSummary
from lockstep.diagnosis.cpu_share import captured_excess_ns, contention_beyond_peers
from lockstep.diagnosis.excess import HOLDING_RATIO
from lockstep.diagnosis.frames import is_own
from lockstep.diagnosis.host_causes.contention import CONTENTION
from lockstep.diagnosis.threshold import Threshold

EXPLAINING = Threshold(
    0.3, "ratio", "own: captures of a few steps on busy machines differ by a quarter without a fault"
)
UNMEASURED = Threshold(
    0.1, "ratio", "own: of the step, where no excess was measured: what ranks of a busy machine differ by in a capture"
)
SHARED = Threshold(0.5, "ratio", "own: of the captured ranks of a job that is slower as a whole")
COSTING = Threshold(0.02, "ratio", "own: of the step; the smallest slowdown that opens an incident is 2.5 %")

_OF_INCIDENT = {
    "data": (IO,),
    "gc": ("gc",),
    "link": ("communication",),
}
"""Bottlenecks or causes with precedence, by the detectors' cause; other causes not listed here have none."""
_UNMEASURED = ("", "unknown")


@dataclass(frozen=True, slots=True)
class _Cost:
    """A finding of a rank and its cost there, ns per step; None if unknown."""

    found: Finding
    ns: float | None


def causes_beyond_peers(
    cause: str, suspects: Sequence[TraceSummary], peers: Sequence[TraceSummary], *, excess_ns: float
) -> list[Finding]:
    """Return the causes that explain why the suspects are slower than their peers, the best explanation first.

    `cause` is the incident's (`metrics.CAUSES`), `excess_ns` the suspect's excess of self time over its peers per step,
    0 or less if unknown. Findings cost their excess over the peers' median; their window is one step.
    """
    found: dict[str, Finding] = {}
    captured_ns = max((captured_excess_ns(suspect, peers) for suspect in suspects), default=0.0)
    # The two cover different steps, and contention varies: what was not captured is unknown.
    held_ns = min((each for each in (excess_ns, captured_ns) if each > 0), default=0.0)
    for suspect in suspects:
        least_ns = _explaining_ns(suspect, held_ns, excess_ns)
        compared = [*_not_of_cpus(suspect), *contention_beyond_peers(suspect, peers)]
        for name, cost in _costs(compared, suspect.steps).items():
            theirs = [_costs(_not_of_cpus(peer), peer.steps).get(name) for peer in peers]
            usual_ns = median([each.ns or 0.0 if each else 0.0 for each in theirs]) if theirs else 0.0
            if cost.ns is None:
                if any(theirs):
                    continue
                beyond_ns = None
            else:
                beyond_ns = cost.ns - usual_ns
                if beyond_ns < least_ns or beyond_ns <= 0:
                    continue
            found[name] = _merged(found.get(name), cost.found, suspect.rank, beyond_ns)
    return sorted(
        found.values(),
        key=lambda each: (not _is_everywhere(each, held_ns), not _is_meant(cause, each), -(each.lost_ns or 0)),
    )


def causes_of_many(summaries: Sequence[TraceSummary], *, step_ns: float, cause: str = "") -> list[Finding]:
    """Return the causes that most of the captured ranks share, the most expensive first, at their median cost.

    If the detectors measured which part of the step grew (`cause`), other causes existed before: a job that collects in
    every step takes longer to do so on a crowded machine.
    """
    by_cause: dict[str, list[tuple[int, _Cost]]] = {}
    for summary in summaries:
        for name, cost in _costs(summary.findings, summary.steps).items():
            by_cause.setdefault(name, []).append((summary.rank, cost))
    found = []
    for reported in by_cause.values():
        if len(reported) <= SHARED.value * len(summaries):
            continue
        known = [cost.ns for _, cost in reported if cost.ns is not None]
        lost_ns = median(known) if known else None
        if lost_ns is not None and lost_ns < COSTING.value * step_ns:
            continue
        merged: Finding | None = None
        for rank, cost in reported:
            merged = _merged(merged, cost.found, rank, lost_ns)
        assert merged is not None
        found.append(merged)
    return sorted(
        (each for each in found if cause in _UNMEASURED or _is_meant(cause, each)),
        key=lambda each: (not _is_meant(cause, each), -(each.lost_ns or 0)),
    )


def _not_of_cpus(summary: TraceSummary) -> list[Finding]:
    """Return a rank's findings without contention: a single rank does not show how much it prolongs the work."""
    return [found for found in summary.findings if found.cause != CONTENTION]


def _explaining_ns(suspect: TraceSummary, held_ns: float, excess_ns: float) -> float:
    """Return the least cost per step of an explanation: a part of the captured excess, and more than chance."""
    chance_ns = UNMEASURED.value * suspect.window_ns / max(suspect.steps, 1)
    if excess_ns <= 0:
        return chance_ns
    return max(EXPLAINING.value * held_ns, min(EXPLAINING.value * excess_ns, chance_ns))


def _is_everywhere(found: Finding, excess_ns: float) -> bool:
    """Whether CPU contention explains most of the excess: it prolongs all work of the rank, other causes included."""
    return found.cause == CONTENTION and (found.lost_ns or 0) >= HOLDING_RATIO * excess_ns > 0


def _is_meant(cause: str, found: Finding) -> bool:
    """Whether a finding is of the kind that the detectors measured."""
    meant = _OF_INCIDENT.get(cause)
    if meant is None:
        return found.bottleneck != IO and found.cause != "gc"
    return found.bottleneck in meant or found.cause in meant


def _costs(findings: Sequence[Finding], steps: int) -> dict[str, _Cost]:
    """Return the cost of each cause on a rank: the sum over its findings, represented by the most expensive one."""
    costs: dict[str, _Cost] = {}
    for found in findings:
        if is_own(found.subject):
            continue
        ns = None if found.lost_ns is None else found.lost_ns / max(steps, 1)
        before = costs.get(found.cause)
        if before is None:
            costs[found.cause] = _Cost(found, ns)
        else:
            dearer = found if (ns or 0) > (before.ns or 0) else before.found
            known = None if ns is None and before.ns is None else (ns or 0.0) + (before.ns or 0.0)
            costs[found.cause] = _Cost(dearer, known)
    return costs


def _merged(before: Finding | None, found: Finding, rank: int, lost_ns: float | None) -> Finding:
    cost = None if lost_ns is None else round(lost_ns)
    if before is not None and (before.lost_ns or 0) >= (cost or 0):
        return _with_rank(before, rank)
    ranks = () if before is None else before.ranks
    return replace(found, ranks=tuple(sorted({*ranks, rank})), lost_ns=cost)


def _with_rank(found: Finding, rank: int) -> Finding:
    return replace(found, ranks=tuple(sorted({*found.ranks, rank})))
