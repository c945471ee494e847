"""The hold-out cases by name. Shape, culprits and begin are drawn by the seed; nothing here was tuned on."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.holdout.job import (
    COMPUTE,
    DATA,
    GC,
    GROUP,
    HANG,
    HOST,
    JOB,
    LINK,
    NODE,
    RANK,
    RANKS_PER_NODE,
    Case,
    Disorder,
    Layout,
    Nature,
    Truth,
)

SIZES = (8, 128, 1024)
PLAIN = {
    8: ("dp=8", "tp=2,dp=4", "tp=2,pp=2,dp=2", "cp=2,dp=4", "tp=4,dp=2", "pp=2,dp=4"),
    128: ("tp=4,pp=4,dp=8", "tp=8,dp=16", "tp=2,cp=2,pp=4,dp=8", "dp=128", "tp=8,pp=2,dp=8", "pp=8,dp=16"),
    1024: ("tp=8,pp=4,dp=32", "tp=8,cp=2,dp=64", "tp=4,pp=8,dp=32", "tp=8,pp=16,dp=8"),
}
PIPED = {size: tuple(shape for shape in shapes if "pp" in shape and "tp" in shape) for size, shapes in PLAIN.items()}
EXPERT = {
    8: ("ep=4,dp=8", "tp=2,ep=2,dp=4"),
    128: ("tp=4,ep=8,pp=2,dp=16", "ep=8,pp=4,dp=32"),
    1024: ("tp=8,ep=8,pp=4,dp=32",),
}
CONTEXT = {
    8: ("cp=2,dp=4", "tp=2,cp=2,dp=2"),
    128: ("tp=4,cp=4,dp=8", "tp=2,cp=2,pp=4,dp=8"),
    1024: ("tp=8,cp=4,pp=4,dp=8",),
}
PAIRS = {8: ("tp=2,pp=2,dp=2", "tp=4,dp=2"), 128: ("tp=8,pp=8,dp=2",), 1024: ("tp=8,cp=8,pp=8,dp=2",)}
SPARE = {8: ("tp=2,dp=4", "tp=4,dp=2"), **{size: PIPED[size] for size in (128, 1024)}}
"""Shapes in which a replica has several ranks, so that its documents differ visibly from a slow rank."""

_NOISY = Nature(noise=0.01, wander=0.005, stall_rate=1e-4, stall_again=0.3, contention=0.3)
_DOCUMENTS = Nature(documents=0.45)
_EVALUATING = Disorder(evaluation_every=60, evaluation_rows=10)
_EXPERTS = Nature(experts=0.5)
_LOADING = Nature(loading=0.06)
TENSOR = {size: tuple(shape for shape in shapes if "tp" in shape) for size, shapes in PLAIN.items()}
Draw = Callable[[Layout, int, np.random.Generator], Sequence[Truth]]


def _no_rank(_: Layout, __: int, ___: np.random.Generator) -> Sequence[Truth]:
    return ()


def _ranks(cause: str, ratio: float, *, count: int = 1, begin: int | None = None, **more: object) -> Draw:
    """Return a draw of `count` slow ranks, never rank 0, which lies in some cases."""

    def draw(layout: Layout, at: int, rng: np.random.Generator) -> Sequence[Truth]:
        world = layout.topology.world_size
        chosen = tuple(sorted(rng.choice(np.arange(1, world), min(count, world // 4), replace=False).tolist()))
        made = Truth(scope=RANK, ranks=chosen, cause=cause, ratio=ratio, begin=at if begin is None else begin)
        return (replace(made, **more),)  # type: ignore[arg-type]

    return draw


def _half(kind: str, ratio: float) -> Draw:
    def draw(layout: Layout, at: int, rng: np.random.Generator) -> Sequence[Truth]:
        group = rng.choice(layout.groups[kind])
        chosen = tuple(sorted(rng.choice(group, len(group) // 2, replace=False).tolist()))
        return (Truth(scope=RANK, ranks=chosen, cause=COMPUTE, ratio=ratio, begin=at),)

    return draw


def _nodes(count: int, cause: str) -> Draw:
    def draw(layout: Layout, at: int, rng: np.random.Generator) -> Sequence[Truth]:
        nodes = rng.choice(layout.topology.world_size // RANKS_PER_NODE, count, replace=False)
        ranks = tuple(int(node) * RANKS_PER_NODE + place for node in sorted(nodes) for place in range(RANKS_PER_NODE))
        return (Truth(scope=RANK, ranks=ranks, cause=cause, ratio=0.06, begin=at),)

    return draw


def _group(kind: str) -> Draw:
    def draw(layout: Layout, at: int, rng: np.random.Generator) -> Sequence[Truth]:
        group = tuple(rng.choice(layout.groups[kind]).tolist())
        return (Truth(scope=GROUP, ranks=group, cause=LINK, ratio=1.0, kinds=(kind,), begin=at),)

    return draw


def _nic(layout: Layout, at: int, rng: np.random.Generator) -> Sequence[Truth]:
    first = int(rng.integers(layout.topology.world_size // RANKS_PER_NODE)) * RANKS_PER_NODE
    ranks = tuple(range(first, first + RANKS_PER_NODE))
    return (Truth(scope=NODE, ranks=ranks, cause=LINK, ratio=1.0, kinds=("pp", "dp"), begin=at),)


def _whole(cause: str, ratio: float) -> Draw:
    def draw(layout: Layout, at: int, _: np.random.Generator) -> Sequence[Truth]:
        ranks = tuple(range(layout.topology.world_size))
        return (Truth(scope=JOB, ranks=ranks, cause=cause, ratio=ratio, kinds=("pp", "dp"), begin=at),)

    return draw


def _hang(layout: Layout, at: int, rng: np.random.Generator) -> Sequence[Truth]:
    culprit = (int(rng.integers(layout.topology.world_size)),)
    return (Truth(scope=HANG, ranks=culprit, cause="", ratio=0.0, begin=at),)


def _rank_and_link(layout: Layout, at: int, rng: np.random.Generator) -> Sequence[Truth]:
    kind = "tp" if "tp" in layout.groups else "dp"
    group = rng.choice(layout.groups[kind])
    others = np.setdiff1d(np.arange(layout.topology.world_size), group)
    slow = Truth(scope=RANK, ranks=(int(rng.choice(others)),), cause=COMPUTE, ratio=0.08, begin=at)
    link = Truth(scope=GROUP, ranks=tuple(group.tolist()), cause=LINK, ratio=1.0, kinds=(kind,), begin=at + 20)
    return (slow, link)


Make = Callable[[int, int], Case]


def _case(
    name: str,
    draw: Draw = _no_rank,
    shapes: dict[int, tuple[str, ...]] = PLAIN,
    nature: Nature = Nature(),  # noqa: B008  (frozen)
    disorder: Disorder = Disorder(),  # noqa: B008  (frozen)
    **more: object,
) -> tuple[str, Make]:
    def make(ranks: int, seed: int) -> Case:
        rng = np.random.default_rng((seed, ranks, *name.encode()))
        case = Case(name=name, degrees=str(rng.choice(shapes[ranks])), seed=seed, nature=nature, disorder=disorder)
        case = replace(case, **more)  # type: ignore[arg-type]
        case = replace(case, truths=tuple(draw(Layout.of(case), int(rng.integers(70, 110)), rng)))
        hung = tuple(truth.begin + 1 for truth in case.truths if truth.scope == HANG)
        return replace(case, disorder=replace(disorder, restarts=hung)) if hung else case  # somebody ends it

    return name, make


FAULTS: dict[str, Make] = dict(
    (
        _case("slow 3 %", _ranks(COMPUTE, 0.03)),
        _case("slow 5 %", _ranks(COMPUTE, 0.05)),
        _case("slow 15 %, host", _ranks(HOST, 0.15)),
        _case("slow loader", _ranks(DATA, 0.08)),
        _case("gc on one", _ranks(GC, 0.08)),
        _case("four slow 5 %", _ranks(COMPUTE, 0.05, count=4)),
        _case("sixteen slow 5 %", _ranks(COMPUTE, 0.05, count=16)),
        _case("slow from the start 5 %", _ranks(COMPUTE, 0.05, begin=0)),
        _case("slow from the start 20 %", _ranks(COMPUTE, 0.2, begin=0)),
        _case("thermal", _ranks(COMPUTE, 0.12, rise_rows=40)),
        _case("thermal, coming and going", _ranks(COMPUTE, 0.06, period=(18, 22))),
        _case("transient", _ranks(COMPUTE, 0.06, period=(20, 10_000))),
        _case("half of a domain", _half("dp", 0.05)),
        _case("domain of two", _ranks(COMPUTE, 0.05), PAIRS),
        _case("slow node", _nodes(1, HOST)),
        _case("two slow nodes", _nodes(2, COMPUTE)),
        _case("slow under documents", _ranks(COMPUTE, 0.1), SPARE, _DOCUMENTS),
        _case("slow under experts", _ranks(COMPUTE, 0.05), EXPERT, _EXPERTS, absent=("work",)),
        _case("slow under accumulation", _ranks(COMPUTE, 0.05), nature=Nature(accumulation=(8, 10)), absent=("work",)),
        _case("slow where one rank a group loads", _ranks(COMPUTE, 0.05), TENSOR, _LOADING),
        _case("slow in context groups", _ranks(COMPUTE, 0.05), CONTEXT),
        _case("slow, noisy", _ranks(COMPUTE, 0.05), nature=_NOISY),
        _case("slow without a world", _ranks(COMPUTE, 0.05), has_world=False),
        _case("slow after two restarts", _ranks(COMPUTE, 0.05, begin=150), disorder=Disorder(restarts=(50, 110))),
        _case("slow after growing", _ranks(COMPUTE, 0.05, begin=130), disorder=Disorder(restarts=(90,), joins=2)),
        _case("slow between evaluations", _ranks(COMPUTE, 0.05), disorder=_EVALUATING),
        _case("compute of all between evaluations", _whole(COMPUTE, 0.08), disorder=_EVALUATING),
        _case("slow beside a frozen counter", _ranks(COMPUTE, 0.08, begin=100), disorder=Disorder(frozen_rank=0)),
        _case("slow beside a mad clock", _ranks(COMPUTE, 0.08, begin=100), disorder=Disorder(mad_clock_rank=0)),
        _case("slow, few columns", _ranks(COMPUTE, 0.05), absent=("tokens", "work", "transfer_ns", "bytes", "flags")),
        _case("link tp", _group("tp"), PIPED),
        _case("link cp", _group("cp"), CONTEXT),
        _case("link ep", _group("ep"), EXPERT),
        _case("link dp", _group("dp")),
        _case("link pp", _group("pp"), PIPED),
        _case("link dp, few columns", _group("dp"), absent=("transfer_ns", "bytes", "tokens", "work")),
        _case("nic of a node", _nic, PIPED),
        _case("compute of all", _whole(COMPUTE, 0.08)),
        _case("data of all", _whole(DATA, 0.08)),
        _case("network of all", _whole(LINK, 1.0), PIPED),
        _case("slow rank and slow link", _rank_and_link, PIPED),
        _case("hang", _hang),
    )
)

_OFTEN = (40, 80, 120, 160)
_MOVING = Disorder(restarts=_OFTEN, moves=True)
_RESTART = Disorder(restarts=(110,))
HEALTHY: dict[str, Make] = dict(
    (
        _case("quiet", disorder=_RESTART),
        _case("noisy", nature=_NOISY, disorder=_RESTART),
        _case("no world", disorder=_RESTART, has_world=False),
        _case("documents", shapes=SPARE, nature=_DOCUMENTS, disorder=_RESTART),
        _case("documents, work unknown", shapes=SPARE, nature=_DOCUMENTS, disorder=_RESTART, absent=("work",)),
        _case("flat documents", shapes={8: ("dp=8",), 128: ("dp=128",), 1024: ("dp=1024",)}, nature=_DOCUMENTS),
        _case("experts", shapes=EXPERT, nature=_EXPERTS, disorder=_RESTART, absent=("work",)),
        _case("experts, tokens unknown", shapes=EXPERT, nature=_EXPERTS, absent=("work", "tokens")),
        _case("one rank a group loads", shapes=TENSOR, nature=_LOADING, disorder=_RESTART),
        _case("accumulation", nature=Nature(accumulation=(8, 10, 9)), disorder=_RESTART, absent=("work",)),
        _case("gradual ramp", nature=Nature(ramp_rows=100), absent=("work",)),
        _case("gc on all", nature=Nature(gc_every=11), disorder=_RESTART),
        _case("one replica writes", disorder=replace(_RESTART, writers="first", checkpoint_every=20)),
        _case("flagged checkpoints", disorder=replace(_RESTART, flagged=True, checkpoint_every=15)),
        *(
            _case(f"evaluations of {rows} steps", disorder=Disorder(evaluation_every=80, evaluation_rows=rows))
            for rows in (4, 10, 30)
        ),
        _case("other devices after restarts", nature=Nature(spread=0.014), disorder=_MOVING),
        _case("late records, many restarts", disorder=Disorder(restarts=_OFTEN, late=0.01, late_seconds=17.0)),
        _case("missing bursts", disorder=replace(_RESTART, missing_bursts=8, missing=0.01)),
        _case("late nodes", disorder=replace(_RESTART, late_nodes=8, late=0.02)),
        _case("shrinking", disorder=replace(_RESTART, leaves=4)),
        _case("growing", disorder=replace(_RESTART, joins=4)),
        _case("frozen counter", disorder=Disorder(frozen_rank=1)),
        _case("mad clock", disorder=Disorder(mad_clock_rank=1)),
        _case("few columns", absent=("tokens", "work", "transfer_ns", "bytes", "flags"), disorder=_RESTART),
        _case("no arrival times", absent=("received_ns",), disorder=_RESTART),
    )
)
CASES: dict[str, Make] = {**FAULTS, **HEALTHY}
KNOWN_LIMITS = ("flat documents", "experts, tokens unknown")
"""Not separable by anything in the record (reference figures, limit b): counted, but no measure of the detector."""


def names(ranks: int) -> list[str]:
    """Return the cases that a job of so many ranks can have: one of a single node has no slow node among others."""
    of_nodes = ("slow node", "two slow nodes", "nic of a node")
    return [name for name in CASES if ranks > 2 * RANKS_PER_NODE or name not in of_nodes]
