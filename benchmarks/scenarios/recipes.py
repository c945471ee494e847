"""How scenarios are made: a job of so many ranks with one kind of fault, or with none, drawn by a seed."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.scenarios.job import HANG, LINK, Fault, Imbalance, Interruptions, Noise, Scenario
from benchmarks.scenarios.recording import RANKS_PER_NODE
from lockstep.contracts.domains import Domain, Topology, from_degrees, parse_degrees

SIZES = (8, 128, 1024, 10_240)
SHAPES = {8: "tp=2,dp=4", 128: "tp=4,pp=4,dp=8", 1024: "tp=8,pp=4,dp=32", 10_240: "tp=8,pp=8,dp=160"}
PIPELINES = {8: "tp=2,pp=2,dp=2", **{size: SHAPES[size] for size in SIZES[1:]}}
EXPERTS = {8: "ep=4,dp=8", 128: "tp=4,ep=4,pp=4,dp=8", 1024: "tp=8,ep=8,pp=4,dp=32", 10_240: "tp=8,ep=8,pp=8,dp=160"}
PAIRS = {8: "tp=2,pp=2,dp=2", 128: "tp=8,pp=8,dp=2", 1024: "tp=8,cp=8,pp=8,dp=2", 10_240: "tp=8,cp=16,pp=40,dp=2"}
"""Domains of two."""
CONTEXTS = {8: "cp=2,dp=4", 128: "tp=4,cp=4,dp=8", 1024: "tp=8,cp=4,pp=4,dp=8", 10_240: "tp=8,cp=8,pp=4,dp=40"}
NO_REPLICAS = {8: "pp=8,dp=1", 128: "tp=8,pp=16,dp=1", 1024: "tp=8,cp=8,pp=16,dp=1", 10_240: "tp=16,cp=20,pp=32,dp=1"}
"""No one works on other data; with 8 ranks no one does the same work either."""

Make = Callable[[int, int], Scenario]
"""Of the number of ranks and a seed."""
_EVEN, _USUAL = Imbalance(), Noise()
RESTARTED = Interruptions(restart_at=120)
_HALF_BANDWIDTH = 1.0  # a transfer takes as long again
_STALLING_STEPS = 600


def _scenario(name: str, ranks: int, seed: int, shapes: dict[int, str]) -> tuple[Scenario, np.random.Generator]:
    """Return a healthy scenario and the draw of everything else; one seed differs from another in every scenario."""
    rng = np.random.default_rng((seed, sum(name.encode())))
    return Scenario(name=name, degrees=shapes[ranks], seed=int(rng.integers(1 << 31))), rng


def _topology(scenario: Scenario, ranks: int) -> Topology:
    return from_degrees(parse_degrees(scenario.degrees, where="scenario"), ranks)


def _pick(rng: np.random.Generator, ranks: int, count: int) -> tuple[int, ...]:
    """Draw ranks, never rank 0: where one lies, it is that one."""
    return tuple(sorted((1 + rng.choice(ranks - 1, min(count, ranks // 2), replace=False)).tolist()))


def _begin(rng: np.random.Generator) -> int:
    return int(rng.integers(60, 100))


def slow(
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
    begin: int | None = None,
    interruptions: Interruptions = Interruptions(),  # noqa: B008  (frozen)
    has_phases: bool = False,
    share: float = 0.0,
) -> Scenario:
    """Return a job in which `count` ranks drawn by chance are slow by `ratio` of their own work."""
    scenario, rng = _scenario(name, ranks, seed, shapes)
    drawn = _begin(rng)
    begin = 0 if from_start else drawn if begin is None else begin
    fault = Fault(
        cause=cause,
        ranks=_pick(rng, ranks, count),
        ratio=ratio,
        begin=begin,
        end=None if lasts is None else begin + lasts,
        drift_steps=drift_steps,
        on_steps=on_steps,
        off_steps=off_steps,
        scatter_rate=share,
    )
    steps = begin + 140 if drift_steps else begin + 220 if share else scenario.steps
    job = replace(scenario, faults=(fault,), imbalance=imbalance, noise=noise, steps=steps)
    return replace(job, interruptions=interruptions, has_phases=has_phases)


def slow_half(
    ranks: int, seed: int, *, name: str, ratio: float, kind: str = "dp", shapes: dict[int, str] = SHAPES
) -> Scenario:
    """Return a job in which half of one domain of `kind` is slow."""
    scenario, rng = _scenario(name, ranks, seed, shapes)
    members = _domain(scenario, ranks, kind, rng).ranks
    slow = tuple(sorted(rng.choice(members, len(members) // 2, replace=False).tolist()))
    return replace(scenario, faults=(Fault(cause="compute", ranks=slow, ratio=ratio, begin=_begin(rng)),))


def _domain(scenario: Scenario, ranks: int, kind: str, rng: np.random.Generator) -> Domain:
    domains = [domain for domain in _topology(scenario, ranks).domains if domain.kind == kind]
    return domains[int(rng.integers(len(domains)))]


def slow_nodes(ranks: int, seed: int, *, name: str, count: int, cause: str) -> Scenario:
    """Return a job with `count` slow nodes, that share a data-parallel domain where there are two."""
    scenario, rng = _scenario(name, ranks, seed, SHAPES)
    members = _domain(scenario, ranks, "dp", rng).ranks
    nodes = sorted({rank // RANKS_PER_NODE for rank in members})
    chosen = rng.choice(nodes, min(count, len(nodes)), replace=False).tolist()
    slow = tuple(node * RANKS_PER_NODE + place for node in sorted(chosen) for place in range(RANKS_PER_NODE))
    return replace(scenario, faults=(Fault(cause=cause, ranks=slow, ratio=0.05, begin=_begin(rng)),))


def slow_link(ranks: int, seed: int, *, name: str, kind: str, shapes: dict[int, str] = PIPELINES) -> Scenario:
    """Return a job in which one group of `kind` has half its bandwidth."""
    scenario, rng = _scenario(name, ranks, seed, shapes)
    members = _domain(scenario, ranks, kind, rng).ranks
    fault = Fault(
        cause=LINK, ranks=members[:1], ratio=_HALF_BANDWIDTH, wanted="group", kinds=(kind,), begin=_begin(rng)
    )
    return replace(scenario, faults=(fault,))


def slow_nic(ranks: int, seed: int, *, name: str) -> Scenario:
    """Return a job in which everything that leaves one node has half its bandwidth."""
    scenario, rng = _scenario(name, ranks, seed, PIPELINES)
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


def whole_job(
    ranks: int,
    seed: int,
    *,
    name: str,
    cause: str,
    ratio: float,
    scatter_rate: float = 0.0,
    every_steps: int = 0,
    share: float = 0.0,
    in_turn: bool = False,
    jitters: bool = False,
    from_start: bool = False,
    later_steps: int = 0,
    noise: Noise = _USUAL,
    imbalance: Imbalance = _EVEN,
    wanted: str = "job",
) -> Scenario:
    """Return a job that all ranks make slower, `later_steps` later than elsewhere."""
    scenario, rng = _scenario(name, ranks, seed, PIPELINES)
    fault = Fault(
        cause=cause,
        ranks=tuple(range(ranks)),
        ratio=ratio,
        wanted=wanted,
        kinds=("pp", "dp") if cause == LINK else (),
        begin=0 if from_start else _begin(rng) + later_steps,
        scatter_rate=scatter_rate,
        every_steps=every_steps,
        share=share,
        in_turn=in_turn,
        jitters=jitters,
    )
    noise = replace(noise, later_row=fault.begin)
    steps = fault.begin + 220 if share else scenario.steps + later_steps
    return replace(scenario, steps=steps, faults=(fault,), imbalance=imbalance, noise=noise)


def healthy(
    ranks: int,
    seed: int,
    *,
    name: str,
    shapes: dict[int, str] = SHAPES,
    imbalance: Imbalance = _EVEN,
    noise: Noise = _USUAL,
    interruptions: Interruptions = RESTARTED,
    has_phases: bool = False,
) -> Scenario:
    """Return a job without a fault."""
    scenario, _ = _scenario(name, ranks, seed, shapes)
    job = replace(scenario, imbalance=imbalance, noise=noise, interruptions=interruptions)
    return replace(job, has_phases=has_phases)


def stalling(
    ranks: int,
    seed: int,
    *,
    name: str,
    share: float,
    ratio: float = 0.0,
    restart_every: int = 300,
    shapes: dict[int, str] = SHAPES,
) -> Scenario:
    """Return a healthy job with a stall of some rank in a share of all steps, a restart every so many, and no loss."""
    interruptions = replace(RESTARTED, restart_every=restart_every, missing=0.0, late=0.0)
    noise = Noise(stall_rate=share / ranks, stall_ratio=ratio)
    job = healthy(ranks, seed, name=name, shapes=shapes, noise=noise, interruptions=interruptions)
    return replace(job, steps=max(_STALLING_STEPS, 2 * restart_every))


def unsynchronised_gc(ranks: int, seed: int, *, name: str) -> Scenario:
    """Return a job in which ranks collect garbage each at its own time: a third of a step, 8 times a step at most."""
    return whole_job(ranks, seed, name=name, cause="gc", ratio=0.3, scatter_rate=min(0.02, 8 / ranks))


def rank_and_link(ranks: int, seed: int, *, name: str) -> Scenario:
    """Return a job with a slow rank and, 20 steps later, a slow data-parallel link that it is no member of."""
    scenario, rng = _scenario(name, ranks, seed, SHAPES)
    members = _domain(scenario, ranks, "dp", rng).ranks
    slow = int(rng.choice(np.setdiff1d(np.arange(ranks), members)))
    begin = _begin(rng)
    rank = Fault(cause="compute", ranks=(slow,), ratio=0.08, begin=begin)
    link = Fault(cause=LINK, ranks=members[:1], ratio=1.0, wanted="group", kinds=("dp",), begin=begin + 20)
    return replace(scenario, faults=(rank, link))


def rank_and_job(ranks: int, seed: int, *, name: str) -> Scenario:
    """Return a job with a slow rank that, 40 steps later, waits longer for its data on all ranks besides."""
    scenario, rng = _scenario(name, ranks, seed, SHAPES)
    begin = _begin(rng)
    rank = Fault(cause="compute", ranks=_pick(rng, ranks, 1), ratio=0.06, begin=begin)
    job = Fault(cause="data", ranks=tuple(range(ranks)), ratio=0.10, wanted="job", begin=begin + 40)
    return replace(scenario, faults=(rank, job))


def hang(ranks: int, seed: int, *, name: str, records: int = 1) -> Scenario:
    """Return a job in which one rank does not arrive any more, until somebody restarts it minutes later.

    The others end so many steps more: what is not waited for in every step, hosts run ahead of.
    """
    scenario, rng = _scenario(name, ranks, seed, SHAPES)
    begin = _begin(rng)
    fault = Fault(cause=HANG, ranks=_pick(rng, ranks, 1), ratio=0.0, begin=begin, end=begin + records)
    return replace(scenario, faults=(fault,), interruptions=Interruptions(restart_at=begin + records))
