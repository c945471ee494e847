"""Small rules on Ascend kernels: AICPU operators, frequency, affinity, private formats (Hermes, 4.2.2 and 4.3)."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.finding import COMPUTE, MEDIUM, Finding, NotEvaluated
from lockstep.diagnosis.roofline.kernel_counters import KernelCounters, is_aicpu
from lockstep.diagnosis.roofline.operands import ascend_operands
from lockstep.diagnosis.roofline.roofline_limits import (
    ATTENTION_AXIS,
    FREQUENCY_DROP,
    IDLE_MHZ,
    INNER_AXIS,
    OPERATOR_SHARE,
    TASK_NS,
)
from lockstep.trace.columns import CoreClock

AICPU, FREQUENCY, AFFINITY, PRIVATE_FORMAT = ("aicpu", "frequency_drop", "unfriendly_shape", "private_format")
_CONVERSIONS = ("transdata", "trans_data")
_MATRIX_AXES = 2
_NAMED = 5


def find_aicpu(kernels: KernelCounters, rank: int) -> list[Finding] | NotEvaluated:
    """Return the operators that ran on the AICPU because the AI cores do not know their format, above 20 us each."""
    if not len(kernels):
        return NotEvaluated(rule=AICPU, reason="there is no kernel")
    at = [place for place, core in enumerate(kernels.cores) if is_aicpu(core)]
    at = [place for place in at if kernels.duration_ns[place] > TASK_NS.value]
    if not at:
        return []
    lost_ns = int(kernels.duration_ns[at].sum())
    types = _by_type(kernels, at)
    return [
        Finding(
            bottleneck=COMPUTE,
            cause=AICPU,
            ranks=(rank,),
            subject=types[0][0],
            evidence=(f"{len(at)} tasks above {TASK_NS.value / 1e3:.0f} us ran on the AICPU: {_text(types)}",),
            lost_ns=lost_ns,
        )
    ]


def find_private_formats(kernels: KernelCounters, rank: int) -> list[Finding] | NotEvaluated:
    """Return conversions between data formats (TransData) that take a relevant share of the kernels' time."""
    total_ns = int(kernels.duration_ns.sum())
    if not total_ns:
        return NotEvaluated(rule=PRIVATE_FORMAT, reason="there is no kernel")
    at = [place for place, each in enumerate(kernels.types) if each.lower().startswith(_CONVERSIONS)]
    lost_ns = int(kernels.duration_ns[at].sum()) if at else 0
    if lost_ns < OPERATOR_SHARE.value * total_ns:
        return []
    evidence = (
        f"{len(at)} format conversions hold {lost_ns / total_ns:.1%} of the kernels' time ({lost_ns / 1e6:.3f} ms)"
    )
    formats = sorted({kernels.formats[place] for place in at if place < len(kernels.formats)})[:_NAMED]
    more = (f"input formats: {', '.join(formats)}",) if formats else ()
    return [
        Finding(
            bottleneck=COMPUTE,
            cause=PRIVATE_FORMAT,
            ranks=(rank,),
            subject="TransData",
            evidence=(evidence, *more),
            lost_ns=lost_ns,
        )
    ]


def find_affinity(kernels: KernelCounters, rank: int) -> list[Finding] | NotEvaluated:
    """Return matrix products and attention with axes that are unaligned for the cube, if their share is relevant.

    Inner axes of both operands of a matrix product should be multiples of 256, head width and sequence of an attention
    multiples of 128.
    """
    if not any(kernels.shapes):
        return NotEvaluated(rule=AFFINITY, reason="the capture has no shapes of kernels")
    return [finding for taste in _TASTES for finding in _unfit(kernels, rank, taste)]


@dataclass(frozen=True, slots=True)
class _AlignmentRule:
    """For kernels whose lower-case type contains one of `types`: their axes that are not a multiple of `multiple`."""

    name: str
    types: tuple[str, ...]
    axes: Callable[[str], tuple[int, ...]]
    multiple: int

    def wrong(self, kind: str, shapes: str) -> tuple[int, ...]:
        if not any(part in kind.lower() for part in self.types):
            return ()
        return tuple(axis for axis in self.axes(shapes) if axis % self.multiple)


def _unfit(kernels: KernelCounters, rank: int, taste: _AlignmentRule) -> list[Finding]:
    pairs = enumerate(zip(kernels.types, kernels.shapes, strict=True))
    unfit = {place: axes for place, (kind, shapes) in pairs if (axes := taste.wrong(kind, shapes))}
    spent_ns = int(kernels.duration_ns[list(unfit)].sum()) if unfit else 0
    if not unfit or spent_ns < OPERATOR_SHARE.value * kernels.duration_ns.sum():
        return []
    longest = max(unfit, key=lambda place: kernels.duration_ns[place])
    return [
        Finding(
            bottleneck=COMPUTE,
            cause=AFFINITY,
            ranks=(rank,),
            subject=kernels.types[longest],
            evidence=(
                f"{len(unfit)} tasks ({taste.name}, {spent_ns / 1e6:.3f} ms) have axes no multiple of {taste.multiple}",
                f"longest: {kernels.types[longest]} of {kernels.shapes[longest]}, axes {unfit[longest]}",
            ),
            confidence=MEDIUM,
        )
    ]


def _inner_axes(shapes: str) -> tuple[int, ...]:
    tensors = [each for each in ascend_operands(shapes, _any_type(shapes)).tensors[:2] if each is not None]
    return tuple(each.shape[-1] for each in tensors if len(each.shape) >= _MATRIX_AXES)


def _attention_axes(shapes: str) -> tuple[int, ...]:
    """Return the query's sequence and width: the longest of all axes but the last in every layout (BSH, SBH, BNSD)."""
    query = next(iter(ascend_operands(shapes, _any_type(shapes)).tensors), None)
    if query is None or len(query.shape) < _MATRIX_AXES:
        return ()
    return max(query.shape[:-1]), query.shape[-1]


def _any_type(shapes: str) -> str:
    """Only shapes matter here: give every operand a known format."""
    return ";".join(["FLOAT16"] * (shapes.count(";") + 1))


_TASTES = (
    _AlignmentRule("matrix product", ("matmul",), _inner_axes, int(INNER_AXIS.value)),
    _AlignmentRule("attention", ("flashattention", "fusedinferattention"), _attention_axes, int(ATTENTION_AXIS.value)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequencySamples:
    """Clock of one rank's AI cores: when it changed (int64, ns) and to what (float64), arrays of shape (n_samples,)."""

    time_ns: NDArray[np.int64]
    mhz: NDArray[np.float64]


def find_frequency_drop(
    samples: Mapping[int, FrequencySamples],
    windows_ns: Mapping[int, tuple[int, int]],
    *,
    rated_mhz: float | None = None,
) -> list[Finding] | NotEvaluated:
    """Return the ranks whose mean clock is more than 5 % below `rated_mhz`, by default the highest seen on any rank.

    Both are by rank, for ranks with devices of one type. Each sample holds until the next one or the window's end; idle
    clocks do not count. If a clock above `rated_mhz` was seen, it replaces the rated one.
    """
    means = {rank: mean for rank, each in samples.items() if (mean := mean_mhz(each, windows_ns[rank])) is not None}
    if not means:
        return NotEvaluated(
            rule=FREQUENCY, reason="the traces have no samples of the AI cores' frequency in the window"
        )
    highest = max(float(samples[rank].mhz.max()) for rank in means)
    rated = max(highest, rated_mhz or 0.0)
    slow = {rank: mean for rank, mean in sorted(means.items()) if mean < rated * (1 - FREQUENCY_DROP.value)}
    rate = f"{rated:.0f} MHz ({'rated' if rated == rated_mhz else 'the highest seen'})"
    return [
        Finding(
            bottleneck=COMPUTE,
            cause=FREQUENCY,
            ranks=(rank,),
            evidence=(
                f"the AI cores of rank {rank} run at {mean:.0f} MHz on average, {1 - mean / rated:.1%} below {rate}",
                f"{len(means) - len(slow)} of {len(means)} ranks keep within {FREQUENCY_DROP.value:.0%}",
            ),
            lost_ns=round((windows_ns[rank][1] - windows_ns[rank][0]) * (1 - mean / rated)),
        )
        for rank, mean in slow.items()
    ]


def slowest_clock(clocks: Iterable[CoreClock], window_ns: tuple[int, int]) -> FrequencySamples | None:
    """Return the core clock with the lowest mean over the window: all dies wait for the slowest.

    None if no clock was above idle in it.
    """
    samples = [
        FrequencySamples(time_ns=np.array(each.time_ns, np.int64), mhz=np.array(each.mhz, np.float64))
        for each in clocks
    ]
    means = [(mean, at) for at, each in enumerate(samples) if (mean := mean_mhz(each, window_ns)) is not None]
    return samples[min(means)[1]] if means else None


def mean_mhz(samples: FrequencySamples, window_ns: tuple[int, int]) -> float | None:
    """Return the clock's mean over the window without idle samples, MHz; None if there are no others."""
    begin, end = window_ns
    order = np.argsort(samples.time_ns, kind="stable")
    time_ns, mhz = samples.time_ns[order], samples.mhz[order]
    until_ns = np.append(time_ns[1:], end)
    held_ns = np.minimum(until_ns, end) - np.maximum(time_ns, begin)
    counts = (held_ns > 0) & (mhz > IDLE_MHZ.value)
    return float(np.average(mhz[counts], weights=held_ns[counts])) if counts.any() else None


def _by_type(kernels: KernelCounters, at: list[int]) -> list[tuple[str, int, int]]:
    """Return (type, tasks, ns), longest first."""
    spent: dict[str, list[int]] = defaultdict(list)
    for place in at:
        spent[kernels.types[place]].append(int(kernels.duration_ns[place]))
    return sorted(((kind, len(each), sum(each)) for kind, each in spent.items()), key=lambda row: -row[2])


def _text(types: list[tuple[str, int, int]]) -> str:
    shown = ", ".join(f"{kind} ({count} times, {ns / 1e3:.1f} us)" for kind, count, ns in types[:_NAMED])
    return shown + (f" and {len(types) - _NAMED} more types" if len(types) > _NAMED else "")
