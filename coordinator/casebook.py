"""The open incidents of one run, and which findings belong to which of them.

Pure: part of the run's state machine, changed through it only. A finding is kept by its key (a rank, a domain, the
run), so that an incident goes on while its finding does, whatever else is found; an incident closes after enough
judged steps without any of its findings.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from coordinator.findings import FLUCTUATION, SLOW_LINK, SLOW_RANK
from coordinator.incidents import CLOSED, Incident

if TYPE_CHECKING:
    from coordinator.findings import Finding, Judgement
    from coordinator.policy import RunPolicy

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMemory:
    """What outlives a restart of the coordinator."""

    incidents: tuple[Incident, ...] = ()
    incidents_total: int = 0
    lost_device_seconds: float = 0.0
    capture_times_s: tuple[float, ...] = ()
    capture_counts: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, without the incidents: they are kept one by one."""
        return {
            "incidents_total": self.incidents_total,
            "lost_device_seconds": self.lost_device_seconds,
            "capture_times_s": list(self.capture_times_s),
            "capture_counts": dict(self.capture_counts),
        }


class Casebook:
    """Invariant: a key is assigned to one open incident at most; an incident with an assigned key is active."""

    def __init__(self, run: str, policy: "RunPolicy", memory: RunMemory | None) -> None:
        memory = memory or RunMemory()
        self._run = run
        self._policy = policy
        self.incidents = {incident.id: incident for incident in memory.incidents}
        self.incidents_total = memory.incidents_total
        self.lost_device_seconds = memory.lost_device_seconds
        self._assigned: dict[Key, str] = {}
        self._quiet_steps: Counter[str] = Counter()
        self._other_cause: dict[str, tuple[str, int]] = {}
        self._fluctuating: tuple[int, float] | None = None
        self._judged = 0
        self._step = 0

    @property
    def active(self) -> list[Incident]:
        """Open incidents that the last judged step confirmed, oldest first."""
        confirmed = set(self._assigned.values())
        return [incident for incident in self.incidents.values() if incident.id in confirmed]

    @property
    def has_active(self) -> bool:
        """Whether anything holds the run back now."""
        return bool(self._assigned)

    @property
    def slow_ranks(self) -> "list[int]":
        """Ranks that hold the run back now, ascending."""
        return sorted(int(name) for kind, name in self._assigned if kind == SLOW_RANK)

    def incident_of(self, rank: int) -> Incident | None:
        """Return the incident that a slow rank belongs to now."""
        incident_id = self._assigned.get((SLOW_RANK, str(rank)))
        return None if incident_id is None else self.incidents[incident_id]

    def take(
        self, judgement: "Judgement", now_s: float, busy: set[str]
    ) -> tuple[list[Incident], list[Incident], list[Incident]]:
        """Take the findings of one undisturbed step; return incidents opened, changed and closed.

        Incidents in `busy` (a capture or a diagnosis of them is under way) stay open.
        """
        self._judged += 1
        self._step = judgement.step
        findings = self._relevant(judgement, now_s)
        self._assigned = {key: iid for key, iid in self._assigned.items() if key in findings}
        opened: list[Incident] = []
        changed: set[str] = set()
        for key, finding in findings.items():
            if key not in self._assigned:
                incident = self._home_of(finding)
                if incident is None:
                    incident = self._open(finding, judgement, now_s)
                    opened.append(incident)
                self._assigned[key] = incident.id
        for incident_id in dict.fromkeys(self._assigned.values()):
            own = [findings[key] for key, iid in self._assigned.items() if iid == incident_id]
            if self._refresh(incident_id, own):
                changed.add(incident_id)
        self._add_losses(findings, judgement, {incident.id for incident in opened})
        if self._judged % self._policy.store_steps == 0:
            changed |= {incident.id for incident in self.active}
        closed = self._close_quiet(judgement.step, now_s, busy)
        new = [self.incidents[incident.id] for incident in opened]
        fresh = changed - {incident.id for incident in opened}
        return new, [self.incidents[iid] for iid in sorted(fresh) if iid in self.incidents], closed

    def close_all(self, now_s: float) -> list[Incident]:
        """Close what is open: the run has ended."""
        self._assigned.clear()
        return [self._close(incident_id, self._step, now_s) for incident_id in list(self.incidents)]

    def forget_steps(self) -> None:
        """Begin findings anew for a new attempt; incidents stay open until it has been judged."""
        self._assigned.clear()
        self._quiet_steps.clear()
        self._fluctuating = None

    def _relevant(self, judgement: "Judgement", now_s: float) -> "dict[Key, Finding]":
        """Return the findings that stand for themselves.

        Victims' waiting is not told beside its culprit: a slow rank inside a domain explains the domain, and any
        culprit explains the run's step time.
        """
        ranks = {(SLOW_RANK, str(f.ranks[0])): f for f in judgement.findings if f.kind == SLOW_RANK}
        slow = {finding.ranks[0] for finding in ranks.values()}
        links = {
            (SLOW_LINK, "/".join(f.domain or ())): f
            for f in judgement.findings
            if f.kind == SLOW_LINK and not slow.intersection(f.ranks)
        }
        found = ranks | links
        fluctuation = next((f for f in judgement.findings if f.kind == FLUCTUATION), None)
        if fluctuation is None or found:
            self._fluctuating = None
        elif self._fluctuating is None:
            self._fluctuating = (self._judged, now_s)
        if fluctuation is not None and self._fluctuating is not None:
            begin, begin_s = self._fluctuating
            policy = self._policy
            if self._judged - begin >= policy.fluctuation_steps and now_s - begin_s >= policy.fluctuation_seconds:
                found[FLUCTUATION, ""] = fluctuation
        return found

    def _home_of(self, finding: "Finding") -> Incident | None:
        """Return the open incident that a finding without one belongs to."""
        for incident in self.incidents.values():
            if incident.kind != finding.kind:
                continue
            if finding.kind != SLOW_RANK:
                if incident.domain == finding.domain:
                    return incident
            elif finding.ranks[0] in incident.ranks or (
                incident.cause == finding.cause
                and self._step - incident.detected_step <= self._policy.join_steps
                and abs(finding.onset_step - incident.onset_step) <= self._policy.join_steps
            ):
                return incident
        return None

    def _open(self, finding: "Finding", judgement: "Judgement", now_s: float) -> Incident:
        self.incidents_total += 1
        incident = Incident(
            id=f"{self._run}-{int(now_s)}-{self.incidents_total}",
            run=self._run,
            kind=finding.kind,
            cause=finding.cause,
            scope=finding.scope,
            ranks=finding.ranks,
            domain=finding.domain,
            onset_step=finding.onset_step,
            detected_step=judgement.step,
            opened_unix_ns=int(now_s * 1e9),
            slowdown_ratio=finding.excess_ratio,
            excess_seconds=finding.excess_seconds,
            evidence=finding.evidence,
            numbers=finding.numbers,
        )
        self.incidents[incident.id] = incident
        return incident

    def _refresh(self, incident_id: str, findings: "list[Finding]") -> bool:
        """Bring an incident up to its present findings; return whether an operator would want to know."""
        before = self.incidents[incident_id]
        worst = max(findings, key=lambda finding: finding.excess_ratio)
        ranks = tuple(dict.fromkeys((*before.ranks, *(rank for finding in findings for rank in finding.ranks))))
        cause = before.cause
        if worst.cause == cause:
            self._other_cause.pop(incident_id, None)
        else:
            other, steps = self._other_cause.get(incident_id, (worst.cause, 0))
            steps = steps + 1 if other == worst.cause else 1
            self._other_cause[incident_id] = (worst.cause, steps)
            if steps >= self._policy.cause_steps and not before.diagnosed:
                cause = worst.cause
        # Evidence stands as first measured: what follows mixes with captures, cures and other faults.
        after = replace(
            before,
            ranks=ranks,
            cause=cause,
            slowdown_ratio=worst.excess_ratio,
            excess_seconds=worst.excess_seconds,
            numbers=worst.numbers,
            evidence=before.evidence if cause == before.cause else worst.evidence,
        )
        self.incidents[incident_id] = after
        return (after.ranks, after.cause) != (before.ranks, before.cause)

    def _add_losses(self, findings: "dict[Key, Finding]", judgement: "Judgement", opened: set[str]) -> None:
        """Book the worst finding's excess, on every rank that waited for it, since its onset when it is new."""
        if not findings:
            return
        key, worst = max(findings.items(), key=lambda item: item[1].excess_seconds)
        waiting = judgement.ranks_reporting - sum(kind == SLOW_RANK for kind, _ in findings)
        incident = self.incidents[self._assigned[key]]
        steps = max(1, judgement.step - worst.onset_step + 1) if incident.id in opened else 1
        lost = worst.excess_seconds * max(0, waiting) * steps
        self.lost_device_seconds += lost
        self.incidents[incident.id] = replace(incident, lost_device_seconds=incident.lost_device_seconds + lost)

    def _close_quiet(self, step: int, now_s: float, busy: set[str]) -> list[Incident]:
        active = set(self._assigned.values())
        closed = []
        for incident_id in list(self.incidents):
            self._quiet_steps[incident_id] = 0 if incident_id in active else self._quiet_steps[incident_id] + 1
            if self._quiet_steps[incident_id] >= self._policy.recover_steps and incident_id not in busy:
                closed.append(self._close(incident_id, step, now_s))
        return closed

    def _close(self, incident_id: str, step: int, now_s: float) -> Incident:
        incident = self.incidents.pop(incident_id)
        self._quiet_steps.pop(incident_id, None)
        self._other_cause.pop(incident_id, None)
        return replace(incident, state=CLOSED, closed_step=step, closed_unix_ns=int(now_s * 1e9))


def memory_from_json(value: Mapping[str, Any], incidents: tuple[Incident, ...]) -> RunMemory:
    """Return the memory that a store kept."""
    return RunMemory(
        incidents=incidents,
        incidents_total=int(value["incidents_total"]),
        lost_device_seconds=float(value["lost_device_seconds"]),
        capture_times_s=tuple(float(time) for time in value["capture_times_s"]),
        capture_counts={str(state): int(count) for state, count in value["capture_counts"].items()},
    )
