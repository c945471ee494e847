# ruff: noqa: N806, N815  (names of arrays end in their shape, see the legend below)
"""What the nodes of a large synchronous job measure: the same figures in every process that is given the same seed.

Eight ranks a node share a tensor-parallel group, ranks of equal local rank a data-parallel one across all nodes. From
`fault_step` on one rank computes 10 % longer: its node waits for it, then the whole job does, so every step is longer
by the same. Noise is that of reference jobs (`benchmarks/scenarios/job.py`). All durations are integers of ns, and the
parts of each record sum exactly to its step.

Shapes: R ranks, N nodes, L local ranks, V values of a record.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.scenarios.job import Noise
from lockstep.contracts.facts import RankFacts
from lockstep.contracts.messages import GroupInfo, NodeAnnouncement, RankInfo
from lockstep.contracts.peaks import peak_flops_per_second
from lockstep.contracts.records import RECORD_FIELDS
from lockstep.contracts.rows import RANK, SEPARATOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

RANKS_PER_NODE = 8
RUN = "soak"
_NS = 1_000_000_000
_COMPUTE_NS, _DATA_NS, _HOST_NS, _GC_NS = 780_000_000, 12_000_000, 20_000_000, 500_000
_TRANSFER_NS = {"tp": 24_000_000, "dp": 76_000_000, "world": 900_000}
"""With these a step takes 0.93 s in good health and 1.0 s with a rank that computes 10 % longer."""
_NOISE = Noise()
_STEPS_KEPT = 64
_NOT_SENT = ("work", *(f"{kind}_{field}" for kind in ("cp", "ep", "pp") for field in (
    "wait_ns", "comm_ns", "bytes", "bus_bytes", "count", "shortest_ns")))  # fmt: skip
FIELDS = (RANK, *(name for name in RECORD_FIELDS if name not in _NOT_SENT))
"""What a rank of such a job measures on a GPU: all but what belongs to other kinds of groups."""
LAYOUT = SEPARATOR.join(FIELDS)
_PLACE = {name: place for place, name in enumerate(FIELDS)}
_FACTS = RankFacts(
    device="NVIDIA H200", device_kind="cuda", dtype="bf16", parameters=8 * 10**9, flops_source="parameters",
    peak_flops_per_second=peak_flops_per_second("NVIDIA H200", "bf16"), torch_version="2.13.0", backend="nccl",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """Size, fault and seed of a job; `start_unix_ns` is when its first step begins."""

    nodes: int
    steps: int
    fault_step: int
    slow_rank: int
    seed: int
    start_unix_ns: int
    fault_ratio: float = 0.10

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.nodes * RANKS_PER_NODE


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of all ranks, ns, arrays of shape (R,) and (N,); the scalars are the job's."""

    end_unix_ns: int
    duration_ns: int
    compute_R: "Ints"
    data_R: "Ints"
    node_ended_N: "Ints"
    dp_ended_ns: int


class Job:
    """Steps are made in ascending order once; of those that were made any may be asked for again."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        rng = np.random.default_rng([plan.seed, 1])
        self._spread_R = 1 + _NOISE.spread * rng.standard_normal(plan.ranks)
        self._common = _walk(rng, plan.steps, _NOISE.common, _NOISE.common_memory)
        self._ends_unix_ns: list[int] = []
        self._kept: OrderedDict[int, _Step] = OrderedDict()
        self._constant_V = _constants()

    def end_unix_ns(self, step: int) -> int:
        """Return when a step ends, wall clock; the steps before it are made."""
        while len(self._ends_unix_ns) <= step:
            made = self._make(len(self._ends_unix_ns))
            self._ends_unix_ns.append(made.end_unix_ns)
        return self._ends_unix_ns[step]

    def rows(self, step: int, first_node: int, last_node: int) -> "Ints":
        """Return the records of nodes `first_node` up to `last_node` of a step, array of shape (N, L, V)."""
        self.end_unix_ns(step)
        made = self._kept.get(step) or self._make(step)
        nodes = slice(first_node, last_node)
        ranks = slice(first_node * RANKS_PER_NODE, last_node * RANKS_PER_NODE)
        shape = (last_node - first_node, RANKS_PER_NODE)
        rows = np.empty((*shape, len(FIELDS)), dtype=np.int64)
        rows[:] = self._constant_V
        rows[..., 0] = np.arange(ranks.start, ranks.stop).reshape(shape)
        compute, data = made.compute_R[ranks].reshape(shape), made.data_R[ranks].reshape(shape)
        node_ended = made.node_ended_N[nodes, None]
        values = {
            "step": step,
            "start_ns": made.end_unix_ns - made.duration_ns,
            "end_ns": made.end_unix_ns,
            "compute_ns": compute,
            "data_ns": data,
            "tp_wait_ns": node_ended - (compute + data + (_HOST_NS + _GC_NS)),
            "dp_wait_ns": made.dp_ended_ns - node_ended,
            "world_wait_ns": made.duration_ns - made.dp_ended_ns,
            "forward_ns": compute // 3,
            "optimizer_ns": compute // 10,
            "backward_ns": compute - compute // 3 - compute // 10,
            "cpu_ns": compute,
            "device_step_ns": made.duration_ns,
        }
        for name, value in values.items():
            rows[..., _PLACE[name]] = value
        return rows

    def _make(self, step: int) -> _Step:
        plan = self.plan
        rng = np.random.default_rng([plan.seed, 2, step])
        own = self._spread_R + _NOISE.step * rng.standard_normal(plan.ranks, dtype=np.float32)
        if step >= plan.fault_step:
            own[plan.slow_rank] *= 1 + plan.fault_ratio
        compute_R = (own * (_COMPUTE_NS * self._common[step])).astype(np.int64)
        data_R = (_DATA_NS * (1 + 0.1 * np.abs(rng.standard_normal(plan.ranks, dtype=np.float32)))).astype(np.int64)
        jitter_N = 1 + _NOISE.jitter * np.abs(rng.standard_normal(plan.nodes, dtype=np.float32))
        met_N = (compute_R + data_R).reshape(plan.nodes, RANKS_PER_NODE).max(axis=1) + (_HOST_NS + _GC_NS)
        node_ended_N = met_N + (_TRANSFER_NS["tp"] * jitter_N).astype(np.int64)
        dp_ended_ns = int(node_ended_N.max()) + int(_TRANSFER_NS["dp"] * (1 + _NOISE.jitter * abs(rng.normal())))
        duration_ns = dp_ended_ns + _TRANSFER_NS["world"]
        begin_ns = plan.start_unix_ns if step == 0 else self._ends_unix_ns[step - 1]
        made = _Step(begin_ns + duration_ns, duration_ns, compute_R, data_R, node_ended_N, dp_ended_ns)
        self._kept[step] = made
        if len(self._kept) > _STEPS_KEPT:
            self._kept.popitem(last=False)
        return made


def _walk(rng: np.random.Generator, steps: int, sigma: float, memory: float) -> "NDArray[np.float64]":
    """Return factors that wander around 1 with a standard deviation of `sigma`, array of shape (steps,)."""
    walk = rng.standard_normal(steps) * sigma * np.sqrt(1 - memory**2)
    for step in range(1, steps):
        walk[step] += memory * walk[step - 1]
    factors: NDArray[np.float64] = 1 + walk
    return factors


def _constants() -> "Ints":
    """Return what does not change from record to record, array of shape (V,)."""
    constant_V = np.zeros(len(FIELDS), dtype=np.int64)
    known = {
        "host_ns": _HOST_NS,
        "gc_ns": _GC_NS,
        "gc_count": 1,
        "device_comm_ns": sum(_TRANSFER_NS.values()),
        "host_lead_ns": 5_000_000,
        "tokens": 8192,
        "samples": 4,
        "model_flops": 393_216_000_000_000,
        "agent_ns": 370_000,
    }
    for kind, transfer_ns in _TRANSFER_NS.items():
        count = {"tp": 128, "dp": 32, "world": 1}[kind]
        moved = {"tp": 8 << 30, "dp": 2 << 30, "world": 64}[kind]
        known |= {
            f"{kind}_comm_ns": transfer_ns,
            f"{kind}_count": count,
            f"{kind}_bytes": moved,
            f"{kind}_bus_bytes": moved,
            f"{kind}_shortest_ns": transfer_ns // count,
        }
    for name, value in known.items():
        constant_V[_PLACE[name]] = value
    return constant_V


def announcement(plan: JobPlan, node: int, unix_ns: int, *, is_finished: bool = False) -> NodeAnnouncement:
    """Return what a node announces of its ranks and their groups."""
    first, world = node * RANKS_PER_NODE, plan.ranks
    tensor = GroupInfo(kind="tp", name=f"tp{node}", ranks=[[first, first + RANKS_PER_NODE, 1]])
    data = [
        GroupInfo(kind="dp", name=f"dp{local}", ranks=[[local, world - RANKS_PER_NODE + local + 1, RANKS_PER_NODE]])
        for local in range(RANKS_PER_NODE)
    ]
    everyone = GroupInfo(kind="world", name="world", ranks=[[0, world, 1]])
    return NodeAnnouncement(
        run=RUN,
        node=node_name(node),
        ranks=[
            RankInfo(
                rank=first + local,
                local_rank=local,
                world_size=world,
                hostname=node_name(node),
                attempt=plan.start_unix_ns - 60 * _NS,
                state="finished" if is_finished else "running",
                heartbeat_unix_ns=unix_ns,
                facts=_FACTS,
            )
            for local in range(RANKS_PER_NODE)
        ],
        groups=[tensor, *data, everyone],
        revision=revision(is_finished=is_finished),
    )


def revision(*, is_finished: bool) -> int:
    """Return the number of an announcement: the second one reports that training has ended."""
    return 2 if is_finished else 1


def node_name(node: int) -> str:
    """Return the name of a node, which is its host's as well."""
    return f"node{node}"
