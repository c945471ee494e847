"""The state of one run: events in, instructions out, one door.

What may live here: what a run's state is, when an incident opens, changes and closes, when a capture is made.
What may not: a clock, I/O, arrays, a detector. `handle` is the only way in; whoever changes a field from elsewhere
breaks the promise that the same events give the same instructions, which the tests and the replay of logs rest on.

The run's state says what is being done about it; which incidents are open is separate. Its states and what leads from
one to another are the table in `transitions.py`.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coordinator.decide import events as ev
from coordinator.decide.capture_desk import CaptureDesk
from coordinator.decide.casebook import Casebook
from coordinator.decide.incidents import Incident
from coordinator.decide.memory import RunMemory
from coordinator.decide.profiling import note_of
from coordinator.decide.selection import JOB, Selection, select
from coordinator.decide.stack_desk import StackDesk
from coordinator.decide.standstill import Standstill
from coordinator.decide.transitions import OVER, TRANSITIONS, State, TransitionError, Trigger
from coordinator.detect.findings import CRASH, HANG, UNKNOWN
from coordinator.detect.scope import is_watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.decide.profiling import Capture
    from coordinator.detect.findings import Judgement
    from coordinator.settings.policy import Policy
    from lockstep.contracts.domains import Topology


class RunMachine:
    """State of one run.

    `captures` has the only request under way. `casebook` holds the open incidents. Invariant: the state is
    PROFILING only while a capture for an incident, or the diagnosis that follows from it, is under way.
    """

    def __init__(self, run: str, policy: "Policy", memory: "RunMemory | None" = None) -> None:
        self.run = run
        self.state = State.WARMING
        self.casebook = Casebook(run, policy.run, memory)
        self.standstill = Standstill(self.casebook, policy.run)
        self.stacks = StackDesk()
        self.captures = CaptureDesk(policy.profile, memory)
        self.judgement: Judgement | None = None
        self._policy = policy
        self._topology: Topology | None = None
        self._ranks: frozenset[int] = frozenset()
        self._diagnosing: set[str] = set()
        self._handlers: dict[type[ev.Event], Callable[[Any], None]] = {
            ev.StepJudgedEvent: self._on_judged,
            ev.AnnounceEvent: self._on_announced,
            ev.RestartedEvent: self._on_restarted,
            ev.EndedEvent: self._on_ended,
            ev.TickEvent: self._on_tick,
            ev.StandstillEvent: self._on_standstill,
            ev.LossesEvent: self._on_losses,
            ev.PolicyChangedEvent: self._on_policy,
            ev.ProfileAskedEvent: self._on_asked,
            ev.ProfileFailedEvent: self._on_failed,
            ev.AnswerEvent: self._on_answer,
            ev.SummaryEvent: self._on_summary,
            ev.StacksEvent: self._on_stacks,
            ev.DiagnosedEvent: self._on_diagnosed,
            ev.ExplainedEvent: self._on_explained,
            ev.PredictedEvent: self._on_predicted,
        }
        self._out: list[ev.Instruction] = []
        self._cause_id = ""

    def handle(self, event: ev.Event) -> list[ev.Instruction]:
        """Take one event; return what has to be done about it, in order.

        Raises
        ------
        TransitionError
            The table has no answer: a bug of ours.
        """
        self._out, self._cause_id = [], event.cause_id
        if not self.standstill.last_sign_s:
            self.standstill.begin(event.unix_s)
        self._handlers[type(event)](event)
        self._end_capture_if_over(event.unix_s)
        if self.state is State.SUSPECT and self.captures.current is None:
            self._explain_next(event.unix_s)
        return self._out

    def _move(self, trigger: Trigger) -> None:
        target = TRANSITIONS.get((self.state, trigger))
        if target is None:
            raise TransitionError(self.run, self.state, trigger)
        self.state = target

    def _on_judged(self, event: ev.StepJudgedEvent) -> None:
        judgement = event.judgement
        self.judgement = judgement
        if self.state in OVER:  # its last steps may arrive after the news of its end; they are shown, no more
            return
        if self.standstill.take_step(judgement, event.unix_s):
            self._close_hang(event.unix_s)
            if self.state in (State.HUNG, State.LOST):
                self._move(Trigger.RESUMED)
        if self.state in (State.HUNG, State.LOST):
            return
        if judgement.is_disturbed or not judgement.is_warm:
            return
        if self.state is State.WARMING:
            self._move(Trigger.REMEMBERED if self.casebook.incidents else Trigger.WARMED)
        capture = self.captures.current
        busy = self._diagnosing | ({capture.incident_id} if capture else set())
        opened, changed, closed = self.casebook.take(judgement, event.unix_s, busy)
        self._out += [ev.OpenIncident(cause_id=self._cause_id, incident=incident) for incident in opened]
        self._out += [ev.UpdateIncident(cause_id=self._cause_id, incident=incident) for incident in changed]
        self._out += [ev.CloseIncident(cause_id=self._cause_id, incident=incident) for incident in closed]
        self._follow(found=bool(opened))

    def _follow(self, *, found: bool) -> None:
        """Move to the state that the casebook asks for."""
        is_news = found or (self.state is State.DIAGNOSED and not all(i.diagnosed for i in self.casebook.active))
        if is_news and self.state in (State.HEALTHY, State.DIAGNOSED, State.RECOVERING):
            self._move(Trigger.FOUND)
        elif self.state is State.RECOVERING:
            if self.casebook.has_active:
                undiagnosed = any(not incident.diagnosed for incident in self.casebook.active)
                self._move(Trigger.FOUND if undiagnosed else Trigger.RELAPSED)
            elif not self.casebook.incidents:
                self._move(Trigger.SETTLED)
        elif self.state in (State.SUSPECT, State.DIAGNOSED) and not self.casebook.has_active:
            self._move(Trigger.QUIET)
        elif self.state is State.SUSPECT and all(incident.diagnosed for incident in self.casebook.active):
            self._move(Trigger.EXPLAINED)

    def _on_announced(self, event: ev.AnnounceEvent) -> None:
        self._topology = event.topology
        self._ranks = frozenset(event.ranks)
        if event.is_finished and self.state not in OVER:
            self._end(Trigger.FINISHED, event.unix_s)

    def _on_ended(self, event: ev.EndedEvent) -> None:
        if self.state in OVER:
            return
        known = self._crash  # from before a restart of the coordinator
        self._end(Trigger.CANCELLED if event.crash is None else Trigger.CRASHED, event.unix_s, but=known)
        if event.crash is not None and known is None and not event.is_silent:
            incident = self.casebook.open_crash(event.crash, event.hostname, event.ended_ranks, event.unix_s)
            self._out.append(ev.OpenIncident(cause_id=self._cause_id, incident=incident))

    def _end(self, trigger: Trigger, now_s: float, *, but: Incident | None = None) -> None:
        """End the run: nothing is captured any more, and what was open is over, all `but` one."""
        self.captures.put_away(now_s)
        self._move(trigger)
        self.standstill.begin(now_s)
        for incident in self.casebook.close_all(now_s, but=but):
            self._out.append(ev.CloseIncident(cause_id=self._cause_id, incident=incident))

    @property
    def _crash(self) -> Incident | None:
        return next((each for each in self.casebook.incidents.values() if each.kind == CRASH), None)

    def _close_crash(self, now_s: float) -> None:
        """Close the incident of a crash, if one is open: the run goes on, or is history."""
        incident = self._crash
        if incident is not None:
            closed = self.casebook.close(incident.id, incident.detected_step, now_s)
            self._out.append(ev.CloseIncident(cause_id=self._cause_id, incident=closed))

    def _on_restarted(self, event: ev.RestartedEvent) -> None:
        self.captures.put_away(event.unix_s)
        self.casebook.forget_steps()
        self._close_hang(event.unix_s)
        self._close_crash(event.unix_s)
        self.standstill.begin(event.unix_s)
        self._move(Trigger.RESTARTED)

    def _on_policy(self, event: ev.PolicyChangedEvent) -> None:
        self._policy = event.policy
        self.casebook.policy = self.standstill.policy = event.policy.run
        self.captures.budget.policy = event.policy.profile
        if not (event.policy.detectors.hang and is_watched(self.run, event.policy.scope.runs)):
            self._close_hang(event.unix_s)  # nobody looks any more, so nobody would close it

    def _on_tick(self, event: ev.TickEvent) -> None:
        policy = self._policy.run
        silence_s = event.unix_s - self.standstill.last_sign_s
        if self.state in OVER or self.state is State.LOST or self.judgement is None:
            is_history = self.state in (State.FINISHED, State.CANCELLED)
            keep_s = policy.keep_seconds if is_history else policy.lost_keep_seconds
            hangs = self.standstill.incident is not None and event.is_alive
            if silence_s > keep_s and not hangs:
                self._close_hang(event.unix_s)
                self._close_crash(event.unix_s)
                self._out.append(ev.ForgetRun(cause_id=self._cause_id))
        else:
            step_s = self.judgement.recent_step_seconds or self.judgement.step_seconds
            if silence_s > max(policy.lost_seconds, policy.lost_steps * step_s):
                self.captures.put_away(event.unix_s)
                self._move(Trigger.SILENT)

    def is_blocked(self, now_s: float) -> bool:
        """Whether somebody should look who has not arrived (`StandstillEvent`); changes nothing."""
        return self.state not in OVER and self.standstill.is_blocked(now_s)

    def _on_standstill(self, event: ev.StandstillEvent) -> None:
        if not self.is_blocked(event.unix_s):
            return
        incident, is_new = self.standstill.take(event.hang, event.unix_s, len(self._ranks))
        if incident is not None:
            form = ev.OpenIncident if is_new else ev.UpdateIncident
            self._out.append(form(cause_id=self._cause_id, incident=incident))
        if self.standstill.incident is not None and self.state not in (State.HUNG, State.LOST):
            self.captures.put_away(event.unix_s)
            self._move(Trigger.BLOCKED)

        self._ask_stacks(event.unix_s)

    def _ask_stacks(self, now_s: float) -> None:
        """Ask where the ranks of a run that hangs stand, and take what is new of the answers."""
        incident = self.standstill.incident
        if incident is None:
            return
        if self._policy.run.hang_stacks and self.stacks.ask(incident, sorted(self._ranks), now_s):
            order = ev.RequestStacks(
                cause_id=self._cause_id, request_id=self.stacks.request_id, ranks=self.stacks.ranks
            )
            self._out.append(order)
        amended = self.stacks.amended(incident, self.standstill.cause_by_issues, now_s)
        if amended is not None:
            self._update(amended)

    def _on_stacks(self, event: ev.StacksEvent) -> None:
        self.stacks.take(event.stacks)
        self._ask_stacks(event.unix_s)

    def _on_losses(self, event: ev.LossesEvent) -> None:
        self.standstill.losses = event.losses

    def _close_hang(self, now_s: float) -> None:
        incident = self.standstill.close(now_s)
        if incident is not None:
            self._out.append(ev.CloseIncident(cause_id=self._cause_id, incident=incident))

    def _on_asked(self, event: ev.ProfileAskedEvent) -> None:
        reason = "" if self._policy.profile.enabled else "profiling is switched off"
        if self.captures.current is not None:
            reason = f"request {self.captures.current.request_id} is under way"
        elif self.judgement is None or self.state in OVER or self.state in (State.HUNG, State.LOST):
            reason = f"the run is {self.state}"
        if reason:
            self._out.append(ev.RefuseProfile(cause_id=self._cause_id, reason=reason))
        else:
            asked = Selection((), event.ranks)
            self._request("", asked, event.steps, event.unix_s, shapes=event.shapes)

    def _on_failed(self, event: ev.ProfileFailedEvent) -> None:
        self.captures.fail(event.request_id, event.reason)

    def _on_answer(self, event: ev.AnswerEvent) -> None:
        self.captures.take_answer(event.answer)

    def _on_summary(self, event: ev.SummaryEvent) -> None:
        self.captures.take_summary(event.summary, event.unix_s)

    def _on_diagnosed(self, event: ev.DiagnosedEvent) -> None:
        if event.asked is not None:
            self.captures.take_diagnosis(event.request_id, event.asked)
        self._diagnosing.discard(event.incident_id)
        incident = self.casebook.incidents.get(event.incident_id)
        if incident is not None:
            incident = replace(
                incident,
                function=event.function,
                operator=event.operator,
                root_cause=event.root_cause,
                bottleneck=event.bottleneck,
                profile_evidence=(*incident.profile_evidence, *event.evidence),
                advice=event.advice,
                confidence=event.confidence or incident.confidence,
                diagnosed=True,
            )
            self._update(incident)
        if self.state is State.PROFILING and self.captures.current is None and not self._diagnosing:
            waiting = any(not incident.diagnosed for incident in self.casebook.active)
            self._move(Trigger.MORE if waiting else Trigger.EXPLAINED)
        elif self.state is State.SUSPECT and all(incident.diagnosed for incident in self.casebook.active):
            self._move(Trigger.EXPLAINED)

    def _on_explained(self, event: ev.ExplainedEvent) -> None:
        incident = self.casebook.incidents.get(event.incident_id)
        if incident is not None:
            self._update(replace(incident, explanation=event.explanation))

    def _on_predicted(self, event: ev.PredictedEvent) -> None:
        incident = self.casebook.incidents.get(event.incident_id)
        if incident is not None:
            self._update(replace(incident, prediction=event.prediction))

    def _update(self, incident: Incident) -> None:
        self.casebook.incidents[incident.id] = incident
        self._out.append(ev.UpdateIncident(cause_id=self._cause_id, incident=incident))

    def _explain_next(self, now_s: float) -> None:
        """Ask for a capture, or for a diagnosis without one, of the oldest active incident that has neither."""
        waiting = [i for i in self.casebook.active if not i.diagnosed and i.id not in self._diagnosing]
        if not waiting or self.judgement is None:
            return
        incident = waiting[0]
        if incident.scope == JOB and self.judgement.step < incident.detected_step + self._policy.run.join_steps:
            return  # its culprit may become clear
        refusal = self.captures.budget.refusal(now_s)
        if not refusal and self.captures.budget.is_cooling(now_s):
            return
        selection = self._selection(incident)
        if not selection.suspects and not refusal:
            refusal = "none of its ranks is known"
        if refusal:
            self._update(replace(incident, profile_evidence=(f"not profiled: {refusal}",)))
            self._diagnose(incident, None)
            return
        # Small messages and changing shapes of a whole job show in shapes alone, and there is no culprit to hold up.
        is_job = incident.scope == JOB
        self._request(incident.id, selection, self._policy.profile.steps, now_s, shapes=is_job)
        self._move(Trigger.ASKED)

    def _selection(self, incident: Incident) -> Selection:
        if self._topology is None:
            return Selection((), ())
        in_trouble = {rank for each in self.casebook.incidents.values() if each.kind != HANG for rank in each.ranks}
        return select(incident, self._topology, self._ranks, in_trouble, self._policy.profile)

    def _request(
        self, incident_id: str, selection: Selection, steps: int, now_s: float, *, shapes: bool = False
    ) -> None:
        assert self.judgement is not None
        shapes = shapes or self.captures.policy.shapes
        capture = self.captures.ask(incident_id, selection, steps, self.judgement, now_s, shapes=shapes)
        self._out.append(
            ev.RequestProfile(
                cause_id=self._cause_id,
                request_id=capture.request_id,
                ranks=capture.ranks,
                first_step=capture.first_step,
                steps=capture.steps,
                shapes=shapes,
                is_asked=not incident_id,
            )
        )

    def _end_capture_if_over(self, now_s: float) -> None:
        if self.judgement is None:  # a capture remembered from before waits for the first step
            return
        capture = self.captures.finished(now_s)
        if capture is None:
            return
        if not capture.incident_id:
            self._diagnose(None, capture)
        incident = self.casebook.incidents.get(capture.incident_id)
        if incident is None:
            return
        if _is_another(incident, capture):
            self._move(Trigger.MORE)
            return
        incident = replace(incident, profile=note_of(capture), profile_evidence=capture.trouble())
        self._update(incident)
        self._diagnose(incident, capture)

    def _diagnose(self, incident: Incident | None, capture: "Capture | None") -> None:
        """Ask what a capture says of an incident, or of nothing in particular."""
        assert self.judgement is not None
        summaries = capture.summaries if capture else {}
        suspects = capture.suspects if capture else ()
        if incident is not None:
            self._diagnosing.add(incident.id)
        self._out.append(
            ev.Diagnose(
                cause_id=self._cause_id,
                incident_id=incident.id if incident else "",
                request_id=capture.request_id if capture else 0,
                cause=incident.cause if incident else UNKNOWN,
                scope=incident.scope if incident else JOB,
                suspects=tuple(summaries[rank] for rank in suspects if rank in summaries),
                peers=tuple(summary for rank, summary in sorted(summaries.items()) if rank not in suspects),
                step_seconds=self.judgement.recent_step_seconds or self.judgement.step_seconds,
                excess_seconds=incident.excess_seconds if incident else 0.0,
            )
        )

    def memory(self) -> "RunMemory":
        """Return what must outlive a restart of the coordinator."""
        return RunMemory(
            incidents=tuple(self.casebook.incidents.values()),
            incidents_total=self.casebook.incidents_total,
            lost_device_seconds=self.casebook.lost_device_seconds,
            capture_times_s=tuple(self.captures.budget.times_s),
            capture_counts=dict(self.captures.budget.counts),
            book=self.casebook.position(),
            capture=self.captures.current.to_json() if self.captures.current else {},
            last_sign_s=self.standstill.last_sign_s,
        )


def _is_another(incident: Incident, capture: "Capture") -> bool:
    """Whether the culprits turned out, meanwhile, to be others than those that were profiled."""
    return incident.scope != JOB and not set(incident.ranks) & set(capture.suspects)
