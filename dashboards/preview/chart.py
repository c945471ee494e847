"""SVG drawings over time: lines, bands, cells. Sizes are in units of the drawing, which the page scales."""

import time
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from dashboards.preview.ask import Series, TimeWindow
from dashboards.preview.units import PALETTE, axis_label, format_value, ticks

Colours = Callable[[str], str | None]
"""Maps a legend to a series' colour; None: the next colour of the page."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 8, 8, 20
_ROW = 22
_NAME = 190
_GAP_STEPS = 1.6  # points further apart than this many steps are not connected, because nothing was measured in between
_OVERLAP = 1.0  # of a cell and the next, which covers it: rounding would let the background shine through
_SHARE = 0.9  # of its row that a band or a cell fills, as in the dashboards


class SeriesStyle(NamedTuple):
    """How a series is drawn, by its legend."""

    colours: Colours
    is_dashed: Callable[[str], bool]


def lines(series: Sequence[Series], unit: str, window: TimeWindow, size: tuple[int, int], look: SeriesStyle) -> str:
    """Return lines on an axis from 0; a gap in the data is a gap in the line."""
    width, height = size
    top = max((value for each in series for _, value in each.points if value == value), default=1.0)  # noqa: PLR0124
    low = min(0.0, min((value for each in series for _, value in each.points), default=0.0))
    top = top if top > low else low + 1
    marks = ticks(low, top, unit)
    high = max(top, marks[-1])

    def place(value: float) -> float:
        return _TOP + (high - value) / (high - low) * (height - _TOP - _BOTTOM)

    parts = [_grid(marks, place, unit, width), _clock(window, width, height)]
    for index, each in enumerate(series):
        paths = [" ".join(f"{_x(t, window, width):.1f},{place(v):.1f}" for t, v in run) for run in _runs(each, window)]
        ink = look.colours(each.legend) or f"var(--c{index % PALETTE})"
        kind = "l dash" if look.is_dashed(each.legend) else "l"
        parts += [f'<polyline class="{kind}" stroke="{ink}" points="{path}"/>' for path in paths if " " in path]
        parts += [_dot(path, ink) for path in paths if " " not in path]
    return _svg("".join(parts), width, height)


def bands(series: Sequence[Series], window: TimeWindow, size: tuple[int, int], colours: Colours) -> str:
    """Return a band for each series, drawn while it has data; together they fill the height."""
    width, height = size
    tall = max((height - _BOTTOM) / len(series), _ROW)
    height = round(tall * len(series)) + _BOTTOM
    parts = [_clock(window, width, height, left=_NAME)]
    for index, each in enumerate(series):
        y = index * tall
        name = f"{escape(_cut(each.legend))}<title>{escape(each.legend)}</title>"
        parts.append(f'<text x="4" y="{y + tall / 2 + 4:.1f}">{name}</text>')
        fill = colours(each.legend) or f"var(--c{index % PALETTE})"
        for run in _runs(each, window):
            begin, end = _x(run[0][0], window, width, _NAME), _x(run[-1][0] + window.step_s, window, width, _NAME)
            wide = max(min(end, width - _RIGHT) - begin, 1)
            parts.append(
                f'<rect x="{begin:.1f}" y="{y + tall * (1 - _SHARE) / 2:.1f}" width="{wide:.1f}" '
                f'height="{tall * _SHARE:.1f}" fill="{fill}"/>'
            )
    return _svg("".join(parts), width, height)


def cells(series: Sequence[Series], unit: str, window: TimeWindow, size: tuple[int, int]) -> str:
    """Return a row of cells per series, each as wide as the time to the next, from green (minimum) to red (maximum)."""
    width, height = size
    values = [value for each in series for _, value in each.points]
    low, high = min(values), max(values)
    rows = sorted(series, key=lambda each: (len(each.legend), each.legend))
    tall = max((height - _BOTTOM) / len(rows), 4.0)
    height = round(tall * len(rows)) + _BOTTOM
    parts = [_clock(window, width, height)]
    for index, each in enumerate(rows):
        if tall > 9 or index % 4 == 0:  # noqa: PLR2004  (names of thinner rows would cover each other)
            parts.append(
                f'<text x="{_LEFT - 6}" y="{index * tall + tall / 2 + 4:.1f}" class="e">{escape(each.legend)}</text>'
            )
        for t, value in each.points:
            begin, end = _x(t, window, width), min(_x(t + window.step_s, window, width), width - _RIGHT)
            wide = max(end - begin, 0) + _OVERLAP
            share = (value - low) / (high - low) if high > low else 0.0
            title = f"<title>{escape(each.legend)}: {escape(format_value(value, unit))}</title>"
            parts.append(
                f'<rect x="{begin:.1f}" y="{index * tall:.1f}" width="{wide:.1f}" '
                f'height="{tall * _SHARE:.1f}" fill="hsl({120 * (1 - share):.0f} 55% 48%)">{title}</rect>'
            )
    return _svg("".join(parts), width, height)


def heat(series: Sequence[Series], window: TimeWindow, size: tuple[int, int]) -> str:
    """Return a heat map of a histogram's buckets, darker for more; series are cumulative by le."""
    width, height = size
    rows = sorted((each for each in series if each.labels.get("le")), key=lambda each: float(each.labels["le"]))
    at = {each.labels["le"]: dict(each.points) for each in rows}
    counts: dict[tuple[float, int], float] = {}
    for row, each in enumerate(rows):
        below = at[rows[row - 1].labels["le"]] if row else {}
        counts |= {(t, row): value - below.get(t, 0.0) for t, value in each.points}
    most = max(counts.values(), default=0.0) or 1.0
    tall = (height - _BOTTOM) / max(len(rows), 1)
    parts = [_clock(window, width, height)]
    for row, each in enumerate(rows):
        y = height - _BOTTOM - (row + 1) * tall
        parts.append(f'<text x="{_LEFT - 6}" y="{y + tall / 2 + 4:.1f}" class="e">{_bound(each.labels["le"])}</text>')
    for (t, row), count in counts.items():
        if count > most * 1e-3:
            y = height - _BOTTOM - (row + 1) * tall
            x, end = _x(t, window, width), min(_x(t + window.step_s, window, width), width - _RIGHT)
            ink = f"color-mix(in srgb, var(--c1) {(count / most) ** 0.5:.0%}, var(--panel))"
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(end - x, 0) + _OVERLAP:.1f}" height="{tall - 1:.1f}" '
                f'style="fill:{ink}"/>'
            )
    return _svg("".join(parts), width, height)


def _bound(le: str) -> str:
    return "∞" if le == "+Inf" else format_value(float(le), "s")


def _dot(point: str, ink: str) -> str:
    x, y = point.split(",")
    return f'<circle fill="{ink}" cx="{x}" cy="{y}" r="2"/>'


def _runs(series: Series, window: TimeWindow) -> list[list[tuple[float, float]]]:
    runs: list[list[tuple[float, float]]] = []
    for t, value in series.points:
        if value != value:  # noqa: PLR0124  (NaN: nothing to draw)
            continue
        if not runs or t - runs[-1][-1][0] > _GAP_STEPS * window.step_s:
            runs.append([])
        runs[-1].append((t, value))
    return runs


def _x(unix_s: float, window: TimeWindow, width: int, left: int = _LEFT) -> float:
    return left + (unix_s - window.begin_s) / (window.end_s - window.begin_s) * (width - left - _RIGHT)


def _grid(marks: Sequence[float], place: Callable[[float], float], unit: str, width: int) -> str:
    return "".join(
        f'<line class="g" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{place(mark):.1f}" y2="{place(mark):.1f}"/>'
        f'<text class="e" x="{_LEFT - 6}" y="{place(mark) + 4:.1f}">{escape(axis_label(mark, unit))}</text>'
        for mark in marks
    )


def _clock(window: TimeWindow, width: int, height: int, left: int = _LEFT) -> str:
    span = window.end_s - window.begin_s
    step = next(
        (s for s in (15, 30, 60, 300, 600, 1800, 3600, 7200, 21600, 86400) if span / s <= (width - left) / 60), 604800
    )
    first = int(window.begin_s // step + 1) * step
    form, half = ("%H:%M", 16) if step >= 60 else ("%H:%M:%S", 26)  # noqa: PLR2004  (a minute)
    return "".join(
        f'<text class="m" x="{_x(t, window, width, left):.1f}" y="{height - 5}">'
        f"{time.strftime(form, time.gmtime(t))}</text>"
        for t in range(first, int(window.end_s) + 1, step)
        if _x(t, window, width, left) < width - half
    )


def _cut(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:29]}…"  # noqa: PLR2004  (what fits next to the bands)


def _svg(inner: str, width: int, height: int) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img">{inner}</svg>'
