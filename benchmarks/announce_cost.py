"""What announcements cost the coordinator, by number of nodes: `python -m benchmarks.announce_cost [--nodes 1280]`.

Each node of 8 ranks announces itself once, as its exporter encodes it, and sends one heartbeat. Columns: bytes of an
announcement and of a heartbeat; CPU ms of one core for all nodes together: `decode` the announcements, `apply` them,
`lay out` the topology, and their sum; MB that are held when all is done, and at most on the way (tracemalloc, in a
second pass); `beats`, CPU ms to decode and apply the heartbeats of one period. Cases: a purely data-parallel job, one
group of all ranks that each node announces; tensor, pipeline and data parallel groups; one node of a single rank that
invents a world and a group of a million.

Returns 1 where a budget is missed. Budgets: 102,400 ranks 300 MB and 2 s, whatever the groups; a forged announcement
100 KB.
"""

import argparse
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from coordinator.intake.topology import Membership
from lockstep.contracts import topics
from lockstep.contracts.codec import decode_as, encode
from lockstep.contracts.domains import from_degrees, pack_ranks
from lockstep.contracts.facts import RankFacts
from lockstep.contracts.limits import WORLD_SIZE_MAX
from lockstep.contracts.messages import GroupInfo, NodeAlive, NodeAnnouncement, RankInfo, RunHeartbeat

RANKS_PER_NODE = 8
NODES = (1_280, 12_800)
CPU_BUDGET_MS = 2_000.0
MEMORY_BUDGET_MB = 300.0
FORGED_BUDGET_MB = 0.1
_BUDGETED_NODES = 12_800
_NOW_S = 1_700_000_000.0
_NS = 1_000_000_000
_MB = 1e6

_T = TypeVar("_T")
Sent = list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of a message, CPU ms of all messages together, and MB held at the end and at most."""

    announcement_bytes: int
    beat_bytes: int
    decode_ms: float
    apply_ms: float
    layout_ms: float
    beats_ms: float
    held_mb: float
    peak_mb: float

    @property
    def cpu_ms(self) -> float:
        """From bytes to a topology."""
        return self.decode_ms + self.apply_ms + self.layout_ms


def shapes(nodes: int) -> dict[str, Mapping[str, int]]:
    """Return the degrees of each case."""
    return {"dp": {"dp": nodes * RANKS_PER_NODE}, "tp8 pp8 dp": {"tp": 8, "pp": 8, "dp": nodes // 8}}


def announcements(nodes: int, degrees: Mapping[str, int]) -> Iterator[NodeAnnouncement]:
    """Yield what each node announces: its ranks with their facts, and the groups of these ranks."""
    world_size = nodes * RANKS_PER_NODE
    groups_of: dict[int, list[GroupInfo]] = {rank: [] for rank in range(world_size)}
    for domain in from_degrees(degrees, world_size).domains:
        info = GroupInfo(kind=domain.kind, name=domain.name, ranks=pack_ranks(domain.ranks))
        for rank in domain.ranks:
            groups_of[rank].append(info)
    for node in range(nodes):
        ranks = range(node * RANKS_PER_NODE, (node + 1) * RANKS_PER_NODE)
        groups = {(info.kind, info.name): info for rank in ranks for info in groups_of[rank]}
        infos = [_info(rank, world_size, node) for rank in ranks]
        yield NodeAnnouncement(run="job", node=f"node-{node}", ranks=infos, groups=list(groups.values()), revision=1)


def forged() -> NodeAnnouncement:
    """Return an announcement of one rank that names a world and a group of a million."""
    groups = [GroupInfo(kind="dp", name="dp", ranks=[[0, WORLD_SIZE_MAX, 1]])]
    info = RankInfo(
        rank=0, local_rank=0, world_size=WORLD_SIZE_MAX, hostname="", attempt=1, state="running", heartbeat_unix_ns=0
    )
    return NodeAnnouncement(run="job", node="node-0", ranks=[info], groups=groups)


def _info(rank: int, world_size: int, node: int) -> RankInfo:
    return RankInfo(
        rank=rank,
        local_rank=rank % RANKS_PER_NODE,
        world_size=world_size,
        hostname=f"node-{node}.cluster.example",
        attempt=int(_NOW_S) * _NS + rank,
        state="running",
        heartbeat_unix_ns=int(_NOW_S) * _NS,
        facts=RankFacts(
            device="NVIDIA H100 80GB HBM3",
            device_kind="cuda",
            dtype="bfloat16",
            peak_flops_per_second=9.89e14,
            parameters=7_000_000_000,
            flops_source="parameters",
            torch_version="2.9.0+cu128",
            backend="nccl",
            device_uuid=f"GPU-{rank:032x}",
        ),
    )


def sent_by(messages: Sequence[NodeAnnouncement]) -> tuple[Sent, Sent]:
    """Return the announcements and the heartbeats of one period as the broker delivers them: topic and payload."""
    beats = [
        NodeAlive(
            node=message.node,
            alive=True,
            unix_ns=int(_NOW_S + 10) * _NS,
            stream_id=1,
            address="10.0.0.1:9855",
            runs=[RunHeartbeat(run=message.run, revision=message.revision, alive_unix_ns=_later(message))],
        )
        for message in messages
    ]
    return (
        [(topics.run_topic(each.run, topics.ANNOUNCE, each.node), encode(each)) for each in messages],
        [(topics.alive_topic(each.node), encode(each)) for each in beats],
    )


def _later(message: NodeAnnouncement) -> list[int]:
    return [info.heartbeat_unix_ns + 10 * _NS for info in message.ranks]


def measure(sent: Sent, beats: Sent) -> Cost:
    """Return what it costs to apply all announcements, to lay out the run and to apply one heartbeat of each node."""
    decode_ms, apply_ms, layout_ms, beats_ms = _spent_ms(sent, beats)
    gc.collect()
    tracemalloc.start()
    membership = _applied(sent)
    topology = membership.topology()
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del membership, topology
    return Cost(
        announcement_bytes=len(sent[-1][1]),
        beat_bytes=len(beats[-1][1]),
        decode_ms=decode_ms,
        apply_ms=apply_ms,
        layout_ms=layout_ms,
        beats_ms=beats_ms,
        held_mb=held / _MB,
        peak_mb=peak / _MB,
    )


def _applied(sent: Sent) -> Membership:
    membership = Membership("job")
    for topic, payload in sent:
        membership.apply_announcement(decode_as(NodeAnnouncement, topic, payload), _NOW_S)
    return membership


def _spent_ms(sent: Sent, beats: Sent) -> tuple[float, float, float, float]:
    """Return ms to decode, to apply, to lay out, and of the heartbeats; messages are decoded one at a time."""

    def decode() -> None:
        for each in sent:
            decode_as(NodeAnnouncement, *each)

    def beat() -> None:
        for each in beats:
            message = decode_as(NodeAlive, *each)
            for heartbeat in message.runs:
                membership.apply_heartbeat(message.node, heartbeat, _NOW_S + 10)

    gc.collect()
    _, decode_ms = _timed(decode)
    membership, both_ms = _timed(lambda: _applied(sent))
    _, layout_ms = _timed(membership.topology)
    _, beats_ms = _timed(beat)
    return decode_ms, both_ms - decode_ms, layout_ms, beats_ms


def _timed(work: Callable[[], _T]) -> tuple[_T, float]:
    begin_s = time.process_time()
    result = work()
    return result, (time.process_time() - begin_s) * 1e3


def report(nodes: int, case: str, cost: Cost, memory_mb: float | None) -> bool:
    """Print a row; return whether a budget is missed."""
    cpu_ms = CPU_BUDGET_MS if memory_mb is not None else None
    print(
        f"{nodes:>7} {case:<11} {cost.announcement_bytes:>6} {cost.beat_bytes:>6} {cost.decode_ms:>8.1f}"
        f" {cost.apply_ms:>8.1f} {cost.layout_ms:>8.1f} {_with_budget(cost.cpu_ms, cpu_ms)}"
        f" {_with_budget(cost.held_mb, memory_mb)} {cost.peak_mb:>8.2f} {cost.beats_ms:>8.1f}",
        flush=True,
    )
    return _misses(cost.cpu_ms, cpu_ms) or _misses(cost.held_mb, memory_mb)


def _misses(value: float, budget: float | None) -> bool:
    return budget is not None and value > budget


def _with_budget(value: float, budget: float | None) -> str:
    limit = "" if budget is None else f"/{budget:g}{'!' if value > budget else ''}"
    return f"{value:>8.2f}{limit:<6}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 where a budget is missed."""
    parser = argparse.ArgumentParser(description="Cost of announcements at the coordinator.")
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES))
    parsed = parser.parse_args(arguments)
    print(
        f"{'nodes':>7} {'case':<11} {'bytes':>6} {'beat':>6} {'decode':>8} {'apply':>8} {'lay out':>8} {'sum ms':>14}"
        f" {'held MB':>14} {'peak':>8} {'beats':>8}"
    )
    over = False
    for nodes in parsed.nodes:
        for case, degrees in shapes(nodes).items():
            sent, beats = sent_by(list(announcements(nodes, degrees)))
            memory_mb = MEMORY_BUDGET_MB if nodes >= _BUDGETED_NODES else None
            over |= report(nodes, case, measure(sent, beats), memory_mb)
    sent, beats = sent_by([forged()])
    over |= report(1, "forged", measure(sent, beats), FORGED_BUDGET_MB)
    print("/ is a budget, ! where it is missed")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
