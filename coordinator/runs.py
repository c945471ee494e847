"""All runs: decoded messages in, instructions out. No I/O; every call carries the time.

Records of ranks that no node has announced are rejected: announcements are retained messages, so they always arrive
first. Runs are isolated from each other (`run_isolation.py`): a run that fails repeatedly is quarantined for a while,
and its records are counted. `run_table.py` decides which runs exist, `step_detection.py` evaluates their steps,
`run_shape.py` applies announcements, and `run_end.py` handles their end.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from coordinator.decide import events as ev
from coordinator.intake.presence import NodePresence
from coordinator.intake.targets import Targets
from coordinator.intake.timeline import rejections
from coordinator.run import Orders, Run
from coordinator.run_end import conclude, look_for_hang
from coordinator.run_isolation import HANDLE, RunIsolation
from coordinator.run_shape import announce, is_reshaped_at_once, reshape
from coordinator.run_table import RunTable
from coordinator.step_detection import StepDetection
from lockstep.contracts.limits import ANNOUNCE_REFRESH_SECONDS
from lockstep.contracts.messages import (
    CaptureResult,
    NodeAlive,
    NodeAnnouncement,
    RankStacks,
    StepBatch,
    TraceSummary,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.decide.saved_run import SavedRun
    from coordinator.expected.healthy import KeptWindow
    from coordinator.intake.streams import Receipt
    from coordinator.intake.topology import MembershipChange
    from coordinator.settings.config import CoordinatorConfig
    from coordinator.settings.policy import Policy
    from coordinator.settings.specs import SpecText
    from coordinator.snapshot import RunSnapshot
    from lockstep.contracts.codec import Message
    from lockstep.contracts.messages import RankInfo, RunHeartbeat

__all__ = ["InputTap", "Orders", "Run", "Runs"]


class InputTap(Protocol):
    """Receives all input in order, before it is processed. The same input gives the same orders."""

    def receive(self, what: "Sequence[StepBatch] | Message | ev.Event", now_s: float, run: str = "") -> None:
        """Receive an input; batches that are processed together are passed together.

        Must be quick and must not raise.
        """


class Runs:
    """All runs of the coordinator. `memories` is the state that an earlier coordinator stored, by run.

    `clock` measures durations only. `tap` receives the input of `take`, `feed` and `tick`.
    """

    def __init__(
        self,
        config: "CoordinatorConfig",
        policy: "Policy",
        memories: "Mapping[str, SavedRun]",
        clock: Callable[[], float],
        tap: InputTap | None = None,
    ) -> None:
        self._tap = tap
        self.rejected = rejections()
        self._table = RunTable(config, policy, memories, self.rejected)
        self.by_name, self.refusals = self._table.by_name, self._table.refusals
        self._isolation = RunIsolation(self.by_name, self.rejected)
        self.isolation = self._isolation.faults
        self.presence = NodePresence()
        self._lost_nodes: set[str] = set()
        self.targets = Targets(self.refusals)
        self.detection = StepDetection(self.presence, self._isolation, clock)

    def take(self, message: "Message", now_s: float) -> Orders:
        """Handle a decoded message.

        Raises
        ------
        MalformedError
            An announcement is invalid; nothing of it was applied.
        """
        if isinstance(message, StepBatch):
            return self.take_batches((message,), now_s)
        if self._tap is not None:
            self._tap.receive(message, now_s)
        match message:
            case NodeAnnouncement():
                self.presence.note_announcement(message.node, now_s)
                work = partial(self._take_announcement, message, now_s)
                return self._isolation.run(HANDLE, message.run, now_s, work)
            case NodeAlive():
                self.presence.note(message.node, now_s, is_alive=message.alive)
                self.targets.receive(message, now_s)
                return self._apply_heartbeats(message, now_s)
            case CaptureResult() | TraceSummary() | RankStacks():
                event = _event_of(message, now_s)
                return self._isolation.run(HANDLE, message.run, now_s, lambda: self._feed(message.run, event))
            case _:  # messages of coordinators, which do not concern runs
                return []

    def take_batches(self, batches: "Sequence[StepBatch]", now_s: float, receipts: "Sequence[Receipt]" = ()) -> Orders:
        """Handle decoded batches of any runs in order of arrival; far cheaper together than one by one.

        `receipts`, one per batch or none, are settled when the records of their batch are.
        """
        if self._tap is not None:
            self._tap.receive(tuple(batches), now_s)
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
                orders += self._isolation.run(HANDLE, name, now_s, work, records=count)
                orders += self.detection.evaluate_ready(self.by_name[name], now_s)
        return orders

    def has_capacity(self, name: str, step: int, flush: Callable[[], None]) -> bool:
        """Return whether a run has room for records of a step now.

        `flush` places the batches that arrived but were not placed yet. A run without pending steps accepts any step.
        """
        run = self.by_name.get(name)
        if run is None or run.timeline.fits(step):
            return True
        flush()
        run = self.by_name.get(name)
        return run is None or run.timeline.fits(step) or run.timeline.is_idle

    def begin_session(self, now_s: float) -> None:
        """Note that this coordinator has just connected: the time for known nodes to return starts now."""
        self._lose(self._lost_nodes, now_s)

    def end_session(self, now_s: float) -> None:
        """Note that this coordinator has lost its connection, and thereby every node."""
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
        """Whether a run failed so often that it is skipped for now."""
        return self._isolation.is_quarantined(name, now_s)

    def is_news(self, message: "Message") -> bool:
        """Whether all batches before this message must be handled first.

        Repeated announcements and heartbeats that only show that a node is alive are too frequent to wait for.
        """
        if not isinstance(message, NodeAnnouncement):
            return not isinstance(message, NodeAlive)
        run = self.by_name.get(message.run)
        if run is None:
            return True
        return any(_is_changed(run.membership.infos.get(info.rank), info) for info in message.ranks)

    def feed(self, name: str, event: ev.Event) -> Orders:
        """Pass an external event to a run's machine; ignored if the run is unknown."""
        if self._tap is not None:
            self._tap.receive(event, event.unix_s, name)
        return self._feed(name, event)

    def _feed(self, name: str, event: ev.Event) -> Orders:
        run = self.by_name.get(name)
        return [] if run is None else run.feed(event)

    def expect(
        self, spec_of: "Callable[[str], SpecText | None]", windows: "Mapping[str, KeptWindow] | None" = None
    ) -> None:
        """Set the specifications of runs, including those under way; `windows` are their stored healthy windows."""
        self._table.expect(spec_of, windows)

    def take_fitted(self, name: str, fitted: ev.FittedEvent) -> Orders:
        """Apply the result of a fit; return the predictions that its model must make for open incidents."""
        run = self.by_name.get(name)
        if run is None or not run.expectation.take(fitted):
            return []
        due = run.repairs(fitted.cause_id)
        return [(name, [*due, *run.expectation.refit(fitted.cause_id)])]

    def configure(self, config: "CoordinatorConfig") -> None:
        """Apply another configuration: degrees and order for runs that begin from now on, and the limit of runs."""
        self._table.config = config

    def set_policies(self, policy_of: "Callable[[str], Policy]", now_s: float) -> Orders:
        """Apply the policy that `policy_of` returns for each run, including runs that are under way."""
        self._table.policy_of = policy_of
        orders: Orders = []
        for name in self.by_name:
            changed = ev.PolicyChangedEvent(unix_s=now_s, cause_id="policy", policy=policy_of(name))
            orders += self.feed(name, changed)
        return orders

    def tick(self, now_s: float) -> Orders:
        """Evaluate steps that have waited long enough, and pass the time to every run."""
        if self._tap is not None:
            self._tap.receive(ev.TickEvent(unix_s=now_s, cause_id="tick"), now_s)
        self.refusals.log(now_s)
        orders = self._table.trim_past(now_s)
        for run in list(self.by_name.values()):
            if self.is_quarantined(run.name, now_s):
                continue
            if run.reshape_is_due:
                orders += self._isolation.run(HANDLE, run.name, now_s, partial(self._reshape, run, now_s))
            orders += self.detection.evaluate_ready(run, now_s)
            orders += self._isolation.run(HANDLE, run.name, now_s, partial(self._advance, run, now_s))
        return orders

    def _advance(self, run: Run, now_s: float) -> Orders:
        """Pass the time to a run."""
        is_alive = now_s - run.membership.last_seen_unix_s < ANNOUNCE_REFRESH_SECONDS
        tick = ev.TickEvent(unix_s=now_s, cause_id="tick", is_alive=is_alive)
        may_deliver = partial(self.detection.may_deliver, run, now_s)
        growth = run.look_for_growth(now_s)
        grown = [] if growth is None else run.feed(growth)
        return conclude(run, now_s) + look_for_hang(run, now_s, may_deliver) + grown + run.feed(tick)

    def forget(self, name: str) -> None:
        """Drop a run that ended long ago but keep its budgets; its incidents stay in the store."""
        self._table.forget(name)

    def _take_announcement(self, announcement: NodeAnnouncement, now_s: float) -> Orders:
        run = self.by_name.get(announcement.run)
        orders: Orders = [
            (name, [ev.ForgetRun(cause_id="announcement")])
            for name in self._table.forget_ended(run, announcement, now_s)
        ]
        if not self._table.has_capacity(run, announcement):
            return orders
        run = run or self._begin(announcement, now_s)
        if run is None:
            return orders
        change = run.membership.apply_announcement(announcement, now_s)
        run.progress.apply_announcement(announcement, run.membership)
        run.peaks.note(announcement)
        run.workload.note(announcement)
        self.by_name[run.name] = run
        return orders + self._follow(run, change, now_s)

    def _begin(self, announcement: NodeAnnouncement, now_s: float) -> Run | None:
        run = self._table.new_run(announcement, now_s)
        if run is not None and self._tap is not None:  # the policy of this run may differ from that at the start
            changed = ev.PolicyChangedEvent(unix_s=now_s, cause_id="policy", policy=run.policy)
            self._tap.receive(changed, now_s, run.name)
        return run

    def _apply_heartbeats(self, message: NodeAlive, now_s: float) -> Orders:
        orders: Orders = []
        for heartbeat in message.runs:
            run = self.by_name.get(heartbeat.run)
            if run is not None:
                work = partial(self._apply_heartbeat, run, message.node, heartbeat, now_s)
                orders += self._isolation.run(HANDLE, run.name, now_s, work)
        return orders

    def _apply_heartbeat(self, run: Run, node: str, heartbeat: "RunHeartbeat", now_s: float) -> Orders:
        change = run.membership.apply_heartbeat(node, heartbeat, now_s)
        run.take_memory(node, heartbeat.memory)
        return self._follow(run, change, now_s) if change.is_reshaped or change.restarted else []

    def _follow(self, run: Run, change: "MembershipChange", now_s: float) -> Orders:
        """Apply a change of the run's membership."""
        run.timeline.restart_ranks({info.rank: info.attempt for info in change.restarted})
        run.reshape_is_due |= change.is_reshaped
        if is_reshaped_at_once(run, change):
            return self._reshape(run, now_s) + self.detection.evaluate_ready(run, now_s)
        ended = announce(run, now_s) if change.is_finished and not run.reshape_is_due else []
        return ended + self.detection.evaluate_ready(run, now_s) + conclude(run, now_s)

    def _reshape(self, run: Run, now_s: float) -> Orders:
        return reshape(run, now_s, self.rejected, self.refusals)

    def snapshot_of(self, run: Run) -> "RunSnapshot":
        """Return the current state of a run as plain values."""
        return run.snapshot()


def _event_of(message: CaptureResult | TraceSummary | RankStacks, now_s: float) -> ev.Event:
    """Return the event for a rank's result."""
    match message:
        case CaptureResult():
            return ev.CaptureResultEvent(unix_s=now_s, cause_id=f"answer:{message.request_id}", answer=message)
        case TraceSummary():
            return ev.SummaryEvent(unix_s=now_s, cause_id=f"summary:{message.request_id}", summary=message)
    return ev.StacksEvent(unix_s=now_s, cause_id=f"stacks:{message.request_id}", stacks=message)


def _is_changed(known: "RankInfo | None", info: "RankInfo") -> bool:
    if known is None:
        return True
    return (known.attempt, known.world_size, known.state) != (info.attempt, info.world_size, info.state)
