"""Tests whether one quantity of memory grows steadily with the steps: samples in, a trend out. Pure.

A window of samples is cut into segments, each represented by its smallest sample, the floor. Memory that is allocated
and freed within a step lies above the floor of its segment; what an evaluation or a checkpoint holds for a whole
segment lies above a later floor. Growth is steady if all but one of the floors are never undercut by a later one, if
they do not flatten, and if they lie on a line (Theil 1950, Sen 1968), twice in a row. A single jump, a staircase of few
steps, and caches and allocators that fill up at the start are not steady. Coarser levels keep the smallest of several
samples each, so that a leak below large swings, or a slow one, shows in a longer window.
"""

from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median

from lockstep.contracts.memory_report import MEMORY_LEVELS

WARM_UP_STEPS = 20
"""Steps of an attempt that are not sampled: as many as the detectors of slow ranks learn from."""
SEGMENTS = 8
RISING_MIN = SEGMENTS - 1
"""Least number of floors in a window that no later one undercuts. One segment may lie above the next: if a step takes
longer than the time between two samples, an evaluation of some steps fills a segment. By chance, 29 orders of 40,320
have as many."""
SAMPLES = 32
"""Samples in a window: four a segment, so that one of them lies outside a step's peak."""
LOOK = 8
"""New samples between two evaluations of a window: a quarter of it."""
COARSER = (4, 8, 16)
"""Samples of a level that one sample of the next level represents. The first is small: 128 steps, which a leak of 5 MiB
needs below swings of 200 MiB within each step, are complete within 200 (`python -m benchmarks.memory_growth`); with
eight it takes 300."""
LEVELS = MEMORY_LEVELS
"""Samples 0.2 s apart are windows of 6 s, 26 s, 3 min and 55 min; with longer steps, of 32 steps and its multiples."""
GROWN_MIN_BYTES = 32 << 20
"""Least growth within a window: arenas of glibc and of torch's allocators come in 1 to 20 MiB."""
GROWN_MIN_RATIO = 0.01
"""The same relative to the memory in use: fragmentation of a large heap moves by tenths of a percent."""
AGREEMENT = 2.0
"""Largest difference between the slopes of two evaluations in a row, a quarter of a window apart: chance does not
repeat."""
FLATTENING_RATIO = 0.5
"""Second half's slope over the first half's, below which memory is filling up to a level and not leaking."""
RESIDUAL_RATIO = 0.1
"""Median distance of the floors from the line, over the growth; for a single jump it is 0.25."""
SPREAD_RATIO = 4.0
"""Least growth over the median spread of samples within a segment. If samples are uniformly distributed in a range, the
floors rise by chance in two evaluations in a row once in 33,000 times, and 77 % of those would pass. They stay within
the range: of 60,000 none grew by this much (`python -m benchmarks.memory_growth --chance`)."""

Sample = tuple[int, int]
"""Step and bytes."""


@dataclass(frozen=True, slots=True)
class MemoryTrend:
    """The robust slope over a window, and whether the growth is steady."""

    first_step: int
    last_step: int
    bytes_per_step: float
    is_steady: bool


class MemorySeries:
    """One quantity of one attempt of one rank. Memory: `LEVELS` windows of `SAMPLES` samples."""

    def __init__(self) -> None:
        self._levels: list[list[Sample]] = [[] for _ in range(LEVELS)]
        self._pending: list[list[Sample]] = [[] for _ in COARSER]
        self._unseen = [0] * LEVELS
        self._found: list[MemoryTrend | None] = [None] * LEVELS
        self.trends: list[MemoryTrend | None] = [None] * LEVELS
        """By level, the shortest windows first; None until the first window of a level is full."""
        self._last_step = WARM_UP_STEPS - 1
        self._least: int | None = None

    def add(self, step: int, size_bytes: int) -> None:
        """Add a sample; the samples of one step count as one, the smallest of them."""
        if step < self._last_step:
            return
        if step == self._last_step:
            self._least = size_bytes if self._least is None else min(self._least, size_bytes)
            return
        if self._least is not None:
            self._push(0, (self._last_step, self._least))
        self._last_step, self._least = step, size_bytes

    @property
    def growth(self) -> MemoryTrend | None:
        """Return the growth in the shortest window in which it is steady; None if there is no such window."""
        return next((trend for trend in self.trends if trend is not None and trend.is_steady), None)

    def _push(self, level: int, sample: Sample) -> None:
        window = self._levels[level]
        window.append(sample)
        del window[:-SAMPLES]
        self._unseen[level] += 1
        # Only with a quarter of the window new is another evaluation worth its cost, and likely to differ.
        if self._unseen[level] == LOOK:
            self._unseen[level] = 0
            if len(window) == SAMPLES:
                before, now = self._found[level], trend_of(window)
                self._found[level] = now
                self.trends[level] = _confirmed(before, now)
        if level == len(COARSER):
            return
        pending = self._pending[level]
        pending.append(sample)
        if len(pending) == COARSER[level]:
            self._push(level + 1, min(pending, key=lambda each: each[1]))
            pending.clear()


def trend_of(window: list[Sample]) -> MemoryTrend:
    """Return the slope over a window of `SAMPLES` samples in ascending order of steps."""
    size = len(window) // SEGMENTS
    floors = [min(window[at : at + size], key=lambda each: each[1]) for at in range(0, SEGMENTS * size, size)]
    rising = _never_undercut(floors)
    slope = _theil_sen(rising if len(rising) >= RISING_MIN else floors)
    first_step, last_step = window[0][0], window[-1][0]
    grown_bytes = slope * (last_step - first_step)
    is_steady = _is_steady(rising, slope, grown_bytes) and grown_bytes >= SPREAD_RATIO * _spread_bytes(window, slope)
    return MemoryTrend(first_step, last_step, slope, is_steady)


def _spread_bytes(window: list[Sample], slope: float) -> float:
    """Return the median over segments of the spread of their samples, minus the growth itself."""
    size = len(window) // SEGMENTS
    offsets = [size_bytes - slope * step for step, size_bytes in window]
    segments = (offsets[at : at + size] for at in range(0, SEGMENTS * size, size))
    return median(max(segment) - min(segment) for segment in segments)


def rises(floors: list[Sample]) -> bool:
    """Return whether enough floors lie below all later ones."""
    return len(_never_undercut(floors)) >= RISING_MIN


def _never_undercut(floors: list[Sample]) -> list[Sample]:
    """Return the floors below all later ones, ascending in steps and bytes."""
    found: list[Sample] = []
    for floor in reversed(floors):
        if not found or floor[1] < found[-1][1]:
            found.append(floor)
    return found[::-1]


def _is_steady(floors: list[Sample], slope: float, grown_bytes: float) -> bool:
    if len(floors) < RISING_MIN or grown_bytes < max(GROWN_MIN_BYTES, GROWN_MIN_RATIO * floors[0][1]):
        return False
    half = len(floors) // 2
    if _theil_sen(floors[half:]) < FLATTENING_RATIO * _theil_sen(floors[:half]):
        return False
    offsets = [size_bytes - slope * step for step, size_bytes in floors]
    level = median(offsets)
    return median(abs(offset - level) for offset in offsets) <= RESIDUAL_RATIO * grown_bytes


def _confirmed(before: MemoryTrend | None, now: MemoryTrend) -> MemoryTrend:
    """Return the current evaluation, marked steady only if the previous one agrees."""
    if before is None or not (before.is_steady and now.is_steady):
        return replace(now, is_steady=False)
    low, high = sorted((before.bytes_per_step, now.bytes_per_step))
    return replace(now, first_step=before.first_step, is_steady=high <= AGREEMENT * low)


def _theil_sen(points: list[Sample]) -> float:
    """Return the median slope over all pairs of points, in bytes per step; the steps ascend."""
    return median((late[1] - early[1]) / max(late[0] - early[0], 1) for early, late in combinations(points, 2))
