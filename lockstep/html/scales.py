"""Axes of plots: position of a value as a share of the axis, and ticks."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lockstep.html.units import format_number, format_rate, time_unit

TICKS_MAX = 6
"""Largest number of ticks: at 400 px, more would touch each other."""
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_WIDEST_DECADES = 12
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values with a title and ticks (value, text). Values outside are placed at the edge."""

    title: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value: 0 at the low end, 1 at the high end."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.is_log else (self.low, self.high)
        place = math.log10(max(value, self.low)) if self.is_log else value
        return min(max((place - low) / (high - low), 0.0), 1.0)


def linear(title: str, highest: float, *, format_tick: Callable[[float], str] = format_number) -> Axis:
    """Return an axis from 0 to a round value of at least `highest`."""
    highest = highest if highest > 0 else 1.0
    step = _round_step(highest / (TICKS_MAX - 1))
    count = math.ceil(round(highest / step, 6))
    ticks = tuple((step * at, format_tick(step * at)) for at in range(count + 1))
    return Axis(title, 0.0, step * count, ticks)


def times(title: str, longest_ns: float) -> Axis:
    """Return a time axis in ns that ends at `longest_ns`; the title names the unit of the ticks."""
    size, name = time_unit(longest_ns)
    axis = linear("", longest_ns / size)
    longest_ns = max(longest_ns, 1.0)
    ticks = tuple((value * size, text) for value, text in axis.ticks if value * size <= longest_ns)
    return Axis(f"{title}, {name}", 0.0, longest_ns, ticks)


def shares(title: str, highest: float = 1.0) -> Axis:
    """Return an axis of ratios with ticks in percent."""
    axis = linear("", highest * 100, format_tick=lambda value: f"{value:.3g}%")
    return Axis(title, 0.0, axis.high / 100, tuple((value / 100, text) for value, text in axis.ticks))


def numbers(title: str, values: Iterable[float]) -> Axis:
    """Return an axis of whole numbers, slightly wider than the range of the values."""
    known = list(values)
    low, high = min(known), max(known)
    step = max(1.0, _round_step((high - low) / (TICKS_MAX - 1) or 1.0))
    step = float(math.ceil(step))
    first = math.ceil(low / step)
    ticks = tuple((step * at, f"{step * at:.0f}") for at in range(first, math.floor(high / step) + 1))
    space = max((high - low) * 0.02, 0.5)
    return Axis(title, low - space, high + space, ticks)


def decades(title: str, values: Iterable[float], *, has_prefix: bool = False) -> Axis:
    """Return a logarithmic axis of whole decades around positive values; with `has_prefix`, ticks read like 10 G."""
    known = list(values)
    low, high = math.log10(min(known)), math.log10(max(known))
    first, last = math.floor(low), max(math.ceil(high), math.floor(low) + 1)
    first = max(first, last - _WIDEST_DECADES)
    step = max(1, math.ceil((last - first) / (TICKS_MAX - 1)))
    ticks = tuple((10.0**at, _power(at, has_prefix=has_prefix)) for at in range(first, last + 1, step))
    return Axis(title, 10.0**first, 10.0**last, ticks, is_log=True)


def _power(exponent: int, *, has_prefix: bool) -> str:
    if has_prefix:
        return format_rate(10.0**exponent, "").strip()
    return f"{10.0**exponent:g}" if abs(exponent) < _DIGITS else f"1e{exponent}"


def _round_step(least: float) -> float:
    """Return the smallest round number (1, 2, 2.5 or 5 times a power of ten) of at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in _STEPS if factor * power >= least * (1 - 1e-9))
