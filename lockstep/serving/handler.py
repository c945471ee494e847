"""The boundary between a broker's session and the service that takes its messages."""

import asyncio
import logging

from lockstep.serving.log_limit import LogLimit
from lockstep.serving.messaging import OnMessage


class MessageHandler:
    """Calls `on_message`; a bug in it must not end the session, so what it raises is logged, once a minute.

    A service counts its failures itself, in the `FaultIsolation` inside its `on_message`: this is the net below it, for
    clients without one. For one event loop, whose clock it reads.
    """

    def __init__(self, on_message: OnMessage) -> None:
        self._on_message = on_message
        self._clock_s = asyncio.get_running_loop().time
        self._log = LogLimit(logging.getLogger(__name__))

    def __call__(self, topic: str, payload: bytes) -> None:
        """Pass one message on; never raise an `Exception`."""
        try:
            self._on_message(topic, payload)
        except Exception as error:  # noqa: BLE001  (the boundary)
            self._log.warning("handler", self._clock_s(), f"handler failed on {topic}: {error!r}", error)
