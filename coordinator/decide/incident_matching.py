"""Which finding an open incident is about: pure functions of both."""

from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.detect.findings import SLOW_LINK

if TYPE_CHECKING:
    from coordinator.decide.incidents import Incident
    from coordinator.detect.findings import RunFinding


def are_of_one_place(incident: "Incident", finding: "RunFinding") -> bool:
    """Whether both are about the same job, node, card, or groups; of groups that share an incident, any is named."""
    if incident.scope != finding.scope:
        return False
    if finding.scope == "group" and incident.domain and finding.domain:
        return incident.domain[0] == finding.domain[0] and not set(incident.ranks).isdisjoint(finding.ranks)
    return incident.domain == finding.domain and (finding.scope != "node" or incident.ranks == finding.ranks)


def is_reason_of(finding: "RunFinding", incident: "Incident") -> bool:
    """Whether a finding of a node, or of the network, is the reason for an incident of groups that cross it."""
    if (finding.kind, incident.kind, incident.scope) != (SLOW_LINK, SLOW_LINK, "group"):
        return False
    return finding.scope == "job" or (finding.scope == "node" and not set(finding.ranks).isdisjoint(incident.ranks))


def lost_seconds(finding: "RunFinding") -> float:
    """Return what the step would have been shorter without it, s."""
    return finding.excess_seconds if finding.lost_seconds is None else finding.lost_seconds


def refined(incident: "Incident", finding: "RunFinding") -> "Incident":
    """Return an incident of a slower run as one of its culprit; what was found out about the run is no longer true."""
    return replace(
        incident,
        kind=finding.kind,
        cause=finding.cause,
        scope=finding.scope,
        ranks=(),
        domain=finding.domain,
        onset_step=finding.onset_step,
        evidence=finding.evidence,
        confidence=finding.confidence,
        advice=(),
        diagnosed=False,
        profile_evidence=(),
        prediction=None,
        machine=None,
    )
