"""The boundary between a broker session and the service that handles its messages."""

import asyncio
import logging

from lockstep.serving.log_limit import LogLimit
from lockstep.serving.messaging import OnMessage


class MessageHandler:
    """Calls `on_message`, and logs its exceptions, once a minute, so that a bug in it does not end the session.

    A service counts failures itself, in the `FaultIsolation` inside its `on_message`; this is a second safety net, for
    clients without one. For one event loop, whose clock it reads.
    """

    def __init__(self, on_message: OnMessage) -> None:
        self._on_message = on_message
        self._clock_s = asyncio.get_running_loop().time
        self._log = LogLimit(logging.getLogger(__name__))

    def __call__(self, topic: str, payload: bytes) -> None:
        """Pass one message on; never raises an `Exception`."""
        try:
            self._on_message(topic, payload)
        except Exception as error:  # noqa: BLE001  (the boundary)
            self._log.warning("handler", self._clock_s(), f"handler failed on {topic}: {error!r}", error)
