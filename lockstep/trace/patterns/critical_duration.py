# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""The critical duration of an execution: when it really used its resource (PerfTracker, Algorithm 1, corrected).

A worker that arrives early at a collective waits inside it, so the mean over the whole execution would be dominated by
the wait. The critical duration L(e) is the stretch with at least 80 % of the usage and the smallest gaps inside. The
published algorithm leaves some choices open; here:

* a zero is usage of at most 1 % of the peak (`samples.ZERO_UNITS`), and counts as 0 in the sums that decide;
* g* is the smallest g in 0..n-2 for which a stretch without an inner gap longer than g holds the share; L(e) is the
  maximal such stretch, trimmed to busy ends. Because the share is above one half only one stretch can hold it;
* no usage at all gives an empty L(e), of weight 0;
* two bursts of 40 % and 60 % around a wait are one stretch with the wait inside: the mean of the busy samples and the
  share of the gaps are reported next to the mean.

Gaps are tried in order of length, O(n + k log k) for n samples and k runs of busy ones, for all events at once.

Shape suffixes: E events, K runs of busy samples, those of an event together, cut to it, in order.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.patterns.samples import UNITS, Numbers, UsageSamples

SHARE_NUMERATOR, SHARE_DENOMINATOR = 4, 5
"""80 % of the usage, as a fraction so that the test is exact (PerfTracker, Algorithm 1, line 5)."""

RUNS_AT_ONCE = 1 << 21
"""Runs laid out at a time: 200 MB of temporary arrays."""

RUNS_MAX = 1 << 26
"""Runs looked at in all; nested frames look at the same samples again, and only a file made to be expensive as often
as this. Events beyond it have no critical duration."""

Numerics = NDArray[np.float64]


class CriticalDurations(NamedTuple):
    """L(e) of every event, arrays of shape (n_events,).

    `first` and `stop` are samples; they are equal where nothing was used. `gap` is g*, the longest gap joined.
    """

    first: Numbers
    stop: Numbers
    gap: Numbers


class Uses(NamedTuple):
    """Usage over L(e), arrays of shape (n_events,), as shares of the peak; NaN where L(e) is empty.

    `mean` and `deviation` are avg_U and std_U of equations 4 and 5; `active_mean` is over busy samples alone, and
    `gap_ratio` the share of the others.
    """

    mean: Numerics
    deviation: Numerics
    active_mean: Numerics
    gap_ratio: Numerics


def critical_durations(usage: UsageSamples, first_E: Numbers, stop_E: Numbers) -> CriticalDurations:
    """Return L(e) of events that hold the samples `first_E` up to, not including, `stop_E`.

    Events may overlap. Source: PerfTracker, Algorithm 1, with the corrections above.
    """
    low_E = np.searchsorted(usage.stop_K, first_E, side="right")
    high_E = np.searchsorted(usage.first_K, stop_E, side="left")
    runs_E = np.where(first_E < stop_E, np.maximum(high_E - low_E, 0), 0)
    found = CriticalDurations(first_E.copy(), first_E.copy(), np.zeros(len(first_E), np.int64))
    for events in _portions(runs_E):
        runs = _Runs(usage, low_E[events], runs_E[events], first_E[events], stop_E[events])
        for into, values in zip(found, runs.smallest_gap(), strict=True):
            into[events] = values
    return found


def uses(usage: UsageSamples, found: CriticalDurations) -> Uses:
    """Return mean, deviation, mean of the busy samples and share of the gaps over each L(e)."""
    first, stop = found.first, found.stop
    count = np.where(stop > first, stop - first, 1)
    empty = np.where(stop > first, 0.0, np.nan)
    mean = (usage.sum[stop] - usage.sum[first]) / count
    variance = (usage.square_sum[stop] - usage.square_sum[first]) / count - mean * mean
    busy = usage.busy_count[stop] - usage.busy_count[first]
    active = (usage.busy_sum[stop] - usage.busy_sum[first]) / np.maximum(busy, 1)
    return Uses(
        mean / UNITS + empty,
        np.sqrt(np.maximum(variance, 0.0)) / UNITS + empty,
        active / UNITS + empty,
        1 - busy / count + empty,
    )


def _portions(runs_E: Numbers) -> list[Numbers]:
    """Return the events that use anything, in portions of bounded size; none beyond RUNS_MAX."""
    using = np.flatnonzero(runs_E)
    total = np.cumsum(runs_E[using])
    using, total = using[total <= RUNS_MAX], total[total <= RUNS_MAX]
    return np.split(using, np.flatnonzero(np.diff(total // RUNS_AT_ONCE)) + 1) if len(using) else []


class _Runs:
    """The runs of some events, each with one at least."""

    def __init__(self, usage: UsageSamples, low_E: Numbers, runs_E: Numbers, first_E: Numbers, stop_E: Numbers) -> None:
        self.offset_E: Numbers = np.cumsum(runs_E) - runs_E
        self.runs_E = runs_E
        self.event_K = np.repeat(np.arange(len(runs_E)), runs_E)
        run_K = np.arange(len(self.event_K)) + (low_E - self.offset_E)[self.event_K]
        self.first_K = np.maximum(usage.first_K[run_K], first_E[self.event_K])
        self.stop_K = np.minimum(usage.stop_K[run_K], stop_E[self.event_K])
        self.mass_K = usage.busy_sum[self.stop_K] - usage.busy_sum[self.first_K]
        self.total_E = np.add.reduceat(self.mass_K, self.offset_E)
        self.gap_K = np.zeros(len(run_K), np.int64)  # before the run; 0 before an event's first
        self.gap_K[1:] = self.first_K[1:] - self.stop_K[:-1]
        self.gap_K[self.offset_E] = 0

    def smallest_gap(self) -> CriticalDurations:
        """Return L(e): bisection over each event's own gaps, sorted, with 0 before them."""
        sorted_K = self.gap_K[np.lexsort((self.gap_K, self.event_K))]
        low_E, high_E = np.zeros_like(self.runs_E), self.runs_E - 1  # with the longest gap joined, all is one stretch
        while (low_E < high_E).any():
            middle_E = (low_E + high_E) // 2
            starts, mass = self._stretches(sorted_K[self.offset_E + middle_E])
            heaviest_E = np.maximum.reduceat(mass, np.searchsorted(starts, self.offset_E))
            holds_E = self._holds(heaviest_E, self.total_E)
            high_E = np.where(holds_E, middle_E, high_E)
            low_E = np.where(holds_E, low_E, np.minimum(middle_E + 1, high_E))
        gap_E = sorted_K[self.offset_E + low_E]
        starts, mass = self._stretches(gap_E)
        ends = np.append(starts[1:], len(self.event_K)) - 1
        chosen = self._holds(mass, self.total_E[self.event_K[starts]])  # one of each event
        return CriticalDurations(self.first_K[starts[chosen]], self.stop_K[ends[chosen]], gap_E)

    def _stretches(self, gap_E: Numbers) -> tuple[Numbers, Numbers]:
        """Return the first run and the usage of every stretch without an inner gap above the event's `gap_E`."""
        begins = self.gap_K > gap_E[self.event_K]
        begins[self.offset_E] = True
        starts = np.flatnonzero(begins)
        return starts, np.add.reduceat(self.mass_K, starts)

    @staticmethod
    def _holds(mass: Numbers, total: Numbers) -> NDArray[np.bool_]:
        holds: NDArray[np.bool_] = SHARE_DENOMINATOR * mass >= SHARE_NUMERATOR * total
        return holds
