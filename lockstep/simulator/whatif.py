"""The same job otherwise: healed, changed, spread in another way; each alternative with its forecast, best first."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.contracts.errors import LockstepError
from lockstep.simulator.forecast import Forecast
from lockstep.simulator.spec import JobSpec

OnDone = Callable[[int, int | None], None]
"""Called with how many alternatives are done, and of how many; None where that is not known."""

BUCKETS_BYTES = (5 * 2**20, 25 * 2**20, 100 * 2**20, None)
"""Bucket sizes that a search tries on the best; None sends all gradients at the end."""


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
        found.append(alternative(spec, change, now))
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
            return bucket_text(value)
        return f"{name.removeprefix('strategy.')}={value}"

    return Change(name=" ".join(text(*each) for each in values.items()), values=values)


def alternative(spec: JobSpec, change: Change, now: Forecast) -> Alternative:
    """Return the forecast of the job with the change made; `now` is that of the job as it is."""
    try:
        changed = change.of(spec)
        found = changed.forecast()
    except LockstepError as error:
        return Alternative(change=change, refused=str(error))
    tokens, tokens_now = changed.batch * changed.model.tokens, spec.batch * spec.model.tokens
    per_token_s = found.step_seconds / tokens
    gain = 1 - per_token_s / (now.step_seconds / tokens_now)
    return Alternative(change=change, forecast=found, seconds_per_token=per_token_s, gain_ratio=gain)


def divisors(number: int) -> list[int]:
    """Return the divisors of `number`, least first."""
    return [each for each in range(1, number + 1) if number % each == 0]


def bucket_text(bucket_bytes: float | None) -> str:
    """Return a size of buckets in words."""
    return "one bucket" if bucket_bytes is None else f"buckets of {bucket_bytes / 2**20:.0f} MiB"
