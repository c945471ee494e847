"""All runs: decoded messages in, instructions out. No I/O; the time comes with every call.

A run is known from its first announcement until it has ended, or made no step, for long enough; what it leaves behind
is bounded (`past_runs.py`). Records of ranks that no node has announced are refused: announcements are retained, so
they always come first.

Runs are isolated from each other: what handling one of them raises is counted and logged, its detectors begin again,
and a run that fails again and again is left alone for a while. Its records are counted all the same.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from coordinator.decide import events as ev
from coordinator.decide.endings import crash_of, is_request
from coordinator.decide.explain import explain_instructions
from coordinator.decide.memory import JudgedUntil, RunMemory
from coordinator.decide.state import RunMachine
from coordinator.decide.transitions import OVER
from coordinator.detect.hangs.progress import is_going_on
from coordinator.detect.scope import in_scope, is_watched
from coordinator.expected.expectation import Expectation
from coordinator.expected.healthy import KeptWindow
from coordinator.intake.presence import NodePresence
from coordinator.intake.refusals import DEGREES, NODE, RUN, RUN_OF_NODE, Refusals
from coordinator.intake.targets import Targets
from coordinator.intake.timeline import StepTimeline, rejections
from coordinator.intake.topology import Membership, MembershipChange
from coordinator.past_runs import PAST_RUN_KEPT_S, PAST_RUNS_MAX, PastRuns
from coordinator.run import Run
from coordinator.snapshot import RunSnapshot
from lockstep.contracts.errors import ConfigError, PeerError
from lockstep.contracts.limits import ANNOUNCE_REFRESH_SECONDS, ANNOUNCED_RANKS_MAX, NODES_MAX, RUNS_OF_NODE_MAX
from lockstep.contracts.messages import (
    NodeAlive,
    NodeAnnouncement,
    ProfileAnswer,
    RankStacks,
    StepBatch,
    TraceSummary,
)
from lockstep.serving.fault_isolation import FaultIsolation
from lockstep.serving.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from coordinator.intake.streams import Receipt
    from coordinator.intake.timeline import StepRow
    from coordinator.settings.config import CoordinatorConfig
    from coordinator.settings.policy import Policy
    from coordinator.settings.specs import SpecText
    from lockstep.contracts.codec import Message
    from lockstep.contracts.domains import Topology
    from lockstep.contracts.messages import RankInfo, RunHeartbeat

__all__ = ["Orders", "Run", "Runs", "Tap"]

_log = logging.getLogger(__name__)

HANDLE, JUDGE = "handle", "judge"
"""What is isolated by run: handling what comes of it, and judging a step."""
QUARANTINE_S = 600.0
"""A run that failed three times in a row: long enough to cost nothing, short enough for a new attempt to be judged."""
_SMALL_RANKS = 1024  # to lay them out takes milliseconds, and there are at most as many nodes

Orders = list[tuple[str, list[ev.Instruction]]]
"""Instructions with the run that gave them."""


class Tap(Protocol):
    """Hears all that comes in at the door, in order and before it is taken: the same again gives the same orders."""

    def hear(self, what: "Sequence[StepBatch] | Message | ev.Event", now_s: float, run: str = "") -> None:
        """Note what came in; batches that are taken together are heard together. Must be quick, and never raise."""


class Runs:
    """`memories` is what runs left behind when the coordinator last ended; `clock` measures durations only.

    `tap` hears what `take`, `feed` and `tick` are given.
    """

    def __init__(
        self,
        config: "CoordinatorConfig",
        policy: "Policy",
        memories: Mapping[str, RunMemory],
        clock: Callable[[], float],
        tap: Tap | None = None,
    ) -> None:
        self._config = config
        self._tap = tap
        self._policy_of: Callable[[str], Policy] = lambda _: policy
        self._spec_of: Callable[[str], SpecText | None] = lambda _: None
        self._windows: dict[str, KeptWindow] = {}
        self._past = PastRuns(memories)
        self._log = LogLimit(_log)
        self._clock = clock
        self.by_name: dict[str, Run] = {}
        self.rejected = rejections()
        self.records_judged = 0
        self.isolation = FaultIsolation((HANDLE, JUDGE), quarantine_s=QUARANTINE_S)
        self.refusals = Refusals()
        self.presence = NodePresence()
        self._lost_nodes: set[str] = set()
        self.targets = Targets(self.refusals)
        self.detections = 0
        self.detection_seconds = 0.0
        self.last_detection_unix_s: float | None = None

    def take(self, message: "Message", now_s: float) -> Orders:
        """Take a decoded message.

        Raises
        ------
        MalformedError
            An announcement that cannot be; nothing of it was taken.
        """
        if isinstance(message, StepBatch):
            return self.take_batches((message,), now_s)
        if self._tap is not None:
            self._tap.hear(message, now_s)
        match message:
            case NodeAnnouncement():
                self.presence.note_announcement(message.node, now_s)
                return self._isolated(HANDLE, message.run, now_s, lambda: self._take_announcement(message, now_s))
            case NodeAlive():
                self.presence.note(message.node, now_s, is_alive=message.alive)
                self.targets.hear(message, now_s)
                return self._apply_heartbeats(message, now_s)
            case ProfileAnswer() | TraceSummary() | RankStacks():
                event = _event_of(message, now_s)
                return self._isolated(HANDLE, message.run, now_s, lambda: self._feed(message.run, event))
            case _:  # what coordinators publish: nothing of it is for the runs
                return []

    def take_batches(self, batches: "Sequence[StepBatch]", now_s: float, receipts: "Sequence[Receipt]" = ()) -> Orders:
        """Take decoded batches of any runs in the order of their arrival, far cheaper together than one by one.

        `receipts`, one a batch or none at all, learn when the records of their batch are settled.
        """
        if self._tap is not None:
            self._tap.hear(tuple(batches), now_s)
        of_run: dict[str, list[int]] = {}
        for place, batch in enumerate(batches):
            of_run.setdefault(batch.run, []).append(place)
        orders: Orders = []
        for name, places in of_run.items():
            own = [batches[place] for place in places]
            for place in places if receipts else ():
                receipts[place].settle()  # unless the timeline holds it
            count = sum(batch.count for batch in own)
            if name not in self.by_name:
                self.rejected["rank"] += count
            elif self.is_quarantined(name, now_s):
                self.rejected["quarantined"] += count
            else:
                own_receipts = [receipts[place] for place in places] if receipts else []
                work = partial(self._ingest, self.by_name[name], own, own_receipts, now_s)
                orders += self._isolated(HANDLE, name, now_s, work, records=count)
                orders += self._judge_ready(self.by_name[name], now_s)
        return orders

    def has_capacity(self, name: str, step: int, flush: Callable[[], None]) -> bool:
        """Whether a run can hold records of a step now.

        `flush` places what has come and was not placed yet. A run in which nothing is pending follows any step.
        """
        run = self.by_name.get(name)
        if run is None or run.timeline.fits(step):
            return True
        flush()
        run = self.by_name.get(name)
        return run is None or run.timeline.fits(step) or run.timeline.is_idle

    def begin_session(self, now_s: float) -> None:
        """Note that this coordinator has just connected: the nodes that it knew have their time to come back now."""
        self._lose(self._lost_nodes, now_s)

    def end_session(self, now_s: float) -> None:
        """Note that this coordinator has lost its connection, and every node with it."""
        self._lost_nodes = self.presence.alive
        self._lose(self._lost_nodes, now_s)

    def _lose(self, nodes: set[str], now_s: float) -> None:
        for node in sorted(nodes):
            self.take(NodeAlive(node=node, alive=False, unix_ns=round(now_s * 1e9), stream_id=1), now_s)

    def _ingest(self, run: Run, batches: "Sequence[StepBatch]", receipts: "Sequence[Receipt]", now_s: float) -> Orders:
        orders = self._reshape(run, now_s) if run.reshape_is_due else []
        tickets = run.timeline.ingest_all(batches, now_s, run.membership.owners)
        for receipt, ticket in zip(receipts, tickets, strict=bool(receipts)):
            receipt.wait_for(ticket)
        return orders

    def is_quarantined(self, name: str, now_s: float) -> bool:
        """Whether a run failed so often that it is left alone for now."""
        return any(self.isolation.is_quarantined(kind, name, now_s) for kind in (HANDLE, JUDGE))

    def _isolated(self, kind: str, name: str, now_s: float, work: Callable[[], Orders], *, records: int = 0) -> Orders:
        """Return what `work` on a run orders; nothing if it raised, or if the run is quarantined.

        `records` are counted as failed if it raised. What a peer did wrong is not caught here.
        """
        if not self.isolation.admits(kind, name, now_s):
            self.rejected["quarantined"] += records
            return []
        orders: Orders | None = None
        refusal: PeerError | None = None
        with self.isolation.guard(kind, name, now_s):
            try:
                orders = work()
            except PeerError as error:
                refusal = error
        if refusal is not None:
            raise refusal
        if orders is not None:
            return orders
        self.rejected["failed"] += records
        run = self.by_name.get(name)
        if run is not None:
            run.begin_again()
        return []

    def is_news(self, message: "Message") -> bool:
        """Whether it matters that all batches before this message are taken before it.

        What nodes announce again and again, only to show that they live, comes too often to be waited for.
        """
        if not isinstance(message, NodeAnnouncement):
            return not isinstance(message, NodeAlive)
        run = self.by_name.get(message.run)
        if run is None:
            return True
        return any(_is_changed(run.membership.infos.get(info.rank), info) for info in message.ranks)

    def feed(self, name: str, event: ev.Event) -> Orders:
        """Give an event from outside to a run's machine; nothing happens where the run is unknown."""
        if self._tap is not None:
            self._tap.hear(event, event.unix_s, name)
        return self._feed(name, event)

    def _feed(self, name: str, event: ev.Event) -> Orders:
        run = self.by_name.get(name)
        if run is None:
            return []
        if isinstance(event, ev.PolicyChangedEvent):
            run.adopt(event.policy)
        instructions = run.machine.handle(event)
        if not instructions:
            return [(name, instructions)]
        explained = explain_instructions(instructions, run.scene, event)
        due = run.learn_operators(instructions, event.cause_id)
        reported = [(name, instructions), *((name, run.machine.handle(each)) for each in explained)]
        return [*reported, (name, due)] if due else reported

    def expect(
        self, spec_of: "Callable[[str], SpecText | None]", windows: Mapping[str, KeptWindow] | None = None
    ) -> None:
        """Take what runs are said to be, those that are under way included; `windows` is what was kept of them."""
        self._spec_of = spec_of
        self._windows |= windows or {}
        for run in self.by_name.values():
            run.expectation.adopt(spec_of(run.name))

    def take_fitted(self, name: str, fitted: ev.FittedEvent) -> Orders:
        """Take what came of a fit; return what its model is asked of the incidents that are open."""
        run = self.by_name.get(name)
        if run is None or not run.expectation.take(fitted):
            return []
        due = run.repairs(fitted.cause_id)
        return [(name, [*due, *run.expectation.refit(fitted.cause_id)])]

    def configure(self, config: "CoordinatorConfig") -> None:
        """Take another configuration: degrees and order for runs that begin from now on, and how many there may be."""
        self._config = config

    def adopt(self, policy_of: "Callable[[str], Policy]", now_s: float) -> Orders:
        """Judge every run by the thresholds that `policy_of` gives for its name, those that are under way included."""
        self._policy_of = policy_of
        orders: Orders = []
        for name in self.by_name:
            changed = ev.PolicyChangedEvent(unix_s=now_s, cause_id="policy", policy=policy_of(name))
            orders += self.feed(name, changed)
        return orders

    def tick(self, now_s: float) -> Orders:
        """Judge what has waited long enough, and let every run know the time."""
        if self._tap is not None:
            self._tap.hear(ev.TickEvent(unix_s=now_s, cause_id="tick"), now_s)
        self.refusals.log(now_s)
        orders = self._trim_past(now_s)
        for run in list(self.by_name.values()):
            if self.is_quarantined(run.name, now_s):
                continue
            if run.reshape_is_due:
                orders += self._isolated(HANDLE, run.name, now_s, partial(self._reshape, run, now_s))
            orders += self._judge_ready(run, now_s)
            orders += self._isolated(HANDLE, run.name, now_s, partial(self._advance, run, now_s))
        return orders

    def _trim_past(self, now_s: float) -> Orders:
        """Drop what is too much or too old of what runs left behind."""
        dropped = self._past.trim(now_s, self.by_name)
        for name in dropped:
            self._windows.pop(name, None)
        if dropped:
            kept = f"at most {PAST_RUNS_MAX} are kept, for {PAST_RUN_KEPT_S / 86_400:g} days"
            self._log.warning("past runs", now_s, f"what {len(dropped)} past runs left behind is dropped; {kept}")
        return [(name, [ev.DropMemory(cause_id="tick")]) for name in dropped]

    def _advance(self, run: Run, now_s: float) -> Orders:
        """Let a run know the time."""
        is_alive = now_s - run.membership.last_seen_unix_s < ANNOUNCE_REFRESH_SECONDS
        tick = ev.TickEvent(unix_s=now_s, cause_id="tick", is_alive=is_alive)
        concluded = self._conclude(run, now_s)
        return concluded + self._look_for_hang(run, now_s) + self._feed(run.name, tick)

    def _look_for_hang(self, run: Run, now_s: float) -> Orders:
        is_in_scope = run.policy.detectors.hang and is_watched(run.name, run.policy.scope.runs)
        if not is_in_scope or run.topology is None or not run.machine.is_blocked(now_s):
            return []
        judged = run.machine.judgement
        if judged is not None and is_going_on(run.timeline, judged.step):
            return []
        hang = run.progress.locate(run.topology, run.timeline)
        if hang is not None and not hang.is_measured and self._awaits_nodes_of(run, hang.ranks, now_s):
            return []  # who is behind by the records only has delivered less
        return self._feed(run.name, ev.StandstillEvent(unix_s=now_s, cause_id="tick", hang=hang))

    def forget(self, name: str) -> None:
        """Drop a run that ended long ago, all but its budgets; the store keeps its incidents."""
        run = self.by_name.pop(name, None)
        if run is not None:
            run.timeline.drop_pending()
            memory = replace(run.memory(with_learnt=False), learnt=None)
            attempts = [info.attempt for info in run.membership.infos.values()]
            self._past.add(name, memory, attempt=max(attempts, default=0))
        self._windows.pop(name, None)

    def _judge_ready(self, run: Run, now_s: float) -> Orders:
        orders: Orders = []
        if run.generation != run.timeline.generation:
            run.generation, run.judge = run.timeline.generation, None
            run.remembered, run.judged = None, JudgedUntil(records=run.judged.records)
            run.expectation.begin_attempt()
            event = ev.RestartedEvent(unix_s=now_s, cause_id=f"attempt:{run.generation}")
            orders += self._feed(run.name, event)
        if self._waits_for_nodes(run, now_s):
            return orders
        for row in run.timeline.ready(now_s, partial(self._may_deliver, run, now_s)):
            work = partial(self._judge, run, row, now_s)
            orders += self._isolated(JUDGE, run.name, now_s, work, records=int(row.present.sum()))
        return orders

    def _waits_for_nodes(self, run: Run, now_s: float) -> bool:
        """Whether nodes of a run that has just begun, or is new to this coordinator, are still to announce it."""
        return not run.membership.is_complete and now_s - run.begun_s < run.policy.timeline.rejoin_seconds

    def _awaits_nodes_of(self, run: Run, ranks: "Iterable[int]", now_s: float) -> bool:
        """Whether a node of these ranks may be about to deliver what they did."""
        return any(self._may_deliver(run, now_s, rank) for rank in ranks)

    def _may_deliver(self, run: Run, now_s: float, rank: int) -> bool:
        policy, node = run.policy.timeline, run.membership.nodes.get(rank, "")
        return self.presence.may_deliver(
            node, now_s, grace_seconds=policy.grace_seconds, rejoin_seconds=policy.rejoin_seconds
        )

    def _judge(self, run: Run, row: "StepRow", now_s: float) -> Orders:
        if run.topology is None or not run.is_new(row):
            return []
        begin = self._clock()
        if run.judge is None:
            run.begin_judge()
        assert run.judge is not None
        judgement = in_scope(run.judge.judge(row), run.policy, run.name)
        self.detection_seconds += self._clock() - begin
        self.detections += 1
        self.last_detection_unix_s = now_s
        run.histogram.observe(judgement.step_seconds)
        before = run.judged.records
        run.note_judged(row, judgement)
        self.records_judged += run.judged.records - before
        event = ev.StepJudgedEvent(unix_s=now_s, cause_id=f"step:{row.step}", judgement=judgement)
        due = run.expectation.see(row, judgement, run.topology, event.cause_id)
        orders = self._feed(run.name, event)
        due += run.repairs(event.cause_id)
        return [*orders, (run.name, due)] if due else orders

    def _take_announcement(self, announcement: NodeAnnouncement, now_s: float) -> Orders:
        run = self.by_name.get(announcement.run)
        if not self._has_capacity(run, announcement):
            return []
        run = run or self._new_run(announcement, now_s)
        if run is None:
            return []
        change = run.membership.apply_announcement(announcement, now_s)
        run.progress.apply_announcement(announcement, run.membership)
        self.by_name[run.name] = run
        return self._follow(run, change, now_s)

    def _apply_heartbeats(self, message: NodeAlive, now_s: float) -> Orders:
        orders: Orders = []
        for heartbeat in message.runs:
            run = self.by_name.get(heartbeat.run)
            if run is not None:
                work = partial(self._apply_heartbeat, run, message.node, heartbeat, now_s)
                orders += self._isolated(HANDLE, run.name, now_s, work)
        return orders

    def _apply_heartbeat(self, run: Run, node: str, heartbeat: "RunHeartbeat", now_s: float) -> Orders:
        change = run.membership.apply_heartbeat(node, heartbeat, now_s)
        return self._follow(run, change, now_s) if change.is_reshaped or change.restarted else []

    def _has_capacity(self, run: Run | None, announcement: NodeAnnouncement) -> bool:
        """Whether the node may announce this run and so many ranks; counted if not."""
        node, count = announcement.node, len(announcement.ranks)
        former = None if run is None else run.membership.ranks_of(node)
        if count <= len(former or ()):
            return former is not None  # an announcement of nothing by a node that is not known
        memberships = [run.membership for run in self.by_name.values()]
        what = f"run {announcement.run} by node {node}"
        if former is None and sum(m.ranks_of(node) is not None for m in memberships) >= RUNS_OF_NODE_MAX:
            self.refusals.add(RUN_OF_NODE, f"{what}, at most {RUNS_OF_NODE_MAX} runs of a node")
            return False
        if former is None and sum(m.node_count for m in memberships) >= NODES_MAX:
            self.refusals.add(NODE, f"{what}, at most {NODES_MAX} nodes of all runs")
            return False
        if sum(m.announced_ranks for m in memberships) + count - len(former or ()) > ANNOUNCED_RANKS_MAX:
            self.refusals.add(NODE, f"{what}, at most {ANNOUNCED_RANKS_MAX} ranks of all nodes")
            return False
        return True

    def _follow(self, run: Run, change: MembershipChange, now_s: float) -> Orders:
        """Follow what a message changed in who there is."""
        run.timeline.restart_ranks({info.rank: info.attempt for info in change.restarted})
        run.reshape_is_due |= change.is_reshaped
        if run.reshape_is_due and (run.topology is None or change.is_completed or _is_small(run)):
            return self._reshape(run, now_s) + self._judge_ready(run, now_s)
        ended = self._announce(run, now_s) if change.is_finished and not run.reshape_is_due else []
        return ended + self._judge_ready(run, now_s) + self._conclude(run, now_s)

    def _conclude(self, run: Run, now_s: float) -> Orders:
        """Conclude how the run ended, once its ranks have, or have had their time to."""
        if not run.membership.has_failed or run.machine.state in OVER:
            run.ended_since_s = None
            return []
        endings = run.membership.endings()
        if not endings:
            return []
        if run.ended_since_s is None:
            run.ended_since_s = now_s
        is_over, waited_s, policy = run.membership.is_over, now_s - run.ended_since_s, run.policy.run
        patience_s = policy.stop_seconds if all(map(is_request, endings.values())) else policy.crash_seconds
        if not is_over and waited_s < patience_s:
            return []
        crash = crash_of(endings, are_all_over=is_over)
        ended = ev.EndedEvent(
            unix_s=now_s,
            cause_id="end",
            crash=crash,
            hostname="" if crash is None else run.hostname(crash.rank),
            ended_ranks=run.membership.ended_ranks,
            is_silent=not (run.policy.detectors.crash and is_watched(run.name, run.policy.scope.runs)),
        )
        return self._feed(run.name, ended)

    def _announce(self, run: Run, now_s: float) -> Orders:
        """Tell the run's machine who there is."""
        assert run.topology is not None
        event = ev.AnnounceEvent(
            unix_s=now_s,
            cause_id="announce",
            topology=run.topology,
            ranks=tuple(run.membership.ranks),
            is_finished=run.membership.is_finished,
            nodes=run.membership.nodes,
        )
        return self._feed(run.name, event)

    def _reshape(self, run: Run, now_s: float) -> Orders:
        """Follow the announced ranks and groups; what detectors remember of another shape is of no use.

        Of thousands of nodes that announce themselves within seconds, and their groups later, each would move all that
        is known of the others: a large job is followed when it becomes complete, else once for all nodes that came
        before step batches or a tick.
        """
        run.reshape_is_due = False
        ranks = run.membership.ranks
        if not set(run.timeline.ranks.tolist()).issubset(ranks):  # a smaller world: nothing of the old one fits
            run.timeline.drop_pending()
            run.timeline = StepTimeline(run.policy.timeline, self.rejected)
            run.generation = -1
        if run.timeline.know(ranks):
            run.judge = None
        topology = self._topology(run)
        if topology != run.topology:
            run.judge = None
        run.topology = topology
        return self._announce(run, now_s)

    def _new_run(self, announcement: NodeAnnouncement, now_s: float) -> Run | None:
        """Return a run for its first announcement, None for one that has ended or is one too many.

        A retained announcement holds heartbeats of when it was published, so it may be older by as much.
        """
        name, policy = announcement.run, self._policy_of(announcement.run)
        youngest_s = max((info.heartbeat_unix_ns for info in announcement.ranks), default=0) / 1e9
        if now_s - youngest_s > policy.run.lost_keep_seconds + ANNOUNCE_REFRESH_SECONDS:
            return None
        if not self._past.is_news(announcement):
            return None
        if len(self.by_name) >= self._config.runs_max and not self._evict():
            self.refusals.add(RUN, f"run {name} by node {announcement.node}, at most {self._config.runs_max} runs")
            return None
        if self._tap is not None:  # the thresholds of this run, which may not be those at the start
            self._tap.hear(ev.PolicyChangedEvent(unix_s=now_s, cause_id="policy", policy=policy), now_s, name)
        memory = self._past.memory(name)
        return Run(
            name=name,
            membership=Membership(name, degrees=self._config.domains, order=self._config.order, refusals=self.refusals),
            policy=policy,
            timeline=StepTimeline(policy.timeline, self.rejected),
            begun_s=now_s,
            machine=RunMachine(name, policy, memory),
            remembered=memory.learnt if memory else None,
            judged=memory.judged if memory else JudgedUntil(),
            expectation=Expectation(self._spec_of(name), self._windows.get(name)),
        )

    def _evict(self) -> bool:
        """Drop the oldest run that has neither made a step nor an open incident; whether there was one.

        It never was more than an announcement, and comes back with the next one if there is room.
        """
        for name, run in self.by_name.items():
            if run.machine.judgement is None and not run.machine.tracker.incidents:
                run.timeline.drop_pending()
                self._past.add(name, run.memory(with_learnt=False))
                del self.by_name[name]
                return True
        return False

    def _topology(self, run: Run) -> "Topology":
        try:
            return run.membership.topology()
        except ConfigError as error:
            self.refusals.add(DEGREES, f"run {run.name}: {error}; the announced groups are used")
            return run.membership.announced_topology()

    def snapshot_of(self, run: Run) -> RunSnapshot:
        """Return what is known of a run now."""
        return run.snapshot()


def _event_of(message: ProfileAnswer | TraceSummary | RankStacks, now_s: float) -> ev.Event:
    """Return what a rank's answer to a request is to its run."""
    match message:
        case ProfileAnswer():
            return ev.AnswerEvent(unix_s=now_s, cause_id=f"answer:{message.request_id}", answer=message)
        case TraceSummary():
            return ev.SummaryEvent(unix_s=now_s, cause_id=f"summary:{message.request_id}", summary=message)
    return ev.StacksEvent(unix_s=now_s, cause_id=f"stacks:{message.request_id}", stacks=message)


def _is_small(run: Run) -> bool:
    """Whether a run can be laid out again for every node that announces itself."""
    return run.membership.world_size <= _SMALL_RANKS


def _is_changed(known: "RankInfo | None", info: "RankInfo") -> bool:
    if known is None:
        return True
    return (known.attempt, known.world_size, known.state) != (info.attempt, info.world_size, info.state)
