"""The message-broker interface that services use, over MQTT (`mqtt.py`) or within one process (`local_broker.py`).

No I/O here. A `Broker` opens one `Session` at a time for its caller, who decides when to reconnect (`backoff_seconds`):
reconnection has one owner.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from lockstep.contracts.errors import LockstepError
from lockstep.contracts.limits import ANNOUNCE_REFRESH_SECONDS

RETAINED_EXPIRY_SECONDS = 12 * int(ANNOUNCE_REFRESH_SECONDS)
"""An hour: the broker drops a retained message that was not renewed for this long.

Each publisher renews its own at least every five minutes. A run that is no longer announced expires after an hour.
"""

OnMessage = Callable[[str, bytes], None]
"""Receives topic and payload on the event loop; must be quick and never raise.

The message is acknowledged when it returns.
"""


class BrokerError(LockstepError):
    """The broker cannot be reached, refused the session, or the session ended; the session's owner reconnects."""


class PublishRefusedError(BrokerError):
    """The broker refused one message; the session continues.

    `is_permanent`: it would refuse the same message again (topic name invalid, packet too large, payload format
    invalid), so resending is useless.
    """

    def __init__(self, topic: str, reason: str, *, is_permanent: bool) -> None:
        super().__init__(f"message on {topic}: refused by the broker: {reason}")
        self.reason = reason
        self.is_permanent = is_permanent


@dataclass(frozen=True, slots=True, kw_only=True)
class Will:
    """A retained message that the broker publishes if the session ends without `Session.close` (QoS 1).

    It expires like any retained message.
    """

    topic: str
    payload: bytes


class Session(Protocol):
    """One connection; every method raises `BrokerError` once it has ended. For one event loop."""

    async def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe at QoS 1; returns when the broker has granted all of them.

        Raises
        ------
        BrokerError
            One of them was refused, or the session ended.
        """

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish at QoS 1 and wait for the broker's acknowledgement; first wait for a slot in its receive maximum.

        A retained message expires after `RETAINED_EXPIRY_SECONDS` unless it is published again.

        Raises
        ------
        PublishRefusedError
            The broker refused it.
        BrokerError
            The session ended; whether the broker has the message is unknown.
        """

    def send(self, topic: str, payload: bytes) -> bool:
        """Publish at QoS 0 without waiting; return false, and send nothing, while the connection's buffer is full."""

    async def wait_closed(self) -> None:
        """Wait until the session ends.

        Raises
        ------
        BrokerError
            Always, with the reason.
        """

    async def close(self) -> None:
        """End the session in order: published messages are sent, and the broker does not publish the will."""


class Broker(Protocol):
    """Opens sessions."""

    @property
    def address(self) -> str:
        """Where it is, for logs."""

    def connect(
        self, *, client_id: str, on_message: OnMessage, packet_max_bytes: int, will: Will | None = None
    ) -> AbstractAsyncContextManager[Session]:
        """Connect with a clean session.

        Leaving the context without `close` breaks the connection, and the broker publishes the will. The broker
        withholds packets of more than `packet_max_bytes`, so that they are never allocated here.

        Raises
        ------
        BrokerError
            The broker cannot be reached or refused the session.
        """


def backoff_seconds(failures: int, jitter: float, *, first_seconds: float, longest_seconds: float) -> float:
    """Return the wait after `failures` failed connections in a row (1 or more).

    It doubles each time up to `longest_seconds`. `jitter` (0 to 1) places it between half and all of that, so that a
    thousand nodes do not reconnect at the same instant.
    """
    longest = min(longest_seconds, first_seconds * 2.0 ** min(max(failures, 1) - 1, 16))
    return longest * (0.5 + 0.5 * jitter)
