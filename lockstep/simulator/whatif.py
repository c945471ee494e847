"""Alternatives of a job: healed, changed, with another strategy; each with its forecast, best first."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.contracts.errors import LockstepError
from lockstep.simulator.forecast import Forecast
from lockstep.simulator.spec import JobSpec

OnDone = Callable[[int, int | None], None]
"""Called with the number of alternatives done and their total, None if that is unknown."""

BUCKETS_BYTES = (5 * 2**20, 25 * 2**20, 100 * 2**20, None)
"""Bucket sizes that a search tries for the best alternative; None sends all gradients at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a job: elements to heal, and values by path of the specification."""

    name: str
    heal: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    def of(self, spec: JobSpec) -> JobSpec:
        """Return the job with the change. Raises LockstepError if the changed job is invalid."""
        healed = spec.healed(*self.heal) if self.heal else spec
        return healed.changed_by(self.values) if self.values else healed


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A change and its forecast, or None and the reason if the changed job is invalid.

    `gain_ratio` is the saved share of the present time: of the step, or, with another batch, of the time per token.
    """

    change: Change
    forecast: Forecast | None = None
    seconds_per_token: float | None = None
    gain_ratio: float | None = None
    refused: str = ""


def evaluate(
    spec: JobSpec, changes: Sequence[Change], *, now: Forecast | None = None, on_done: OnDone | None = None
) -> list[Alternative]:
    """Return the alternatives by time per token: those that fit, then those out of memory, then invalid ones.

    If all have the same batch, that is the order of step times. Raises LockstepError if `spec` cannot be simulated.
    """
    now = now or spec.forecast()
    found = []
    for done, change in enumerate(changes, 1):
        found.append(alternative(spec, change, now))
        if on_done is not None:
            on_done(done, len(changes))
    return ranked(found)


def ranked(found: Iterable[Alternative]) -> list[Alternative]:
    """Return alternatives in order: those that fit, those out of memory, invalid ones; each group by time."""

    def key(each: Alternative) -> tuple[bool, bool, float]:
        found = each.forecast
        return (found is None, found is not None and found.out_of_memory, each.seconds_per_token or 0.0)

    return sorted(found, key=key)


def attributions(spec: JobSpec) -> list[Change]:
    """Return a change that heals each degraded element, and, if there are several, one that heals all."""
    sick = spec.sick()
    alone = [Change(name=f"heal {name}", heal=(name,)) for name in sick]
    return [*alone, Change(name="heal all", heal=sick)] if len(sick) > 1 else alone


def variations(spec: JobSpec) -> list[Change]:
    """Return changes of a running job that need no other machine, one at a time.

    These are the batch and the micro-batches halved and doubled, other bucket sizes, and tensor and pipeline degrees
    halved and doubled, with the other ranks used for data parallelism.
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
    """Return half of a number, if that is an integer, and its double."""
    return [*([number // 2] if number % 2 == 0 else []), 2 * number]


def _named(values: Mapping[str, Any]) -> Change:
    """Return the change of `values`, with a name made from them."""

    def text(name: str, value: Any) -> str:
        if name == "strategy.bucket_bytes":
            return bucket_text(value)
        return f"{name.removeprefix('strategy.')}={value}"

    return Change(name=" ".join(text(*each) for each in values.items()), values=values)


def alternative(spec: JobSpec, change: Change, now: Forecast) -> Alternative:
    """Return the forecast of the job with the change; `now` is that of the unchanged job."""
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
    """Return the divisors of `number` in ascending order."""
    return [each for each in range(1, number + 1) if number % each == 0]


def bucket_text(bucket_bytes: float | None) -> str:
    """Return the text of a bucket size."""
    return "one bucket" if bucket_bytes is None else f"buckets of {bucket_bytes / 2**20:.0f} MiB"
