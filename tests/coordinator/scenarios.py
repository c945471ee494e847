"""Generated synchronous training: what every rank measures, step by step, seeded.

The model keeps the account of the real record: a step is own work plus the waits in every domain, exactly. Groups end
with their slowest member, tensor groups first, then pipelines, then data parallelism. Noise figures are those measured on
production logs (`QUIET`) and on four processes sharing two cores (`SHARED_CORES`: one rank in a few steps is
descheduled, sometimes for several steps, and everybody's speed follows the machine's other load).

Shapes: W steps, R ranks.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from coordinator.intake.timeline import StepRow
from lockstep.contracts import domains
from lockstep.contracts.records import MISSING, Flag
from tests.support.batches import batch_of_columns

NS = 1e9
START_UNIX_S = 1_790_000_000.0
PHASE_SHARES = {"forward": 0.3, "backward": 0.6, "optimizer": 0.1}
"""Of compute; data is waited for, off the CPU, and so are all waits."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviations as ratios of compute; `burst_*` describe descheduled ranks."""

    step: float = 0.004
    spread: float = 0.0025
    common: float = 0.007
    common_memory: float = 0.5
    jitter: float = 0.03
    burst_rate: float = 1e-5
    burst_ratio: float = 2.0
    burst_memory: float = 0.0


QUIET = Noise()
SHARED_CORES = Noise(
    step=0.15,
    spread=0.02,
    common=0.2,
    common_memory=0.8,
    jitter=0.5,
    burst_rate=0.04,
    burst_ratio=0.35,
    burst_memory=0.3,
)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Ranks that do more from step `begin` to before `end`; `seconds` is added to `part` (or to the transfers of a domain).

    `part` is a component, a phase of compute, or a kind of domain; `asleep`: the training thread is off the CPU for it.
    """

    part: str
    ranks: tuple[int, ...]
    seconds: float
    begin: int = 0
    end: int = 1 << 40
    drift_steps: int = 0
    asleep: bool = False


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A job; degrees as in Megatron's order. Seconds are those of a healthy rank."""

    degrees: str = "dp=8"
    steps: int = 120
    seed: int = 1
    noise: Noise = QUIET
    compute: float = 0.4
    data: float = 0.01
    host: float = 0.02
    gc: float = 0.002
    transfer: float = 0.05
    faults: tuple[Fault, ...] = ()
    sequence_sigma: float = 0.0
    last_stage_factor: float = 1.0
    checkpoint_every: int = 0
    checkpoint_seconds: float = 3.0
    checkpoint_flagged: bool = True
    profiled: tuple[int, ...] = ()
    profiled_ranks: tuple[int, ...] = (0,)
    missing: float = 0.0

    def with_fault(self, part: str, *ranks: int, seconds: float, begin: int = 0, **more) -> "Scenario":
        return replace(self, faults=(*self.faults, Fault(part=part, ranks=ranks, seconds=seconds, begin=begin, **more)))


@dataclass
class Recording:
    """What the ranks measured: arrays of shape (W, R), seconds."""

    topology: domains.Topology
    duration: np.ndarray
    components: dict[str, np.ndarray]
    views: dict[str, np.ndarray]
    waits: dict[str, np.ndarray]
    flags: np.ndarray
    present: np.ndarray
    moved: dict[str, float] = field(default_factory=dict)

    @property
    def self_seconds(self):
        return self.duration - sum(self.waits.values())

    def rows(self):
        ranks = np.arange(self.topology.world_size)
        for step in range(len(self.duration)):
            here = self.present[step]

            def known(values, step=step, here=here):
                return np.where(here, values[step], np.nan)

            waits = {kind: known(value) for kind, value in self.waits.items()}
            yield StepRow(
                step=step,
                end_unix_s=START_UNIX_S + float(self.duration[: step + 1].max(axis=1).sum()),
                ranks=ranks,
                present=here,
                flags=np.where(here, self.flags[step], 0),
                duration=known(self.duration),
                self_seconds=known(self.self_seconds),
                components={name: known(value) for name, value in self.components.items()},
                views={name: known(value) for name, value in self.views.items()},
                waits=waits,
                transfers=waits,
                floors={},
                moved={kind: np.where(here, value, np.nan) for kind, value in self.moved.items()},
                tokens=np.full(len(here), np.nan),
                work=np.full(len(here), np.nan),
            )

    def batch(self, first: int, last: int, *, ranks=None, run="job", node="n0", step_offset=0, start_s=START_UNIX_S):
        """Return the records of steps `first` to before `last` of `ranks` as one message."""
        ranks = list(range(self.topology.world_size)) if ranks is None else list(ranks)
        rows = [(rank, step) for rank in ranks for step in range(first, last) if self.present[step, rank]]
        ends = start_s * NS + np.cumsum(np.rint(self.duration * NS), axis=0)
        columns = {name: [] for name in ("step", "start_ns", "end_ns", "flags", *(f"{n}_ns" for n in self.components))}
        columns |= {f"{kind}_{what}": [] for kind in self.waits for what in ("wait_ns", "bytes")}
        columns |= {name: [] for name in ("forward_ns", "backward_ns", "optimizer_ns", "cpu_ns")}
        for rank, step in rows:
            duration = round(float(self.duration[step, rank]) * NS)
            parts = {name: round(float(v[step, rank]) * NS) for name, v in self.components.items() if name != "compute"}
            waits = {kind: round(float(v[step, rank]) * NS) for kind, v in self.waits.items()}
            parts["compute"] = duration - sum(parts.values()) - sum(waits.values())
            views = {name: round(float(v[step, rank]) * NS) for name, v in self.views.items()}
            columns["forward_ns"].append(views["forward"])
            columns["backward_ns"].append(views["backward"])
            columns["optimizer_ns"].append(parts["compute"] - views["forward"] - views["backward"])
            columns["cpu_ns"].append(sum(parts.values()) - views["off_cpu"])
            end = int(ends[step, rank])
            columns["step"].append(step + step_offset)
            columns["start_ns"].append(end - duration)
            columns["end_ns"].append(end)
            columns["flags"].append(int(self.flags[step, rank]))
            for name, value in parts.items():
                columns[f"{name}_ns"].append(value)
            for kind, value in waits.items():
                columns[f"{kind}_wait_ns"].append(value)
                columns[f"{kind}_bytes"].append(int(self.moved.get(kind, MISSING)))
        own = [rank for rank, _ in rows]
        return batch_of_columns(own, columns, run=run, node=node, sent_unix_ns=int(start_s * NS))


def _noise(scenario: Scenario, shape, rng) -> np.ndarray:
    """Return factors of compute, array of shape (W, R)."""
    noise = scenario.noise
    steps, ranks = shape
    factor = 1 + rng.normal(0, noise.spread, ranks)[None] + rng.normal(0, noise.step, shape)
    common = np.zeros(steps)
    innovation = noise.common * np.sqrt(1 - noise.common_memory**2)
    for step in range(1, steps):
        common[step] = noise.common_memory * common[step - 1] + rng.normal(0, innovation)
    burst = np.zeros(shape, dtype=bool)
    for step in range(steps):
        burst[step] = rng.random(ranks) < noise.burst_rate
        if step:
            burst[step] |= burst[step - 1] & (rng.random(ranks) < noise.burst_memory)
    stall = burst * noise.burst_ratio * np.minimum(rng.pareto(3.0, shape) + 0.5, 3.0)
    return np.maximum(factor, 0.3) * np.exp(common)[:, None] + stall


def generate(scenario: Scenario) -> Recording:
    """Return what the ranks of `scenario` measure."""
    rng = np.random.default_rng(scenario.seed)
    degrees = domains.parse_degrees(scenario.degrees, where="scenario")
    world = int(np.prod([size for kind, size in degrees.items() if kind != "ep"]))
    topology = domains.from_degrees(degrees, world)
    shape = (scenario.steps, world)
    stage = np.array(topology.stages)
    base = np.where((stage == stage.max()) & (stage.max() > 0), scenario.last_stage_factor, 1.0) * scenario.compute
    replica = (np.arange(world) // degrees.get("tp", 1)) % degrees.get("dp", 1)
    length = rng.normal(0, scenario.sequence_sigma, (scenario.steps, degrees.get("dp", 1)))[:, replica]
    parts = {
        "compute": base * (_noise(scenario, shape, rng) + np.maximum(length, -0.5) * scenario.compute / base),
        "data": scenario.data * (1 + rng.normal(0, 0.1, shape)),
        "host": scenario.host * (1 + rng.normal(0, 0.05, shape)),
        "gc": scenario.gc * (1 + rng.normal(0, 0.1, shape)),
    }
    phases = {phase: share * parts["compute"] for phase, share in PHASE_SHARES.items()}
    asleep = parts["data"].copy()
    transfers = dict.fromkeys({domain.kind for domain in topology.domains}, scenario.transfer)
    slow_transfers = {kind: np.zeros(shape) for kind in transfers}
    for fault in scenario.faults:
        steps = np.arange(scenario.steps)
        active = (steps >= fault.begin) & (steps < fault.end)
        rise = np.minimum(1.0, (steps - fault.begin + 1) / fault.drift_steps) if fault.drift_steps else 1.0
        more = (active * rise * fault.seconds)[:, None]
        where = fault.part if fault.part in parts or fault.part in slow_transfers else "compute"
        (parts if where in parts else slow_transfers)[where][:, list(fault.ranks)] += more
        for phase, share in PHASE_SHARES.items():
            if where == "compute":
                phases[phase][:, list(fault.ranks)] += more * (
                    share if fault.part == "compute" else fault.part == phase
                )
        if fault.asleep or where == "data":
            asleep[:, list(fault.ranks)] += more
    flags = np.zeros(shape, dtype=np.int64)
    if scenario.checkpoint_every:
        at = np.arange(scenario.steps) % scenario.checkpoint_every == scenario.checkpoint_every - 1
        parts["host"][at] += scenario.checkpoint_seconds
        if scenario.checkpoint_flagged:
            flags[at] |= Flag.CHECKPOINT
    for step in scenario.profiled:
        parts["host"][step : step + 2, list(scenario.profiled_ranks)] += 0.5
        flags[step, list(scenario.profiled_ranks)] |= Flag.PROFILED
    views = phases | {"off_cpu": asleep}
    return _synchronise(scenario, topology, parts, views, slow_transfers, flags=flags, rng=rng)


def _synchronise(scenario, topology, parts, views, slow_transfers, *, flags, rng) -> Recording:
    """Let groups end with their slowest member, innermost domain first, and book what each rank waited."""
    own = sum(parts.values())
    now = own.copy()
    waits = {}
    for kind in ("tp", "pp", "dp"):
        members = [list(domain.ranks) for domain in topology.domains if domain.kind == kind]
        if not members:
            continue
        ended = now.copy()
        for ranks in members:
            transfer = scenario.transfer * (1 + np.abs(rng.normal(0, scenario.noise.jitter, scenario.steps)))
            transfer += slow_transfers[kind][:, ranks].max(axis=1)
            ended[:, ranks] = (now[:, ranks].max(axis=1) + transfer)[:, None]
        waits[kind] = ended - now
        now = ended
    if not waits:
        waits["world"] = np.zeros_like(now)
    last = now.max(axis=1, keepdims=True)
    kind = "dp" if "dp" in waits else next(iter(waits))
    waits[kind] = waits[kind] + (last - now)
    duration = np.broadcast_to(last, now.shape).copy()
    return Recording(
        topology=topology,
        duration=duration,
        components=parts,
        views=views,
        waits=waits,
        flags=flags,
        present=rng.random(now.shape) >= scenario.missing,
        moved=dict.fromkeys(waits, 1e8),
    )
