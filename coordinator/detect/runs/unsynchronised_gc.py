# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Ranks that collect garbage at different times, so that in every step some rank holds up all others.

Pure. A step counts if its longest collection exceeds the mean rank's by a share of the step, so short collections in
every step do not count. The cost of such steps is attributed to every rank that collected in them: the rank with the
largest total would cost as much if all ranks collected together with it, and the rest is lost because they do not.
Collections that all ranks, or always the same ones, run together lose nothing this way, however long each takes: many
jobs call `gc.collect()` on all ranks after each step or every few. A rank that collects more than the others does not
count either: it is slow by itself (`slow_rank.py`).

Shapes: R ranks.
"""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.ranks.groups import mean_of
from coordinator.detect.state_dict import Learner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from coordinator.detect.state_dict import StateDict
    from coordinator.settings.policy import GcPolicy

_LOST_US_MAX = 20_000_000  # of one step: the sum of a hundred fits into 32 bits
_RANKS_NAMED = 64
_UPDATE_STEPS = 8  # between two evaluations, which cost ten times the pass over the ranks
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsynchronisedGc:
    """Unsynchronised collections: columns of the ranks concerned (at most 64), and their events within the window.

    `lost_seconds` per step is how long the longest collection of each step holds up the job; `saving_seconds` per step
    is the gain if all ranks collected in the same steps.
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
        """The values behind the evidence."""
        return {
            "events": self.events,
            "ranks": self.rank_count,
            "lost_seconds": self.lost_seconds,
            "lost_ratio": self.lost_ratio,
            "saving_seconds": self.saving_seconds,
        }


@dataclass(frozen=True, slots=True)
class _Event:
    """A step that collections held up by `lost_ns`; `ranks_bits` marks the ranks that ran one, `count` of them."""

    step: int
    lost_ns: int
    count: int
    ranks_bits: "NDArray[np.uint8]"


class UnsynchronisedGcTest(Learner):
    """State of the collections of one run of `rank_count` ranks; `policy` may be replaced while it runs."""

    LEARNT = ("_steps", "_durations")

    def __init__(self, rank_count: int, policy: "GcPolicy") -> None:
        self.policy = policy
        self._rank_count = rank_count
        self._events: deque[_Event] = deque()
        self._lost_us_R = np.zeros(0, dtype=np.int32)  # by `_events` of each rank, empty before them
        self._steps: deque[float] = deque()
        self._durations: deque[float] = deque()
        self._evaluated_steps = 0
        self.found: UnsynchronisedGc | None = None
        """The current result, None if there is none."""

    def step(
        self,
        gc_R: "NDArray[np.floating]",
        step_seconds: float,
        step: int,
        *,
        full_R: "NDArray[np.floating] | None" = None,
    ) -> None:
        """Add the collections of each rank in one undisturbed step, seconds, and the number of full ones.

        NaN is unknown; without counts, anything that takes long enough counts as a collection.
        """
        self._steps.append(step)
        self._durations.append(step_seconds)
        while len(self._steps) > self.policy.window_steps:
            self._steps.popleft()
            self._durations.popleft()
        while self._events and self._events[0].step < self._steps[0]:
            self._lost_us_R -= self._lost_by(self._events.popleft())
        new = self._event(gc_R, step_seconds, step, full_R)
        if new is not None:
            self._events.append(new)
            self._lost_us_R = self._lost_by(new) + (self._lost_us_R if len(self._lost_us_R) else 0)
        self._evaluated_steps += 1
        if self.found is None:
            self.found = self._evaluate() if new is not None else None
        elif new is None and self._is_over():
            self.found = None
            self._events.clear()  # the same collections must not raise it again
            self._lost_us_R[:] = 0
        elif self._evaluated_steps % _UPDATE_STEPS == 0:
            self.found = self._evaluate()

    def _event(
        self,
        gc_R: "NDArray[np.floating]",
        step_seconds: float,
        step: int,
        full_R: "NDArray[np.floating] | None",
    ) -> _Event | None:
        """Return the cost of a step's collections, None if it is too small to count."""
        least = self.policy.event_ratio * step_seconds
        longest = float(np.fmax.reduce(gc_R, initial=0))
        if longest <= least:  # then it does not exceed the mean by that much either
            return None
        mean = mean_of(gc_R)
        if longest - mean <= least:
            return None
        has_counts = full_R is not None and not np.isnan(full_R).all()
        collected_R = gc_R > (mean + least if has_counts else least)
        if full_R is not None:
            collected_R |= full_R >= 1
        bits = np.packbits(collected_R)
        return _Event(step, round((longest - mean) * _NS), int(np.count_nonzero(collected_R)), bits)

    def _lost_by(self, event: _Event) -> "NDArray[np.int32]":
        """Return the cost of an event for each rank that collected in its step, array of shape (R,), us."""
        lost_us = np.int32(min(event.lost_ns // 1000, _LOST_US_MAX))
        lost_us_R: NDArray[np.int32] = lost_us * np.unpackbits(event.ranks_bits, count=self._rank_count)
        return lost_us_R

    def _evaluate(self) -> UnsynchronisedGc | None:
        """Return the result of the events in the window, None if they do not amount to one."""
        policy, events = self.policy, self._events
        rank_count = int(np.count_nonzero(self._lost_us_R))
        if len(events) < policy.events_min or rank_count < min(policy.ranks_min, self._rank_count):
            return None
        lost_ns = sum(event.lost_ns for event in events)
        if lost_ns < policy.lost_share * sum(self._durations) * _NS:
            return None
        # Of a few events most are one rank's by chance now and then: a reported result needs better reasons to end.
        share = policy.one_rank_share if self.found is None else (1 + policy.one_rank_share) / 2
        most_ns = 1000 * int(self._lost_us_R.max())
        if most_ns > share * lost_ns:
            return None
        return self._describe(rank_count, lost_ns / _NS, (lost_ns - most_ns) / _NS)

    def _is_over(self) -> bool:
        """Whether no event has occurred for much longer than the usual gap."""
        steps = [event.step for event in self._events]
        if not steps:
            return True
        gap = (steps[-1] - steps[0]) / max(len(steps) - 2, 1)  # an upper bound for events by chance
        return self._steps[-1] - steps[-1] > max(self.policy.quiet_steps, self.policy.quiet_factor * gap)

    def _describe(self, rank_count: int, lost: float, saving: float) -> UnsynchronisedGc:
        onset, before = self._events[0].step, self.found
        since = max(sum(step >= onset for step in self._steps), 1)
        usual = float(np.median(self._durations))
        lost, saving = lost / since, saving / since
        events = sum(event.count for event in self._events)
        most_first = np.argsort(-self._lost_us_R, kind="stable")[: min(rank_count, _RANKS_NAMED)]
        return UnsynchronisedGc(
            onset_step=onset if before is None else before.onset_step,
            events=events,
            rank_count=rank_count,
            ranks=tuple(sorted(most_first.tolist())),
            lost_seconds=lost,
            saving_seconds=saving,
            lost_ratio=lost / usual if usual > 0 else 0.0,
            evidence=(
                f"{events} collections of garbage on {rank_count} ranks in {since} steps, not in the same steps",
                f"they hold up the job by {lost * 1e3:.1f} ms a step",
                f"collecting on all ranks in the same steps would save {saving * 1e3:.1f} ms of them",
            ),
        )

    def state_dict(self) -> "StateDict":
        """Return the learnt state, arrays by name."""
        figures: NDArray[np.int64] = np.array(
            [(event.step, event.lost_ns, event.count) for event in self._events], dtype=np.int64
        )
        bits = np.array([event.ranks_bits for event in self._events], dtype=np.uint8)
        return super().state_dict() | {"events": figures.reshape(-1, 3), "collected": bits}

    def load_state_dict(self, state: "Mapping[str, NDArray[np.generic]]") -> None:
        """Restore the result of `state_dict`; arrays that do not fit are ignored."""
        figures, bits = state.get("events"), state.get("collected")
        if figures is None or bits is None or len(figures) != len(bits) or figures.shape[1:] != (3,):
            return
        if len(bits) and bits.shape[1:] != np.packbits(np.zeros(self._rank_count, dtype=bool)).shape:
            return
        super().load_state_dict(state)
        rows = zip(*figures.astype(np.int64).T.tolist(), bits.astype(np.uint8), strict=True)
        self._events = deque(_Event(*row) for row in rows)
        self._lost_us_R[:] = 0
        for event in self._events:
            self._lost_us_R = self._lost_by(event) + (self._lost_us_R if len(self._lost_us_R) else 0)
