# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""Ranks with repeated single slow steps, far more often than the others.

Pure. A sum of deviations forgets a single slow step, as it must: healthy ranks stall too. Repetition is detected by
counting: for each rank, a CUSUM of Poisson counts (Lucas 1985) over the steps far beyond noise. Each such step adds its
log likelihood ratio at the rate of a fault against the rate of the others; each step in between subtracts that of a
step without one. The limit follows from the steps between false pages of the whole run: a sum of log likelihood ratios
reaches h at most once in exp(h) looks (Lorden 1971).

The others are the ranks with at most half as many such steps: as with references, up to 70 % of the ranks may be at
fault. The uncertainty of few ranks is covered by a gamma prior of the rate, in which a healthy host has one such step
in 2,000, and one standard error is added to what they have. A rank must also differ from the others in the same steps:
a fault of the job makes all ranks stall more often than before, some more than others by chance.

A rank that is slow at regular intervals writes checkpoints or logs, which is no fault. Slow steps on such a schedule
are no evidence, and are taken out of the sum once it is clear; what else the rank does counts as that of any other.

Shapes: C ranks with a count.
"""

import itertools
import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.error_budget import steps_between
from coordinator.detect.schedule import on_schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.settings.policy import ExcessPolicy

    Floats = NDArray[np.float32]

_MEMORY_STEPS = 1024  # memory of the rates of all ranks
_DECAY = np.float32(1 - 1 / _MEMORY_STEPS)
_PRIOR_EVENTS, _PRIOR_STEPS = 0.5, 1000.0  # healthy hosts: noisy ones stall once in 10,000 steps, bad ones in 1,000
_FAULT_RATE = 0.02  # smallest rate that the sum is designed to detect, ...
_FAULT_FACTOR = 12.0  # ... and at least this multiple of the others' rate
_LOOKS = 0.02  # share of steps at which a sum may pass its limit: the slow ones, and healthy ranks have fewer
_REST_STEPS = 2  # steps between two slow ones that count separately: a descheduled rank is slow for several
_PEERS_MIN_SHARE = 0.3  # of the ranks, needed for a comparison
_QUIET_STEPS = 128  # without a slow step end an alarm: if 1 in 20 is slow, 1 gap in 700 is as long by chance
_KEPT = 12  # slow steps of a rank in which a schedule is looked for
_EVENTS_MIN = 4  # slow steps before a rank is named
_APART = 3.0  # log likelihood ratio beyond that by which chance sets one of the ranks apart
_RECENT = 2048  # last slow steps of all ranks in which a rank is compared with the others
_SCHEDULE_STEPS = 512  # without a slow step end what is known of a schedule
_FORGOTTEN = 0.05  # steps; a count that has faded below this is dropped
_COLUMNS = 8 + 2 * _KEPT  # of a rank's figures in the state


@dataclass(slots=True)
class _Cusum:
    """Sum of one rank, and the slow steps since it left zero; `first` and `last` count evaluated steps.

    `slow` holds the indices of the last slow steps, and what each of them still contributes to the sum.
    """

    onset_step: int
    first: int
    last: int = 0
    events: int = 0
    sum: float = 0.0
    ratio: float = 0.0  # mean deviation
    slow: "deque[tuple[int, float]]" = field(default_factory=lambda: deque(maxlen=_KEPT))

    def add(self, step: int, ratio: float, weight: float) -> None:
        """Add a slow step with its deviation and its log likelihood ratio."""
        self.events += 1
        self.ratio += (ratio - self.ratio) / self.events
        self.slow.append((step, weight))
        self.sum += weight

    def discount_schedule(self) -> None:
        """Take slow steps on a schedule out of the sum."""
        scheduled = on_schedule(sorted({step for step, _ in self.slow}))
        self.sum -= sum(weight for step, weight in self.slow if step in scheduled)
        self.slow = deque(((step, 0.0 if step in scheduled else own) for step, own in self.slow), maxlen=_KEPT)


class _FadingCounts:
    """Slow steps of the ranks that have any: `column_C` (ascending) and the exponentially fading count of each."""

    def __init__(self) -> None:
        self.column_C = np.zeros(0, dtype=np.int32)
        self.count_C = np.zeros(0, dtype=np.float32)

    def add(self, column: int) -> float:
        """Add a slow step of a rank; return its count."""
        place = int(self.column_C.searchsorted(column))
        if place == len(self.column_C) or self.column_C[place] != column:
            self.column_C = np.insert(self.column_C, place, column)
            self.count_C = np.insert(self.count_C, place, 0)
        self.count_C[place] += 1
        return float(self.count_C[place])

    def forget(self, columns: "Sequence[int]" = ()) -> None:
        """Drop the counts of some ranks, and those that have faded."""
        is_kept_C = (self.count_C >= _FORGOTTEN) & np.isin(self.column_C, columns, invert=True)
        self.column_C, self.count_C = self.column_C[is_kept_C], self.count_C[is_kept_C]


class IntermittentTest:
    """State of the slow steps of `ranks` ranks: a count each, and a sum for those with a recent one."""

    def __init__(self, ranks: int, policy: "ExcessPolicy") -> None:
        self.policy = policy
        self._evaluated_steps = 0
        self._ranks = ranks
        self._counts = _FadingCounts()
        self._cusums: dict[int, _Cusum] = {}
        self._recent: deque[tuple[int, int]] = deque(maxlen=_RECENT)  # slow steps of all ranks: step, column
        self.acting: set[int] = set()
        """Columns in alarm that were slow in the last step."""
        self.alarms: dict[int, int] = {}
        """Columns in alarm, with the evaluated step at which each was last slow."""

    def step(self, far: "Mapping[int, float]", step: int) -> None:
        """Evaluate one step, given the deviation by column of the ranks far beyond noise in it."""
        self._evaluated_steps += 1
        self._counts.count_C *= _DECAY
        for column, ratio in far.items():
            self._add(column, ratio, step)
        self.acting = set(self.alarms).intersection(far)
        self.alarms |= dict.fromkeys(self.acting, self._evaluated_steps)
        self._end()

    def _add(self, column: int, ratio: float, step: int) -> None:
        """Count a slow step of one rank, and raise its alarm if the sum passes the limit."""
        own = self._cusums.get(column)
        gap = self._evaluated_steps if own is None else self._evaluated_steps - own.last
        if (
            own is not None and gap <= _REST_STEPS
        ):  # consecutive steps are one event, which the sums of deviations evaluate
            own.last = self._evaluated_steps
            return
        self._recent.append((step, column))
        usual = self._usual_rate(self._counts.add(column))
        if usual is None:
            return
        fault = max(_FAULT_RATE, _FAULT_FACTOR * usual)
        if own is not None:
            own.sum -= gap * (fault - usual)
        if own is None or (own.sum <= 0 and column not in self.alarms):
            known = () if own is None else own.slow
            own = self._cusums[column] = _Cusum(step, self._evaluated_steps)
            own.slow.extend((step, 0.0) for step, _ in known)
        own.last = self._evaluated_steps
        own.add(step, ratio, math.log(fault / usual))
        looks = _LOOKS * steps_between("intermittent", self.policy.false_page_steps)
        limit = math.log(self._ranks * looks)
        if own.sum > limit and column not in self.alarms and own.events >= _EVENTS_MIN:
            own.discount_schedule()
            if own.sum > limit and self._differs(column, own):
                self.alarms[column] = self._evaluated_steps

    def _differs(self, column: int, own: _Cusum) -> bool:
        """Whether a rank has too many slow steps for the rate of the others in the same steps, too.

        By the log likelihood ratio of its own Poisson rate against theirs. As in `_usual_rate`, they are the ranks with
        at most half as many, and one standard error is added.
        """
        first = own.slow[0][0]
        slow = Counter(each for step, each in self._recent if step >= first)
        count = slow.pop(column)
        few = [other for other in slow.values() if other <= count / 2]
        seen = sum(few)
        usual = (seen + math.sqrt(seen)) / (self._ranks - 1 - len(slow) + len(few))
        return usual == 0 or count * math.log(count / usual) - (count - usual) > math.log(self._ranks) + _APART

    def _usual_rate(self, count: float) -> float | None:
        """Return the rate of slow steps among the ranks with at most half of `count`.

        None if these ranks are too few, or if their rate is so high that no rank can have `_FAULT_FACTOR` times more.
        """
        is_peer_C = self._counts.count_C <= count / 2
        peers = self._ranks - int(np.count_nonzero(~is_peer_C))
        if peers < _PEERS_MIN_SHARE * self._ranks:
            return None
        seen = float(self._counts.count_C[is_peer_C].sum())
        filled = _MEMORY_STEPS * (1 - float(_DECAY) ** self._evaluated_steps)
        rate = (_PRIOR_EVENTS + seen + math.sqrt(seen)) / (_PRIOR_STEPS + peers * filled)
        return rate if rate * _FAULT_FACTOR < 1 else None

    def _end(self) -> None:
        """End alarms that are over, and drop sums that have returned to zero."""
        over = [column for column, last in self.alarms.items() if self._evaluated_steps - last > _QUIET_STEPS]
        for column in over:
            del self.alarms[column], self._cusums[column]
        if over:
            self._counts.forget(over)
        if self._evaluated_steps % _QUIET_STEPS == 0:
            least = (1 - 1 / _FAULT_FACTOR) * _FAULT_RATE  # what a step without a slow one subtracts
            self._cusums = {
                column: own
                for column, own in self._cusums.items()
                if column in self.alarms
                or own.sum > least * (self._evaluated_steps - own.last)
                or (len(own.slow) >= _EVENTS_MIN and self._evaluated_steps - own.last < _SCHEDULE_STEPS)
            }
            self._counts.forget()

    def of(self, column: int) -> tuple[float, float, int]:
        """Return the mean deviation of a rank's slow steps (ratio), their share of all steps, and the first of them."""
        own = self._cusums[column]
        return own.ratio, own.events / (self._evaluated_steps - own.first + 1), own.onset_step

    def state_dict(self) -> "dict[str, NDArray[np.generic]]":
        """Return the counts and sums, arrays by name."""
        rows = [
            (
                *(column, own.onset_step, own.first, own.last, own.events, own.sum, own.ratio),
                *(self.alarms.get(column, -1), *itertools.chain(*own.slow), *[-1] * 2 * (_KEPT - len(own.slow))),
            )
            for column, own in self._cusums.items()
        ]
        table = np.array(rows, dtype=np.float64).reshape(-1, _COLUMNS)
        counts: dict[str, NDArray[np.generic]] = {"columns": self._counts.column_C, "counts": self._counts.count_C}
        recent = np.array(self._recent, dtype=np.int64).reshape(-1, 2)
        return {"cusums": table, "recent": recent, "evaluated_steps": np.array([self._evaluated_steps])} | counts

    def load_state_dict(self, state: "Mapping[str, NDArray[np.generic]]") -> None:
        """Restore the result of `state_dict`, if it fits."""
        if any(name not in state for name in ("cusums", "recent", "evaluated_steps", "columns", "counts")):
            return
        table, recent, evaluated_steps = state["cusums"], state["recent"], state["evaluated_steps"]
        column_C, count_C = state["columns"].astype(np.int32), state["counts"].astype(np.float32)
        is_fitting = column_C.shape == count_C.shape and bool(((column_C >= 0) & (column_C < self._ranks)).all())
        if (
            (table.shape[1:], recent.shape[1:]) != ((_COLUMNS,), (2,))
            or evaluated_steps.shape != (1,)
            or not is_fitting
        ):
            return
        self._evaluated_steps = int(evaluated_steps[0])
        self._counts.column_C, self._counts.count_C = column_C, count_C
        self._recent = deque(((step, column) for step, column in recent.tolist()), maxlen=_RECENT)
        rows: Iterable[tuple[float, ...]] = map(tuple, table.astype(np.float64).tolist())
        for column, onset_step, first, last, events, total, ratio, alarm, *slow in rows:
            if 0 <= column < self._ranks:
                own = _Cusum(int(onset_step), int(first), int(last), int(events), total, ratio)
                own.slow.extend(
                    (int(step), weight) for step, weight in zip(slow[::2], slow[1::2], strict=True) if step >= 0
                )
                self._cusums[int(column)] = own
                if alarm >= 0:
                    self.alarms[int(column)] = int(alarm)
