"""Running totals over step records, which become counters. A rank's totals outlive its attempts and never fall."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from exporter.reading.attempt_steps import Records
from lockstep.contracts.bounds import FLAGS_MAX, STEP_MAX
from lockstep.contracts.limits import MONOTONIC_NS_MAX
from lockstep.contracts.metrics import STEP_BUCKETS_SECONDS
from lockstep.contracts.records import MISSING, RECORD_FIELDS, RECORD_INDEX, Flag

_STEP = RECORD_INDEX["step"]
_START = RECORD_INDEX["start_ns"]
_END = RECORD_INDEX["end_ns"]
_FLAGS = RECORD_INDEX["flags"]
_MODEL_FLOPS = RECORD_INDEX["model_flops"]
_NS = 1e-9
_MEASURES = _FLAGS + 1  # times, counts and bytes follow step, start, end and flags
_FLAG_BITS = np.array([int(flag) for flag in Flag], dtype=np.int64)
_BUCKETS_NS = np.array([round(bound * 1e9) for bound in STEP_BUCKETS_SECONDS], dtype=np.int64)


def possible(records: Records) -> NDArray[np.bool_]:
    """Return, per record, whether its values are plausible: an index, an interval, flags, no negative figure."""
    step, start, end, flags = (records[:, column] for column in (_STEP, _START, _END, _FLAGS))
    measures = records[:, _MEASURES:]
    in_order = (start >= 0) & (end >= start) & (end <= MONOTONIC_NS_MAX)
    in_order &= (step >= 0) & (step <= STEP_MAX) & (flags >= 0) & (flags <= FLAGS_MAX)
    good: NDArray[np.bool_] = in_order & ((measures >= 0) | (measures == MISSING)).all(axis=1)
    return good


@dataclass(slots=True)
class StepTotals:
    """Totals of one rank over all its attempts, or of several ranks.

    `sums` is an array of shape (n_fields,), float64, so that no writer can make it wrap around. `measured` marks the
    fields that ever held a value; other fields are not exported. `peak_flops` is the FLOPs that the devices could have
    done in the steps whose model FLOPs are known.
    """

    steps: int = 0
    step_time_ns: float = 0.0
    peak_flops: float = 0.0
    last_step: int | None = None
    last_end_ns: int | None = None
    sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(RECORD_FIELDS)))
    measured: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(len(RECORD_FIELDS), dtype=bool))

    def add(self, records: Records, clock_offset_ns: int, peak_flops_per_second: float | None = None) -> None:
        """Add plausible records of one attempt, oldest first, of a device with this peak (None: unknown)."""
        present = records != MISSING
        durations_ns = records[:, _END] - records[:, _START]
        self.steps += len(records)
        self.step_time_ns += float(durations_ns.sum(dtype=np.float64))
        if peak_flops_per_second is not None:
            counted_ns = float(durations_ns[present[:, _MODEL_FLOPS]].sum(dtype=np.float64))
            self.peak_flops += counted_ns * _NS * peak_flops_per_second
        self.note_last(records, clock_offset_ns)
        self.sums += np.where(present, records, 0).sum(axis=0, dtype=np.float64)
        self.measured |= present.any(axis=0)

    def merge(self, other: "StepTotals") -> None:
        """Add another rank's sums; its progress is not part of a sum."""
        self.steps += other.steps
        self.step_time_ns += other.step_time_ns
        self.peak_flops += other.peak_flops
        self.sums += other.sums
        self.measured |= other.measured

    def note_last(self, records: Records, clock_offset_ns: int) -> None:
        """Remember the rank's progress after the last of these plausible records, without counting them."""
        self.last_step = int(records[-1, _STEP])
        self.last_end_ns = int(records[-1, _END]) + clock_offset_ns

    def begin_attempt(self) -> None:
        """Forget what belongs to the previous attempt: its step index."""
        self.last_step = None


@dataclass(slots=True)
class NodeStepHistogram:
    """Durations of a run's steps on this node; `counts` has one bucket more than there are bounds, for +Inf."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(_BUCKETS_NS) + 1, dtype=np.int64))
    sum_ns: float = 0.0

    def add(self, records: Records) -> None:
        """Add possible records."""
        durations_ns = records[:, _END] - records[:, _START]
        buckets = np.searchsorted(_BUCKETS_NS, durations_ns, side="left")
        self.counts += np.bincount(buckets, minlength=len(self.counts))
        self.sum_ns += float(durations_ns.sum(dtype=np.float64))


@dataclass(slots=True)
class FlaggedSteps:
    """How many steps of a run's ranks on this node had each flag; `counts` in the order of `Flag`."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(_FLAG_BITS), dtype=np.int64))

    def add(self, records: Records) -> None:
        """Add possible records."""
        flags = records[:, _FLAGS]
        if flags.any():
            self.counts += ((flags[:, np.newaxis] & _FLAG_BITS) != 0).sum(axis=0)
