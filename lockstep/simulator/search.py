"""Searches strategies for a job's ranks: degrees, micro-batches, ZeRO, sequence parallelism, checkpointing.

A layout is a set of degrees. First every layout is tried with every micro-batch size and the cheapest memory savings
that fit; then the best layouts are refined. The result has the best alternative of each layout.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from time import monotonic
from typing import Any

from lockstep.simulator.forecast import Forecast
from lockstep.simulator.spec import JobSpec
from lockstep.simulator.strategy.tree import FULL, NONE, PER_OPERATOR, SELECTIVE
from lockstep.simulator.whatif import (
    BUCKETS_BYTES,
    Alternative,
    Change,
    OnDone,
    alternative,
    bucket_text,
    divisors,
    ranked,
)

MEMORY_RESERVE_RATIO = 0.05
"""Share of the usable memory that a search leaves free: predicted memory is 3 % off on runs outside all fits."""
SECONDS_MAX = 120.0
"""Default duration of a search."""
_REFINED = 8
_SIZES = 8
_DEGREES = ("tp", "cp", "ep", "dp", "pp")
_EVERY_MICRO_BATCH = 2
_CONTEXT_TOKENS_MIN = 1024
"""Fewest tokens of a sequence per context parallel rank; with fewer, attention is too short to hide a ring."""

_Layout = tuple[int, ...]


def search(
    spec: JobSpec,
    *,
    now: Forecast | None = None,
    limit: int = 1000,
    seconds_max: float = SECONDS_MAX,
    on_done: OnDone | None = None,
    clock_s: Callable[[], float] = monotonic,
) -> tuple[list[Alternative], bool]:
    """Return the best of each layout, best first, and whether all were tried within `limit` and `seconds_max`.

    Degrees of tp (inside a domain of the first level, dividing the heads), cp (if a rank has `_CONTEXT_TOKENS_MIN`
    tokens of a sequence), pp and ep are tried with micro-batches of 1, 2, 4, ... samples per rank, each with the lowest
    ZeRO stage and the least recomputation that fit with `MEMORY_RESERVE_RATIO` to spare. The best layouts are tried
    with every ZeRO stage, with and without sequence parallelism, and with other bucket sizes.

    Raises
    ------
    LockstepError
        `spec` itself cannot be simulated.
    """
    end_s = clock_s() + seconds_max
    now = now or spec.forecast()
    spreads = list(islice(_spreads(spec), limit + 1))
    is_whole = len(spreads) <= limit
    found: list[Alternative] = []
    for done, spread in enumerate(spreads[:limit], 1):
        if clock_s() > end_s:
            return _best_of_layouts(found), False
        found.append(_least_memory_saved(spec, spread, now))
        if on_done is not None:
            on_done(done, min(len(spreads), limit))
    for best in _best_of_layouts(found)[:_REFINED]:
        for refined in _refined(spec, best, now):
            if clock_s() > end_s:
                return _best_of_layouts(found), False
            found.append(refined)
    return _best_of_layouts(found), is_whole


def _best_of_layouts(found: Iterable[Alternative]) -> list[Alternative]:
    best: dict[_Layout, Alternative] = {}
    for each in _ranked(each for each in found if each.forecast is not None):
        best.setdefault(tuple(each.change.values[f"strategy.{name}"] for name in _DEGREES), each)
    return list(best.values())


def _ranked(found: Iterable[Alternative]) -> list[Alternative]:
    """Return alternatives by time; those that leave the memory reserve free come first."""
    return sorted(ranked(found), key=lambda each: not _fits(each))


def _least_memory_saved(spec: JobSpec, spread: Mapping[str, Any], now: Forecast) -> Alternative:
    """Return the fastest alternative that fits; each ZeRO stage is tried with the least recomputation that it needs.

    Higher stages are tried only if lower ones do not fit without recomputation. Stage 2 is tried in the refinement
    only: without a pipeline it sums gradients in every micro-batch, as stage 3 does.
    """
    tried = []
    for zero in (each for each in _zeros(spread) if each != _EVERY_MICRO_BATCH):
        found = _least_recomputed(spec, {**spread, **_zero(spec, spread, zero)}, now)
        tried.append(found)
        if _fits(found) and found.change.values["strategy.recompute"] == NONE:
            break
    return _ranked(tried)[0]


def _least_recomputed(spec: JobSpec, values: Mapping[str, Any], now: Forecast) -> Alternative:
    """Return the alternative with the least recomputation that fits, with full recomputation if none fits."""

    def tried(recompute: str) -> Alternative:
        return _tried(spec, {**values, "strategy.recompute": recompute}, now)

    found = tried(NONE)
    if found.forecast is None or _fits(found):
        return found
    last = tried(FULL)
    if not _fits(last):
        return last
    return next((each for each in map(tried, (SELECTIVE, PER_OPERATOR)) if _fits(each)), last)


def _tried(spec: JobSpec, values: Mapping[str, Any], now: Forecast) -> Alternative:
    return alternative(spec, Change(name=_described(spec, values), values=values), now)


def _fits(found: Alternative) -> bool:
    return found.forecast is not None and found.forecast.free_memory_ratio >= MEMORY_RESERVE_RATIO


def _refined(spec: JobSpec, best: Alternative, now: Forecast) -> Iterator[Alternative]:
    """Yield variants of a good alternative: ZeRO stages, sequence parallelism, then bucket sizes of the fastest."""
    values = best.change.values
    found = [best]
    for zero in _zeros(values):
        for sequence_parallel in (False, True)[: 2 if values["strategy.tp"] > 1 else 1]:
            changed = {**values, **_zero(spec, values, zero), "strategy.sequence_parallel": sequence_parallel}
            if changed != values:
                found.append(_least_recomputed(spec, changed, now))
                yield found[-1]
    values = _ranked(found)[0].change.values
    if values["strategy.dp"] * values["strategy.cp"] > 1:
        for bucket_bytes in BUCKETS_BYTES:
            if bucket_bytes != spec.options.bucket_bytes:
                yield _tried(spec, {**values, "strategy.bucket_bytes": bucket_bytes}, now)


def _zeros(values: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ZeRO stages with different effects: in a pipeline, gradients and weights stay whole at every stage."""
    if values["strategy.dp"] * values["strategy.cp"] == 1:
        return (0,)
    return (0, 1) if values["strategy.pp"] > 1 else (0, 1, 2, 3)


def _zero(spec: JobSpec, values: Mapping[str, Any], zero: int) -> dict[str, Any]:
    """Return the values of a ZeRO stage, with the job's replicas of hybrid sharding if they fit."""
    replicas = spec.degrees.hsdp_replicas
    fits = zero and values["strategy.dp"] % (values["strategy.ep"] * replicas) == 0
    return {"strategy.zero": zero, "strategy.hsdp_replicas": replicas if fits else 1}


def _spreads(spec: JobSpec) -> Iterator[dict[str, Any]]:
    """Yield degrees for the job's ranks with micro-batches; the shortest pipelines come first."""
    ranks = spec.degrees.ranks
    heads = int(spec.checked["model"].get("heads", 1))
    experts = int(spec.checked["model"].get("experts", 1))
    near = spec.cluster.levels[0].fanout
    for pp in (n for n in divisors(ranks) if n <= max(1, len(spec.model.blocks) - 2)):
        for tp in divisors(ranks // pp):
            if tp > near or heads % tp:
                continue
            for cp in _contexts(spec, ranks // pp // tp):
                dp = ranks // cp // pp // tp
                for ep in (n for n in divisors(dp) if experts % n == 0):
                    for micro_batches in _micro_batches(spec.batch, dp):
                        degrees = dict(zip(_DEGREES, (tp, cp, ep, dp, pp), strict=True))
                        yield {f"strategy.{name}": value for name, value in degrees.items()} | {
                            "strategy.micro_batches": micro_batches,
                            "strategy.virtual": spec.degrees.virtual if pp > 1 else 1,
                            "strategy.expert_tp": 1 if spec.degrees.expert_tp == 1 and ep % tp == 0 else None,
                            "strategy.sequence_parallel": tp > 1,
                            "strategy.max_ongoing": None,
                            "strategy.micro_batch_size": None,
                        }


def _contexts(spec: JobSpec, ranks: int) -> Iterator[int]:
    """Yield context parallel degrees: the job's own, and those with enough tokens per rank."""
    sequence = int(spec.checked["model"].get("sequence", 1))
    for cp in divisors(ranks):
        is_long = sequence % (2 * cp) == 0 and sequence // cp >= _CONTEXT_TOKENS_MIN
        if cp in (1, spec.degrees.cp) or is_long:
            yield cp


def _micro_batches(batch: int, dp: int) -> Iterator[int]:
    """Yield numbers of micro-batches that give each rank 1, 2, 4, ... samples per micro-batch."""
    share, left = divmod(batch, dp)
    sizes = [2**power for power in range(_SIZES)] if share and not left else []
    return (share // size for size in sizes if share % size == 0)


def _described(spec: JobSpec, values: Mapping[str, Any]) -> str:
    """Return a one-line description of a strategy."""
    degrees = [f"{name}={values[f'strategy.{name}']}" for name in _DEGREES if values[f"strategy.{name}"] > 1]
    size = spec.batch // values["strategy.dp"] // values["strategy.micro_batches"]
    parts = [*(degrees or ["one rank"]), f"{values['strategy.micro_batches']} micro-batches of {size}"]
    if values["strategy.zero"]:
        parts.append(f"zero={values['strategy.zero']}")
    if values["strategy.tp"] > 1 and not values["strategy.sequence_parallel"]:
        parts.append("no sequence parallelism")
    if values["strategy.recompute"] != NONE:
        parts.append(f"recompute={values['strategy.recompute']}")
    if "strategy.bucket_bytes" in values:
        parts.append(bucket_text(values["strategy.bucket_bytes"]))
    return " ".join(parts)
