"""One run with all of its state. No I/O and no clock."""

import logging
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from coordinator.decide import events as ev
from coordinator.decide.explain import ExplanationContext, explain_instructions
from coordinator.decide.growth_incidents import remaining_seconds
from coordinator.decide.saved_run import DetectionProgress, DetectorState, SavedRun, fingerprint_of
from coordinator.decide.transitions import OVER, State
from coordinator.detect.anomalies import FLUCTUATION, SLOW_RANK
from coordinator.detect.detector import Detector
from coordinator.detect.hangs.progress import ProgressBook
from coordinator.detect.memory_growth import MemoryGrowthTest
from coordinator.detect.runs.run_outliers import Outliers
from coordinator.detect.scope import is_watched
from coordinator.expected.captures import HealthyCaptures
from coordinator.expected.expectation import Expectation
from coordinator.intake.device_peaks import DevicePeaks
from coordinator.intake.workload import Workload
from coordinator.record.attempt_history import AttemptHistory
from coordinator.record.earlier_attempts import AttemptComparison
from coordinator.record.step_series import StepSeries
from coordinator.snapshot import RunSnapshot, StepHistogram, Suspect
from lockstep.contracts.limits import SUSPECTS_MAX
from lockstep.contracts.metrics import MIRRORED_UNITS, PROFILE_STATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.decide.incidents import Incident
    from coordinator.decide.state import RunMachine
    from coordinator.detect.anomalies import Anomaly, StepResult
    from coordinator.intake.timeline import StepRow, StepTimeline
    from coordinator.intake.topology import Membership
    from coordinator.settings.policy import Policy
    from lockstep.contracts.domains import Topology
    from lockstep.contracts.memory_report import RankMemory

_log = logging.getLogger(__name__)

Orders = list[tuple[str, list[ev.Instruction]]]
"""Instructions with the name of the run that issued them."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One run with all of its state; `detector` is None until the next step after a change of shape."""

    name: str
    policy: "Policy"
    membership: "Membership"
    timeline: "StepTimeline"
    begun_s: float
    """When it was first announced to this coordinator."""
    machine: "RunMachine"
    topology: "Topology | None" = None
    detector: Detector | None = None
    outliers: Outliers = field(default_factory=Outliers)
    """How common long steps are, over all attempts."""
    generation: int = 0
    ended_since_s: float | None = None
    """When a rank was first seen to have failed; None if there is no such rank."""
    reshape_is_due: bool = False
    """Whether nodes have announced changes that `topology` and `timeline` do not contain yet."""
    histogram: StepHistogram = field(default_factory=StepHistogram.empty)
    series: StepSeries = field(default_factory=StepSeries)
    history: AttemptHistory
    """Shared by all runs."""
    attempts: AttemptComparison = field(init=False)
    peaks: DevicePeaks = field(default_factory=DevicePeaks)
    workload: Workload = field(default_factory=Workload)
    progress: ProgressBook = field(default_factory=ProgressBook)
    remembered: DetectorState | None = None
    """Learnt state of an earlier coordinator's detector, until this one's detector is created."""
    expectation: Expectation = field(default_factory=Expectation)
    captures: HealthyCaptures = field(default_factory=HealthyCaptures)
    memory_growth: MemoryGrowthTest = field(default_factory=MemoryGrowthTest)
    memory_generation: int = 0
    """Generation of the timeline to which the reports in `memory_growth` belong."""
    fingerprint: str = ""
    """Digest of the ranks, groups, nodes and attempts that `detector` learns."""
    evaluated: DetectionProgress = field(default_factory=DetectionProgress)
    """How far the run has been evaluated, including by an earlier coordinator."""
    mirrored_alarms: Counter[str] = field(default_factory=Counter)
    """Alarms of the mirrored test, by `metrics.MIRRORED_UNITS`, over all attempts."""

    def __post_init__(self) -> None:
        self.attempts = AttemptComparison(self.name, self.history)

    @property
    def scene(self) -> ExplanationContext:
        """The data to explain an incident with."""
        assert self.topology is not None
        rows = tuple(self.detector.recent_rows) if self.detector else ()
        return ExplanationContext(rows=rows, topology=self.topology, policy=self.policy, hostname=self.hostname)

    def feed(self, event: ev.Event) -> Orders:
        """Pass an event to the run's machine; return its instructions, and the explanations of incidents among them."""
        if isinstance(event, ev.PolicyChangedEvent):
            self.set_policy(event.policy)
        instructions = self.machine.handle(event)
        if not instructions:
            return [(self.name, instructions)]
        explained = explain_instructions(instructions, self.scene, event)
        due = self.learn_operators(instructions, event.cause_id)
        reported = [(self.name, instructions), *((self.name, self.machine.handle(each)) for each in explained)]
        return [*reported, (self.name, due)] if due else reported

    def repairs(self, cause_id: str) -> list[ev.Instruction]:
        """Return the predictions to make for the active incidents."""
        step_result = self.machine.step_result
        baseline_s = step_result.baseline_step_seconds if step_result else None
        return self.expectation.repairs(self.machine.tracker.active, cause_id, baseline_s)

    def learn_operators(self, instructions: "Sequence[ev.Instruction]", cause_id: str) -> list[ev.Instruction]:
        """Use the operators of a capture of healthy ranks, if `instructions` end one; return the fits that are due."""
        operators = self.captures.observe(instructions, self.machine)
        if operators is None:
            return []
        self.expectation.add_operators(operators)
        return self.expectation.refit(cause_id)

    def take_memory(self, node: str, reports: "Sequence[RankMemory]") -> None:
        """Apply a node's memory reports for the ranks that it owns."""
        if self.memory_generation != self.timeline.generation:
            self.memory_generation = self.timeline.generation
            self.memory_growth.forget()
        self.memory_growth.add(report for report in reports if self.membership.nodes.get(report.rank) == node)

    def look_for_growth(self, now_s: float) -> "ev.MemoryGrowthEvent | None":
        """Return the ranks whose memory grows; None if no report arrived that could change the result."""
        policy, step_result = self.policy, self.machine.step_result
        is_due = self.memory_growth.is_due or bool(self.machine.growth.open)
        if step_result is None or not is_due:
            return None
        anomalies: tuple[Anomaly, ...] = ()
        if policy.detectors.memory_growth and is_watched(self.name, policy.scope.runs):
            step_s = step_result.recent_step_seconds or step_result.step_seconds
            anomalies = self.memory_growth.find(self.membership.nodes, step_s, policy.memory)
        return ev.MemoryGrowthEvent(unix_s=now_s, cause_id="memory", anomalies=anomalies, step=step_result.step)

    def set_policy(self, policy: "Policy") -> None:
        """Apply another policy to timeline and detector; the state machine gets it by its own event."""
        self.policy = policy
        self.timeline.policy = policy.timeline
        if self.detector is not None:
            self.detector.set_policy(policy)

    def is_new(self, row: "StepRow") -> bool:
        """Whether no earlier coordinator has evaluated a step; some or all of its records may be delivered again."""
        return row.step > self.evaluated.step or row.end_unix_s > self.evaluated.until_unix_s

    def note_result(self, row: "StepRow", step_result: "StepResult") -> None:
        """Note that a step has been evaluated.

        All ranks end a step within one step duration of each other, so no record of it that is delivered again ends
        later than its median end plus that duration. The first step of another attempt ends later.
        """
        self.mirrored_alarms.update(step_result.mirrored_alarms)
        self.evaluated = DetectionProgress(
            step=row.step,
            until_unix_s=row.end_unix_s + step_result.step_seconds,
            records=self.evaluated.records + int(row.present.sum()),
        )

    def begin_again(self) -> None:
        """Discard detector state and pending records after a fault of ours, because either may be inconsistent."""
        self.timeline.drop_pending()
        self.detector, self.outliers = None, Outliers()

    def begin_detector(self) -> None:
        """Create a detector for the current shape, continuing from the learnt state of an earlier coordinator."""
        assert self.topology is not None
        ranks, infos = self.timeline.ranks.tolist(), self.membership.infos
        hosts = [self.hostname(rank) for rank in ranks]
        self.detector = Detector(
            self.timeline.ranks,
            self.topology,
            self.policy,
            hosts=hosts,
            outliers=self.outliers,
            attempt_steps=self.machine.stall.attempt_length.expected_steps,
        )
        self.fingerprint = fingerprint_of(self.topology, ranks, hosts, [infos[rank].attempt for rank in ranks])
        learnt = self.remembered
        if learnt is not None and learnt.fingerprint == self.fingerprint:
            self.detector.load_state_dict(learnt.arrays)
            self.remembered = None
            _log.info(
                "run %s: continues after step %d with the learnt state of an earlier coordinator",
                self.name,
                learnt.step,
            )
        elif learnt is not None and len(ranks) >= self.membership.world_size:  # else nodes are missing
            self.remembered = None
            _log.warning(
                "run %s: the learnt state belongs to other ranks, groups, nodes or attempts; discarded", self.name
            )

    def memory(self, *, with_learnt: bool, with_series: bool = False) -> SavedRun:
        """Return the state that must outlive a restart.

        Learnt arrays and the series, if requested, are large copies.
        """
        memory, step_result = replace(self.machine.memory(), evaluated=self.evaluated), self.machine.step_result
        if with_series:
            self.note_attempts()
            memory = replace(memory, series=self.series.to_bytes())
        memory = replace(memory, attempts=self.history.to_json(self.name))
        if not with_learnt or self.detector is None or step_result is None:
            return replace(memory, learnt=self.remembered)
        arrays = {name: array.copy() for name, array in self.detector.state_dict().items()}
        learnt = DetectorState(
            fingerprint=self.fingerprint, step=step_result.step, end_unix_s=step_result.unix_s, arrays=arrays
        )
        return replace(memory, learnt=learnt if arrays else None)

    def note_attempts(self) -> None:
        """Update the history of the run's attempts, which outlives its series."""
        self.attempts.observe(self.series, self._workload_digest)

    def _workload_digest(self) -> str:
        return "" if self.topology is None else self.workload.digest(self.topology, self.membership.nodes)

    def hostname(self, rank: int) -> str:
        """Return the host of a rank; empty if unknown."""
        info = self.membership.infos.get(rank)
        return info.hostname if info else ""

    def _slow_ranks(self) -> "list[tuple[float, int, Incident]]":
        """Return by how much each slow rank is slower (ratio - 1), with its incident, worst first.

        An incident without an anomaly in the last step is recovering: its ranks keep their last value until it closes,
        so that their series end with the incident and have no gaps.
        """
        tracker, step_result = self.machine.tracker, self.machine.step_result
        found = (
            (f, tracker.incident_of(f.ranks[0]))
            for f in (step_result.anomalies if step_result else ())
            if f.kind == SLOW_RANK
        )
        slow = [(f.excess_ratio, f.ranks[0], incident) for f, incident in found if incident is not None]
        active = {incident.id for *_, incident in slow}
        recovering = (each for each in tracker.incidents.values() if each.kind == SLOW_RANK and each.id not in active)
        slow += [(each.slowdown_ratio, rank, each) for each in recovering for rank in each.ranks]
        return sorted(slow, key=lambda each: each[0], reverse=True)

    def snapshot(self) -> RunSnapshot:
        """Return the current state of the run as plain values."""
        machine = self.machine
        step_result, model = machine.step_result, self.expectation.model
        is_live = machine.state not in (*OVER, State.WARMING, State.HUNG, State.LOST)
        slow = self._slow_ranks() if is_live else []
        suspects = tuple(_suspect(self, *each) for each in slow[:SUSPECTS_MAX])
        incidents = tuple(machine.tracker.incidents.values())
        return RunSnapshot(
            run=self.name,
            state=str(machine.state),
            world_size=self.membership.world_size,
            ranks_reporting=self.timeline.ranks_reporting,
            ranks_blind=step_result.ranks_blind if step_result else 0,
            step=step_result.step if step_result else None,
            last_step_unix_s=step_result.unix_s if step_result else None,
            recent_step_seconds=_usual_now(step_result) if step_result else None,
            baseline_step_seconds=step_result.baseline_step_seconds if step_result else None,
            fluctuating=bool(step_result and step_result.fluctuating),
            slow_ranks=len(slow),
            suspects=suspects,
            incidents=incidents,
            incidents_total=machine.tracker.incidents_total,
            lost_device_seconds=machine.tracker.lost_device_seconds,
            profiles={state: machine.captures.budget.counts[state] for state in PROFILE_STATES},
            step_counts=tuple(self.histogram.counts),
            step_sum_seconds=self.histogram.sum_seconds,
            hostnames={rank: self.hostname(rank) for each in incidents for rank in each.ranks[:SUSPECTS_MAX]},
            imbalance_ratios=step_result.imbalance_ratios if step_result else {},
            mirrored_alarms={unit: self.mirrored_alarms[unit] for unit in MIRRORED_UNITS},
            memory_remaining_seconds=remaining_seconds(tuple(machine.tracker.incidents.values())),
            expected_state=self.expectation.state,
            expected_step_seconds=model.expected_step_seconds if model else None,
            expected_error_ratio=model.error_band_ratio if model else None,
            earlier=self.attempts.of_series(self.series, self._workload_digest),
        )


def _usual_now(step_result: "StepResult") -> float | None:
    """Return what a step takes now, seconds: the median; where single ones became long, the mean."""
    mean_s = (
        (step_result.baseline_step_seconds or 0.0) + anomaly.excess_seconds
        for anomaly in step_result.anomalies
        if anomaly.kind == FLUCTUATION and "share_of_steps" in anomaly.numbers
    )
    return next(mean_s, step_result.recent_step_seconds)


def _suspect(run: Run, ratio: float, rank: int, incident: "Incident") -> Suspect:
    """Return a slow rank for export.

    Its labels come from its incident, which does not change with every step's noise.
    """
    return Suspect(
        rank=rank,
        hostname=run.hostname(rank),
        domain_kind=incident.domain[0] if incident.domain else "world",
        cause=incident.cause,
        excess_ratio=ratio,
    )
