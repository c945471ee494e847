# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Samples of one hardware resource on a regular grid, with running sums for repeated queries.

Usage is kept in integers: steps of 2**-16 of the resource's peak, finer than any counter. Sums are exact then, so the
same samples give the same critical duration whatever the order of adding.

Shape suffixes: S samples, K runs of busy samples, E events.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import MalformedError

SAMPLES_MAX = 1 << 22
"""Of one resource in one window: 7 minutes at the 10 kHz of PerfTracker (section 4.1); sums of squares fit int64."""

UNITS = 1 << 16
"""Steps of usage up to the peak."""

ZERO_UNITS = UNITS // 100
"""Usage up to here counts as zero: 1 % of the peak. Idle counters never read exactly 0; with a noise floor of 0.4 %
the printed test for zeros takes the wait for work, and a mean of 0.90 becomes 0.18 (measured)."""

_OVER_PEAK_MAX = 2.0  # boost clocks exceed a nominal peak by a few per cent; twice the peak is a wrong unit

Numbers = NDArray[np.int64]


class Resource(StrEnum):
    """What a counter measures. PerfTracker, section 4.2: the resource that determines a function's speed."""

    CPU = "cpu"
    SM = "sm"
    """The device's compute units."""
    MEMORY = "memory"
    """The device's memory, or the bus that a copy crosses."""
    NVLINK = "nvlink"
    """Links between devices of one node."""
    NIC = "nic"
    """The way from the device to the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Readings of one resource: the i-th was taken at `start_ns + i * period_ns`, on the clock of the trace.

    `values` is an array of shape (n_samples,), in the unit of `peak`, which is what the resource can do at most.
    """

    start_ns: int
    period_ns: int
    values: NDArray[np.float64]
    peak: float


class UsageSamples:
    """Samples with running sums and the runs of busy samples.

    `units_S` is usage in steps of 1 / UNITS, int64; a sample is busy above ZERO_UNITS. `first_K` and `stop_K` bound
    the runs. Each `*_sum` has one entry more than there are samples: the sum of all before.

    Raises
    ------
    MalformedError
        Period or peak is not positive, there are too many samples, or a reading is no number, negative or more than
        twice the peak.
    """

    def __init__(self, samples: Samples, where: str = "samples") -> None:
        self._start_ns, self._period_ns = samples.start_ns, samples.period_ns
        self.units_S = _units(samples, where)
        self.busy_S = self.units_S > ZERO_UNITS
        edges = np.flatnonzero(np.diff(self.busy_S, prepend=False, append=False))
        self.first_K: Numbers = edges[::2]
        self.stop_K: Numbers = edges[1::2]
        self.sum = _running(self.units_S)
        self.square_sum = _running(self.units_S * self.units_S)
        self.busy_sum = _running(np.where(self.busy_S, self.units_S, 0))
        self.busy_count = _running(self.busy_S.astype(np.int64))

    def within(self, start_ns_E: Numbers, end_ns_E: Numbers) -> tuple[Numbers, Numbers]:
        """Return, per event, the first sample taken in [start, end) and the one after the last."""
        count = len(self.units_S)
        edges = (-((self._start_ns - each) // self._period_ns) for each in (start_ns_E, end_ns_E))
        first_E, stop_E = (np.clip(each, 0, count) for each in edges)
        return first_E, stop_E


def _running(values: Numbers) -> Numbers:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)))


def _units(samples: Samples, where: str) -> Numbers:
    if samples.period_ns <= 0:
        raise MalformedError("period_ns", where=where, got=samples.period_ns, expected="more than 0")
    if not (np.isfinite(samples.peak) and samples.peak > 0):
        raise MalformedError("peak", where=where, got=samples.peak, expected="a finite number above 0")
    if samples.values.ndim != 1 or len(samples.values) > SAMPLES_MAX:
        expected = f"one dimension of at most {SAMPLES_MAX}"
        raise MalformedError("shape of values", where=where, got=samples.values.shape, expected=expected)
    usage = samples.values.astype(np.float64) / samples.peak
    wrong = np.flatnonzero(~((usage >= 0) & (usage <= _OVER_PEAK_MAX)))
    if len(wrong):
        expected = f"0 to {_OVER_PEAK_MAX:g} times the peak of {samples.peak:g}"
        raise MalformedError(
            "reading", where=f"{where}, sample {wrong[0]}", got=samples.values[wrong[0]], expected=expected
        )
    return np.rint(usage * UNITS).astype(np.int64)
