"""The state machine of one run: events in, instructions out, through one method.

What may live here: the state of a run, when an incident opens, changes and closes, and when a capture is made. What may
not: a clock, I/O, arrays, a detector. `handle` is the only entry point. The tests and the replay of logs rely on the
guarantee that the same events give the same instructions; code that changes a field from elsewhere breaks it.

The state describes what is being done about the run; which incidents are open is separate. The states and their
transitions are the table in `transitions.py`.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coordinator.decide import events as ev
from coordinator.decide.capture_flow import CaptureFlow
from coordinator.decide.capture_manager import CaptureManager, CaptureSubject
from coordinator.decide.growth_incidents import GrowthIncidents
from coordinator.decide.incident_tracker import IncidentTracker
from coordinator.decide.incidents import Incident
from coordinator.decide.machine_evidence import newer_of
from coordinator.decide.outbox import Outbox
from coordinator.decide.saved_run import SavedRun
from coordinator.decide.selection import Selection
from coordinator.decide.stack_manager import StackManager
from coordinator.decide.stall import StallDetector
from coordinator.decide.transitions import OVER, TRANSITIONS, State, TransitionError, Trigger
from coordinator.detect.anomalies import CRASH
from coordinator.detect.error_budget import AttemptLength
from coordinator.detect.scope import is_watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.detect.anomalies import Anomaly, StepResult
    from coordinator.settings.policy import Policy


class RunMachine:
    """State machine of one run.

    `tracker` holds the open incidents, `flow` their captures and diagnoses. Invariant: the state is PROFILING only
    while a capture for an open incident, or the diagnosis that follows from it, is under way.
    """

    def __init__(self, run: str, policy: "Policy", memory: "SavedRun | None" = None) -> None:
        self.run = run
        self.state = State.WARMING
        self.tracker = IncidentTracker(run, policy.run, memory)
        self.stall = StallDetector(self.tracker, policy.run)
        if memory is not None:
            self.stall.attempt_length = AttemptLength(memory.attempt_counts)
        self.growth = GrowthIncidents(self.tracker, policy.memory)
        self.stacks = StackManager()
        self._out = Outbox()
        self.flow = CaptureFlow(self.tracker, policy, memory, self._out)
        self.step_result: StepResult | None = None
        self._policy = policy
        self._ranks: frozenset[int] = frozenset()
        self._handlers: dict[type[ev.Event], Callable[[Any], None]] = {
            ev.StepEvaluatedEvent: self._on_evaluated,
            ev.AnnounceEvent: self._on_announced,
            ev.RestartedEvent: self._on_restarted,
            ev.EndedEvent: self._on_ended,
            ev.TickEvent: self._on_tick,
            ev.StallEvent: self._on_stall,
            ev.MemoryGrowthEvent: self._on_memory_growth,
            ev.LossesEvent: self._on_losses,
            ev.PolicyChangedEvent: self._on_policy,
            ev.CaptureRequestedEvent: self._on_capture_requested,
            ev.CaptureFailedEvent: self._on_failed,
            ev.CaptureResultEvent: self._on_answer,
            ev.SummaryEvent: self._on_summary,
            ev.StacksEvent: self._on_stacks,
            ev.DiagnosedEvent: self._on_diagnosed,
            ev.ExplainedEvent: self._on_explained,
            ev.PredictedEvent: self._on_predicted,
            ev.MachineEvidenceEvent: self._on_machine_evidence,
            ev.FleetHistoryEvent: self._on_fleet_history,
        }

    @property
    def captures(self) -> CaptureManager:
        """The capture under way and the most recent past ones."""
        return self.flow.captures

    def handle(self, event: ev.Event) -> list[ev.Instruction]:
        """Handle one event; return the resulting instructions, in order.

        Raises
        ------
        TransitionError
            The table has no transition for the trigger: a bug of ours.
        """
        self._out.begin(event.cause_id)
        if not self.stall.last_sign_s:
            self.stall.last_sign_s = event.unix_s
        self._handlers[type(event)](event)
        self.flow.end_if_over(event.unix_s)
        self._settle()
        if self.state is State.SUSPECT and self.captures.current is None and self.flow.explain_next(event.unix_s):
            self._move(Trigger.ASKED)
        return self._out.instructions

    def _move(self, trigger: Trigger) -> None:
        target = TRANSITIONS.get((self.state, trigger))
        if target is None:
            raise TransitionError(self.run, self.state, trigger)
        self.state = target

    def _on_evaluated(self, event: ev.StepEvaluatedEvent) -> None:
        step_result = event.step_result
        self.step_result = self.flow.step_result = step_result
        if self.state in OVER:  # its last steps may arrive after the report of its end; they are only displayed
            return
        held = self._report_held(step_result, event.unix_s)
        if self.stall.take_step(step_result, event.unix_s):
            self._close_hang(event.unix_s, held)
            if self.state in (State.HUNG, State.LOST):
                self._move(Trigger.RESUMED)
        if self.state in (State.HUNG, State.LOST):
            return
        if step_result.is_disturbed or not step_result.is_warm:
            return
        if self.state is State.WARMING:
            self._move(Trigger.REMEMBERED if self.tracker.holds_back else Trigger.WARMED)
        own_load = self.flow.own_load(event.unix_s)
        opened, changed, closed = self.tracker.take(step_result, event.unix_s, own_load)
        self._report(opened, changed, closed)
        self.flow.measure(step_result)
        for incident in closed:
            self.flow.let_go(incident, event.unix_s)
        self._settle()
        self._follow(found=bool(opened))

    def _report(self, opened: "list[Incident]", changed: "list[Incident]", closed: "list[Incident]") -> None:
        for form, incidents in ((ev.OpenIncident, opened), (ev.UpdateIncident, changed), (ev.CloseIncident, closed)):
            for incident in incidents:
                self._out.add(form, incident=incident)

    def _settle(self) -> None:
        """Leave PROFILING when neither a capture nor a diagnosis is under way."""
        if self.state is State.PROFILING and not self.flow.is_under_way:
            is_waiting = any(not incident.diagnosed for incident in self.tracker.active)
            self._move(Trigger.MORE if is_waiting else Trigger.EXPLAINED)

    def _follow(self, *, found: bool) -> None:
        """Move to the state that the open incidents require."""
        is_news = found or (self.state is State.DIAGNOSED and not all(i.diagnosed for i in self.tracker.active))
        if is_news and self.state in (State.HEALTHY, State.DIAGNOSED, State.RECOVERING):
            self._move(Trigger.FOUND)
        elif self.state is State.RECOVERING:
            if self.tracker.has_active:
                undiagnosed = any(not incident.diagnosed for incident in self.tracker.active)
                self._move(Trigger.FOUND if undiagnosed else Trigger.RELAPSED)
            elif not self.tracker.holds_back:
                self._move(Trigger.SETTLED)
        elif self.state in (State.SUSPECT, State.DIAGNOSED) and not self.tracker.has_active:
            self._move(Trigger.QUIET)
        elif self.state is State.SUSPECT and all(incident.diagnosed for incident in self.tracker.active):
            self._move(Trigger.EXPLAINED)

    def _on_announced(self, event: ev.AnnounceEvent) -> None:
        self.flow.announced = event
        self._ranks = frozenset(event.ranks)
        if event.is_finished and self.state not in OVER:
            self._end(Trigger.FINISHED, event.unix_s)

    def _on_ended(self, event: ev.EndedEvent) -> None:
        if self.state in OVER:
            return
        known = self._crash  # restored after a restart of the coordinator
        self._end(Trigger.CANCELLED if event.crash is None else Trigger.CRASHED, event.unix_s, but=known)
        if event.crash is not None and known is None and not event.is_silent:
            incident = self.tracker.open_crash(event.crash, event.hostname, event.ended_ranks, event.unix_s)
            self._out.add(ev.OpenIncident, incident=incident)

    def _end(self, trigger: Trigger, now_s: float, *, but: Incident | None = None) -> None:
        """End the run: withdraw its capture and close all open incidents except `but`."""
        self.flow.withdraw(now_s)
        self._move(trigger)
        self.stall.begin(now_s)
        for incident in self.tracker.close_all(now_s, but=but):
            self._out.add(ev.CloseIncident, incident=incident)

    @property
    def _crash(self) -> Incident | None:
        return next((each for each in self.tracker.incidents.values() if each.kind == CRASH), None)

    def _close_crash(self, now_s: float) -> None:
        """Close the incident of a crash, if one is open: the run continues, or is about to be dropped."""
        incident = self._crash
        if incident is not None:
            closed = self.tracker.close(incident.id, incident.detected_step, now_s)
            self._out.add(ev.CloseIncident, incident=closed)

    def _on_restarted(self, event: ev.RestartedEvent) -> None:
        self.flow.withdraw(event.unix_s)
        self.tracker.forget_steps()
        self._close_hang(event.unix_s)
        self._close_crash(event.unix_s)
        self._report([], [], self.growth.close_all(event.unix_s))
        self.stall.begin(event.unix_s)
        self._move(Trigger.RESTARTED)

    def _on_policy(self, event: ev.PolicyChangedEvent) -> None:
        self._policy = event.policy
        self.tracker.policy = self.stall.policy = event.policy.run
        self.growth.policy = event.policy.memory
        self.flow.set_policy(event.policy)
        if not (event.policy.detectors.hang and is_watched(self.run, event.policy.scope.runs)):
            self._close_hang(event.unix_s)  # no detector would close it later

    def _on_tick(self, event: ev.TickEvent) -> None:
        policy = self._policy.run
        stall_s = event.unix_s - self.stall.last_sign_s
        is_hanging = self.stall.incident is not None and event.is_alive
        if is_hanging and self.state is State.LOST:
            self._move(Trigger.BLOCKED)
        if self.state in OVER or self.state is State.LOST or self.step_result is None:
            is_history = self.state in (State.FINISHED, State.CANCELLED)
            keep_s = policy.keep_seconds if is_history else policy.lost_keep_seconds
            if stall_s > keep_s and not is_hanging:
                self._close_hang(event.unix_s)
                self._close_crash(event.unix_s)
                self._out.add(ev.ForgetRun)
        else:
            step_s = self.step_result.recent_step_seconds or self.step_result.step_seconds
            if stall_s > max(policy.lost_seconds, policy.lost_steps * step_s) and not is_hanging:
                self.flow.withdraw(event.unix_s)
                self._move(Trigger.SILENT)

    def is_blocked(self, now_s: float) -> bool:
        """Whether the caller should find out which ranks have not arrived (`StallEvent`); changes nothing."""
        return self.state not in OVER and self.stall.is_blocked(now_s)

    def _on_stall(self, event: ev.StallEvent) -> None:
        if not self.is_blocked(event.unix_s):
            return
        if self.stall.incident is None and self.flow.is_holding_up(event.hang, event.unix_s):
            return
        incident, is_new = self.stall.take(event.hang, event.unix_s, len(self._ranks))
        if incident is not None:
            form = ev.OpenIncident if is_new else ev.UpdateIncident
            self._out.add(form, incident=incident)
        if self.stall.incident is not None and self.state not in (State.HUNG, State.LOST):
            self.flow.withdraw(event.unix_s)
            self._move(Trigger.BLOCKED)
        self._ask_stacks(event.unix_s)

    def _ask_stacks(self, now_s: float) -> None:
        """Request the stacks of a hung run if that is due, and amend its incident with new ones."""
        incident = self.stall.incident
        if incident is None:
            return
        if self._policy.run.hang_stacks and self.stacks.ask(incident, sorted(self._ranks), now_s):
            self._out.add(ev.RequestStacks, request_id=self.stacks.request_id, ranks=self.stacks.ranks)
        amended = self.stacks.amended(incident, self.stall.cause_by_issues, now_s)
        if amended is not None:
            self._update(amended)

    def _on_stacks(self, event: ev.StacksEvent) -> None:
        self.stacks.take(event.stacks)
        self._ask_stacks(event.unix_s)

    def _on_memory_growth(self, event: ev.MemoryGrowthEvent) -> None:
        if self.state in OVER:
            return
        opened, changed, closed = self.growth.take(event.anomalies, event.step, event.unix_s)
        self._report(opened, changed, closed)
        for incident in closed:
            self.flow.let_go(incident, event.unix_s)
        if self.state in (State.HEALTHY, State.RECOVERING, State.DIAGNOSED):  # slow steps take precedence
            self.flow.explain_growth(event.unix_s)

    def _on_losses(self, event: ev.LossesEvent) -> None:
        self.stall.losses = event.losses

    def _report_held(self, step_result: "StepResult", now_s: float) -> "Anomaly | None":
        """Report a step that ranks held for minutes, unless it ends an open hang; return who held it.

        The step is over, so its incident opens and closes at once.
        """
        held = self.stall.held(step_result)
        if held is not None and self.stall.incident is None:
            opened, closed = self.stall.report_held(held, step_result, now_s)
            self._out.add(ev.OpenIncident, incident=opened)
            self._out.add(ev.CloseIncident, incident=closed)
        return held

    def _close_hang(self, now_s: float, held: "Anomaly | None" = None) -> None:
        incident = self.stall.close(now_s, held)
        if incident is not None:
            self._out.add(ev.CloseIncident, incident=incident)

    def _on_capture_requested(self, event: ev.CaptureRequestedEvent) -> None:
        reason = "" if self._policy.profile.enabled else "profiling is switched off"
        if self.captures.current is not None:
            reason = f"request {self.captures.current.request_id} is under way"
        elif self.step_result is None or self.state in OVER or self.state in (State.HUNG, State.LOST):
            reason = f"the run is {self.state}"
        if reason:
            self._out.add(ev.RefuseCapture, reason=reason)
        else:
            asked = Selection((), event.ranks)
            self.flow.request(CaptureSubject(), asked, event.steps, event.unix_s, shapes=event.shapes)

    def _on_failed(self, event: ev.CaptureFailedEvent) -> None:
        self.captures.fail(event.request_id, event.reason)

    def _on_answer(self, event: ev.CaptureResultEvent) -> None:
        self.captures.take_answer(event.answer)

    def _on_summary(self, event: ev.SummaryEvent) -> None:
        late = self.captures.take_summary(event.summary, event.unix_s)
        if late is not None:
            self.flow.read(late)

    def _on_diagnosed(self, event: ev.DiagnosedEvent) -> None:
        if event.asked is not None:
            self.captures.take_diagnosis(event.request_id, event.asked)
        notes = self.flow.diagnoses.take(event)
        incident = self.tracker.find(event.incident_id)
        if incident is not None and notes is not None:
            incident = replace(
                incident,
                function=event.function,
                operator=event.operator,
                root_cause=event.root_cause,
                bottleneck=event.bottleneck,
                profile_evidence=(*notes, *event.evidence),
                advice=event.advice,
                confidence=event.confidence or incident.confidence,
                diagnosed=True,
            )
            self._update(incident)
        if self.state is State.SUSPECT and all(incident.diagnosed for incident in self.tracker.active):
            self._move(Trigger.EXPLAINED)

    def _on_explained(self, event: ev.ExplainedEvent) -> None:
        incident = self.tracker.find(event.incident_id)
        if incident is not None:
            self._update(replace(incident, explanation=event.explanation))

    def _on_predicted(self, event: ev.PredictedEvent) -> None:
        incident = self.tracker.incidents.get(event.incident_id)
        if incident is not None:
            self._update(replace(incident, prediction=event.prediction))

    def _on_machine_evidence(self, event: ev.MachineEvidenceEvent) -> None:
        incident = self.tracker.incidents.get(event.incident_id)
        if incident is not None:
            self._update(replace(incident, machine=newer_of(incident.machine, event.machine)))

    def _on_fleet_history(self, event: ev.FleetHistoryEvent) -> None:
        incident = self.tracker.incidents.get(event.incident_id)
        if incident is not None:
            self._update(replace(incident, history=event.history))

    def _update(self, incident: Incident) -> None:
        self.tracker.amend(incident)
        self._out.add(ev.UpdateIncident, incident=incident)

    def memory(self) -> "SavedRun":
        """Return the state that must outlive a restart of the coordinator."""
        return SavedRun(
            incidents=tuple(self.tracker.incidents.values()),
            incidents_total=self.tracker.incidents_total,
            lost_device_seconds=self.tracker.lost_device_seconds,
            capture_times_s=tuple(self.captures.budget.times_s),
            capture_excess_seconds=self.captures.budget.excess_seconds,
            capture_counts=dict(self.captures.budget.counts),
            incident_tracker=self.tracker.state_dict(),
            capture=self.captures.current.to_json() if self.captures.current else {},
            last_sign_s=self.stall.last_sign_s,
            attempt_counts=self.stall.attempt_length.counts,
        )
