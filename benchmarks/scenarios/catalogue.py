"""The scenarios by name: every fault that must be found, and everything that is none.

Each is a function of the number of ranks and a seed, which also draws the ranks at fault and when it begins.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.scenarios.job import LINK, NOISY, Fault, Imbalance, Interruptions, Noise, Scenario
from benchmarks.scenarios.recording import RANKS_PER_NODE
from lockstep.contracts.domains import Domain, Topology, from_degrees, parse_degrees

SIZES = (8, 128, 1024, 10_240)
SHAPES = {8: "tp=2,dp=4", 128: "tp=4,pp=4,dp=8", 1024: "tp=8,pp=4,dp=32", 10_240: "tp=8,pp=8,dp=160"}
_PIPELINES = {8: "tp=2,pp=2,dp=2", **{size: SHAPES[size] for size in SIZES[1:]}}
_EXPERTS = {8: "ep=4,dp=8", 128: "tp=4,ep=4,pp=4,dp=8", 1024: "tp=8,ep=8,pp=4,dp=32", 10_240: "tp=8,ep=8,pp=8,dp=160"}
_PAIRS = {8: "tp=2,pp=2,dp=2", 128: "tp=8,pp=8,dp=2", 1024: "tp=8,cp=8,pp=8,dp=2", 10_240: "tp=8,cp=16,pp=40,dp=2"}
"""Domains of two."""

Make = Callable[[int, int], Scenario]
_EVEN, _USUAL, _RESTARTED = Imbalance(), Noise(), Interruptions(restart_at=120)
_PAUSING = Interruptions(checkpoint_every=25, evaluation_every=40)
_SEQUENCE = Imbalance(sequence_sigma=0.12)
_HALF_BANDWIDTH = 1.0  # a transfer takes as long again


def _scenario(name: str, ranks: int, seed: int, shapes: dict[int, str]) -> tuple[Scenario, np.random.Generator]:
    """Return a healthy scenario and the draw of everything else; one seed differs from another in every scenario."""
    rng = np.random.default_rng((seed, sum(name.encode())))
    return Scenario(name=name, degrees=shapes[ranks], seed=int(rng.integers(1 << 31))), rng


def _topology(scenario: Scenario, ranks: int) -> Topology:
    return from_degrees(parse_degrees(scenario.degrees, where="scenario"), ranks)


def _pick(rng: np.random.Generator, ranks: int, count: int) -> tuple[int, ...]:
    return tuple(sorted(rng.choice(ranks, min(count, ranks // 2), replace=False).tolist()))


def _begin(rng: np.random.Generator) -> int:
    return int(rng.integers(60, 100))


def _slow(
    ranks: int,
    seed: int,
    *,
    name: str,
    ratio: float,
    count: int = 1,
    cause: str = "compute",
    imbalance: Imbalance = _EVEN,
    noise: Noise = _USUAL,
    shapes: dict[int, str] = SHAPES,
    from_start: bool = False,
    lasts: int | None = None,
    drift_steps: int = 0,
    on_steps: int = 0,
    off_steps: int = 0,
) -> Scenario:
    """Return a job in which `count` ranks drawn by chance are slow by `ratio` of their own work."""
    scenario, rng = _scenario(name, ranks, seed, shapes)
    begin = 0 if from_start else _begin(rng)
    fault = Fault(
        cause=cause,
        ranks=_pick(rng, ranks, count),
        ratio=ratio,
        begin=begin,
        end=None if lasts is None else begin + lasts,
        drift_steps=drift_steps,
        on_steps=on_steps,
        off_steps=off_steps,
    )
    steps = begin + 140 if drift_steps else scenario.steps
    return replace(scenario, faults=(fault,), imbalance=imbalance, noise=noise, steps=steps)


def _slow_half(ranks: int, seed: int, *, name: str, ratio: float) -> Scenario:
    """Return a job in which half of one data-parallel domain is slow."""
    scenario, rng = _scenario(name, ranks, seed, SHAPES)
    members = _domain(scenario, ranks, "dp", rng).ranks
    slow = tuple(sorted(rng.choice(members, len(members) // 2, replace=False).tolist()))
    return replace(scenario, faults=(Fault(cause="compute", ranks=slow, ratio=ratio, begin=_begin(rng)),))


def _domain(scenario: Scenario, ranks: int, kind: str, rng: np.random.Generator) -> Domain:
    domains = [domain for domain in _topology(scenario, ranks).domains if domain.kind == kind]
    return domains[int(rng.integers(len(domains)))]


def _slow_nodes(ranks: int, seed: int, *, name: str, count: int, cause: str) -> Scenario:
    """Return a job with `count` slow nodes, that share a data-parallel domain where there are two."""
    scenario, rng = _scenario(name, ranks, seed, SHAPES)
    members = _domain(scenario, ranks, "dp", rng).ranks
    nodes = sorted({rank // RANKS_PER_NODE for rank in members})
    chosen = rng.choice(nodes, min(count, len(nodes)), replace=False).tolist()
    slow = tuple(node * RANKS_PER_NODE + place for node in sorted(chosen) for place in range(RANKS_PER_NODE))
    return replace(scenario, faults=(Fault(cause=cause, ranks=slow, ratio=0.05, begin=_begin(rng)),))


def _slow_link(ranks: int, seed: int, *, name: str, kind: str, shapes: dict[int, str] = _PIPELINES) -> Scenario:
    """Return a job in which one group of `kind` has half its bandwidth."""
    scenario, rng = _scenario(name, ranks, seed, shapes)
    members = _domain(scenario, ranks, kind, rng).ranks
    fault = Fault(
        cause=LINK, ranks=members[:1], ratio=_HALF_BANDWIDTH, wanted="group", kinds=(kind,), begin=_begin(rng)
    )
    return replace(scenario, faults=(fault,))


def _slow_nic(ranks: int, seed: int, *, name: str) -> Scenario:
    """Return a job in which everything that leaves one node has half its bandwidth."""
    scenario, rng = _scenario(name, ranks, seed, _PIPELINES)
    first = int(rng.integers(ranks // RANKS_PER_NODE)) * RANKS_PER_NODE
    fault = Fault(
        cause=LINK,
        ranks=tuple(range(first, first + RANKS_PER_NODE)),
        ratio=_HALF_BANDWIDTH,
        wanted="node",
        kinds=("pp", "dp"),
        begin=_begin(rng),
    )
    return replace(scenario, faults=(fault,))


def _whole_job(ranks: int, seed: int, *, name: str, cause: str, ratio: float, scatter_rate: float = 0.0) -> Scenario:
    """Return a job that all ranks make slower."""
    scenario, rng = _scenario(name, ranks, seed, _PIPELINES)
    fault = Fault(
        cause=cause,
        ranks=tuple(range(ranks)),
        ratio=ratio,
        wanted="job",
        kinds=("pp", "dp") if cause == LINK else (),
        begin=_begin(rng),
        scatter_rate=scatter_rate,
    )
    return replace(scenario, faults=(fault,))


def _healthy(
    ranks: int,
    seed: int,
    *,
    name: str,
    shapes: dict[int, str] = SHAPES,
    imbalance: Imbalance = _EVEN,
    noise: Noise = _USUAL,
    interruptions: Interruptions = _RESTARTED,
) -> Scenario:
    scenario, _ = _scenario(name, ranks, seed, shapes)
    return replace(scenario, imbalance=imbalance, noise=noise, interruptions=interruptions)


def _scattered_gc(ranks: int, seed: int, *, name: str) -> Scenario:
    """Return a job in which ranks collect garbage each at its own time: a third of a step, 8 times a step at most."""
    return _whole_job(ranks, seed, name=name, cause="gc", ratio=0.3, scatter_rate=min(0.02, 8 / ranks))


def _named(make: Callable[..., Scenario], **arguments: object) -> dict[str, Make]:
    return {str(arguments["name"]): partial(make, **arguments)}


FAULTS: dict[str, Make] = {
    **_named(_slow, name="slow 3 %", ratio=0.03),
    **_named(_slow, name="slow 5 %", ratio=0.05),
    **_named(_slow, name="slow 10 %", ratio=0.10),
    **_named(_slow, name="slow 100 %", ratio=1.00),
    **_named(_slow, name="4 slow 5 %", ratio=0.05, count=4),
    **_named(_slow, name="16 slow 5 %", ratio=0.05, count=16),
    **_named(_slow, name="slow from the start", ratio=0.05, from_start=True),
    **_named(_slow, name="transient", ratio=0.05, lasts=20),
    **_named(_slow, name="thermal", ratio=0.05, on_steps=15, off_steps=25),
    **_named(_slow, name="drift", ratio=0.15, drift_steps=120),
    **_named(_slow_half, name="half of a domain", ratio=0.05),
    **_named(_slow, name="domain of two", ratio=0.05, shapes=_PAIRS),
    **_named(_slow_nodes, name="slow node", count=1, cause="host"),
    **_named(_slow_nodes, name="two slow nodes", count=2, cause="compute"),
    **_named(_slow, name="data on one", ratio=0.10, cause="data"),
    **_named(_slow, name="gc on one", ratio=0.10, cause="gc"),
    **_named(_slow, name="slow, sequences", ratio=0.10, imbalance=_SEQUENCE),
    **_named(_slow, name="slow, experts", ratio=0.05, imbalance=Imbalance(expert_sigma=0.1), shapes=_EXPERTS),
    **_named(_slow, name="slow, noisy", ratio=0.05, noise=NOISY),
    **_named(_slow_link, name="link tp", kind="tp"),
    **_named(_slow_link, name="link pp", kind="pp"),
    **_named(_slow_link, name="link dp", kind="dp"),
    **_named(_slow_link, name="link ep", kind="ep", shapes=_EXPERTS),
    **_named(_slow_nic, name="nic of a node"),
    **_named(_whole_job, name="data of all", cause="data", ratio=0.10),
    **_named(_whole_job, name="compute of all", cause="compute", ratio=0.08),
    **_named(_whole_job, name="network of all", cause=LINK, ratio=_HALF_BANDWIDTH),
    **_named(_scattered_gc, name="scattered gc"),
}

HEALTHY: dict[str, Make] = {
    **_named(_healthy, name="quiet"),
    **_named(_healthy, name="many pauses", interruptions=_PAUSING),
    **_named(_healthy, name="flagged pauses", interruptions=replace(_PAUSING, flagged=True, profiled_every=40)),
    **_named(_healthy, name="noisy", noise=NOISY),
    **_named(_healthy, name="last stage", shapes=_PIPELINES, imbalance=Imbalance(last_stage=0.25)),
    **_named(_healthy, name="sequences", imbalance=_SEQUENCE),
    **_named(_healthy, name="experts", shapes=_EXPERTS, imbalance=Imbalance(expert_sigma=0.1)),
    **_named(_healthy, name="accumulation", imbalance=Imbalance(accumulation=0.25)),
    **_named(_healthy, name="batch ramp", imbalance=Imbalance(ramp_steps=(50, 100, 150))),
}

SCENARIOS: dict[str, Make] = {**FAULTS, **HEALTHY}

_OF_NODES = ("slow node", "two slow nodes", "nic of a node")


def names(ranks: int) -> list[str]:
    """Return the scenarios that a job of so many ranks can have: one of a single node has no slow node."""
    return [name for name in SCENARIOS if ranks > 2 * RANKS_PER_NODE or name not in _OF_NODES]
