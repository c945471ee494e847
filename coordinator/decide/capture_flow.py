"""Leads an incident through its capture to its diagnosis: chooses ranks and time, and handles the results.

Pure: part of the run's state machine, which is the only caller and alone changes the run's state. A capture ends
whatever its ranks do, and never keeps an incident open. Late results are diagnosed again, for an open incident or a
closed one.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.decide import events as ev
from coordinator.decide.capture import note_of
from coordinator.decide.capture_manager import CaptureManager, CaptureSubject
from coordinator.decide.diagnosis_tracker import DiagnosisTracker
from coordinator.decide.growth_incidents import explained_growth
from coordinator.decide.selection import JOB, Selection, select
from coordinator.detect.anomalies import FLUCTUATION, HANG, MEMORY_GROWTH, SLOW_RANK

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.decide.capture import Capture
    from coordinator.decide.incident_tracker import IncidentTracker
    from coordinator.decide.incidents import Incident
    from coordinator.decide.outbox import Outbox
    from coordinator.decide.saved_run import SavedRun
    from coordinator.detect.anomalies import Anomaly, StepResult
    from coordinator.detect.hangs.hang import Hang
    from coordinator.settings.policy import Policy


class CaptureFlow:
    """The capture flow of one run.

    `captures` holds the capture under way, `diagnoses` the diagnoses of those that are over.

    The state machine replaces `policy`, `announced` (the ranks; None before the first announcement) and `step_result`
    (of the last step; None before the first).
    """

    def __init__(self, tracker: "IncidentTracker", policy: "Policy", memory: "SavedRun | None", out: "Outbox") -> None:
        self.policy = policy
        self.captures = CaptureManager(policy.profile, memory)
        self.diagnoses = DiagnosisTracker()
        self.announced: ev.AnnounceEvent | None = None
        self.step_result: StepResult | None = None
        self._tracker = tracker
        self._out = out

    def set_policy(self, policy: "Policy") -> None:
        """Apply another policy from now on."""
        self.policy = policy
        self.captures.budget.policy = policy.profile

    @property
    def is_under_way(self) -> bool:
        """Whether a capture, or the diagnosis of an open incident, is under way."""
        return self.captures.current is not None or bool(self.diagnoses.pending)

    def own_load(self, now_s: float) -> "Callable[[Anomaly], bool]":
        """Return a predicate: whether Lockstep itself may have caused an anomaly.

        Summaries of traces take part of a core, at most a known share. A larger anomaly has another cause, however long
        the summaries last.
        """
        nodes = self.announced.nodes if self.announced is not None else {}
        own_nodes = self.captures.summarising_nodes(now_s)

        def may_be_ours(anomaly: "Anomaly") -> bool:
            if anomaly.excess_ratio > self.policy.profile.own_load_ratio:
                return False
            if anomaly.kind == SLOW_RANK:
                return nodes.get(anomaly.ranks[0]) in own_nodes
            return bool(own_nodes) and anomaly.kind == FLUCTUATION

        return may_be_ours

    def measure(self, step_result: "StepResult") -> None:
        """Record the cost of the incident that is being captured, until its first captured step."""
        capture = self.captures.current
        incident = None if capture is None else self._tracker.incidents.get(capture.incident_id)
        if capture is not None and incident is not None and incident.kind != MEMORY_GROWTH:
            step_s = step_result.recent_step_seconds or step_result.step_seconds
            is_acting = self._tracker.is_acting(incident.id)
            capture.measure(step_result.step, step_s, incident.excess_seconds, is_acting=is_acting)

    def is_holding_up(self, hang: "Hang | None", now_s: float) -> bool:
        """Whether a run may have stalled only because a rank starts, stops or writes a capture that we requested."""
        if hang is None:
            return False
        capturing = self.captures.capturing(self.step_result.step if self.step_result else -1, now_s)
        return bool(capturing) and (not hang.ranks or not capturing.isdisjoint(hang.ranks))

    def let_go(self, incident: "Incident", now_s: float) -> None:
        """Detach a closing incident from its capture: one that has begun may amend it later, another is withdrawn."""
        capture = self.captures.current
        if capture is not None and capture.incident_id == incident.id:
            if not capture.has_begun:
                self.withdraw(now_s)
            else:
                self.captures.put_away(now_s)
                if capture.summaries:
                    self.read(capture)
        self.diagnoses.pending.discard(incident.id)

    def withdraw(self, now_s: float) -> None:
        """Withdraw the capture under way, so that its nodes are free for others."""
        capture = self.captures.withdraw(now_s)
        if capture is not None and capture.withdrawn and now_s < capture.deadline_s:
            self._out.add(ev.WithdrawCapture, request=capture.withdrawal(now_s), is_asked=not capture.incident_id)
        if capture is not None and capture.summaries:
            self.read(capture)

    def explain_next(self, now_s: float) -> bool:
        """Request a capture, or a diagnosis without one, for the largest active incident that has neither.

        Return whether a capture was requested.
        """
        waiting = [i for i in self._tracker.active if not i.diagnosed and i.id not in self.diagnoses.pending]
        waiting = [i for i in waiting if i.scope != JOB or self._has_waited_for_culprit(i)]
        if not waiting or self.step_result is None:
            return False
        incident = max(waiting, key=lambda each: each.excess_seconds)
        refusal = self.captures.budget.refusal(now_s)
        if not refusal and self.captures.budget.is_cooling(now_s, incident.excess_seconds):
            return False
        selection = self._selection(incident)
        if not selection.suspects and not refusal:
            refusal = "none of its ranks is known"
        if refusal:
            notes = (f"not profiled: {refusal}",)
            self._update(replace(incident, profile_evidence=notes))
            self._diagnose(incident, None, notes)
            return False
        # Small messages and changing shapes of a whole job show only in shapes, and there is no culprit to delay.
        subject = CaptureSubject(incident_id=incident.id, excess_seconds=incident.excess_seconds)
        self.request(subject, selection, self.policy.profile.steps, now_s, shapes=incident.scope == JOB)
        return True

    def _has_waited_for_culprit(self, incident: "Incident") -> bool:
        """Whether a slower run has lasted long enough for its culprit to become clear."""
        steps = self.policy.run.join_steps
        return self.step_result is not None and self.step_result.step >= (incident.detected_step or 0) + steps

    def _selection(self, incident: "Incident") -> Selection:
        known = self.announced
        if known is None:
            return Selection((), ())
        in_trouble = {rank for each in self._tracker.incidents.values() if each.kind != HANG for rank in each.ranks}
        return select(incident, known.topology, frozenset(known.ranks), in_trouble, self.policy.profile)

    def request(
        self,
        subject: CaptureSubject,
        selection: Selection,
        steps: int,
        now_s: float,
        *,
        shapes: bool = False,
        memory: bool = False,
    ) -> None:
        """Request a capture from the nodes. None may be under way, and a step must have been evaluated."""
        assert self.step_result is not None
        shapes = shapes or self.captures.policy.shapes
        capture = self.captures.request(
            subject, selection, steps, self.step_result, now_s, shapes=shapes, memory=memory
        )
        self._out.add(ev.RequestCapture, request=capture.request(now_s), is_asked=not subject.incident_id)

    def explain_growth(self, now_s: float) -> None:
        """Request a memory capture for the oldest memory-growth incident without one, if the budget allows it."""
        waiting = (i for i in self._tracker.incidents.values() if i.kind == MEMORY_GROWTH and not i.diagnosed)
        incident = next(waiting, None)
        if incident is None or self.step_result is None or self.captures.current is not None:
            return
        refusal = self.captures.budget.refusal(now_s)
        if not refusal and self.captures.budget.is_cooling(now_s, incident.excess_seconds):
            return
        selection = self._selection(incident)
        if not selection.suspects and not refusal:
            refusal = "none of its ranks is known"
        if refusal:
            self._update(replace(incident, profile_evidence=(f"not profiled: {refusal}",), diagnosed=True))
            return
        subject = CaptureSubject(incident_id=incident.id)
        self.request(subject, selection, self.policy.profile.steps, now_s, memory=True)

    def end_if_over(self, now_s: float) -> None:
        """End the capture under way if it is complete or has expired."""
        if self.step_result is None:  # a capture restored from the store waits for the first step
            return
        capture = self.captures.finished(now_s)
        if capture is not None:
            self.read(capture)

    def read(self, capture: "Capture") -> None:
        """Have the results of a capture that is over diagnosed, for its incident (open or closed) or its operator."""
        if not capture.incident_id:
            self._diagnose(None, capture)
            return
        incident = self._tracker.find(capture.incident_id)
        if incident is None or _is_another(incident, capture):
            return
        if incident.profile is not None and incident.profile.request_id != capture.request_id:
            return  # a later capture has been used already
        if incident.kind == MEMORY_GROWTH:
            self._update(explained_growth(incident, capture))
            return
        is_open = incident.id in self._tracker.incidents
        notes = capture.trouble()
        incident = replace(incident, profile=note_of(capture))
        if not incident.diagnosed:
            incident = replace(incident, profile_evidence=notes)
        self._update(incident)
        self._diagnose(incident, capture, notes)
        if not is_open:
            self.diagnoses.pending.discard(incident.id)

    def _diagnose(self, incident: "Incident | None", capture: "Capture | None", notes: tuple[str, ...] = ()) -> None:
        """Request a diagnosis of an incident with its capture, if any, or of an operator's capture."""
        assert self.step_result is not None
        order = self.diagnoses.order(incident, capture, self.step_result, notes=notes, cause_id=self._out.cause_id)
        self._out.instructions.append(order)

    def _update(self, incident: "Incident") -> None:
        self._tracker.amend(incident)
        self._out.add(ev.UpdateIncident, incident=incident)


def _is_another(incident: "Incident", capture: "Capture") -> bool:
    """Whether the incident's culprits have changed and none of them was profiled."""
    return incident.scope != JOB and not set(incident.ranks) & set(capture.suspects)
