# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""What each rank has to do in each step, before it meets anybody.

Shapes: W rows, R ranks, D replicas, E places in an expert group, S stages.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.holdout.job import COMPUTE, DATA, GC, HOST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.holdout.job import Case, Layout

    Floats = NDArray[np.float64]

_TAIL = 10  # Student's t with 10 degrees of freedom: an excess kurtosis of 1, as measured on production logs
_DOCUMENTS = 24  # per micro-batch, packed to a fixed length
_LENGTH_SIGMA = 1.1  # of the logarithm of a document's length
_REST = 0.011  # of documents, inside a replica
_TOKENS = 4096.0  # per micro-batch
_RAMP_BEGIN = 40
_STALL_SECONDS_MAX = 2.0
_FORWARD = 1 / 3  # of compute, all that an evaluation has


@dataclass
class Work:
    """Seconds by component, arrays of shape (W, R); `tokens` and `work` are what the record would hold of them."""

    parts: "dict[str, Floats]"
    tokens: "Floats"
    work: "Floats"


def draw(case: "Case", layout: "Layout", rng: np.random.Generator) -> Work:
    """Return the work of a case, faults of components included."""
    shape = (case.rows, case.world_size)
    scale, share, tokens = _amounts(case, layout, rng)
    stage_R = np.array(layout.topology.stages)
    cost_S = rng.uniform(0.85, 1.15, int(stage_R.max()) + 1)
    if len(cost_S) > 1:
        cost_S[-1] += rng.uniform(0.1, 0.4)
    base_R = case.seconds * cost_S[stage_R]
    # Every micro-batch costs a stage what it costs; attention and experts take the same seconds in all stages.
    compute = scale * (base_R + case.seconds * share * (1 + 0.003 * rng.standard_normal(shape[1])))
    compute = compute * _noise(case, shape, rng) + _stalls(case, shape, rng)
    parts = {
        COMPUTE: compute,
        DATA: case.seconds * 0.02 * rng.lognormal(0, 0.15, shape),
        HOST: case.seconds * 0.05 * rng.lognormal(0, 0.06, shape),
        GC: case.seconds * 0.004 * rng.lognormal(0, 0.2, shape),
    }
    if case.nature.loading:
        reads_R = layout.place("tp") == 0
        parts[DATA] += reads_R * (case.seconds * case.nature.loading * rng.lognormal(0, 0.18, shape))
    if case.nature.gc_every:
        at = np.arange(case.rows) % case.nature.gc_every == case.nature.gc_every - 1
        parts[GC][at] += case.nature.gc_seconds * rng.lognormal(0, 0.05, (int(at.sum()), shape[1]))
    parts[COMPUTE][case.evaluated_W] *= _FORWARD
    own_R = base_R * 1.074
    for truth in case.truths:
        if truth.cause in parts:
            strength_W = np.array([truth.strength(row) for row in range(case.rows)])
            members = list(truth.ranks)
            parts[truth.cause][:, members] += strength_W[:, None] * own_R[members]
    return Work(parts, tokens, scale * (1 + share) * _TOKENS)


def _noise(case: "Case", shape: tuple[int, int], rng: np.random.Generator) -> "Floats":
    nature = case.nature
    own = rng.standard_t(_TAIL, shape) * nature.noise / np.sqrt(_TAIL / (_TAIL - 2))
    logarithm = own + _spread(case, shape, rng) + _walk(rng, shape[0], 1, nature.common, 0.5)
    if nature.wander:
        logarithm += _walk(rng, shape[0], shape[1], nature.wander, 0.9)
    hiccup_W = (rng.random(shape[0]) < 1 / 400) * rng.exponential(0.3, shape[0])
    noise: Floats = np.exp(logarithm) + hiccup_W[:, None]
    return noise


def _spread(case: "Case", shape: tuple[int, int], rng: np.random.Generator) -> "Floats":
    """Return what the devices differ by, array that broadcasts to (W, R)."""
    begins = [0, *case.disorder.restarts] if case.disorder.moves else [0]
    drawn = case.nature.spread * rng.standard_normal((len(begins), shape[1]))
    spread: Floats = drawn[np.searchsorted(begins, np.arange(shape[0]), side="right") - 1]
    return spread


def _walk(rng: np.random.Generator, rows: int, ranks: int, sigma: float, memory: float) -> "Floats":
    walk = rng.standard_normal((rows, ranks)) * sigma
    for row in range(1, rows):
        walk[row] = memory * walk[row - 1] + np.sqrt(1 - memory**2) * walk[row]
    return walk


def _stalls(case: "Case", shape: tuple[int, int], rng: np.random.Generator) -> "Floats":
    hit = rng.random(shape) < case.nature.stall_rate
    hit[1:] |= hit[:-1] & (rng.random((shape[0] - 1, shape[1])) < case.nature.stall_again)
    lasting = case.seconds * 0.2 * (1 + rng.pareto(1.3, shape))
    seconds: Floats = hit.astype(np.float64) * np.minimum(lasting, _STALL_SECONDS_MAX)
    return seconds


def _amounts(case: "Case", layout: "Layout", rng: np.random.Generator) -> "tuple[Floats, Floats, Floats]":
    """Return micro-batches over the usual, what each has beyond the usual as a ratio, and tokens: (W, R) each."""
    nature = case.nature
    replica_R = layout.place("dp")
    replicas = int(replica_R.max()) + 1
    counts_D = np.array(nature.accumulation)[np.arange(replicas) % len(nature.accumulation)]
    scale_WD = np.broadcast_to(counts_D / 8.0, (case.rows, replicas)).copy()
    if nature.ramp_rows:
        scale_WD *= 1 + np.clip((np.arange(case.rows) - _RAMP_BEGIN) / nature.ramp_rows, 0, 1)[:, None]
    share_WD = np.zeros_like(scale_WD)
    if nature.documents:
        length = rng.lognormal(0, _LENGTH_SIGMA, (case.rows, replicas, 2, _DOCUMENTS))
        length /= length.sum(axis=-1, keepdims=True)
        squares_WD = (length**2).sum(axis=-1).mean(axis=-1)
        share_WD = nature.documents * (squares_WD / squares_WD.mean() - 1)
    scale, share = scale_WD[:, replica_R], share_WD[:, replica_R]
    tokens = scale * _TOKENS * 8
    if nature.documents:
        share = share + _REST * rng.standard_normal(share.shape)
    if nature.experts:
        load = _routed(case, layout, rng)
        tokens = tokens * load
        share = share + nature.experts * (load - 1)
    return scale, share, tokens


def _routed(case: "Case", layout: "Layout", rng: np.random.Generator) -> "Floats":
    """Return each rank's routed tokens over the mean: expert groups route by a drifting Dirichlet law."""
    expert_R = layout.place("ep")
    experts = int(expert_R.max()) + 1
    liking = np.exp(_walk(rng, case.rows, experts, 0.25, 0.985))
    heat = case.nature.expert_heat * experts
    load_WE = rng.gamma(heat * liking / liking.sum(axis=1, keepdims=True) * experts)
    load: Floats = (load_WE / load_WE.mean(axis=1, keepdims=True))[:, expert_R]
    return load
