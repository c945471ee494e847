# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""A run's step time, parts, throughput and MFU over time, in bounded memory: resolution decreases with age.

Pure. An interval is a second of steps, or one step that takes longer. Intervals are held in levels of `LEVEL_INTERVALS`
each. When a level is full, its two oldest intervals are merged and move to the next level, so an interval is as long as
a few percent of its age (exponential histogram: Datar, Gionis, Indyk, Motwani, "Maintaining stream statistics over
sliding windows", 2002). Intervals separated by a pause or a restart are not merged, so gaps are preserved.

Shapes: I intervals, F fields, R ranks.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.records import COMPUTE_PHASES, DOMAIN_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from coordinator.intake.timeline import StepRow

    Figures = NDArray[np.float64]

INTERVAL_S = 1.0
LEVEL_INTERVALS = 48
LEVELS = 17
"""Number of levels. The oldest reaches back 70 days at one interval a second; a run of a day has 500 intervals."""
INTERVALS_MAX = LEVELS * LEVEL_INTERVALS
PARTS = ("data", *COMPUTE_PHASES, "compute", "host", "gc", *(f"{kind}_wait" for kind in DOMAIN_KINDS))
"""Parts of a step, which sum to it. Compute is split into its phases if they were measured, else it is one part."""
_TOTALS = ("rank_step_s", "tokens", "samples", "ideal_s")
FIELDS = ("begin_unix_s", "end_unix_s", "first_step", "last_step", "attempt", "longest_s", "steps", "step_s")
COLUMNS = (*FIELDS, *_TOTALS, *PARTS)
"""Columns of an interval, NaN if not measured. `step_s`, `_TOTALS` and `PARTS` are means over its steps that
measured them. Tokens and samples are of all ranks; `ideal_s` is the model FLOPs over the peak of all devices."""
_BEGIN, _END, _FIRST, _LAST, _ATTEMPT, _LONGEST, _STEPS, _MEAN = range(len(FIELDS))
_RANK_STEP, _TOKENS, _SAMPLES, _IDEAL, _PARTS = range(len(FIELDS), len(FIELDS) + len(_TOTALS) + 1)
_MAGIC = b"lockstep-series-1\n"
SERIES_MAX_BYTES = len(_MAGIC) + 8 * (len(COLUMNS) + 1) * INTERVALS_MAX
"""Largest size of the stored form: 170 KB."""
_SET_BACK_S = 60.0  # a clock that jumps back by more was or is wrong: intervals in its future are dropped


class StepSeries:
    """The series of one run.

    Invariants: intervals are ordered by the ends of their steps, at most `INTERVALS_MAX`, none empty.
    """

    def __init__(self) -> None:
        self._levels: list[list[Figures]] = [[]]  # the newest level first; within a level the oldest interval first
        self._open: Figures | None = None
        self.changes = 0
        """Number of completed intervals; only grows."""

    def observe(self, row: "StepRow", step_seconds: float, peak_flops_per_second: "Callable[[], float | None]") -> None:
        """Add a step; steps must come in the order of their ends. The peak is that of the run's mean device.

        A step number that falls begins another attempt.
        """
        end, current = row.end_unix_s, self._open
        if current is not None and (row.step <= current[_LAST] or _is_apart(current[_END], end, step_seconds)):
            self._close()
            current = None
        if current is None:
            current = self._open = self._begin(row, step_seconds, peak_flops_per_second())
        else:
            count = current[_STEPS] + 1
            current[_MEAN] += (step_seconds - current[_MEAN]) / count
            current[_STEPS], current[_LAST], current[_END] = count, row.step, max(current[_END], end)
            current[_LONGEST] = max(current[_LONGEST], step_seconds)
            measured = np.array(_measured(row, peak_flops_per_second()))
            current[_RANK_STEP:] = _weighted(current[_RANK_STEP:], measured, 1 / count)
        if end - current[_BEGIN] >= INTERVAL_S:
            self._close()

    def complete(self) -> "list[Figures]":
        """Return the complete intervals, the oldest first; callers must not modify them."""
        return [interval for level in reversed(self._levels) for interval in level]

    def to_bytes(self) -> bytes:
        """Return the stored form, uncompressed."""
        rows = [(place, *interval) for place, level in enumerate(self._levels) for interval in level]
        return _MAGIC + np.array(rows, dtype="<f8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> "StepSeries":
        """Return the series of a stored form (`to_bytes`).

        Raises
        ------
        MalformedError
            It is of another version, or damaged.
        """
        body, width = data[len(_MAGIC) :], len(COLUMNS) + 1
        if not data.startswith(_MAGIC) or len(body) % (8 * width) or len(data) > SERIES_MAX_BYTES:
            raise MalformedError("step series", where=where, got=f"{len(data)} bytes", expected="the stored format")
        rows = np.frombuffer(body, dtype="<f8").reshape(-1, width)
        if not (np.isfinite(rows[:, : len(FIELDS) + 1]).all() and np.isin(rows[:, 0], np.arange(LEVELS)).all()):
            raise MalformedError("step series", where=where, got="other figures", expected="the stored format")
        series, level_I = cls(), rows[:, 0]
        levels = range(int(level_I.max(initial=0)) + 1)
        series._levels = [list(rows[level_I == place, 1:].copy()) for place in levels]
        return series

    def _begin(self, row: "StepRow", step_seconds: float, peak: float | None) -> "Figures":
        """Return a new interval of one step; if the clock was set back, drop the intervals that end after it."""
        end, last = row.end_unix_s, self._last()
        if last is not None and end < last[_END] - _SET_BACK_S:
            self._levels = [[each for each in level if each[_END] <= end] for level in self._levels]
        attempt = 0 if last is None else last[_ATTEMPT] + (row.step <= last[_LAST])
        kept = self._last()
        before = -np.inf if kept is None else min(kept[_END], end)
        head = (max(end - step_seconds, before), end, row.step, row.step, attempt, step_seconds, 1)
        return np.array([*head, step_seconds, *_measured(row, peak)])

    def _last(self) -> "Figures | None":
        return next((level[-1] for level in self._levels if level), None)

    def _close(self) -> None:
        assert self._open is not None
        moved, self._open = self._open, None
        self.changes += 1
        for place in range(LEVELS):
            if place == len(self._levels):
                self._levels.append([])
            level = self._levels[place]
            level.append(moved)
            if len(level) <= LEVEL_INTERVALS:
                return
            moved = level.pop(0)
            if _are_joined(moved, level[0], 2.0**place * INTERVAL_S):
                moved = _merge(moved, level.pop(0))


def select_intervals(
    complete: "list[Figures]", *, since_step: int = 0, max_intervals: int = INTERVALS_MAX
) -> "Figures":
    """Return the intervals that hold steps from `since_step` on, float64 of shape (I, F).

    Neighbours are merged until at most `max_intervals` are left, even across a pause.
    """
    kept = [each for each in complete if each[_LAST] >= since_step]
    width = max(-(-len(kept) // max_intervals), 1)
    merged = [_merge_all(kept[first : first + width]) for first in range(0, len(kept), width)]
    return np.array(merged).reshape(len(merged), len(COLUMNS))


def time_of_step(complete: "Sequence[Figures]", step: int, before_unix_s: float) -> float | None:
    """Return when a step began (unix seconds), in the last attempt that began before `before_unix_s`.

    None if unknown.
    """
    for each in reversed(complete):
        if each[_BEGIN] <= before_unix_s and each[_FIRST] <= step <= each[_LAST]:
            share = (step - each[_FIRST]) / (each[_LAST] - each[_FIRST] + 1)
            return float(each[_BEGIN] + share * (each[_END] - each[_BEGIN]))
    return None


def series_to_json(intervals_IF: "Figures") -> "list[dict[str, object]]":  # noqa: N803
    """Return the intervals in the API's form; figures that were not measured are null, such parts are omitted."""
    rates_IF = intervals_IF[:, _TOKENS : _IDEAL + 1] / intervals_IF[:, _RANK_STEP, None]
    return [
        {
            "begin_unix_seconds": round(interval[_BEGIN], 3),
            "end_unix_seconds": round(interval[_END], 3),
            "attempt": int(interval[_ATTEMPT]),
            "first_step": int(interval[_FIRST]),
            "last_step": int(interval[_LAST]),
            "steps": int(interval[_STEPS]),
            "step_seconds": _figure(interval[_MEAN]),
            "longest_step_seconds": _figure(interval[_LONGEST]),
            "tokens_per_second": _figure(tokens),
            "samples_per_second": _figure(samples),
            "mfu_ratio": _figure(mfu),
            "part_seconds": {
                name: _figure(value)
                for name, value in zip(PARTS, interval[_PARTS:], strict=True)
                if not math.isnan(value)
            },
        }
        for interval, (tokens, samples, mfu) in zip(intervals_IF.tolist(), rates_IF.tolist(), strict=True)
    ]


def _measured(row: "StepRow", peak_flops_per_second: float | None) -> "list[float]":
    """Return the values of `_TOTALS` and `PARTS` for one step."""
    ranks = len(row.ranks)
    ideal = _mean(row.model_flops) / peak_flops_per_second if peak_flops_per_second else np.nan
    named = {name: _mean(row.views.get(name)) for name in COMPUTE_PHASES}
    if any(map(np.isnan, named.values())):
        named = {"compute": _mean(row.components["compute"])}
    named |= {name: _mean(row.components[name]) for name in ("data", "host", "gc")}
    named |= {f"{kind}_wait": _mean(wait) for kind, wait in row.waits.items()}
    totals = (_mean(row.duration), _mean(row.tokens) * ranks, _mean(row.samples) * ranks, ideal)
    return [*totals, *(named.get(name, np.nan) for name in PARTS)]


def _mean(values: "NDArray[np.floating] | None") -> float:
    """Return the mean over the ranks that measured a value; NaN if none did."""
    if values is None or not len(values):
        return np.nan
    mean = float(np.add.reduce(values)) / len(values)
    if not math.isnan(mean):
        return mean
    is_known = ~np.isnan(values)
    count = np.count_nonzero(is_known)
    return float(np.add.reduce(values[is_known])) / count if count else np.nan


def _is_apart(last_end_s: float, end_s: float, step_seconds: float) -> bool:
    """Whether a step follows a pause, or its clock was set back."""
    return end_s - step_seconds > last_end_s + INTERVAL_S or end_s < last_end_s - _SET_BACK_S


def _are_joined(older: "Figures", younger: "Figures", length_s: float) -> bool:
    return bool(older[_ATTEMPT] == younger[_ATTEMPT] and younger[_BEGIN] - older[_END] <= length_s)


def _merge_all(intervals: "list[Figures]") -> "Figures":
    merged = intervals[0]
    for each in intervals[1:]:
        merged = _merge(merged, each)
    return merged


def _merge(older: "Figures", younger: "Figures") -> "Figures":
    """Merge two intervals; means are weighted by steps."""
    merged = _weighted(older, younger, younger[_STEPS] / (older[_STEPS] + younger[_STEPS]))
    merged[[_BEGIN, _FIRST]] = older[[_BEGIN, _FIRST]]
    merged[[_END, _LAST, _ATTEMPT]] = younger[[_END, _LAST, _ATTEMPT]]
    merged[_LONGEST] = max(older[_LONGEST], younger[_LONGEST])
    merged[_STEPS] = older[_STEPS] + younger[_STEPS]
    return merged


def _weighted(one: "Figures", other: "Figures", weight: float) -> "Figures":
    """Return weighted means, `weight` being that of `other`; a value missing in one is taken from the other."""
    mean = one + weight * (other - one)
    return np.where(np.isnan(mean), np.fmax(one, other), mean)


def _figure(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None
