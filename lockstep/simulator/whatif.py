"""The same job otherwise: healed, changed, spread in another way; each alternative with its forecast, best first."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from lockstep.contracts.errors import LockstepError
from lockstep.simulator.forecast import Forecast
from lockstep.simulator.spec import JobSpec
from lockstep.simulator.strategy.tree import FULL, NONE, PER_OPERATOR, SELECTIVE

OnDone = Callable[[int, int | None], None]
"""Hears how many alternatives are done, and of how many; None where that is not known."""

BUCKETS_BYTES = (5 * 2**20, 25 * 2**20, 100 * 2**20, None)
"""Bucket sizes that a search tries on the best; None sends all gradients at the end."""
MEMORY_RESERVE_RATIO = 0.05
"""Of the usable memory that a search leaves free: predicted memory is 3 % off on runs that nothing was fitted to."""
_REFINED = 8
_SIZES = 8
_DEGREES = ("tp", "cp", "ep", "dp", "pp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something to do otherwise: elements to heal, and values by path of the specification."""

    name: str
    heal: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    def of(self, spec: JobSpec) -> JobSpec:
        """Return the job with the change made. Raises LockstepError where it cannot be."""
        healed = spec.healed(*self.heal) if self.heal else spec
        return healed.changed_by(self.values) if self.values else healed


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A change and its forecast; None, with the reason, where the job cannot be so.

    `gain_ratio` is the share of today's time that goes: of the step, or, for another batch, of the time for a token.
    """

    change: Change
    forecast: Forecast | None = None
    seconds_per_token: float | None = None
    gain_ratio: float | None = None
    refused: str = ""


def evaluate(
    spec: JobSpec, changes: Sequence[Change], *, now: Forecast | None = None, on_done: OnDone | None = None
) -> list[Alternative]:
    """Return the alternatives, best first: those that fit by time for a token, those that do not, those refused.

    With one batch for all, that is the order of step times. Raises LockstepError where `spec` itself cannot be.
    """
    now = now or spec.forecast()
    found = []
    for done, change in enumerate(changes, 1):
        found.append(_alternative(spec, change, now))
        if on_done is not None:
            on_done(done, len(changes))
    return ranked(found)


def ranked(found: Iterable[Alternative]) -> list[Alternative]:
    """Return alternatives in their order: what fits, what is out of memory, what cannot be; each by time."""

    def key(each: Alternative) -> tuple[bool, bool, float]:
        found = each.forecast
        return (found is None, found is not None and found.out_of_memory, each.seconds_per_token or 0.0)

    return sorted(found, key=key)


def attributions(spec: JobSpec) -> list[Change]:
    """Return each sick element healed by itself, and, of several, all together."""
    sick = spec.sick()
    alone = [Change(name=f"heal {name}", heal=(name,)) for name in sick]
    return [*alone, Change(name="heal all", heal=sick)] if len(sick) > 1 else alone


def variations(spec: JobSpec) -> list[Change]:
    """Return what a running job could change without another machine, one thing at a time.

    These are the batch and the micro-batches halved and doubled, other bucket sizes, and tensor and pipeline degrees
    halved and doubled with data parallelism taking the rest of the ranks.
    """
    found = [_named({"batch": batch}) for batch in _neighbours(spec.batch)]
    if spec.checked["strategy"]["micro_batch_size"] is None:
        found += [_named({"strategy.micro_batches": count}) for count in _neighbours(spec.schedule.micro_batches)]
    else:
        sizes = _neighbours(spec.checked["strategy"]["micro_batch_size"])
        found += [_named({"strategy.micro_batch_size": size}) for size in sizes]
    degrees = spec.degrees
    if degrees.dp * degrees.cp > 1:
        sizes_bytes = (each for each in BUCKETS_BYTES if each != spec.options.bucket_bytes)
        found += [_named({"strategy.bucket_bytes": size}) for size in sizes_bytes]
    for name in ("tp", "pp"):
        for degree in _neighbours(getattr(degrees, name)):
            dp, left = divmod(degrees.dp * getattr(degrees, name), degree)
            if dp and not left:
                values: dict[str, Any] = {f"strategy.{name}": degree, "strategy.dp": dp}
                if name == "pp" and degree == 1 and degrees.virtual > 1:
                    values["strategy.virtual"] = 1
                found.append(_named(values))
    return found


def _neighbours(number: int) -> list[int]:
    """Return half of a number, where that is whole, and twice it."""
    return [*([number // 2] if number % 2 == 0 else []), 2 * number]


def _named(values: Mapping[str, Any]) -> Change:
    """Return the change of `values`, named by them."""

    def text(name: str, value: Any) -> str:
        if name == "strategy.bucket_bytes":
            return _bucket_text(value)
        return f"{name.removeprefix('strategy.')}={value}"

    return Change(name=" ".join(text(*each) for each in values.items()), values=values)


def search(
    spec: JobSpec, *, now: Forecast | None = None, limit: int = 1000, on_done: OnDone | None = None
) -> tuple[list[Alternative], bool]:
    """Return ways to spread the job over as many ranks, best first, and whether all were tried within `limit`.

    Degrees of tp (inside a domain of the first level, dividing the heads), pp and ep are tried with micro-batches of 1,
    2, 4, ... samples a rank. Recomputation is the least that fits with `MEMORY_RESERVE_RATIO` to spare: it costs time
    and gives memory, so more of it never wins where less fits. The best are tried with other bucket sizes.

    Raises
    ------
    LockstepError
        `spec` itself cannot be simulated.
    """
    now = now or spec.forecast()
    found: list[Alternative] = []
    spreads = _spreads(spec)
    for spread in islice(spreads, limit):
        found.append(_least_recomputed(spec, spread, now))
        if on_done is not None:
            on_done(len(found), None)
    is_whole = next(spreads, None) is None
    possible = [each for each in found if each.forecast is not None]
    best = ranked(possible)[:_REFINED]
    for each in list(best):
        possible += [_alternative(spec, change, now) for change in _buckets(spec, each.change)]
        if on_done is not None:
            on_done(len(found) + len(possible), None)
    return ranked(each for each in possible if each.forecast is not None), is_whole


def _alternative(spec: JobSpec, change: Change, now: Forecast) -> Alternative:
    try:
        changed = change.of(spec)
        found = changed.forecast()
    except LockstepError as error:
        return Alternative(change=change, refused=str(error))
    tokens, tokens_now = changed.batch * changed.model.tokens, spec.batch * spec.model.tokens
    per_token_s = found.step_seconds / tokens
    gain = 1 - per_token_s / (now.step_seconds / tokens_now)
    return Alternative(change=change, forecast=found, seconds_per_token=per_token_s, gain_ratio=gain)


def _least_recomputed(spec: JobSpec, spread: Mapping[str, Any], now: Forecast) -> Alternative:
    """Return the alternative with the least recomputation that fits, with all of it where nothing does."""
    found = Alternative(change=Change(name=""))
    for recompute in (NONE, SELECTIVE, PER_OPERATOR, FULL):
        values = {**spread, "strategy.recompute": recompute}
        found = _alternative(spec, Change(name=_described(spec, values), values=values), now)
        if found.forecast is None or found.forecast.free_memory_ratio >= MEMORY_RESERVE_RATIO:
            break
    return found


def _spreads(spec: JobSpec) -> Iterator[dict[str, Any]]:
    """Yield degrees over the job's ranks with micro-batches, those with the shortest pipelines first."""
    ranks, cp = spec.degrees.ranks, spec.degrees.cp
    heads = int(spec.checked["model"].get("heads", 1))
    experts = int(spec.checked["model"].get("experts", 1))
    near = spec.cluster.levels[0].fanout
    for pp in (n for n in divisors(ranks // cp) if n <= max(1, len(spec.model.blocks) - 2)):
        for tp in divisors(ranks // cp // pp):
            if tp > near or heads % tp:
                continue
            dp = ranks // cp // pp // tp
            for ep in (n for n in divisors(dp) if experts % n == 0):
                for micro_batches in _micro_batches(spec.batch, dp):
                    degrees = dict(zip(_DEGREES, (tp, cp, ep, dp, pp), strict=True))
                    yield {f"strategy.{name}": value for name, value in degrees.items()} | {
                        "strategy.micro_batches": micro_batches,
                        "strategy.virtual": spec.degrees.virtual if pp > 1 else 1,
                        "strategy.sequence_parallel": spec.degrees.sequence_parallel and tp > 1,
                        "strategy.max_ongoing": None,
                        "strategy.micro_batch_size": None,
                    }


def _micro_batches(batch: int, dp: int) -> Iterator[int]:
    """Yield numbers of micro-batches that give each rank 1, 2, 4, ... samples of one."""
    share, left = divmod(batch, dp)
    sizes = [2**power for power in range(_SIZES)] if share and not left else []
    return (share // size for size in sizes if share % size == 0)


def _buckets(spec: JobSpec, best: Change) -> Iterator[Change]:
    for bucket_bytes in BUCKETS_BYTES:
        if bucket_bytes != spec.options.bucket_bytes and best.values["strategy.dp"] * best.values["strategy.cp"] > 1:
            values = {**best.values, "strategy.bucket_bytes": bucket_bytes}
            yield Change(name=_described(spec, values), values=values)


def divisors(number: int) -> list[int]:
    """Return the divisors of `number`, least first."""
    return [each for each in range(1, number + 1) if number % each == 0]


def _described(spec: JobSpec, values: Mapping[str, Any]) -> str:
    """Return a spread in a line."""
    degrees = [f"{name}={values[f'strategy.{name}']}" for name in _DEGREES if values[f"strategy.{name}"] > 1]
    size = spec.batch // values["strategy.dp"] // values["strategy.micro_batches"]
    parts = [*(degrees or ["one rank"]), f"{values['strategy.micro_batches']} micro-batches of {size}"]
    if values["strategy.recompute"] != NONE:
        parts.append(f"recompute={values['strategy.recompute']}")
    if "strategy.bucket_bytes" in values:
        parts.append(_bucket_text(values["strategy.bucket_bytes"]))
    return " ".join(parts)


def _bucket_text(bucket_bytes: float | None) -> str:
    return "one bucket" if bucket_bytes is None else f"buckets of {bucket_bytes / 2**20:.0f} MiB"
