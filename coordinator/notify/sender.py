"""Sends notifications to one target, one at a time: a deadline per attempt, retries with backoff, a bounded queue.

Of a response, only the status and `Retry-After` are read. Redirects are refused, because the event is meant for the
configured address only. Logs contain neither URLs nor headers.
"""

import asyncio
import contextlib
import logging
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import aiohttp

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.metric import NOTIFICATION_OUTCOMES
from lockstep.serving.fault_isolation import FaultIsolation
from lockstep.serving.messaging import backoff_seconds

if TYPE_CHECKING:
    from coordinator.notify.notification import Notification
    from coordinator.notify.targets import NotificationTarget

_log = logging.getLogger(__name__)

SENT, FAILED, DROPPED = NOTIFICATION_OUTCOMES
QUEUE_MAX = 256
"""Largest number of notifications that wait for one target; an incident has at most three."""
TRY_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
GIVE_UP_S = 3600.0
"""Time after a stage was noticed at which sending is given up: an older notification is useless."""
_REDIRECT, _ERROR = 300, 500
_TRANSIENT = (408, 425, 429)
_RETRY_AFTER_CHARS = 9
_SEND = "notify"


class NotificationSender:
    """Sends to one target. `settle` records that a notification must not be sent again.

    `wait` sleeps before a retry, and returns early when the sender stops.
    """

    def __init__(
        self,
        target: "NotificationTarget",
        *,
        settle: "Callable[[Notification], Awaitable[None]]",
        now_s: Callable[[], float],
        wait: Callable[[float], Awaitable[None]] | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.target = target
        self.counts: Counter[str] = Counter(dict.fromkeys(NOTIFICATION_OUTCOMES, 0))
        self.isolation = FaultIsolation((_SEND,))
        self._settle = settle
        self._now_s = now_s
        self._wait = wait or self._wait_or_stop
        self._jitter = jitter
        self._queue: deque[Notification] = deque()
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()

    def offer(self, notification: "Notification") -> "Notification | None":
        """Queue a notification; if the queue is full, drop the oldest one and return it."""
        dropped = self._queue.popleft() if len(self._queue) >= QUEUE_MAX else None
        if dropped is not None:
            self.counts[DROPPED] += 1
            _log.warning("notification %s to %s: the queue is full, dropped", dropped.id, self.target.name)
        self._queue.append(notification)
        self._changed.set()
        return dropped

    def stop(self) -> None:
        """Stop after the attempt under way; unsent notifications are due again after a restart."""
        self._stopping.set()
        self._changed.set()

    async def run(self) -> None:
        """Send queued notifications until `stop`."""
        connector = aiohttp.TCPConnector(limit=1, force_close=True)
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        ) as session:
            while not self._stopping.is_set():
                if not self._queue:
                    self._changed.clear()
                    await self._changed.wait()
                    continue
                await self._deliver(session, self._queue.popleft())

    async def _deliver(self, session: aiohttp.ClientSession, notification: "Notification") -> None:
        """Retry until the notification is sent, refused or too old."""
        outcome, failures = "", 0
        while not outcome and not self._stopping.is_set():
            outcome, problem, least_s = FAILED, "a fault of ours", 0.0
            with self.isolation.guard(_SEND, notification.id, self._now_s()):
                outcome, problem, least_s = await self._try(session, notification)
            if outcome:
                break
            failures += 1
            wait_s = backoff_seconds(
                failures, self._jitter(), first_seconds=FIRST_WAIT_S, longest_seconds=LONGEST_WAIT_S
            )
            wait_s = max(wait_s, least_s)
            if self._now_s() + wait_s > notification.unix_s + GIVE_UP_S:
                outcome = FAILED
                break
            _log.info("notification %s to %s: %s, try %d", notification.id, self.target.name, problem, failures)
            await self._wait(wait_s)
        if not outcome:
            return
        self.counts[outcome] += 1
        if outcome == FAILED:
            _log.warning("notification %s to %s: %s, not sent", notification.id, self.target.name, problem)
        await self._settle(notification)

    async def _try(self, session: aiohttp.ClientSession, notification: "Notification") -> tuple[str, str, float]:
        """Return the outcome (empty if it must be retried), the problem, and the least seconds to wait."""
        try:
            async with asyncio.timeout(TRY_S):
                request = await asyncio.to_thread(self.target.request, notification, self._now_s())
                async with session.post(
                    request.url, data=request.body, headers=request.headers, allow_redirects=False
                ) as answer:
                    status, retry_after = answer.status, answer.headers.get("Retry-After", "")
                    answer.close()  # the body is not read, because it may be arbitrarily long
        except TimeoutError:
            return "", f"no answer within {TRY_S:g} s", 0.0
        except ConfigError as error:
            return "", str(error), 0.0
        except (aiohttp.ClientError, OSError) as error:  # the text may contain the URL
            return "", type(error).__name__, 0.0
        if status < _REDIRECT:
            return SENT, "", 0.0
        is_transient = status >= _ERROR or status in _TRANSIENT
        return "" if is_transient else FAILED, f"status {status}", _seconds(retry_after)

    async def _wait_or_stop(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


def _seconds(retry_after: str) -> float:
    """Return the seconds of a `Retry-After` header, at most `LONGEST_WAIT_S`; 0 for a date."""
    is_number = retry_after.isdecimal() and len(retry_after) <= _RETRY_AFTER_CHARS
    return min(float(retry_after), LONGEST_WAIT_S) if is_number else 0.0
