"""Memory-growth incidents: opened by an anomaly, updated while it lasts, closed when the memory stops growing.

Pure: part of the run's state machine, which alone changes it. Memory growth delays no step, so these incidents do not
change the state of the run.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.decide.capture import note_of
from coordinator.detect.anomalies import MEMORY_GROWTH
from lockstep.diagnosis.advice import advise

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from coordinator.decide.capture import Capture
    from coordinator.decide.incident_tracker import IncidentTracker
    from coordinator.decide.incidents import Incident
    from coordinator.detect.anomalies import Anomaly
    from coordinator.settings.run_policy import MemoryPolicy
    from lockstep.contracts.finding import Advice
    from lockstep.contracts.messages import TraceSummary

_FUNCTIONS_MAX = 3
_NOT_SEEN = "a capture does not see Python objects and NumPy arrays"


class GrowthIncidents:
    """Invariant: at most one incident of this kind is open in `tracker` per cause. `policy` may be replaced."""

    def __init__(self, tracker: "IncidentTracker", policy: "MemoryPolicy") -> None:
        self.policy = policy
        self._tracker = tracker
        self._seen_s: dict[str, float] = {}
        self._reported_s: dict[str, float] = {}

    @property
    def open(self) -> "list[Incident]":
        """The open incidents, oldest first."""
        return [each for each in self._tracker.incidents.values() if each.kind == MEMORY_GROWTH]

    def take(
        self, anomalies: "Iterable[Anomaly]", step: int, now_s: float
    ) -> "tuple[list[Incident], list[Incident], list[Incident]]":
        """Apply the current anomalies; return incidents that were opened, changed significantly, and closed."""
        known = {incident.cause: incident for incident in self.open}
        opened: list[Incident] = []
        changed: list[Incident] = []
        for anomaly in anomalies:
            before = known.get(anomaly.cause)
            if before is None:
                incident = self._tracker.open(anomaly, step, now_s, ended_unix_s=now_s)
                opened.append(incident)
                self._reported_s[incident.id] = now_s
            else:
                incident = _refreshed(before, anomaly)
                self._tracker.amend(incident)
                is_news = (incident.ranks, incident.scope) != (before.ranks, before.scope)
                if is_news or now_s - self._reported_s.get(incident.id, 0.0) >= self.policy.store_seconds:
                    self._reported_s[incident.id] = now_s
                    changed.append(incident)
            self._seen_s[incident.id] = now_s
        over = [i for i in self.open if now_s - self._seen_s.setdefault(i.id, now_s) >= self.policy.quiet_seconds]
        return opened, changed, [self._close(incident, step, now_s) for incident in over]

    def close_all(self, now_s: float) -> "list[Incident]":
        """Close all open incidents, because their processes are gone."""
        return [self._close(incident, incident.detected_step or 0, now_s) for incident in self.open]

    def _close(self, incident: "Incident", step: int, now_s: float) -> "Incident":
        self._seen_s.pop(incident.id, None)
        self._reported_s.pop(incident.id, None)
        return self._tracker.close(incident.id, max(step, incident.detected_step or 0), now_s)


def remaining_seconds(incidents: "Sequence[Incident]") -> float | None:
    """Return the shortest forecast time until memory is full, seconds, over open incidents.

    None if none has a forecast.
    """
    forecasts = (each.numbers.get("remaining_seconds") for each in incidents if each.kind == MEMORY_GROWTH)
    return min((seconds for seconds in forecasts if seconds is not None), default=None)


def explained_growth(incident: "Incident", capture: "Capture") -> "Incident":
    """Return the incident with the evidence of a memory capture: which functions' tensors outlived a step on a suspect.

    What peers keep too is subtracted: a cache that fills on all ranks is not a leak of one.
    """
    suspect = next((rank for rank in capture.suspects if rank in capture.summaries), None)
    lines: list[str] = []
    function = ""
    if suspect is not None:
        peers = [capture.summaries[rank] for rank in capture.ranks if rank in capture.summaries and rank != suspect]
        usual = {} if incident.scope == "job" else _least_kept(peers)
        kept = [
            (each.function, each.bytes - usual.get(each.function, 0), each.count)
            for each in capture.summaries[suspect].kept
        ]
        kept = sorted((each for each in kept if each[1] > 0), key=lambda each: -each[1])[:_FUNCTIONS_MAX]
        steps = max(capture.summaries[suspect].steps, 1)
        lines = [
            f"{count} tensors ({size / (1 << 20):.3g} MiB) that rank {suspect} allocated in {name} outlived "
            f"their step, in {steps} captured steps"
            for name, size, count in kept
        ]
        if kept:
            function = kept[0][0]
        else:
            text = f"no tensor that rank {suspect} allocated in {steps} captured steps outlived its step"
            lines = [f"{text}; {_NOT_SEEN}"]
    return replace(
        incident,
        profile=note_of(capture),
        profile_evidence=(*capture.trouble(), *lines),
        function=function,
        advice=_advice(incident.cause, function),
        diagnosed=True,
    )


def _least_kept(peers: "Sequence[TraceSummary]") -> dict[str, int]:
    """Return the bytes that every peer keeps, by function."""
    if not peers:
        return {}
    kept = [{each.function: each.bytes for each in peer.kept} for peer in peers]
    return {name: min(each.get(name, 0) for each in kept) for name in kept[0]}


def _advice(cause: str, function: str) -> "tuple[Advice, ...]":
    """Return the remedies for a kind of memory; growth delays no step, so none predicts a gain."""
    found = advise(
        cause=cause,
        function=function or "the training's own code",
        operator="",
        path=[],
        step_seconds=0.0,
        excess_seconds=0.0,
        explained_seconds=None,
    )
    return tuple(found)


def _refreshed(before: "Incident", anomaly: "Anomaly") -> "Incident":
    """Return the incident with the anomaly's current ranks and numbers; its onset stays."""
    ranks = before.ranks if anomaly.scope == "job" else tuple(dict.fromkeys((*before.ranks, *anomaly.ranks)))
    return replace(before, ranks=ranks, scope=anomaly.scope, evidence=anomaly.evidence, numbers=anomaly.numbers)
