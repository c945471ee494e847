"""Replays a step log through the coordinator's own code, and returns the incidents that it would have raised.

Pure: rows in, incidents out; the time is that of the log. Nothing is decided here. The log is cut into batches by
arrival, as exporters send them, and passed to `runs.Runs`, which arranges, evaluates and reports it as live. What needs
the live job is missing: no capture is made, so an incident has only the evidence from step records. A recording holds
more than its rows and is replayed by `replay.py`, exactly as it was live.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.decide import events as ev
from coordinator.record.gaps import losses_of
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from lockstep.contracts.domains import (
    DEFAULT_ORDER,
    Domain,
    Topology,
    from_degrees,
    from_groups,
    pack_ranks,
    parse_degrees,
)
from lockstep.contracts.errors import ConfigError, MalformedError
from lockstep.contracts.messages import GroupInfo, NodeAnnouncement, RankInfo, StepBatch
from lockstep.contracts.records import DOMAIN_KINDS, MISSING
from lockstep.contracts.rows import RANK, SEPARATOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.decide.incidents import Incident
    from coordinator.record.steplog import StepLog
    from coordinator.runs import Orders
    from coordinator.settings.policy import Policy

_NODE = "replay"
_NS = 1_000_000_000
_BATCH_STEPS = 4  # far fewer than a timeline holds, so that every row fits in its window
_BATCH_ROWS_MIN = 64
_SETTLE_STEPS = 10  # evaluated steps until an incident is diagnosed without a capture; a live capture takes longer
_TICKS_SECONDS = 300.0  # of silence; afterwards no decision falls due within a minute
RANKS_PER_NODE = 8


@dataclass(frozen=True, slots=True)
class IncidentChange:
    """An incident after step `step`, which opened, changed or closed it."""

    step: int
    incident: "Incident"


@dataclass(slots=True)
class ReplayResult:
    """The result of a replay: `incidents` in their latest form by id, in order of opening; `changes` are all reports.

    `rejected` counts the rows that the timeline rejected, by reason; `evaluated_steps` counts evaluated steps. `nodes`
    holds the last node of each rank of a run.
    """

    incidents: "dict[str, Incident]" = field(default_factory=dict)
    changes: list[IncidentChange] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    evaluated_steps: int = 0
    nodes: dict[str, dict[int, str]] = field(default_factory=dict)

    def note(self, orders: "Orders") -> list[ev.Instruction]:
        """Record the reports among the coordinator's instructions; return the other instructions."""
        others: list[ev.Instruction] = []
        for _, instructions in orders:
            for instruction in instructions:
                match instruction:
                    case ev.OpenIncident() | ev.UpdateIncident() | ev.CloseIncident():
                        incident = instruction.incident
                        self.incidents[incident.id] = incident
                        self.changes.append(IncidentChange(_step_of(instruction), incident))
                    case _:
                        others.append(instruction)
        return others

    def note_open(self, runs: Runs) -> None:
        """Update the open incidents, whose cost has grown since the last report, and the nodes of all ranks."""
        for run in runs.by_name.values():
            self.incidents |= run.machine.tracker.incidents
            self.nodes[run.name] = dict(run.membership.nodes)


def topology_of(
    world_size: int, degrees: str, *, order: str = DEFAULT_ORDER, groups: Sequence[Domain] = ()
) -> Topology:
    """Return the topology of a job from its degrees; explicit `groups` replace the domains of their kind.

    With neither, all ranks form one data-parallel domain.

    Raises
    ------
    ConfigError
        The degrees are invalid or do not multiply to `world_size`, or a group names a rank outside of it.
    """
    parsed = parse_degrees(degrees, where="--domains")
    if not parsed:
        parsed = {} if groups else {"dp": world_size}
    for group in groups:
        if group.ranks[-1] >= world_size:
            raise ConfigError(f"group {group.name}: got rank {group.ranks[-1]}, expected 0 to {world_size - 1}")
    by_hand = {group.kind for group in groups}
    derived = from_degrees(parsed, world_size, order=order).domains if parsed else ()
    return from_groups((*(domain for domain in derived if domain.kind not in by_hand), *groups), world_size)


def world_size_of(degrees: str, log: "StepLog") -> int:
    """Return the number of ranks: the product of the degrees; if there are none, that of the log.

    Raises
    ------
    ConfigError
        The degrees cannot be parsed.
    """
    parsed = parse_degrees(degrees, where="--domains")
    if not parsed:
        return int(log.columns["rank"].max(initial=0)) + 1
    return int(np.prod([size for kind, size in parsed.items() if kind != "ep"]))


def backtest(
    log: "StepLog",
    topology: Topology,
    policy: "Policy",
    *,
    ranks_per_node: int = RANKS_PER_NODE,
    lenient: bool = False,
) -> ReplayResult:
    """Return what a live coordinator would have reported for one run; if `lenient`, skip and count unexpected ranks.

    Raises
    ------
    MalformedError
        The log does not fit the topology: it has other ranks, or no column for the waits in a kind of domain that the
        job has, without which waiting would count as work.
    """
    _check(log, topology, lenient=lenient)
    replayed = ReplayResult()
    if not log.count:
        return replayed
    policy = replace(policy, profile=replace(policy.profile, enabled=False))
    runs = Runs(CoordinatorConfig(), policy, {}, clock=lambda: 0.0)
    arrival_ns = log.arrival_ns
    runs.take(_announcement(log.run, topology, int(arrival_ns[0]), ranks_per_node), arrival_ns[0] / _NS)
    usual_s = float(np.median(log.columns["duration_ns"])) / _NS
    late_s = max(policy.run.hang_seconds, policy.run.hang_steps * usual_s)
    losses = losses_of(log, late_s, ranks_per_node)
    if losses is not None:
        runs.feed(log.run, ev.LossesEvent(unix_s=arrival_ns[0] / _NS, cause_id="log", losses=losses))
    waiting: dict[str, int] = {}
    now_s = float(arrival_ns[0]) / _NS
    for cut in _cuts(arrival_ns, topology.world_size):
        before_s, now_s = now_s, float(arrival_ns[cut.stop - 1]) / _NS
        for tick_s in (*_ticks(before_s, now_s), now_s):
            _take(runs.tick(tick_s), replayed, waiting, runs)
        _take(runs.take(_batch(log, cut), now_s), replayed, waiting, runs)
        _diagnose_settled(runs, log.run, waiting, replayed, now_s)
    ended = replace(policy, detectors=replace(policy.detectors, hang=False))  # the end of a log is not a hang
    _take(runs.set_policies(lambda _: ended, now_s), replayed, waiting, runs)
    _take(runs.tick(now_s + policy.timeline.grace_seconds), replayed, waiting, runs)
    replayed.note_open(runs)
    replayed.rejected, replayed.evaluated_steps = runs.rejected, runs.detection.steps
    return replayed


def to_line(
    incident: "Incident", *, ranks_per_node: int = RANKS_PER_NODE, nodes: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """Return the JSON form of a replayed incident; its scope is "node" if its ranks are all ranks of their nodes.

    `nodes` maps each rank to its node; without it, each node holds `ranks_per_node` consecutive ranks.
    """
    is_node = incident.scope == "rank" and _are_whole_nodes(incident.ranks, ranks_per_node, nodes)
    return {
        "run": incident.run,
        "kind": incident.kind,
        "cause": incident.cause,
        "scope": "node" if is_node else incident.scope,
        "ranks": sorted(incident.ranks),
        "domain": None if incident.domain is None else {"kind": incident.domain[0], "id": incident.domain[1]},
        "onset_step": incident.onset_step,
        "detected_step": incident.detected_step,
        "closed_step": incident.closed_step,
        "slowdown_ratio": round(incident.slowdown_ratio, 6),
        "lost_device_seconds": round(incident.lost_device_seconds, 6),
        "evidence": list(incident.evidence),
        "id": incident.id,
        "confidence": incident.confidence,
    }


def _are_whole_nodes(ranks: Sequence[int], ranks_per_node: int, nodes: Mapping[int, str] | None) -> bool:
    """Whether these are all ranks of their nodes, and each node has more than one."""
    if nodes is None:
        return ranks_per_node > 1 and len(ranks) == ranks_per_node * len({rank // ranks_per_node for rank in ranks})
    on_node = Counter(nodes.values())
    named = {nodes[rank] for rank in ranks if rank in nodes}
    return all(on_node[node] > 1 for node in named) and len(ranks) == sum(on_node[node] for node in named)


def _check(log: "StepLog", topology: Topology, *, lenient: bool) -> None:
    rank = log.columns["rank"]
    where = f"the log of {log.run}"
    highest = int(rank.max(initial=-1))
    if not lenient and log.count and highest != topology.world_size - 1:
        raise MalformedError(
            "rank", where=where, got=f"0 to {highest}", expected=f"0 to {topology.world_size - 1}, by the domains"
        )
    kinds = {domain.kind for domain in topology.domains}
    if topology.is_data_parallel and "world_wait_ns" in log.columns:
        kinds = {"world"}
    missing = [f"{kind}_wait_ns" for kind in DOMAIN_KINDS if kind in kinds and f"{kind}_wait_ns" not in log.columns]
    if missing:
        raise MalformedError(
            "column", where=where, got=f"no {', '.join(missing)}", expected="the waits of every kind of domain"
        )


def _announcement(run: str, topology: Topology, first_ns: int, ranks_per_node: int) -> NodeAnnouncement:
    infos = [
        RankInfo(
            rank=rank,
            local_rank=rank % ranks_per_node,
            world_size=topology.world_size,
            hostname=f"node{rank // ranks_per_node}",
            attempt=1,
            state="running",
            heartbeat_unix_ns=first_ns,
        )
        for rank in range(topology.world_size)
    ]
    groups = [
        GroupInfo(kind=domain.kind, name=domain.name, ranks=pack_ranks(domain.ranks)) for domain in topology.domains
    ]
    return NodeAnnouncement(run=run, node=_NODE, ranks=infos, groups=groups)


def _cuts(arrival_ns: "NDArray[np.int64]", world_size: int) -> Iterator[slice]:
    """Yield the rows of each batch: at most one second and `_BATCH_STEPS` steps."""
    max_rows = max(_BATCH_STEPS * world_size, _BATCH_ROWS_MIN)
    second = arrival_ns // _NS
    starts = np.flatnonzero(np.diff(second, prepend=second[0] - 1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(second)], strict=True):
        for first in range(start, end, max_rows):
            yield slice(first, min(first + max_rows, end))


def _ticks(begin_s: float, end_s: float) -> Iterator[float]:
    """Yield the times of ticks while nothing arrives: every second as in a live coordinator, later every minute."""
    now_s = begin_s + 1.0
    while now_s < end_s:
        yield now_s
        now_s += 1.0 if now_s - begin_s < _TICKS_SECONDS else 60.0


def _batch(log: "StepLog", cut: slice) -> StepBatch:
    """Return the rows of `cut` as an exporter sends them."""
    own: Mapping[str, NDArray[np.int64]] = {name: values[cut] for name, values in log.columns.items()}
    columns = {RANK: own[RANK]}
    columns |= {name: values for name, values in own.items() if name not in (RANK, "duration_ns", "received_ns")}
    columns["end_ns"] = own["start_ns"] + own["duration_ns"]
    for kind in DOMAIN_KINDS:  # on the wire, the bound of the transfers is count x shortest
        bound = columns.pop(f"{kind}_transfer_ns", None)
        if bound is not None:
            columns[f"{kind}_shortest_ns"] = bound
            columns[f"{kind}_count"] = np.where(bound == MISSING, MISSING, 1)
    return StepBatch(
        run=log.run,
        node=_NODE,
        sent_unix_ns=int(columns["end_ns"][-1]),
        count=cut.stop - cut.start,
        layout=SEPARATOR.join(columns),
        records=np.stack([*columns.values()], axis=1).astype("<i8", copy=False).tobytes(),
    )


def _take(orders: "Orders", replayed: ReplayResult, waiting: dict[str, int], runs: Runs) -> None:
    """Record the reports; note each requested diagnosis with the number of steps evaluated so far."""
    for instruction in replayed.note(orders):
        if isinstance(instruction, ev.Diagnose):
            waiting[instruction.incident_id] = runs.detection.steps


def _step_of(instruction: ev.Instruction) -> int:
    """Return the step that caused an instruction; -1 if none did."""
    what, _, step = instruction.cause_id.partition(":")
    return int(step) if what == "step" else -1


def _diagnose_settled(runs: Runs, run: str, waiting: dict[str, int], replayed: ReplayResult, now_s: float) -> None:
    """Answer diagnoses requested `_SETTLE_STEPS` ago with an empty result: without a capture there is no function."""
    for incident_id, asked_at_steps in list(waiting.items()):
        if runs.detection.steps - asked_at_steps >= _SETTLE_STEPS:
            del waiting[incident_id]
            event = ev.DiagnosedEvent(
                unix_s=now_s,
                cause_id=f"diagnosis:{incident_id}",
                incident_id=incident_id,
                function="",
                operator="",
                evidence=(),
                advice=(),
                confidence="",
            )
            _take(runs.feed(run, event), replayed, waiting, runs)
