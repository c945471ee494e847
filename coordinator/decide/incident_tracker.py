"""The open incidents of one run, and the anomalies assigned to each.

Pure: part of the run's state machine, which alone changes it. An anomaly has a key (a rank, a domain, the run), so that
an incident continues as long as its anomaly does, whatever else is found. An incident closes after enough evaluated
steps without any of its anomalies, whatever its capture does. The most recently closed incidents can still be amended,
because evidence may arrive late.
"""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coordinator.decide.crash_incident import crash_incident, make_incident_id
from coordinator.decide.incident_matching import are_of_one_place, is_reason_of, lost_seconds, refined
from coordinator.decide.incidents import CLOSED, Incident
from coordinator.decide.saved_run import SavedRun
from coordinator.decide.suppression import Key, Suppression
from coordinator.detect.anomalies import CRASH, FLUCTUATION, HANG, MEMORY_GROWTH, SLOW_RANK, UNKNOWN, Anomaly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coordinator.decide.endings import Crash
    from coordinator.detect.anomalies import StepResult
    from coordinator.settings.run_policy import RunPolicy

_NOT_OF_STEPS = (HANG, CRASH, MEMORY_GROWTH)  # not closed by steps without anomalies
_CLOSED_MAX = 16  # most recently closed incidents; captures of older ones are over


class IncidentTracker:
    """Invariant: a key is assigned to one open incident at most; an incident with an assigned key is active."""

    def __init__(self, run: str, policy: "RunPolicy", memory: SavedRun | None) -> None:
        memory = memory or SavedRun()
        self._run = run
        self._policy = policy
        self.incidents = {incident.id: incident for incident in memory.incidents}
        self.incidents_total = memory.incidents_total
        self.lost_device_seconds = memory.lost_device_seconds
        saved = memory.incident_tracker
        self._assigned: dict[Key, str] = {
            (kind, name): iid for kind, name, iid in saved.get("assigned", ()) if iid in self.incidents
        }
        self._quiet_steps: Counter[str] = Counter(saved.get("quiet_steps", {}))
        self._other_cause: dict[str, tuple[str, int]] = {
            iid: (cause, steps) for iid, (cause, steps) in saved.get("other_cause", {}).items()
        }
        self._suppression = Suppression(policy, saved)
        self._closed: dict[str, Incident] = {}
        self._acting: frozenset[str] = frozenset()
        self._node_of: dict[int, str] = {}
        self._ranks_of_node: Mapping[str, int] = {}
        self._step: int | None = saved.get("step")  # last evaluated step; None before the first

    @property
    def policy(self) -> "RunPolicy":
        """The thresholds in force; may be replaced."""
        return self._policy

    @policy.setter
    def policy(self, policy: "RunPolicy") -> None:
        self._policy = self._suppression.policy = policy

    def state_dict(self) -> dict[str, Any]:
        """Return its state as JSON, for `SavedRun.incident_tracker`; incidents are stored separately."""
        return {
            "assigned": [[kind, name, iid] for (kind, name), iid in self._assigned.items()],
            "quiet_steps": dict(self._quiet_steps),
            "other_cause": {iid: list(other) for iid, other in self._other_cause.items()},
            "step": self._step,
            **self._suppression.state_dict(),
        }

    def find(self, incident_id: str) -> Incident | None:
        """Return an open or recently closed incident."""
        return self.incidents.get(incident_id) or self._closed.get(incident_id)

    def amend(self, incident: Incident) -> None:
        """Replace an open or recently closed incident by its new form."""
        known = self.incidents if incident.id in self.incidents else self._closed
        known[incident.id] = incident

    def is_acting(self, incident_id: str) -> bool:
        """Whether the fault of an open incident had an effect in the last evaluated step."""
        return incident_id in self._acting

    @property
    def active(self) -> list[Incident]:
        """Open incidents that the last evaluated step confirmed, oldest first."""
        confirmed = set(self._assigned.values())
        return [incident for incident in self.incidents.values() if incident.id in confirmed]

    @property
    def holds_back(self) -> bool:
        """Whether any open incident delays or stops steps; growing memory does not, yet."""
        return any(incident.kind != MEMORY_GROWTH for incident in self.incidents.values())

    @property
    def has_active(self) -> bool:
        """Whether an active anomaly delays the run now."""
        return bool(self._assigned)

    @property
    def slow_ranks(self) -> "list[int]":
        """Ranks that delay the run now, ascending."""
        return sorted(int(name) for kind, name in self._assigned if kind == SLOW_RANK)

    def incident_of(self, rank: int) -> Incident | None:
        """Return the incident to which a slow rank is currently assigned."""
        incident_id = self._assigned.get((SLOW_RANK, str(rank)))
        return None if incident_id is None else self.incidents[incident_id]

    def take(
        self, step_result: "StepResult", now_s: float, may_be_ours: "Callable[[Anomaly], bool]" = lambda _: False
    ) -> tuple[list[Incident], list[Incident], list[Incident]]:
        """Apply the anomalies of one undisturbed step; return incidents that were opened, changed and closed.

        An anomaly opens no incident if `may_be_ours`: Lockstep itself may be causing it.
        """
        self._step = step_result.step
        open_kinds = {each.kind for each in self.incidents.values()}
        anomalies = self._suppression.filter(step_result, open_kinds=open_kinds, assigned=self._assigned)
        self._ranks_of_node = step_result.ranks_of_node
        self._node_of |= {anomaly.ranks[0]: anomaly.node for anomaly in anomalies.values() if anomaly.node}
        self._assigned = {key: iid for key, iid in self._assigned.items() if key in anomalies}
        opened: list[Incident] = []
        changed: set[str] = set()
        for key, anomaly in anomalies.items():
            if key not in self._assigned:
                incident = self._matching_incident(anomaly, is_run_explained=(FLUCTUATION, "") not in anomalies)
                if incident is None and not anomaly.acts:
                    continue  # it was reported as something else, which has ended: an anomaly that fades is no news
                if incident is None and (self._suppression.is_pending(anomaly) or may_be_ours(anomaly)):
                    continue
                if incident is None:
                    incident = self.open(anomaly, step_result.step, now_s, ended_unix_s=step_result.unix_s)
                    opened.append(incident)
                self._assigned[key] = incident.id
        self._acting = frozenset(iid for key, iid in self._assigned.items() if anomalies[key].acts)
        for incident_id in dict.fromkeys(self._assigned.values()):
            own = [anomalies[key] for key, iid in self._assigned.items() if iid == incident_id]
            if self._refresh(incident_id, own):
                changed.add(incident_id)
        self._add_losses(anomalies, step_result, {incident.id for incident in opened})
        if self._suppression.evaluated_steps % self.policy.store_steps == 0:
            changed |= {incident.id for incident in self.active}
        closed = self._close_quiet(step_result.step, now_s)
        new = [self.incidents[incident.id] for incident in opened]
        fresh = changed - {incident.id for incident in opened}
        return new, [self.incidents[iid] for iid in sorted(fresh) if iid in self.incidents], closed

    def close_all(self, now_s: float, *, but: Incident | None = None) -> list[Incident]:
        """Close all open incidents except `but`, because the run has ended."""
        self._assigned.clear()
        return [self.close(each.id, self._step, now_s) for each in list(self.incidents.values()) if each is not but]

    def forget_steps(self) -> None:
        """Forget the anomalies of the previous attempt; incidents stay open until the new one has been evaluated."""
        self._assigned.clear()
        self._acting = frozenset()
        # The detectors need some steps of the new attempt before the absence of anomalies means anything.
        self._quiet_steps = Counter(dict.fromkeys(self.incidents, -self.policy.restart_steps))
        self._suppression.reset()

    def _matching_incident(self, anomaly: "Anomaly", *, is_run_explained: bool) -> Incident | None:
        """Return the open incident to which an unassigned anomaly belongs."""
        alike = [incident for incident in self.incidents.values() if incident.kind == anomaly.kind]
        for incident in alike:
            if anomaly.kind == SLOW_RANK:
                if anomaly.ranks[0] in incident.ranks or (
                    incident.cause == anomaly.cause and self._began_together(incident, anomaly)
                ):
                    return incident
            elif are_of_one_place(incident, anomaly):
                return incident
        if anomaly.kind == FLUCTUATION:
            return None
        for incident in alike:  # groups were slow before it was clear that a node, or the network, is the reason
            is_quiet = incident.id not in self._assigned.values()
            if is_quiet and is_reason_of(anomaly, incident) and self._began_together(incident, anomaly):
                return incident
        if not is_run_explained:
            return None
        # The run was slower for a step or two before its culprit was clear: it is the same incident.
        vague = (incident for incident in self.incidents.values() if incident.kind == FLUCTUATION)
        return next((incident for incident in vague if self._began_together(incident, anomaly)), None)

    def _began_together(self, incident: Incident, anomaly: "Anomaly") -> bool:
        steps = self.policy.join_steps
        if incident.onset_step is None or incident.detected_step is None:
            return False
        is_young = (self._step or 0) - incident.detected_step <= steps
        return is_young and abs(anomaly.onset_step - incident.onset_step) <= steps

    def open(self, anomaly: "Anomaly", step: int | None, now_s: float, *, ended_unix_s: float) -> Incident:
        """Open an incident for an anomaly at a step; if the anomaly has no key, the caller must close the incident.

        If `step` is None, because none was evaluated yet, there is no onset step either. `ended_unix_s` is when the
        step ended, by the ranks' clocks.
        """
        subject = (anomaly.kind, anomaly.scope, anomaly.ranks, anomaly.domain, anomaly.onset_step)
        incident = Incident(
            id=make_incident_id(self._run, subject, ended_unix_s),
            run=self._run,
            kind=anomaly.kind,
            cause=anomaly.cause,
            scope=anomaly.scope,
            ranks=anomaly.ranks,
            domain=anomaly.domain,
            onset_step=None if step is None else anomaly.onset_step,
            detected_step=step,
            opened_unix_ns=int(now_s * 1e9),
            slowdown_ratio=anomaly.excess_ratio,
            excess_seconds=anomaly.excess_seconds,
            evidence=anomaly.evidence,
            numbers=anomaly.numbers,
            confidence=anomaly.confidence,
            part=anomaly.part,
        )
        return self._add(incident)

    def _add(self, incident: Incident) -> Incident:
        self.incidents_total += 1
        self.incidents[incident.id] = incident
        return incident

    def _scope_of(self, anomaly: "Anomaly", ranks: tuple[int, ...]) -> str:
        """Return the scope of an incident: "node" if its slow ranks are all ranks of their nodes."""
        if anomaly.kind != SLOW_RANK:
            return anomaly.scope
        slow = Counter(self._node_of.get(rank, "") for rank in ranks)
        whole = all(node and 1 < self._ranks_of_node.get(node, 0) == count for node, count in slow.items())
        return "node" if whole else "rank"

    def _refresh(self, incident_id: str, anomalies: "list[Anomaly]") -> bool:
        """Update an incident from its current anomalies.

        Return whether the change is worth reporting to an operator.
        """
        before = self.incidents[incident_id]
        if before.kind != anomalies[0].kind or is_reason_of(anomalies[0], before):
            before = refined(before, anomalies[0])
        worst = max(anomalies, key=lambda anomaly: (anomaly.acts, anomaly.excess_ratio))
        is_explained = bool(before.diagnosed and (before.function or before.root_cause))
        ranks = tuple(dict.fromkeys((*before.ranks, *(rank for anomaly in anomalies for rank in anomaly.ranks))))
        cause = before.cause
        if worst.cause == cause:
            self._other_cause.pop(incident_id, None)
        elif worst.acts and worst.cause != UNKNOWN:  # a fading anomaly no longer shows its cause
            other, steps = self._other_cause.get(incident_id, (worst.cause, 0))
            steps = steps + 1 if other == worst.cause else 1
            self._other_cause[incident_id] = (worst.cause, steps)
            is_settled = is_explained and cause != UNKNOWN  # captured steps are not evaluated: later ones may show it
            if steps >= self.policy.cause_steps and not is_settled:
                cause = worst.cause
        # The domain that a rank delays most, and the slowest of parallel groups, vary from step to step.
        holds = ranks == before.ranks or all(anomaly.domain == before.domain for anomaly in anomalies)
        # Evidence stays as first measured: later measurements mix with captures, repairs and other faults.
        after = replace(
            before,
            ranks=ranks,
            scope=self._scope_of(worst, ranks),
            domain=before.domain if holds or before.scope == "group" else None,
            cause=cause,
            slowdown_ratio=worst.excess_ratio,
            excess_seconds=worst.excess_seconds,
            numbers=worst.numbers,
            part=worst.part,
            evidence=before.evidence if cause == before.cause else worst.evidence,
            confidence=before.confidence if cause == before.cause or is_explained else worst.confidence,
            # The gain from a slower run depends on its cause; that from slow ranks and links on how slow they are.
            prediction=None if cause != before.cause and worst.kind == FLUCTUATION else before.prediction,
        )
        known = self.incidents[incident_id]
        self.incidents[incident_id] = after
        return _identity(after) != _identity(known)

    def _add_losses(self, anomalies: "dict[Key, Anomaly]", step_result: "StepResult", opened: set[str]) -> None:
        """Add the cost of each incident's worst anomaly, over all ranks of the job.

        For a new incident, since its onset: its mean cost in each step, of which single ones may have been slow.

        The run lost only the largest of these costs: the other anomalies would have been waited for meanwhile.
        """
        costs: dict[str, float] = {}
        for key, anomaly in anomalies.items():
            if anomaly.acts and key in self._assigned:
                incident_id = self._assigned[key]
                lost_s = lost_seconds(anomaly)
                if incident_id in opened:
                    lost_s = min(lost_s, anomaly.excess_seconds) * max(1, step_result.step - anomaly.onset_step + 1)
                costs[incident_id] = max(costs.get(incident_id, 0.0), lost_s * step_result.ranks_reporting)
        for incident_id, cost in costs.items():
            incident = self.incidents[incident_id]
            self.incidents[incident_id] = replace(incident, lost_device_seconds=incident.lost_device_seconds + cost)
        self.lost_device_seconds += max(costs.values(), default=0.0)

    def _close_quiet(self, step: int, now_s: float) -> list[Incident]:
        active = set(self._assigned.values())
        closed = []
        for incident_id in [iid for iid, incident in self.incidents.items() if incident.kind not in _NOT_OF_STEPS]:
            self._quiet_steps[incident_id] = 0 if incident_id in active else self._quiet_steps[incident_id] + 1
            if self._quiet_steps[incident_id] >= self.policy.recover_steps:
                closed.append(self.close(incident_id, step, now_s))
        return closed

    def open_crash(self, crash: "Crash", hostname: str, ended_ranks: int, now_s: float) -> Incident:
        """Open the incident of the rank whose crash ended the run."""
        return self._add(crash_incident(self._run, crash, hostname, ended_ranks, now_s))

    def close(self, incident_id: str, step: int | None, now_s: float) -> Incident:
        """Close an open incident; return its final form. `step` is None if none was evaluated."""
        incident = self.incidents.pop(incident_id)
        self._quiet_steps.pop(incident_id, None)
        self._other_cause.pop(incident_id, None)
        self._acting -= {incident_id}
        closed = replace(incident, state=CLOSED, closed_step=step, closed_unix_ns=int(now_s * 1e9))
        self._closed[incident_id] = closed
        if len(self._closed) > _CLOSED_MAX:
            del self._closed[next(iter(self._closed))]
        return closed


def _identity(incident: Incident) -> tuple[str, tuple[int, ...], str, str]:
    """Return the fields whose change is worth reporting to an operator."""
    return incident.kind, incident.ranks, incident.cause, incident.scope
