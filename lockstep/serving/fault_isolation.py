"""The failure boundary of a service: an unexpected error in one message, run or ring ends only its own handling.

Input is checked where it is decoded, so no exception is expected after that. An exception that occurs anyway is a bug
of ours, and costs only the input concerned: it is counted, logged once a minute with what, where, got and expected, and
dropped. A key (a run, a ring) that fails repeatedly is quarantined for a while (a circuit breaker: M. Nygard, Release
It!, 2007), so that it costs no time and the gap shows in a metric rather than in the log.

This is the only place of a service that catches every exception; elsewhere, exceptions are caught by type.
"""

import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from lockstep.contracts.errors import PeerError
from lockstep.serving.log_limit import LogLimit

_log = logging.getLogger(__name__)

REFUSED, FAILED, QUARANTINED = "refused", "failed", "quarantined"
OUTCOMES = (REFUSED, FAILED, QUARANTINED)
"""Why an input was dropped: its content, a failure of ours, or earlier failures with the same key."""

_KEYS_MAX = 4096  # stored failures, 300 bytes each; the oldest are dropped first


@dataclass(slots=True)
class _Failing:
    """Consecutive failures of one key; `since_s` is when it was quarantined, None while it is admitted."""

    count: int = 0
    since_s: float | None = None


class FaultIsolation:
    """Catches the exceptions of handling one input, and quarantines keys that fail `failures_max` times in a row.

    Used as `if isolation.admits(...)`, then `with isolation.guard(...)`. A quarantine lasts `quarantine_s`, by default
    until the key is forgotten; the first failure after it begins another one. The caller passes the times, from any one
    clock. `dropped` counts by kind and outcome.
    """

    def __init__(self, kinds: tuple[str, ...], *, failures_max: int = 3, quarantine_s: float = math.inf) -> None:
        self.dropped: Counter[tuple[str, str]] = Counter({(kind, outcome): 0 for kind in kinds for outcome in OUTCOMES})
        self._failures_max = failures_max
        self._quarantine_s = quarantine_s
        self._failing: OrderedDict[tuple[str, str], _Failing] = OrderedDict()
        self._limit = LogLimit(_log)

    def admits(self, kind: str, key: str, now_s: float) -> bool:
        """Whether input of `key` is to be handled now; counts it as dropped if not."""
        if not self._failing or not self.is_quarantined(kind, key, now_s):
            return True
        self.dropped[kind, QUARANTINED] += 1
        return False

    def is_quarantined(self, kind: str, key: str, now_s: float) -> bool:
        """Whether `key` has recently failed too often."""
        failing = self._failing.get((kind, key))
        if failing is None or failing.since_s is None:
            return False
        return 0 <= now_s - failing.since_s < self._quarantine_s

    def quarantined(self, kind: str, now_s: float) -> Iterator[str]:
        """Yield the keys of `kind` that are quarantined now."""
        for of_kind, key in self._failing:
            if of_kind == kind and self.is_quarantined(kind, key, now_s):
                yield key

    def guard(self, kind: str, key: str, now_s: float) -> "Guard":
        """Return a context whose block may raise any `Exception`; the block ends there, and the caller continues."""
        return Guard(self, kind, key, now_s)

    def forget(self, kind: str, key: str) -> None:
        """Forget a key that is gone, or that identifies something else from now on."""
        self._failing.pop((kind, key), None)

    def succeed(self, kind: str, key: str) -> None:
        """End a row of failures."""
        if self._failing:
            self._failing.pop((kind, key), None)

    def fail(self, kind: str, key: str, now_s: float, error: Exception) -> None:
        """Count and log what a block raised; bad input of a peer is no failure of ours and causes no quarantine."""
        if isinstance(error, PeerError):
            self.dropped[kind, REFUSED] += 1
            self._limit.warning(f"{kind} {REFUSED}", now_s, f"{kind} {key}: {error}")
            return
        self.dropped[kind, FAILED] += 1
        text = f"{kind} {key}: got {type(error).__name__}: {error!s:.200}, expected no exception; it is dropped"
        self._limit.warning(f"{kind} {FAILED}", now_s, text, error)
        failing = self._failing.setdefault((kind, key), _Failing())
        self._failing.move_to_end((kind, key))
        failing.count += 1
        if failing.count >= self._failures_max:
            failing.since_s = now_s
            what = f"{kind} {key}: got {failing.count} failures in a row, expected less than {self._failures_max}"
            self._limit.warning(f"{kind} {QUARANTINED}", now_s, f"{what}; ignored for {self._quarantine_s:g} s")
        while len(self._failing) > _KEYS_MAX:
            self._failing.popitem(last=False)


class Guard:
    """The context of one block (`FaultIsolation.guard`); cancellation and process exit pass through it."""

    __slots__ = ("_isolation", "_key", "_kind", "_now_s")

    def __init__(self, isolation: FaultIsolation, kind: str, key: str, now_s: float) -> None:
        self._isolation, self._kind, self._key, self._now_s = isolation, kind, key, now_s

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        if error is None:
            self._isolation.succeed(self._kind, self._key)
        elif isinstance(error, Exception):
            self._isolation.fail(self._kind, self._key, self._now_s, error)
            return True
        return False


def outcomes_of(*isolations: FaultIsolation) -> dict[str, int]:
    """Return what `isolations` dropped, by outcome, over all kinds."""
    outcomes = dict.fromkeys(OUTCOMES, 0)
    for isolation in isolations:
        for (_, outcome), count in isolation.dropped.items():
            outcomes[outcome] += count
    return outcomes
