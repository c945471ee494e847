"""The open incidents of one run, and which findings belong to which of them.

Pure: part of the run's state machine, changed through it only. A finding is kept by its key (a rank, a domain, the
run), so that an incident goes on while its finding does, whatever else is found; an incident closes after enough
judged steps without any of its findings.
"""

import hashlib
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from coordinator.decide.beside import growth_beside
from coordinator.decide.incidents import CLOSED, Incident
from coordinator.decide.memory import RunMemory
from coordinator.detect.findings import (
    CRASH,
    FLUCTUATION,
    HANG,
    PROCESS,
    SCATTERED,
    SLOW_LINK,
    SLOW_RANK,
    UNKNOWN,
    Finding,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from coordinator.decide.endings import Crash
    from coordinator.detect.findings import Judgement
    from coordinator.settings.policy import RunPolicy

Key = tuple[str, str]


class Casebook:
    """Invariant: a key is assigned to one open incident at most; an incident with an assigned key is active.

    `policy` may be replaced.
    """

    def __init__(self, run: str, policy: "RunPolicy", memory: RunMemory | None) -> None:
        memory = memory or RunMemory()
        self._run = run
        self.policy = policy
        self.incidents = {incident.id: incident for incident in memory.incidents}
        self.incidents_total = memory.incidents_total
        self.lost_device_seconds = memory.lost_device_seconds
        book = memory.book
        self._assigned: dict[Key, str] = {
            (kind, name): iid for kind, name, iid in book.get("assigned", ()) if iid in self.incidents
        }
        self._quiet_steps: Counter[str] = Counter(book.get("quiet_steps", {}))
        self._other_cause: dict[str, tuple[str, int]] = {
            iid: (cause, steps) for iid, (cause, steps) in book.get("other_cause", {}).items()
        }
        began = book.get("fluctuating")
        self._fluctuating: tuple[int, float] | None = None if began is None else (began[0], began[1])
        self._culprit_step: int | None = book.get("culprit_step")
        self._beside_step: int | None = book.get("beside_step")  # since when all ranks have grown beside a culprit
        self._node_of: dict[int, str] = {}
        self._ranks_of_node: Mapping[str, int] = {}
        self._judged = int(book.get("judged", 0))
        self._step = int(book.get("step", 0))

    def position(self) -> dict[str, Any]:
        """Return where the book stands, as JSON, for `RunMemory.book`."""
        return {
            "assigned": [[kind, name, iid] for (kind, name), iid in self._assigned.items()],
            "quiet_steps": dict(self._quiet_steps),
            "other_cause": {iid: list(other) for iid, other in self._other_cause.items()},
            "fluctuating": self._fluctuating,
            "culprit_step": self._culprit_step,
            "beside_step": self._beside_step,
            "judged": self._judged,
            "step": self._step,
        }

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
        self._ranks_of_node = judgement.ranks_of_node
        self._node_of |= {finding.ranks[0]: finding.node for finding in findings.values() if finding.node}
        self._assigned = {key: iid for key, iid in self._assigned.items() if key in findings}
        opened: list[Incident] = []
        changed: set[str] = set()
        for key, finding in list(findings.items()):
            if key in findings and key not in self._assigned:
                incident = self._home_of(finding)
                if incident is None and not finding.acts:
                    continue  # it was told as something else, which has ended: what fades is no news
                if incident is None:
                    incident = self.open(finding, judgement.step, now_s, ended_unix_s=judgement.unix_s)
                    opened.append(incident)
                elif incident.kind == FLUCTUATION != finding.kind:  # the run's incident becomes its culprit's
                    self._forget_fluctuation(findings)
                self._assigned[key] = incident.id
        for incident_id in dict.fromkeys(self._assigned.values()):
            own = [findings[key] for key, iid in self._assigned.items() if iid == incident_id]
            if self._refresh(incident_id, own):
                changed.add(incident_id)
        self._add_losses(findings, judgement, {incident.id for incident in opened})
        if self._judged % self.policy.store_steps == 0:
            changed |= {incident.id for incident in self.active}
        closed = self._close_quiet(judgement.step, now_s, busy)
        new = [self.incidents[incident.id] for incident in opened]
        fresh = changed - {incident.id for incident in opened}
        return new, [self.incidents[iid] for iid in sorted(fresh) if iid in self.incidents], closed

    def close_all(self, now_s: float, *, but: Incident | None = None) -> list[Incident]:
        """Close what is open, all `but` one incident: the run has ended."""
        self._assigned.clear()
        return [self.close(each.id, self._step, now_s) for each in list(self.incidents.values()) if each is not but]

    def forget_steps(self) -> None:
        """Begin findings anew for a new attempt; incidents stay open until it has been judged."""
        self._assigned.clear()
        # The detectors need some steps of the new attempt before their silence says anything.
        self._quiet_steps = Counter(dict.fromkeys(self.incidents, -self.policy.restart_steps))
        self._fluctuating = self._beside_step = None

    def _relevant(self, judgement: "Judgement", now_s: float) -> "dict[Key, Finding]":
        """Return the findings that stand for themselves.

        Victims' waiting is not told beside its culprit: a slow rank inside a domain explains the domain, and any
        culprit explains the run's step time.
        """
        ranks = {(SLOW_RANK, str(f.ranks[0])): f for f in judgement.findings if f.kind == SLOW_RANK}
        links = {
            (SLOW_LINK, "/".join(f.domain or (f.scope, f.node))): f
            for f in judgement.findings
            if f.kind == SLOW_LINK and not self._is_victim(f, ranks.values())
        }
        found = ranks | links
        runs = {(f.kind, f.cause): f for f in judgement.findings if f.kind == SCATTERED}
        fluctuation = next((f for f in judgement.findings if f.kind == FLUCTUATION), None)
        if found or runs:
            self._culprit_step = judgement.step
            fluctuation = None if runs else self._beside(fluctuation, found.values(), judgement.ranks_reporting)
        else:
            self._beside_step = None
        if fluctuation is None:
            self._fluctuating = None
        elif self._fluctuating is None:
            self._fluctuating = (self._judged, now_s)
        if fluctuation is not None and self._has_lasted(fluctuation, now_s):
            found[FLUCTUATION, ""] = fluctuation
        return found | runs

    def _beside(
        self, fluctuation: "Finding | None", culprits: "Collection[Finding]", ranks_reporting: int
    ) -> "Finding | None":
        """Return what stands for itself beside culprits: what began with one of them is taken for theirs."""
        grown = None if fluctuation is None else growth_beside(fluctuation, culprits, ranks_reporting)
        if grown is None:
            self._beside_step = None
            return None
        if self._beside_step is None:
            self._beside_step = self._step
        for onset_step in (grown.onset_step, self._beside_step):
            if all(abs(onset_step - culprit.onset_step) > self.policy.join_steps for culprit in culprits):
                return replace(grown, onset_step=onset_step)
        return None

    def _forget_fluctuation(self, findings: "dict[Key, Finding]") -> None:
        """Leave a slower run to the culprit that its incident is now told of."""
        findings.pop((FLUCTUATION, ""), None)
        self._assigned.pop((FLUCTUATION, ""), None)
        self._fluctuating = self._beside_step = None

    def _is_victim(self, link: "Finding", slow: "Iterable[Finding]") -> bool:
        """Whether a group's transfers grew when one of its ranks turned slow."""
        if link.scope != "group":
            return False
        steps = self.policy.join_steps
        return any(f.ranks[0] in link.ranks and abs(f.onset_step - link.onset_step) <= steps for f in slow)

    def _has_lasted(self, fluctuation: "Finding", now_s: float) -> bool:
        """Whether a slower run without a culprit is told now: at once in a quiet job, later where noise has tails.

        What began while a culprit was there is its echo, which ends a few steps after it.
        """
        assert self._fluctuating is not None
        begin, begin_s = self._fluctuating
        policy = self.policy
        if self._beside_step is not None and any(i.kind == FLUCTUATION for i in self.incidents.values()):
            return True  # it was told before its culprits were
        is_echo = self._culprit_step is not None and fluctuation.onset_step <= self._culprit_step
        if fluctuation.is_sure and not is_echo:
            return True
        return self._judged - begin >= policy.fluctuation_steps and now_s - begin_s >= policy.fluctuation_seconds

    def _home_of(self, finding: "Finding") -> Incident | None:
        """Return the open incident that a finding without one belongs to."""
        alike = [incident for incident in self.incidents.values() if incident.kind == finding.kind]
        for incident in alike:
            if finding.kind == SLOW_RANK:
                if finding.ranks[0] in incident.ranks or (
                    incident.cause == finding.cause and self._began_together(incident, finding)
                ):
                    return incident
            elif _are_of_one_place(incident, finding):
                return incident
        if finding.kind == FLUCTUATION:
            return None
        for incident in alike:  # groups were slow before it was clear that a node, or the network, is the reason
            is_quiet = incident.id not in self._assigned.values()
            if is_quiet and _is_reason_of(finding, incident) and self._began_together(incident, finding):
                return incident
        # The run was slower for a step or two before its culprit was clear: the same incident, understood better.
        vague = (incident for incident in self.incidents.values() if incident.kind == FLUCTUATION)
        return next((incident for incident in vague if self._began_together(incident, finding)), None)

    def _began_together(self, incident: Incident, finding: "Finding") -> bool:
        steps = self.policy.join_steps
        is_young = self._step - incident.detected_step <= steps
        return is_young and abs(finding.onset_step - incident.onset_step) <= steps

    def open(self, finding: "Finding", step: int, now_s: float, *, ended_unix_s: float) -> Incident:
        """Open an incident of a finding at a step; without a key, whoever opened it closes it.

        Its id follows from what was measured (`ended_unix_s`: when the step ended by the ranks' clocks), not from when
        or by whom it was judged: a pair of coordinators, and one that was restarted, give the same incident one id.
        """
        self.incidents_total += 1
        subject = repr((finding.kind, finding.scope, finding.ranks, finding.domain, finding.onset_step))
        digest = hashlib.blake2b(subject.encode(), digest_size=4).hexdigest()
        incident = Incident(
            id=f"{self._run}-{int(ended_unix_s)}-{digest}",
            run=self._run,
            kind=finding.kind,
            cause=finding.cause,
            scope=finding.scope,
            ranks=finding.ranks,
            domain=finding.domain,
            onset_step=finding.onset_step,
            detected_step=step,
            opened_unix_ns=int(now_s * 1e9),
            slowdown_ratio=finding.excess_ratio,
            excess_seconds=finding.excess_seconds,
            evidence=finding.evidence,
            numbers=finding.numbers,
            confidence=finding.confidence,
        )
        self.incidents[incident.id] = incident
        return incident

    def _scope_of(self, finding: "Finding", ranks: tuple[int, ...]) -> str:
        """Return the scope of an incident of several findings: slow ranks that are all of their nodes are nodes."""
        if finding.kind != SLOW_RANK:
            return finding.scope
        slow = Counter(self._node_of.get(rank, "") for rank in ranks)
        whole = all(node and 1 < self._ranks_of_node.get(node, 0) == count for node, count in slow.items())
        return "node" if whole else "rank"

    def _refresh(self, incident_id: str, findings: "list[Finding]") -> bool:
        """Bring an incident up to its present findings; return whether an operator would want to know."""
        before = self.incidents[incident_id]
        if before.kind != findings[0].kind or _is_reason_of(findings[0], before):
            before = _refined(before, findings[0])
        worst = max(findings, key=lambda finding: (finding.acts, finding.excess_ratio))
        ranks = tuple(dict.fromkeys((*before.ranks, *(rank for finding in findings for rank in finding.ranks))))
        cause = before.cause
        if worst.cause == cause:
            self._other_cause.pop(incident_id, None)
        elif worst.acts and worst.cause != UNKNOWN:  # what only fades has no cause any more
            other, steps = self._other_cause.get(incident_id, (worst.cause, 0))
            steps = steps + 1 if other == worst.cause else 1
            self._other_cause[incident_id] = (worst.cause, steps)
            is_settled = before.diagnosed and (before.function or before.root_cause)
            if steps >= self.policy.cause_steps and not is_settled:
                cause = worst.cause
        # The kind that a rank holds back most, and the slowest of parallel groups, are others from step to step.
        holds = ranks == before.ranks or all(finding.domain == before.domain for finding in findings)
        # Evidence stands as first measured: what follows mixes with captures, cures and other faults.
        after = replace(
            before,
            ranks=ranks,
            scope=self._scope_of(worst, ranks),
            domain=before.domain if holds or before.scope == "group" else None,
            cause=cause,
            slowdown_ratio=worst.excess_ratio,
            excess_seconds=worst.excess_seconds,
            numbers=worst.numbers,
            evidence=before.evidence if cause == before.cause else worst.evidence,
            confidence=before.confidence if cause == before.cause else worst.confidence,
            # What a slower run gives back is by its cause; what slow ranks and links do, is by how slow they are.
            prediction=None if cause != before.cause and worst.kind == FLUCTUATION else before.prediction,
        )
        told = self.incidents[incident_id]
        self.incidents[incident_id] = after
        return (after.kind, after.ranks, after.cause, after.scope) != (told.kind, told.ranks, told.cause, told.scope)

    def _add_losses(self, findings: "dict[Key, Finding]", judgement: "Judgement", opened: set[str]) -> None:
        """Book what each incident's worst finding cost, on every rank of the job, since its onset when it is new.

        The run lost what the worst of all cost: others would have been waited for meanwhile.
        """
        costs: dict[str, float] = {}
        for key, finding in findings.items():
            if finding.acts:
                incident_id = self._assigned[key]
                is_new = incident_id in opened
                steps = max(1, judgement.step - finding.onset_step + 1) if is_new else 1
                cost = _lost_seconds(finding) * judgement.ranks_reporting * steps
                costs[incident_id] = max(costs.get(incident_id, 0.0), cost)
        for incident_id, cost in costs.items():
            incident = self.incidents[incident_id]
            self.incidents[incident_id] = replace(incident, lost_device_seconds=incident.lost_device_seconds + cost)
        self.lost_device_seconds += max(costs.values(), default=0.0)

    def _close_quiet(self, step: int, now_s: float, busy: set[str]) -> list[Incident]:
        active = set(self._assigned.values())
        closed = []
        for incident_id in [iid for iid, incident in self.incidents.items() if incident.kind not in (HANG, CRASH)]:
            self._quiet_steps[incident_id] = 0 if incident_id in active else self._quiet_steps[incident_id] + 1
            if self._quiet_steps[incident_id] >= self.policy.recover_steps and incident_id not in busy:
                closed.append(self.close(incident_id, step, now_s))
        return closed

    def open_crash(self, crash: "Crash", hostname: str, ended_ranks: int, now_s: float) -> Incident:
        """Open the incident of the rank that ended the run."""
        ending = crash.ending
        ended_at = f"{datetime.fromtimestamp(ending.unix_ns * 1e-9, UTC):%H:%M:%S} UTC"
        where = f" on host {hostname}" if hostname else ""
        evidence = [f"rank {crash.rank}{where} ended first, at {ended_at}: {crash.what}"]
        if ending.frame:
            evidence.append(f"it was in {ending.frame}")
        if ended_ranks > 1:
            evidence.append(f"{ended_ranks - 1} other ranks ended after it")
        finding = Finding(
            kind=CRASH,
            cause=PROCESS,
            scope="rank",
            ranks=(crash.rank,),
            domain=None,
            onset_step=self._step,
            excess_ratio=0.0,
            excess_seconds=0.0,
            evidence=tuple(evidence),
        )
        incident = self.open(finding, self._step, now_s, ended_unix_s=ending.unix_ns * 1e-9)
        incident = replace(incident, root_cause=crash.what, function=ending.frame, diagnosed=True)
        self.incidents[incident.id] = incident
        return incident

    def close(self, incident_id: str, step: int, now_s: float) -> Incident:
        """Close an open incident; return its last form."""
        incident = self.incidents.pop(incident_id)
        self._quiet_steps.pop(incident_id, None)
        self._other_cause.pop(incident_id, None)
        return replace(incident, state=CLOSED, closed_step=step, closed_unix_ns=int(now_s * 1e9))


def _are_of_one_place(incident: Incident, finding: "Finding") -> bool:
    """Whether both speak of the same job, node, card, or groups; of groups that share an incident, any is named."""
    if incident.scope != finding.scope:
        return False
    if finding.scope == "group" and incident.domain and finding.domain:
        return incident.domain[0] == finding.domain[0] and not set(incident.ranks).isdisjoint(finding.ranks)
    return incident.domain == finding.domain and (finding.scope != "node" or incident.ranks == finding.ranks)


def _is_reason_of(finding: "Finding", incident: Incident) -> bool:
    """Whether a finding says of a node, or of the network, what an incident says of groups that cross it."""
    if (finding.kind, incident.kind, incident.scope) != (SLOW_LINK, SLOW_LINK, "group"):
        return False
    return finding.scope == "job" or (finding.scope == "node" and not set(finding.ranks).isdisjoint(incident.ranks))


def _lost_seconds(finding: "Finding") -> float:
    return finding.excess_seconds if finding.lost_seconds is None else finding.lost_seconds


def _refined(incident: Incident, finding: "Finding") -> Incident:
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
    )
