# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Ranks that collect garbage each at its own time: every step some rank holds all others.

Pure. One pass over the ranks a step, and no state per rank: the events of the last steps are kept, a few of each step.
A collection counts by what it takes longer than the mean rank's in the same step, so ranks that collect together, and
a collector that runs a little in every step, are none. A step in which every rank ran a full collection is in step
whatever each of them took: many jobs call `gc.collect()` everywhere after each step or every few. A rank that collects
alone, or in one step after the other, is slow by itself (`slow_rank.py`).

Shapes: R ranks.
"""

import math
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.keeping import keep, take_back

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from coordinator.settings.policy import GcPolicy

_EVENTS_KEPT = 2  # of one step, the longest: enough to see that they are on many ranks
_RANKS_NAMED = 64
_UPDATE_STEPS = 8  # between two looks at what has been found: it costs ten times the pass over the ranks
_COLUMNS = 3
_WINDOWS = ("_steps", "_durations", "_counts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatteredGc:
    """Collections out of step: the places of the ranks concerned (64 at most), their events within the window.

    `lost_seconds` a step is what the longest collection of each step holds up the job; `saving_seconds` a step is what
    would be gained if all ranks collected in the same steps.
    """

    onset_step: int
    events: int
    rank_count: int
    ranks: tuple[int, ...]
    lost_seconds: float
    saving_seconds: float
    lost_ratio: float
    evidence: tuple[str, ...]

    @property
    def numbers(self) -> dict[str, float]:
        """What the evidence was written from."""
        return {
            "events": self.events,
            "ranks": self.rank_count,
            "lost_seconds": self.lost_seconds,
            "lost_ratio": self.lost_ratio,
            "saving_seconds": self.saving_seconds,
        }


@dataclass(frozen=True, slots=True)
class _Event:
    step: int
    rank: int
    seconds: float


class ScatteredGcTest:
    """Memory of the collections of one run of `rank_count` ranks; `policy` may be replaced while it runs."""

    def __init__(self, rank_count: int, policy: "GcPolicy") -> None:
        self.policy = policy
        self._rank_count = rank_count
        self._events: deque[_Event] = deque()
        self._steps: deque[float] = deque()
        self._durations: deque[float] = deque()
        self._counts: deque[float] = deque()  # of events, all of a step's
        self._collecting = np.empty(0, dtype=np.intp)  # ranks that did in the step before
        self._judged = 0
        self.found: ScatteredGc | None = None
        """What holds now, None where nothing does."""

    def step(
        self,
        gc_R: "NDArray[np.floating]",
        step_seconds: float,
        step: int,
        *,
        full_R: "NDArray[np.floating] | None" = None,
    ) -> None:
        """Take what each rank collected in one undisturbed step, seconds, and how many full collections it ran.

        NaN is unknown; without counts, collections that all count by their length are in step.
        """
        policy = self.policy
        self._steps.append(step)
        self._durations.append(step_seconds)
        while len(self._steps) > policy.window_steps:
            self._steps.popleft()
            self._durations.popleft()
            self._counts.popleft()
        while self._events and self._events[0].step < self._steps[0]:
            self._events.popleft()
        new = self._collections(gc_R, step_seconds, step, full_R)
        self._events.extend(new)
        self._judged += 1
        if self.found is None:
            self.found = self._judge() if new else None
        elif not new and self._is_over():
            self.found = None
            self._events.clear()  # what is over must not begin again with the same collections
        elif self._judged % _UPDATE_STEPS == 0:
            self.found = self._judge()

    def _collections(
        self,
        gc_R: "NDArray[np.floating]",
        step_seconds: float,
        step: int,
        full_R: "NDArray[np.floating] | None",
    ) -> list[_Event]:
        """Return the longest collections out of step, none where too many ranks collect."""
        policy = self.policy
        before, self._collecting = self._collecting, self._collecting[:0]
        longest = float(np.fmax.reduce(gc_R, initial=0))
        if longest <= policy.event_ratio * step_seconds:  # then it is no longer than that beyond any mean either
            self._counts.append(0)
            return []
        if _are_in_step(gc_R, policy.event_ratio * step_seconds, full_R):
            self._counts.append(0)
            return []
        total, known = float(gc_R.sum(dtype=np.float64)), len(gc_R)
        if math.isnan(total):  # some rank is missing
            known -= int(np.count_nonzero(np.isnan(gc_R)))
            gc_R = np.nan_to_num(gc_R)
            total = float(gc_R.sum(dtype=np.float64))
        mean = total / max(known, 1)
        limit = mean + policy.event_ratio * step_seconds
        ranks = np.flatnonzero(gc_R > limit) if longest > limit else np.empty(0, dtype=np.intp)
        if len(ranks) > max(1, policy.together_share * self._rank_count):
            ranks = ranks[:0]
        self._collecting = ranks
        again = set(np.intersect1d(ranks, before, assume_unique=True).tolist()) if len(before) else set()
        if again:
            ranks = np.setdiff1d(ranks, before, assume_unique=True)
            last = self._steps[-2] if len(self._steps) > 1 else step
            self._events = deque(each for each in self._events if each.step != last or each.rank not in again)
        self._counts.append(len(ranks))
        if len(ranks) > _EVENTS_KEPT:
            ranks = ranks[np.argpartition(gc_R[ranks], -_EVENTS_KEPT)[-_EVENTS_KEPT:]]
        return [_Event(step, rank, float(gc_R[rank]) - mean) for rank in ranks.tolist()]

    def _judge(self) -> ScatteredGc | None:
        """Return what the events of the window amount to."""
        policy, events = self.policy, self._events
        longest: dict[int, float] = {}
        for event in events:
            longest[event.step] = max(longest.get(event.step, 0.0), event.seconds)
        if len(longest) < policy.events_min:
            return None
        count_of = Counter(event.rank for event in events)
        seconds_of = dict.fromkeys(count_of, 0.0)
        for event in events:
            seconds_of[event.rank] += event.seconds
        lost = sum(longest.values())
        if len(count_of) < min(policy.ranks_min, self._rank_count) or lost < policy.lost_share * sum(self._durations):
            return None
        # Of a few events most are one rank's by chance now and then: what has been told needs better reasons to end.
        share = policy.one_rank_share if self.found is None else (1 + policy.one_rank_share) / 2
        if max(count_of.values()) > share * len(events):
            return None
        # Collecting together would cost what the rank that collects most takes anyway.
        return self._describe(count_of, min(longest), lost, max(lost - max(seconds_of.values()), 0.0))

    def _is_over(self) -> bool:
        """Whether events have stayed away for much longer than they used to."""
        steps = sorted({event.step for event in self._events})
        if not steps:
            return True
        gap = (steps[-1] - steps[0]) / max(len(steps) - 2, 1)  # of events by chance, no less than it is
        return self._steps[-1] - steps[-1] > max(self.policy.quiet_steps, self.policy.quiet_factor * gap)

    def _describe(self, count_of: "Counter[int]", onset: int, lost: float, saving: float) -> ScatteredGc:
        since = max(sum(step >= onset for step in self._steps), 1)
        usual = float(np.median(self._durations))
        lost, saving = lost / since, saving / since
        of_step = zip(self._steps, self._counts, strict=False)
        events, before = int(sum(count for step, count in of_step if step >= onset)), self.found
        return ScatteredGc(
            onset_step=onset if before is None else before.onset_step,
            events=events,
            rank_count=len(count_of),
            ranks=tuple(sorted(rank for rank, _ in count_of.most_common(_RANKS_NAMED))),
            lost_seconds=lost,
            saving_seconds=saving,
            lost_ratio=lost / usual if usual > 0 else 0.0,
            evidence=(
                f"{events} collections of garbage on {len(count_of)} ranks in {since} steps, not in the same steps",
                f"they hold up the job by {lost * 1e3:.1f} ms a step",
                f"collecting on all ranks in the same steps would save {saving * 1e3:.1f} ms of them",
            ),
        )

    def memory(self) -> "dict[str, NDArray[np.generic]]":
        """Return what has been learnt, arrays by name."""
        events = np.array([(event.step, event.rank, event.seconds) for event in self._events])
        return keep(self, (), _WINDOWS) | {"events": events.reshape(-1, _COLUMNS)}

    def recall(self, memory: "Mapping[str, NDArray[np.generic]]") -> None:
        """Take back what `memory` gave; what does not fit is left alone."""
        events = memory.get("events")
        if events is None or events.shape[1:] != (_COLUMNS,):
            return
        take_back(self, memory, (), _WINDOWS)
        rows = events.astype(np.float64).tolist()
        self._events = deque(
            _Event(int(step), int(rank), seconds) for step, rank, seconds in rows if 0 <= rank < self._rank_count
        )


def _are_in_step(gc_R: "NDArray[np.floating]", least_seconds: float, full_R: "NDArray[np.floating] | None") -> bool:
    """Whether every rank that is known collected in this step: in full, or without counts for long enough to count."""
    if full_R is not None and not np.isnan(full_R).all():
        return bool(np.fmin.reduce(full_R) >= 1)
    return bool(np.fmin.reduce(gc_R) > least_seconds)
