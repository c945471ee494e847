"""Which ranks are slow again and again for single steps, far more often than the others.

Pure. A sum forgets a step that stands alone, as it must: ranks stall. What repeats is counted: of each rank, the steps
far beyond noise, with an exponential memory, against the rate of ranks that have half as many of them at most, and a
rate that healthy hosts have. The count is a Poisson figure, and is judged by its log likelihood ratio (the Chernoff
bound of its tail) against the steps between false pages of the whole run.

A rank that is slow every so many steps, exactly, writes checkpoints or logs: that is no fault.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.error_budget import steps_between

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from coordinator.settings.policy import ExcessPolicy

_MEMORY_STEPS = 256
_DECAY = 1 - 1 / _MEMORY_STEPS
_USUAL_RATE = 1e-4  # of steps: the stalls of noisy hosts, ten times those of quiet ones
_LOOKS = 0.02  # of steps, at which a count may pass: it does so where it rises, and ranks that are healthy seldom have
# a step that makes it rise (usual rate x count / expected count: 0.005 in 8 ranks, 0.018 in 1,024)
_UNSEEN = 0.5  # of a slow step among all others, that chance has kept from them
_PEERS_MIN_SHARE = 0.3  # of the ranks, to compare with: as of a reference, up to 70 % may be at fault
_QUIET_STEPS = 128  # without such a step, after which it is over: where 1 in 20 is slow, chance leaves 1 in 700 so long
_GAPS = 8
_GAPS_MIN = 3  # of equal length, that make a period
_PERIOD_MIN = 10  # steps: no one writes checkpoints more often
_PERIOD_JITTER = 0.05
_COLUMNS = 6  # of a rank's figures in what is remembered
_FORGOTTEN = 0.05  # of a step: a count that has faded to this is none


@dataclass(slots=True)
class _Count:
    """Of one rank: its slow steps, faded since `last`, and when the first of them was; steps are judged ones."""

    count: float = 0.0
    last: int = 0
    onset_step: int = -1
    ratio: float = 0.0
    gaps: "deque[int]" = field(default_factory=lambda: deque(maxlen=_GAPS))

    def faded(self, judged: int) -> float:
        """Return what is left of the count."""
        return float(self.count * _DECAY ** (judged - self.last))

    @property
    def is_periodic(self) -> bool:
        """Whether it comes every so many steps, or a multiple where one was not seen."""
        gaps = list(self.gaps)
        period = min(gaps, default=0)
        if len(gaps) < _GAPS_MIN or period < _PERIOD_MIN:
            return False
        slack = max(1, round(_PERIOD_JITTER * period))
        return all(abs(gap - round(gap / period) * period) <= slack for gap in gaps)


class IntermittentTest:
    """Memory of the slow steps of `ranks` ranks, as many entries as there are ranks with such steps."""

    def __init__(self, ranks: int, policy: "ExcessPolicy") -> None:
        self.policy = policy
        self._ranks = ranks
        self._judged = 0
        self._counts: dict[int, _Count] = {}
        self._sorted: NDArray[np.float64] | None = None  # of the last step, once asked for: counts, ascending
        self.acting: set[int] = set()
        """Columns in alarm that were slow in the last step."""
        self.alarms: dict[int, int] = {}
        """Columns in alarm, with the judged step at which each was slow last."""

    def step(self, far: "Mapping[int, float]", step: int) -> None:
        """Take the ranks far beyond noise in one step, and how far: excess by column."""
        self._judged += 1
        self._sorted = None
        for column, ratio in far.items():
            self._take(column, ratio, step)
        self.acting = set(self.alarms).intersection(far)
        self.alarms |= dict.fromkeys(self.acting, self._judged)
        self._end()

    def _take(self, column: int, ratio: float, step: int) -> None:
        own = self._counts.setdefault(column, _Count())
        gap = self._judged - own.last
        faded = own.faded(self._judged) if own.count else 0.0
        is_new = gap > 1 or not own.count  # steps in a row are one event, which the sums judge
        if faded < _FORGOTTEN:
            own.onset_step, own.ratio = step, ratio
            own.gaps.clear()
        elif is_new:
            own.gaps.append(gap)
        own.count, own.last = faded + is_new, self._judged
        own.ratio += (ratio - own.ratio) / max(own.count, 1.0)
        if self._is_more(own) and not own.is_periodic:
            self.alarms[column] = self._judged

    def _is_more(self, own: _Count) -> bool:
        """Whether a rank has more slow steps than the others' rate explains."""
        usual = _USUAL_RATE * min(self._judged, _MEMORY_STEPS) + _UNSEEN / max(self._ranks - 1, 1)
        limit = math.log(self._ranks * _LOOKS * steps_between("intermittent", self.policy.false_page_steps))
        if _evidence(own.count, usual) <= limit:
            return False
        if self._sorted is None:
            self._sorted = np.sort([each.faded(self._judged) for each in self._counts.values()])
        fewer = int(self._sorted.searchsorted(own.count / 2))
        peers = self._ranks - len(self._sorted) + fewer
        if peers < _PEERS_MIN_SHARE * self._ranks:
            return False
        return _evidence(own.count, usual + float(self._sorted[:fewer].sum()) / peers) > limit

    def _end(self) -> None:
        """Forget alarms that are over, and ranks whose last slow step is long ago."""
        over = [column for column, last in self.alarms.items() if self._judged - last > _QUIET_STEPS]
        for column in over:
            del self.alarms[column], self._counts[column]
        if self._judged % _MEMORY_STEPS == 0:
            self._counts = {
                column: own
                for column, own in self._counts.items()
                if column in self.alarms or own.faded(self._judged) >= _FORGOTTEN
            }

    def of(self, column: int) -> tuple[float, float, int]:
        """Return the mean excess of a rank's slow steps (ratio), the share of steps that are, and the first of them."""
        own = self._counts[column]
        filled = _MEMORY_STEPS * (1 - _DECAY**self._judged)
        return own.ratio, own.faded(self._judged) / filled, own.onset_step

    def memory(self) -> "dict[str, NDArray[np.generic]]":
        """Return what was counted, arrays by name."""
        rows = [
            (column, own.count, own.last, own.onset_step, own.ratio, self.alarms.get(column, -1))
            for column, own in self._counts.items()
        ]
        table = np.array(rows, dtype=np.float64).reshape(-1, _COLUMNS)
        return {"counts": table, "judged": np.array([self._judged])}

    def recall(self, memory: "Mapping[str, NDArray[np.generic]]") -> None:
        """Take back what `memory` gave, if it fits; what is periodic is learnt again."""
        table, judged = memory.get("counts"), memory.get("judged")
        if table is None or judged is None or table.shape[1:] != (_COLUMNS,) or judged.shape != (1,):
            return
        rows: Iterable[tuple[float, ...]] = map(tuple, table.astype(np.float64).tolist())
        self._judged = int(judged[0])
        for column, count, last, onset_step, ratio, alarm in rows:
            if 0 <= column < self._ranks:
                self._counts[int(column)] = _Count(count, int(last), int(onset_step), ratio)
                if alarm >= 0:
                    self.alarms[int(column)] = int(alarm)


def _evidence(count: float, expected: float) -> float:
    """Return how much more likely a count is at its own rate than at the expected one, natural logarithm."""
    return count * math.log(count / expected) - count + expected if count > expected else 0.0
