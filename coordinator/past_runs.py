"""The stored state of runs that are no longer followed, and the rule by which they are followed again.

No clock and no I/O. Run names are external input, so past runs are bounded by number and age. Runs that never made a
step are dropped first, so that invented names do not displace real runs.
"""

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from coordinator.decide.saved_run import SavedRun
    from lockstep.contracts.messages import NodeAnnouncement

PAST_RUNS_MAX = 4096
"""16 times the number of followed runs; 1 to 3 KB each, in memory and on disk."""
PAST_RUN_KEPT_S = 30 * 86_400.0
"""Longer than a job's pause over the holidays; a name that returns later is a different job."""
_AGED_EVERY_S = 3600.0
_RUNNING = "running"


class _Past(NamedTuple):
    """`memory` is None if there is no state; `attempt` is the latest attempt of a run that has ended here."""

    memory: "SavedRun | None"
    attempt: int | None
    last_sign_s: float


class PastRuns:
    """Past runs by name. `memories` are those of an earlier coordinator, including runs that are followed."""

    def __init__(self, memories: "Mapping[str, SavedRun]") -> None:
        self._of_run = {run: _Past(memory, None, memory.last_sign_s) for run, memory in memories.items()}
        self._aged_s = float("-inf")

    def memory(self, run: str) -> "SavedRun | None":
        """Return the stored state of a run, if any."""
        past = self._of_run.get(run)
        return past.memory if past else None

    def add(self, run: str, memory: "SavedRun", *, attempt: int | None = None) -> None:
        """Add the state of a dropped run, with its latest `attempt` if it has ended."""
        if memory.is_blank and attempt is None:
            return
        self._of_run.pop(run, None)
        self._of_run[run] = _Past(None if memory.is_blank else memory, attempt, memory.last_sign_s)

    def is_news(self, announcement: "NodeAnnouncement") -> bool:
        """Whether an announcement should begin a run; false for a run that has ended and none of whose ranks continues.

        A rank continues if it has a newer attempt, or if it runs and is not reported as stalled.
        """
        past = self._of_run.get(announcement.run)
        if past is None or past.attempt is None:
            return True
        return any(
            info.attempt > past.attempt or (info.state == _RUNNING and info.progress is None)
            for info in announcement.ranks
        )

    def trim(self, now_s: float, followed: Container[str]) -> list[str]:
        """Drop past runs that are too old or too many; return their names.

        Runs that are `followed` keep their state.
        """
        is_aging = not 0 <= now_s - self._aged_s < _AGED_EVERY_S
        if not is_aging and len(self._of_run) <= PAST_RUNS_MAX:
            return []
        self._aged_s = now_s
        past = {run: each for run, each in self._of_run.items() if run not in followed}
        dropped = [run for run, each in past.items() if now_s - each.last_sign_s > PAST_RUN_KEPT_S]
        for run in dropped:
            del past[run]
        order = sorted(past, key=lambda run: (_made_steps(past[run]), past[run].last_sign_s))
        dropped += order[: max(0, len(past) - PAST_RUNS_MAX)]
        for run in dropped:
            del self._of_run[run]
        return dropped


def _made_steps(past: _Past) -> bool:
    return past.memory is not None and past.memory.evaluated.records > 0
