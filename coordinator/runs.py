"""All runs: decoded messages in, instructions out. No I/O; the time comes with every call.

A run is known from its first announcement until it has ended long enough ago. Records of ranks that nobody has
announced are refused: announcements are retained, so they always come first.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coordinator import events as ev
from coordinator.casebook import RunMemory
from coordinator.findings import SLOW_RANK
from coordinator.judge import Judge
from coordinator.snapshot import RunSnapshot, StepHistogram, Suspect
from coordinator.state import RunMachine, State
from coordinator.timeline import Timeline, rejections
from coordinator.topology import Membership
from lockstep.contracts.errors import ConfigError, MalformedError
from lockstep.contracts.limits import SUSPECTS_MAX
from lockstep.contracts.messages import (
    NodeAlive,
    NodeAnnouncement,
    ProfileAnswer,
    ProfileRequest,
    StepBatch,
    TraceSummary,
)
from lockstep.contracts.metrics import PROFILE_STATES

if TYPE_CHECKING:
    from coordinator.config import CoordinatorConfig
    from coordinator.findings import Finding
    from coordinator.policy import Policy
    from coordinator.timeline import StepRow
    from lockstep.contracts.codec import Message
    from lockstep.contracts.domains import Topology

_log = logging.getLogger(__name__)

Orders = list[tuple[str, list[ev.Instruction]]]
"""Instructions with the run that gave them."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One run and all that is remembered of it; `judge` is None until its next step after a change of shape."""

    name: str
    membership: Membership
    timeline: Timeline
    machine: RunMachine
    topology: "Topology | None" = None
    judge: Judge | None = None
    generation: int = 0
    histogram: StepHistogram = field(default_factory=StepHistogram.empty)

    def hostname(self, rank: int) -> str:
        """Return the host of a rank, empty where unknown."""
        info = self.membership.infos.get(rank)
        return info.hostname if info else ""


class Runs:
    """`memories` is what runs left behind when the coordinator last ended; `clock` measures durations only."""

    def __init__(
        self,
        config: "CoordinatorConfig",
        policy: "Policy",
        memories: Mapping[str, RunMemory],
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._policy = policy
        self._memories = dict(memories)
        self._clock = clock
        self.by_name: dict[str, Run] = {}
        self.rejected = rejections()
        self.records_lost = 0
        self.nodes_alive: set[str] = set()
        self.detections = 0
        self.detection_seconds = 0.0
        self.last_detection_unix_s: float | None = None
        self._lost_of_node: dict[tuple[str, str], int] = {}

    def take(self, message: "Message", now_s: float) -> Orders:
        """Take a decoded message.

        Raises
        ------
        MalformedError
            An announcement that cannot be; nothing of it was taken.
        """
        match message:
            case StepBatch():
                return self._take_batch(message, now_s)
            case NodeAnnouncement():
                return self._take_announcement(message, now_s)
            case NodeAlive():
                (self.nodes_alive.add if message.alive else self.nodes_alive.discard)(message.node)
                return []
            case ProfileAnswer():
                answered = ev.AnswerEvent(unix_s=now_s, cause_id=f"answer:{message.request_id}", answer=message)
                return self.feed(message.run, answered)
            case TraceSummary():
                summed = ev.SummaryEvent(unix_s=now_s, cause_id=f"summary:{message.request_id}", summary=message)
                return self.feed(message.run, summed)
            case ProfileRequest():  # our own channel: nothing subscribes to it here
                return []

    def feed(self, name: str, event: ev.Event) -> Orders:
        """Give an event to a run's machine; nothing happens where the run is unknown."""
        run = self.by_name.get(name)
        return [(name, run.machine.handle(event))] if run else []

    def tick(self, now_s: float) -> Orders:
        """Judge what has waited long enough, and let every run know the time."""
        orders: Orders = []
        for run in list(self.by_name.values()):
            orders += self._judge_ready(run, now_s)
            orders += self.feed(run.name, ev.TickEvent(unix_s=now_s, cause_id="tick"))
        return orders

    def forget(self, name: str) -> None:
        """Drop a run that ended long ago, all but its budgets; the store keeps its incidents."""
        run = self.by_name.pop(name, None)
        if run is not None:
            self._memories[name] = run.machine.memory()
        self._lost_of_node = {key: lost for key, lost in self._lost_of_node.items() if key[0] != name}

    def _take_batch(self, batch: StepBatch, now_s: float) -> Orders:
        run = self.by_name.get(batch.run)
        if run is None:
            self.rejected["rank"] += batch.count
            return []
        key = (batch.run, batch.node)
        before = self._lost_of_node.get(key, 0)
        grown = batch.lost_records - before
        self.records_lost += grown if grown >= 0 else max(0, batch.lost_records)  # it began anew with its exporter
        self._lost_of_node[key] = max(0, batch.lost_records)
        run.timeline.ingest(batch, now_s)
        return self._judge_ready(run, now_s)

    def _judge_ready(self, run: Run, now_s: float) -> Orders:
        orders: Orders = []
        if run.generation != run.timeline.generation:
            run.generation, run.judge = run.timeline.generation, None
            event = ev.RestartedEvent(unix_s=now_s, cause_id=f"attempt:{run.generation}")
            orders += self.feed(run.name, event)
        for row in run.timeline.ready(now_s):
            orders += self._judge(run, row, now_s)
        return orders

    def _judge(self, run: Run, row: "StepRow", now_s: float) -> Orders:
        if run.topology is None:
            return []
        begin = self._clock()
        if run.judge is None:
            hosts = [run.hostname(rank) for rank in run.timeline.ranks.tolist()]
            run.judge = Judge(run.timeline.ranks, run.topology, self._policy, hosts=hosts)
        judgement = run.judge.judge(row)
        self.detection_seconds += self._clock() - begin
        self.detections += 1
        self.last_detection_unix_s = now_s
        run.histogram.observe(judgement.step_seconds)
        event = ev.StepJudgedEvent(unix_s=now_s, cause_id=f"step:{row.step}", judgement=judgement)
        return self.feed(run.name, event)

    def _take_announcement(self, announcement: NodeAnnouncement, now_s: float) -> Orders:
        run = self.by_name.get(announcement.run) or self._new_run(announcement, now_s)
        if run is None:
            return []
        restarted, reshaped = run.membership.take(announcement)
        self.by_name[run.name] = run
        if reshaped or run.topology is None:
            self._reshape(run)
        assert run.topology is not None
        for info in restarted:
            if info.rank in run.timeline.ranks:
                run.timeline.restart_rank(info.rank, info.attempt)
        event = ev.AnnounceEvent(
            unix_s=now_s,
            cause_id=f"announce:{announcement.node}",
            topology=run.topology,
            ranks=tuple(run.membership.ranks),
            is_finished=run.membership.is_finished,
        )
        return self.feed(run.name, event) + self._judge_ready(run, now_s)

    def _reshape(self, run: Run) -> None:
        """Follow the announced ranks and groups; what detectors remember of another shape is of no use."""
        ranks = run.membership.ranks
        if not set(run.timeline.ranks.tolist()).issubset(ranks):  # a smaller world: nothing of the old one fits
            run.timeline = Timeline(self._policy.timeline, self.rejected)
            run.generation = -1
        if run.timeline.know(ranks):
            run.judge = None
        topology = self._topology(run)
        if topology != run.topology:
            run.judge = None
        run.topology = topology

    def _new_run(self, announcement: NodeAnnouncement, now_s: float) -> Run | None:
        """Return a run for its first announcement, None for one that ended long ago or is one too many."""
        name = announcement.run
        youngest_s = max((info.heartbeat_unix_ns for info in announcement.ranks), default=0) / 1e9
        if now_s - youngest_s > self._policy.run.lost_keep_seconds:
            return None
        if len(self.by_name) >= self._config.runs_max:
            raise MalformedError(
                "run", where="announcements", got=name, expected=f"at most {self._config.runs_max} runs"
            )
        return Run(
            name=name,
            membership=Membership(degrees=self._config.domains, order=self._config.order),
            timeline=Timeline(self._policy.timeline, self.rejected),
            machine=RunMachine(name, self._policy, self._memories.get(name)),
        )

    def _topology(self, run: Run) -> "Topology":
        try:
            return run.membership.topology()
        except ConfigError as error:
            _log.warning("run %s: %s; the announced groups are used", run.name, error)
            return run.membership.announced_topology()

    def snapshot_of(self, run: Run) -> RunSnapshot:
        """Return what is known of a run now."""
        machine = run.machine
        judgement = machine.judgement
        is_live = machine.state not in (State.WARMING, State.LOST, State.FINISHED)
        findings = judgement.findings if judgement and is_live else ()
        slow = sorted((f for f in findings if f.kind == SLOW_RANK), key=lambda finding: -finding.excess_ratio)
        suspects = tuple(_suspect(run, finding) for finding in slow[:SUSPECTS_MAX])
        return RunSnapshot(
            run=run.name,
            state=str(machine.state),
            world_size=run.membership.world_size,
            ranks_reporting=run.timeline.ranks_reporting,
            ranks_blind=judgement.ranks_blind if judgement else 0,
            step=judgement.step if judgement else None,
            last_step_unix_s=judgement.unix_s if judgement else None,
            recent_step_seconds=judgement.recent_step_seconds if judgement else None,
            baseline_step_seconds=judgement.baseline_step_seconds if judgement else None,
            fluctuating=bool(judgement and judgement.fluctuating),
            slow_ranks=len(slow),
            suspects=suspects,
            incidents=tuple(machine.casebook.incidents.values()),
            incidents_total=machine.casebook.incidents_total,
            lost_device_seconds=machine.casebook.lost_device_seconds,
            profiles={state: machine.budget.counts[state] for state in PROFILE_STATES},
            step_counts=tuple(run.histogram.counts),
            step_sum_seconds=run.histogram.sum_seconds,
        )


def _suspect(run: Run, finding: "Finding") -> Suspect:
    """Return a slow rank as exported; labels are its incident's, which do not change with every step's noise."""
    rank = finding.ranks[0]
    incident = run.machine.casebook.incident_of(rank)
    domain = incident.domain if incident else finding.domain
    return Suspect(
        rank=rank,
        hostname=run.hostname(rank),
        domain_kind=domain[0] if domain else "world",
        cause=incident.cause if incident else finding.cause,
        excess_ratio=finding.excess_ratio,
    )
