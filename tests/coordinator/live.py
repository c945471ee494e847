"""A coordinator without sockets: a step log arrives in batches of nodes, captures and diagnoses are answered in time.

What it reported is in `reported`, the last form of each incident by id. Time is the log's.
"""

import asyncio
import heapq
from dataclasses import replace

import numpy as np

from coordinator.bus import Bus
from coordinator.decide import events as ev
from coordinator.effects import Effects
from coordinator.intake.streams import Streams
from coordinator.leadership import Leadership
from coordinator.record.backtest import to_line
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from coordinator.state_writer import StateWriter
from lockstep.contracts.domains import pack_ranks
from lockstep.contracts.messages import (
    CaptureResult,
    GroupInfo,
    NodeAnnouncement,
    RankInfo,
    TraceSummary,
)
from lockstep.contracts.records import MISSING
from lockstep.serving.local_broker import LocalBroker
from tests.support.batches import batch_of_columns

NS = 1_000_000_000
CAPTURE_SECONDS, DIAGNOSIS_SECONDS = 4.3, 0.4


def effects_of(runs, store, now_s):
    """Return the effects of a coordinator that is connected to nothing and leads."""
    streams, leadership = Streams("live", 1), Leadership("live", 1)
    leadership.leads = True
    bus = Bus(LocalBroker(), streams=streams, leadership=leadership, on_message=lambda *_: None, now_s=now_s)
    writer = StateWriter(runs, bus, store, streams)
    return Effects(runs, bus, writer, lambda work, _: work.close(), now_s, leadership=leadership)


class Live:
    """`memories` is what an earlier one left behind; `refuses` ranks answer captures with a refusal."""

    def __init__(self, *, tap=None, memories=None, policy=None, domains="", refuses=(), store=None):
        self.policy = policy or Policy()
        self.runs = Runs(CoordinatorConfig(domains=domains), self.policy, memories or {}, lambda: 0.0, tap)
        self.reported = {}
        self.instructions = []
        self.refuses = refuses
        self.attempt = 1
        self._answers = []
        self._count = 0
        self.effects = store and effects_of(self.runs, store, lambda: 0.0)

    def perform(self, orders, now_s):
        if self.effects:
            self.effects.perform(
                [(run, [i for i in given if not isinstance(i, ev.ForgetRun)]) for run, given in orders]
            )
        for run, instructions in orders:
            for instruction in instructions:
                self.instructions.append(instruction)
                match instruction:
                    case ev.OpenIncident() | ev.UpdateIncident() | ev.CloseIncident():
                        self.reported[instruction.incident.id] = instruction.incident
                    case ev.RequestCapture():
                        request = instruction.request
                        for rank in request.ranks:
                            self._later(now_s + CAPTURE_SECONDS, (run, rank, request.request_id))
                    case ev.Diagnose():
                        self._later(now_s + DIAGNOSIS_SECONDS, (run, instruction))
                    case ev.ForgetRun():
                        self.runs.forget(run)

    def _later(self, due_s, what):
        self._count += 1
        heapq.heappush(self._answers, (due_s, self._count, what))

    def _answer(self, now_s):
        while self._answers and self._answers[0][0] <= now_s:
            _, _, what = heapq.heappop(self._answers)
            if len(what) == 2:
                run, order = what
                diagnosed = ev.DiagnosedEvent(
                    unix_s=now_s,
                    cause_id=order.cause_id,
                    incident_id=order.incident_id,
                    function="train.py(9): forward" if order.suspects else "",
                    operator="",
                    evidence=("it stays in forward",),
                    advice=(),
                    confidence="high",
                )
                self.perform(self.runs.feed(run, diagnosed), now_s)
                continue
            run, rank, request = what
            state = "refused" if rank in self.refuses else "done"
            answer = CaptureResult(run=run, node="n", rank=rank, request_id=request, state=state, cost_ns=NS)
            self.perform(self.runs.take(answer, now_s), now_s)
            if state == "done":
                summary = TraceSummary(
                    run=run, node="n", rank=rank, request_id=request, window_ns=NS, steps=3, trace_bytes=1,
                    event_count=6, tree=[],
                )  # fmt: skip
                self.perform(self.runs.take(summary, now_s), now_s)

    def announce(self, run, topology, now_s, *, ranks_per_node=8, state="running"):
        groups = [GroupInfo(kind=d.kind, name=d.name, ranks=pack_ranks(d.ranks)) for d in topology.domains]
        for node in range(-(-topology.world_size // ranks_per_node)):
            infos = [
                RankInfo(
                    rank=rank,
                    local_rank=rank % ranks_per_node,
                    world_size=topology.world_size,
                    hostname=f"host{node}",
                    attempt=self.attempt,
                    state=state,
                    heartbeat_unix_ns=int(now_s * 1e9),
                )
                for rank in range(node * ranks_per_node, min((node + 1) * ranks_per_node, topology.world_size))
            ]
            message = NodeAnnouncement(run=run, node=f"node{node}", ranks=infos, groups=groups if node == 0 else [])
            self.perform(self.runs.take(message, now_s), now_s)

    def play(
        self,
        log,
        topology,
        *,
        ranks_per_node=8,
        batch_seconds=0.25,
        first=0.0,
        last=1.0,
        announced_every_s=10.0,
        gathered=False,
    ):
        """Let the share `first` to `last` of a log's time arrive: batches of nodes, ticks, announcements, answers."""
        arrival_ns = log.arrival_ns
        begin_ns, span_ns = int(arrival_ns[0]), int(arrival_ns[-1] - arrival_ns[0]) + 1
        node = log.columns["rank"] // ranks_per_node
        interval = (arrival_ns - begin_ns) // int(batch_seconds * NS)
        chosen = (arrival_ns >= begin_ns + int(first * span_ns)) & (arrival_ns < begin_ns + int(last * span_ns))
        ticked_s, announced_s = (begin_ns + first * span_ns) / NS, float("-inf")
        for at in np.unique(interval[chosen]).tolist():
            now_s = (begin_ns + (at + 1) * batch_seconds * NS) / NS
            if now_s - announced_s >= announced_every_s:
                self.announce(log.run, topology, now_s, ranks_per_node=ranks_per_node)
                announced_s = now_s
            while ticked_s + 1.0 <= now_s:
                ticked_s += 1.0
                self._answer(ticked_s)
                self.perform(self.runs.tick(ticked_s), ticked_s)
                if self.effects:
                    self.effects.writer.remember()
                    assert asyncio.run(self.effects.writer.flush())
            rows = np.flatnonzero(chosen & (interval == at))
            names = np.unique(node[rows]).tolist()
            batches = [batch_of(log, rows[node[rows] == name], f"node{name}", now_s) for name in names]
            for taken in [batches] if gathered else [[batch] for batch in batches]:
                self.perform(self.runs.take_batches(taken, now_s), now_s)
        self.reported |= {
            each.id: each for run in self.runs.by_name.values() for each in run.machine.tracker.incidents.values()
        }

    def end(self):
        """Write what a coordinator writes when it is asked to end."""
        self.effects.writer.remember(all_of_it=True)
        assert asyncio.run(self.effects.writer.flush())

    def followed_by(self, store, **more):
        """Return the next coordinator on the same store; what is on its way to this one will reach that one."""
        heir = Live(memories=store.load_runs(), store=store, **more)
        heir._answers, heir._count, heir.reported = self._answers, self._count, dict(self.reported)
        return heir

    def lines(self):
        """Return the incidents as replay prints them."""
        nodes = {name: run.membership.nodes for name, run in self.runs.by_name.items()}
        return [to_line(each, nodes=nodes.get(each.run)) for each in self.reported.values()]


def batch_of(log, rows, node, now_s):
    """Return rows of a log as the exporter of `node` sends them."""
    own = {name: values[rows] for name, values in log.columns.items()}
    columns = {name: values for name, values in own.items() if name not in ("rank", "duration_ns", "received_ns")}
    columns["end_ns"] = own["start_ns"] + own["duration_ns"]
    for name in [name for name in columns if name.endswith("_transfer_ns")]:
        bound, kind = columns.pop(name), name.removesuffix("_transfer_ns")
        known = bound != MISSING
        columns[f"{kind}_shortest_ns"] = np.where(known, bound // 4, MISSING)
        columns[f"{kind}_count"] = np.where(known, 4, MISSING)
    columns = {name: values for name, values in columns.items() if not (values == MISSING).all()}
    return batch_of_columns(own["rank"], columns, run=log.run, node=node, sent_unix_ns=int(now_s * NS))


def without_profiles(policy=None):
    """Return thresholds that forbid captures."""
    policy = policy or Policy()
    return replace(policy, profile=replace(policy.profile, enabled=False))
