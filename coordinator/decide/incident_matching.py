"""Matches anomalies to open incidents. Pure functions."""

from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.detect.anomalies import SLOW_LINK

if TYPE_CHECKING:
    from coordinator.decide.incidents import Incident
    from coordinator.detect.anomalies import Anomaly


def are_of_one_place(incident: "Incident", anomaly: "Anomaly") -> bool:
    """Whether both concern the same job, node, card or groups; an incident of several groups names any one of them."""
    if incident.scope != anomaly.scope:
        return False
    if anomaly.scope == "group" and incident.domain and anomaly.domain:
        return incident.domain[0] == anomaly.domain[0] and not set(incident.ranks).isdisjoint(anomaly.ranks)
    return incident.domain == anomaly.domain and (anomaly.scope != "node" or incident.ranks == anomaly.ranks)


def is_reason_of(anomaly: "Anomaly", incident: "Incident") -> bool:
    """Whether an anomaly of a node or of the whole network is the reason for an incident of groups that cross it."""
    if (anomaly.kind, incident.kind, incident.scope) != (SLOW_LINK, SLOW_LINK, "group"):
        return False
    return anomaly.scope == "job" or (anomaly.scope == "node" and not set(anomaly.ranks).isdisjoint(incident.ranks))


def lost_seconds(anomaly: "Anomaly") -> float:
    """Return by how many seconds the step would have been shorter without the anomaly."""
    return anomaly.excess_seconds if anomaly.lost_seconds is None else anomaly.lost_seconds


def refined(incident: "Incident", anomaly: "Anomaly") -> "Incident":
    """Convert an incident of a slower run to one of its culprit.

    Findings about the run no longer hold and are cleared.
    """
    return replace(
        incident,
        kind=anomaly.kind,
        cause=anomaly.cause,
        scope=anomaly.scope,
        ranks=(),
        domain=anomaly.domain,
        onset_step=anomaly.onset_step,
        evidence=anomaly.evidence,
        confidence=anomaly.confidence,
        advice=(),
        diagnosed=False,
        profile_evidence=(),
        prediction=None,
        machine=None,
    )
