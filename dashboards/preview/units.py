"""Formats numbers as Grafana would, and provides colours of series."""

import math

from dashboards.postprocess import COUNT

_SECONDS = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"))
_LONG = ((86400, "d"), (3600, "h"), (60, "min"))
_THOUSANDS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SUFFIX = "suffix:"
_NAMES = {"Bps": "B/s", "decbytes": "B", "celsius": "°C", "watt": "W"}

PALETTE = 8
"""Series colours, `--c0` to `--c7` of the page's style; further series start over."""


def format_value(value: float, unit: str) -> str:
    """Return a number with its unit."""
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "-∞"}.get(value, "NaN")
    if unit == "percentunit":
        return f"{_short(value * 100)} %"
    if unit == "s":
        return _seconds(value)
    if unit == COUNT:
        return f"{round(value):,}"
    if unit.startswith(_SUFFIX):
        return _scaled(value, unit.removeprefix(_SUFFIX))
    return _scaled(value, _NAMES.get(unit, ""))


def axis_label(value: float, unit: str) -> str:
    """Return the same for an axis mark, which has no space for the name of a suffix."""
    return format_value(value, "none" if unit.startswith(_SUFFIX) else unit)


def _seconds(value: float) -> str:
    size = abs(value)
    for scale, name in _LONG:
        if size >= 2 * scale:
            return f"{_short(value / scale)} {name}"
    fine, mark = next(((scale, name) for scale, name in _SECONDS if size >= scale), (1e-6, "µs") if value else (1, "s"))
    return f"{_short(value / fine)} {mark}"


def _scaled(value: float, name: str) -> str:
    for scale, prefix in _THOUSANDS:
        if abs(value) >= scale:
            return f"{_short(value / scale)} {prefix}{name}".rstrip()
    return f"{_short(value)} {name.strip()}".rstrip()


def _short(value: float) -> str:
    if value == int(value) and abs(value) < 1e6:  # noqa: PLR2004  (beyond, the scale is the unit's)
        return str(int(value))
    return f"{value:.3g}"


def ticks(low: float, high: float, unit: str = "none", count: int = 4) -> list[float]:
    """Return about `count` round numbers from `low` to `high`; whole ones if the unit counts."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    if unit == COUNT:
        rough = max(math.ceil(rough), 1.0)
    power = 10.0 ** math.floor(math.log10(rough))
    factors = (1, 2, 5, 10) if unit == COUNT else (1, 2, 2.5, 5, 10)
    step = next(power * factor for factor in factors if power * factor >= rough)
    first = math.ceil(low / step)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]
