# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""The synchronous model: from a scenario to what every rank measures, seeded.

Own work first (noise, imbalance, pauses, faults), then meetings: tensor, context and expert groups end with their
slowest member, the pipeline runs one-forward-one-backward, replicas reduce, everybody ends the step together. What a
rank waits in a meeting is booked as that kind's wait, so a step is own work plus waits, exactly.

Shapes: W rows, R ranks, D replicas; G is the grid (pp, dense dp without ep, ep, cp, tp) of ranks, tp fastest.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.scenarios.interruptions import clock_ahead, held_back, interrupt, present, reported_steps
from benchmarks.scenarios.job import COMPONENTS, LINK, PHASES, SIGMAS, Scenario
from benchmarks.scenarios.recording import RANKS_PER_NODE, Recording
from lockstep.contracts import domains

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.scenarios.job import Fault, Imbalance, Noise

    Floats = NDArray[np.float32]

_AXES = {"pp": (1,), "dp": (2, 3), "ep": (3,), "cp": (4,), "tp": (5,)}
"""Axes of an array of shape (W, *G) along which a group of the kind stretches."""
_MICRO_BATCHES = 16
_BACKWARD_SHARE = 2 / 3  # of a micro-batch's time
_FIRST_STAGE_BYTES = 2.2  # the embedding's gradients are reduced with its stage's; measured on production logs
_TOKENS = 8192.0
_FLOPS_PER_TOKEN = 6e9
_BYTES = 100_000_000
_EXPERT_MEMORY = 0.98
_EXPERT_SHARE = 0.5  # of the work follows the tokens
_RAMP_BEGIN = 40
_STALL_RATIO_MAX = 3.0
_PHASE_MIN = np.float32(0.05)  # of its mean: noise of half of a short phase must not make it negative


def world_size(scenario: Scenario) -> int:
    """Return the number of ranks."""
    return int(np.prod(_grid(scenario)))


def _grid(scenario: Scenario) -> tuple[int, int, int, int, int]:
    degree = {"pp": 1, "dp": 1, "ep": 1, "cp": 1, "tp": 1} | domains.parse_degrees(scenario.degrees, where="scenario")
    return degree["pp"], degree["dp"] // degree["ep"], degree["ep"], degree["cp"], degree["tp"]


def generate(scenario: Scenario) -> Recording:
    """Return what the ranks of `scenario` measure; the same seed gives the same figures."""
    rng = np.random.default_rng(scenario.seed)
    grid = _grid(scenario)
    shape = (scenario.steps, world_size(scenario))
    degrees = domains.parse_degrees(scenario.degrees, where="scenario")
    tokens, extra = _imbalance(scenario, grid, rng)
    windows_W = _windows(scenario)
    extra += (scenario.compute * (windows_W - 1)).astype(np.float32)[:, None]
    phases = {}
    if scenario.has_phases:
        phases = _phases(scenario, shape, rng)
        compute = sum(phases.values(), start=np.zeros(shape, dtype=np.float32))
    else:
        compute = _noise(scenario.noise, shape, rng) * scenario.compute
    parts = {
        "compute": compute + extra,
        **{
            name: np.float32(getattr(scenario, name)) * (1 + np.float32(sigma) * _normal(rng, shape))
            for name, sigma in SIGMAS.items()
        },
    }
    parts["data"] += _loading(scenario, grid, rng)
    step_W, gap_W, flags = interrupt(scenario, parts, rng)
    for fault in scenario.faults:
        if fault.cause in COMPONENTS or fault.cause in PHASES:
            longer = _fault(fault, shape, rng) * np.float32(scenario.own_seconds)
            parts["compute" if fault.cause in PHASES else fault.cause] += longer
            if fault.cause in phases:
                phases[fault.cause] += longer
    if scenario.noise.contention:
        own = sum(parts.values(), start=np.zeros(shape, dtype=np.float32)).reshape(-1, *grid)
        spare = own.max(axis=_AXES["dp"] + _AXES["tp"] + _AXES["cp"], keepdims=True) - own
        parts["compute"] += np.float32(scenario.noise.contention) * spare.reshape(shape)
    batch_W = np.ones(shape[0]) if scenario.imbalance.bytes_known else tokens.mean(axis=1) / _TOKENS
    duration_W, waits, transfers = _meet(scenario, parts, grid, rng, batch_W)
    interruptions = scenario.interruptions
    nodes = -(-shape[1] // RANKS_PER_NODE)
    skew_ns = rng.uniform(0, interruptions.skew_seconds * 1e9, nodes).astype(np.int64)
    first_stage = np.arange(shape[1]) < shape[1] // grid[0]
    is_heavy = (grid[0] > 1) & first_stage
    return Recording(
        topology=domains.from_degrees(degrees, shape[1]),
        step_W=step_W,
        gap_seconds_W=gap_W,
        duration_W=duration_W,
        parts=parts,
        waits=waits,
        transfers=transfers,
        moved={
            kind: np.where(is_heavy & (kind == "dp"), int(_BYTES * _FIRST_STAGE_BYTES), _BYTES)
            for kind in waits
            if kind != "world"
        },
        tokens=tokens,
        flags=flags,
        present=present(scenario, rng),
        late=rng.random(shape, dtype=np.float32) < interruptions.late,
        held_seconds=held_back(scenario),
        skew_ns_R=np.repeat(skew_ns, RANKS_PER_NODE)[: shape[1]],
        reported_step=reported_steps(scenario, step_W),
        ahead_ns=clock_ahead(scenario),
        tokens_known=scenario.imbalance.tokens_known,
        bytes_known=scenario.imbalance.bytes_known,
        flops=tokens * (_FLOPS_PER_TOKEN * windows_W).astype(np.float32)[:, None],
        flops_known=scenario.imbalance.flops_known,
        phases=_to_compute(phases, parts["compute"]),
    )


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> "Floats":
    return rng.standard_normal(shape, dtype=np.float32)


def _walk(rng: np.random.Generator, shape: tuple[int, ...], sigma: float, memory: float) -> "Floats":
    """Return first-order autoregressive noise along the first axis, of standard deviation `sigma`."""
    walk = _normal(rng, shape) * np.float32(sigma * np.sqrt(1 - memory**2))
    walk[0] /= np.float32(np.sqrt(1 - memory**2))
    for row in range(1, shape[0]):
        walk[row] += np.float32(memory) * walk[row - 1]
    return walk


def _noise(noise: "Noise", shape: tuple[int, int], rng: np.random.Generator) -> "Floats":
    """Return factors of compute, array of shape (W, R)."""
    factor = 1 + np.float32(noise.spread) * _normal(rng, (1, shape[1]))
    step = _normal(rng, shape)
    step[: noise.later_row] *= np.float32(noise.step)
    step[noise.later_row :] *= np.float32(noise.step if noise.later_step is None else noise.later_step)
    factor = factor + step
    if noise.wander:
        factor += _walk(rng, shape, noise.wander, noise.wander_memory)
    common = 1 + _walk(rng, (shape[0], 1), noise.common, noise.common_memory)
    hiccup = (rng.random(shape[0]) < noise.hiccup_rate) * rng.uniform(0.2, 1.0, shape[0])
    factor = factor * common + hiccup[:, None].astype(np.float32)
    row, rank = np.nonzero(rng.random(shape, dtype=np.float32) < noise.stall_rate)
    lasts = 1 + (rng.random(len(row)) < noise.stall_memory)
    for after in (0, 1):
        chosen = (lasts > after) & (row + after < shape[0])
        seconds = np.minimum(0.3 * (rng.pareto(1.5, int(chosen.sum())) + 1), _STALL_RATIO_MAX)
        if noise.stall_ratio:
            seconds = np.full_like(seconds, noise.stall_ratio)
        factor[row[chosen] + after, rank[chosen]] += seconds.astype(np.float32)
    return factor


def _phases(scenario: Scenario, shape: tuple[int, int], rng: np.random.Generator) -> "dict[str, Floats]":
    """Return the seconds of each phase, arrays of shape (W, R): noise as white in time as that of all compute."""
    phases: dict[str, Floats] = {}
    for name, share in PHASES.items():
        own = scenario.noise
        own = replace(own, step=own.step / share**0.5, stall_rate=own.stall_rate * share, hiccup_rate=0.0)
        phases[name] = np.maximum(_noise(own, shape, rng), _PHASE_MIN) * np.float32(scenario.compute * share)
    return phases


def _to_compute(phases: "dict[str, Floats]", compute: "Floats") -> "dict[str, Floats]":
    """Return phases that sum to compute: pauses and warm-up are as much longer in each."""
    if not phases:
        return {}
    factor = compute / sum(phases.values(), start=np.zeros_like(compute))
    return {name: values * factor for name, values in phases.items()}


def _imbalance(
    scenario: Scenario, grid: tuple[int, int, int, int, int], rng: np.random.Generator
) -> "tuple[Floats, Floats]":
    """Return tokens and the seconds of compute that legitimate differences add, arrays of shape (W, R)."""
    imbalance: Imbalance = scenario.imbalance
    steps, stages, replicas = scenario.steps, grid[0], grid[1] * grid[2]
    full = (steps, *grid)
    load = np.ones(full, dtype=np.float32)
    extra = np.zeros(full, dtype=np.float32)
    if imbalance.last_stage and stages > 1:
        extra[:, -1] += imbalance.last_stage
    if imbalance.sequence_sigma:
        length = np.maximum(np.float32(imbalance.sequence_sigma) * _normal(rng, (steps, replicas)), np.float32(-0.5))
        extra += length.reshape(steps, 1, grid[1], grid[2], 1, 1)
        extra += np.float32(imbalance.sequence_rest) * _normal(rng, full)
    if imbalance.expert_sigma:
        hot = np.exp(_walk(rng, (steps, 1, 1, grid[2], 1, 1), imbalance.expert_sigma, _EXPERT_MEMORY))
        hot /= hot.mean(axis=3, keepdims=True)  # a token that one expert gets, another one does not
        load *= hot
        extra += np.float32(_EXPERT_SHARE) * (hot - 1)
    if imbalance.routing_sigma:
        routed = np.exp(_walk(rng, full, imbalance.routing_sigma, _EXPERT_MEMORY))
        routed /= routed.mean(axis=3, keepdims=True)
        load *= routed
        extra += np.float32(_EXPERT_SHARE) * (routed - 1)
    if imbalance.accumulation:
        more = np.where(np.arange(replicas) % 2, imbalance.accumulation, 0.0).astype(np.float32)
        more = more.reshape(1, 1, grid[1], grid[2], 1, 1)
        load *= 1 + more
        extra += more
    if imbalance.ramp_rows:
        ramp_W = np.clip((np.arange(steps) - _RAMP_BEGIN) / imbalance.ramp_rows, 0, 1).astype(np.float32)
        load *= 1 + ramp_W.reshape(-1, 1, 1, 1, 1, 1)
        extra += ramp_W.reshape(-1, 1, 1, 1, 1, 1)
    for begin in imbalance.ramp_steps:
        load[begin:] *= np.float32(1 + imbalance.ramp_ratio)
        extra[begin:] += np.float32(imbalance.ramp_ratio)
    shape = (steps, int(np.prod(grid)))
    return load.reshape(shape) * np.float32(_TOKENS), extra.reshape(shape) * np.float32(scenario.compute)


def _loading(scenario: Scenario, grid: tuple[int, int, int, int, int], rng: np.random.Generator) -> "Floats":
    """Return the seconds in which the first rank of a group reads what all of it works on, array (W, R)."""
    imbalance, full = scenario.imbalance, (scenario.steps, *grid)
    seconds = np.zeros(full, dtype=np.float32)
    if imbalance.loader_ratio:
        axes = _AXES[imbalance.loader_of]
        first = tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(len(full)))
        jitter = 1 + np.float32(imbalance.loader_sigma) * _normal(rng, seconds[first].shape)
        seconds[first] = np.float32(imbalance.loader_ratio * scenario.own_seconds) * jitter
    return seconds.reshape(scenario.steps, -1)


def _windows(scenario: Scenario) -> "NDArray[np.float64]":
    """Return how many times as many FLOPs a token costs as at the beginning, array of shape (W,)."""
    grown_W = np.zeros(scenario.steps)
    grown_W[list(scenario.imbalance.window_steps)] = 1
    windows_W: NDArray[np.float64] = (1 + scenario.imbalance.window_ratio) ** np.cumsum(grown_W)
    return windows_W


def _fault(fault: "Fault", shape: tuple[int, int], rng: np.random.Generator) -> "Floats":
    """Return by which ratio each rank does more, array of shape (W, R)."""
    row = np.arange(shape[0])
    active = (row >= fault.begin) & (row < (shape[0] if fault.end is None else fault.end))
    since = row - fault.begin
    if fault.on_steps:
        active &= since % (fault.on_steps + fault.off_steps) < fault.on_steps
    rise = np.clip((since + 1) / fault.drift_steps, 0, 1) if fault.drift_steps else np.ones(shape[0])
    ratio = np.zeros(shape, dtype=np.float32)
    ratio[:, list(fault.ranks)] = (fault.ratio * rise * active).astype(np.float32)[:, None]
    if fault.jitters:
        ratio *= np.abs(_normal(rng, shape))
    if fault.scatter_rate:
        ratio *= rng.random(shape, dtype=np.float32) < fault.scatter_rate
    if fault.every_steps:
        ratio *= row[:, None] % fault.every_steps == rng.permutation(shape[1]) % fault.every_steps
    if fault.share:
        hit = rng.random((shape[0], 1)) < fault.share
        ratio *= hit & (rng.integers(shape[1], size=hit.shape) == np.arange(shape[1])) if fault.in_turn else hit
    return ratio


def _meet(
    scenario: Scenario,
    parts: "dict[str, Floats]",
    grid: tuple[int, int, int, int, int],
    rng: np.random.Generator,
    batch_W: "NDArray[np.floating]",
) -> "tuple[NDArray[np.float64], dict[str, Floats], dict[str, Floats]]":
    """Return the steps' durations, array of shape (W,), and waits and transfers by kind, arrays of shape (W, R).

    Transfers of activations take `batch_W` times as long, gradients are as many whatever the batch.
    """
    own = sum(parts.values(), start=np.zeros_like(parts["compute"]))
    now = own.reshape(-1, *grid)
    sizes = {kind: int(np.prod([now.shape[axis] for axis in axes])) for kind, axes in _AXES.items()}
    waits: dict[str, Floats] = {}
    transfers: dict[str, Floats] = {}
    for kind in ("tp", "cp", "ep", "pp", "dp"):
        if sizes[kind] == 1:
            continue
        transfer = _transfer(scenario, kind, now.shape, rng)
        if kind != "dp":
            transfer *= batch_W.astype(np.float32).reshape(-1, 1, 1, 1, 1, 1)
        met = _pipeline(now) if kind == "pp" else now.max(axis=_AXES[kind], keepdims=True)
        ended = met + transfer
        waits[kind] = (ended - now).reshape(own.shape)
        transfers[kind] = np.broadcast_to(transfer, now.shape).reshape(own.shape)
        now = np.broadcast_to(ended, now.shape)
    last = now.max(axis=(1, 2, 3, 4, 5)) + np.float32(scenario.transfers["world"])
    waits["world"] = (last[:, None] - now.reshape(own.shape)).astype(np.float32)
    return last.astype(np.float64), waits, transfers


def _pipeline(own: "Floats") -> "Floats":
    """Return when each stage has done its last micro-batch, one forward one backward, array of shape (W, *G)."""
    each = own / _MICRO_BATCHES
    whole = each.sum(axis=1, keepdims=True) + (_MICRO_BATCHES - 1) * each.max(axis=1, keepdims=True)
    drain = np.float32(_BACKWARD_SHARE) * (np.cumsum(each, axis=1) - each)  # of the stages that end after it
    ended: Floats = whole - drain
    return ended


def _transfer(scenario: Scenario, kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> "Floats":
    """Return what a kind's transfers take, one figure per row and group, array that broadcasts to (W, *G)."""
    axes = _AXES[kind]
    groups = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    jitter = 1 + np.float32(scenario.noise.jitter) * np.abs(_normal(rng, groups))
    seconds = np.float32(scenario.transfers[kind]) * jitter
    if kind == "dp" and shape[1] > 1:
        seconds[:, 0] *= np.float32(_FIRST_STAGE_BYTES)
    for fault in scenario.faults:
        if fault.cause == LINK and kind in fault.kinds:
            slow = _fault(fault, (shape[0], int(np.prod(shape[1:]))), rng).reshape(shape)
            seconds *= 1 + slow.max(axis=axes, keepdims=True)
    return seconds
