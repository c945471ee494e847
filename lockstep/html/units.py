"""Formats figures for readers: three digits and a unit; an unknown value is a dash, never a number."""

from collections.abc import Iterable

UNKNOWN = "-"
_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns"))
_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
_TEN_PERCENT = 0.1
_LEAST_SHOWN = 0.0005
_RUNS_MAX = 12


def time_unit(longest_ns: float) -> tuple[float, str]:
    """Return size in ns and name of the unit in which a time has one to three digits before the point."""
    return next(((size, name) for size, name in _TIMES if longest_ns >= size), (1, "ns"))


def format_ns(ns: float | None) -> str:
    """Format a duration in ns."""
    if ns is None:
        return UNKNOWN
    size, name = time_unit(ns)
    return f"{_three(ns / size)} {name}"


def format_rate(value: float | None, unit: str) -> str:
    """Format a rate or a size with a decimal prefix."""
    if value is None:
        return UNKNOWN
    size, prefix = next(((size, prefix) for size, prefix in _PREFIXES if value >= size), (1, ""))
    return f"{_three(value / size)} {prefix}{unit}"


def format_share(ratio: float | None) -> str:
    """Format a share in percent, with one decimal below 10 %."""
    if ratio is None:
        return UNKNOWN
    if 0 < ratio < _LEAST_SHOWN:
        return "<0.1%"
    return f"{ratio:.1%}" if 0 < ratio < _TEN_PERCENT else f"{ratio:.0%}"


def format_number(value: float | None) -> str:
    """Format a plain number with three digits."""
    return UNKNOWN if value is None else f"{value:.3g}"


def format_step(step: int | None) -> str:
    """Return "step 7", or "an unknown step"."""
    return "an unknown step" if step is None else f"step {step}"


def counted(count: int, noun: str) -> str:
    """Return "1 rank", "10,000 ranks"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_ranks(ranks: Iterable[int], *, runs_max: int = _RUNS_MAX) -> str:
    """Format ranks with ranges: "0-7, 12"; a long list is cut and ends with the total count."""
    numbers = sorted(set(ranks))
    runs: list[tuple[int, int]] = []
    for each in numbers:
        if runs and runs[-1][1] == each - 1:
            runs[-1] = runs[-1][0], each
        else:
            runs.append((each, each))
    ranges = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:runs_max]]
    more = f" and more, {len(numbers):,} in all" if len(runs) > runs_max else ""
    return (", ".join(ranges) or UNKNOWN) + more


def _three(value: float) -> str:
    """Format with three digits; larger integers keep all of theirs."""
    digits = f"{value:.3g}"
    return f"{value:,.0f}" if "e" in digits else digits
