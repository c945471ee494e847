"""Counts refused announcements by reason, and logs them at a limited rate. No clock, and no I/O but the log."""

import logging
from collections import Counter

from lockstep.contracts.metrics import REFUSAL_REASONS

_log = logging.getLogger(__name__)

RANK_CLAIMED, GROUP, RUN, RUN_OF_NODE, NODE, DEGREES = REFUSAL_REASONS
LOG_SECONDS = 60.0


class Refusals:
    """Counts of refusals. `counts` holds every reason from the start and only grows."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(REFUSAL_REASONS, 0))
        self._logged: Counter[str] = Counter()
        self._latest: dict[str, str] = {}
        self._logged_s = float("-inf")

    def add(self, reason: str, detail: str) -> None:
        """Count one refusal; `detail` goes to the log and names what was refused, of whom and why."""
        self.counts[reason] += 1
        self._latest[reason] = detail

    def log(self, now_s: float) -> None:
        """Log the refusals since the last line, at most one line a minute: a bad node announces thousands of times."""
        if not self._latest or now_s - self._logged_s < LOG_SECONDS:
            return
        parts = [
            f"{self.counts[reason] - self._logged[reason]} for reason {reason}, most recently {detail}"
            for reason, detail in self._latest.items()
        ]
        _log.warning("announcements refused: %s", "; ".join(parts))
        self._logged, self._logged_s = self.counts.copy(), now_s
        self._latest.clear()
