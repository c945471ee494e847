"""The boundary between a broker's session and the service that takes its messages."""

import asyncio
import logging

from lockstep.serving.messaging import OnMessage

_log = logging.getLogger(__name__)
_LOG_EVERY_S = 60.0  # a handler that fails on one message fails on thousands


class MessageHandler:
    """Calls `on_message`; logs what it raises, with the traceback, once a minute: a bug there must not end the session.

    For one event loop, whose clock it reads.
    """

    def __init__(self, on_message: OnMessage) -> None:
        self._on_message = on_message
        self._clock_s = asyncio.get_running_loop().time
        self._logged_s = float("-inf")
        self._unlogged = 0

    def __call__(self, topic: str, payload: bytes) -> None:
        """Pass one message on; never raise an `Exception`."""
        try:
            self._on_message(topic, payload)
        except Exception:  # noqa: BLE001  (the boundary)
            self._unlogged += 1
            now_s = self._clock_s()
            if now_s - self._logged_s >= _LOG_EVERY_S:
                _log.exception("handler failed on %d messages, the last on %s", self._unlogged, topic)
                self._logged_s, self._unlogged = now_s, 0
