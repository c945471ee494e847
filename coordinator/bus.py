"""The coordinator's side of MQTT: subscribe, decode, hand over; publish requests; come back when the broker does.

What comes from the bus is hostile until decoded: anything else is counted by reason, logged once in a while, dropped.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import aiomqtt

from lockstep.contracts import topics
from lockstep.contracts.codec import Message, decode_parsed, encode
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.limits import MESSAGE_MAX_BYTES
from lockstep.serving.broker import backoff_seconds, client_options, heed_cancellation

if TYPE_CHECKING:
    from coordinator.settings.config import CoordinatorConfig
    from lockstep.contracts.messages import ProfileRequest

_log = logging.getLogger(__name__)

CHANNELS = (topics.STEPS, topics.ANNOUNCE, topics.ANSWER, topics.SUMMARY, topics.ALIVE)
REJECTION_REASONS = ("topic", "version", "malformed")
_BACKOFF_FIRST_S = 0.2  # a broker that restarts is back within a second
_BACKOFF_MAX_S = 15.0  # one scrape interval: nobody sees less than that
_LOG_EVERY_S = 30.0
_QUEUE_MESSAGES = 1000  # waiting for the loop; the broker holds back what is not taken
_PUBLISH_TIMEOUT_S = 5.0
_CONNECT_TIMEOUT_S = 5.0
_PACKET_SPARE_BYTES = 64 << 10  # topic and properties beside the largest payload

OnMessage = Callable[[Message], None]


class BusCounts:
    """Messages by channel and refusals by reason; every known label is there from the start."""

    def __init__(self) -> None:
        self.received: Counter[str] = Counter(dict.fromkeys(CHANNELS, 0))
        self.rejected: Counter[str] = Counter(dict.fromkeys(REJECTION_REASONS, 0))


def take_payload(topic: str, payload: object, counts: BusCounts) -> Message | MalformedError:
    """Decode what arrived on `topic` and count it; what cannot be used comes back as its error."""
    try:
        parsed = topics.parse_topic(topic)
    except MalformedError as error:
        counts.rejected["topic"] += 1
        return error
    if parsed.channel in counts.received:
        counts.received[parsed.channel] += 1
    try:
        return decode_parsed(parsed, topic, payload if isinstance(payload, bytes) else b"")
    except ContractVersionError as error:
        counts.rejected["version"] += 1
        return error
    except MalformedError as error:
        counts.rejected["malformed"] += 1
        return error


class Bus:
    """One connection at a time. `on_message` is called on the event loop and must be quick.

    `connected` is set while subscribed.
    """

    def __init__(self, config: "CoordinatorConfig", on_message: OnMessage) -> None:
        self.counts = BusCounts()
        self.connected = asyncio.Event()
        self._config = config
        self._on_message = on_message
        self._client: aiomqtt.Client | None = None
        self._random = random.Random()  # noqa: S311  (spreads reconnections, guards nothing)
        self._logged_s = float("-inf")
        self._unlogged = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Stay connected until `stop` is set."""
        failures = 0
        while not stop.is_set():
            try:
                async with self._connect() as client:
                    failures = 0
                    await self._receive(client, stop)
            except (aiomqtt.MqttError, OSError) as error:
                self._log(f"broker {self._config.broker_host}:{self._config.broker_port}: {error}")
            finally:
                self.connected.clear()
                self._client = None
            heed_cancellation()
            failures += 1
            wait_s = backoff_seconds(
                failures, self._random.random(), first_seconds=_BACKOFF_FIRST_S, longest_seconds=_BACKOFF_MAX_S
            )
            await _wait(stop, wait_s)

    def reject(self, error: MalformedError) -> None:
        """Count a message that was well formed and still cannot be."""
        self.counts.rejected["malformed"] += 1
        self._log(f"message refused: {error}")

    async def publish_request(self, request: "ProfileRequest") -> None:
        """Publish a profile request, QoS 1.

        Raises
        ------
        aiomqtt.MqttError
            Not connected, or the broker did not acknowledge in time.
        """
        if self._client is None:
            raise aiomqtt.MqttError("not connected to the broker")
        topic = topics.run_topic(request.run, topics.REQUEST, request.node)
        await self._client.publish(topic, encode(request), qos=1, timeout=_PUBLISH_TIMEOUT_S)
        heed_cancellation()

    def _connect(self) -> aiomqtt.Client:
        return aiomqtt.Client(
            **client_options(self._config, packet_max_bytes=MESSAGE_MAX_BYTES + _PACKET_SPARE_BYTES),
            timeout=_CONNECT_TIMEOUT_S,
            max_queued_incoming_messages=_QUEUE_MESSAGES,
        )

    async def _receive(self, client: aiomqtt.Client, stop: asyncio.Event) -> None:
        self._client = client
        await client.subscribe([(topic, 1) for topic in topics.coordinator_filters()])
        heed_cancellation()
        self.connected.set()
        _log.info("connected to broker %s:%d", self._config.broker_host, self._config.broker_port)
        receiver = asyncio.create_task(self._hand_over(client), name="bus receiver")
        stopper = asyncio.create_task(stop.wait(), name="bus stopper")
        try:
            await asyncio.wait((receiver, stopper), return_when=asyncio.FIRST_COMPLETED)
            if receiver.done():
                receiver.result()
        finally:
            for task in (receiver, stopper):
                task.cancel()
            await asyncio.gather(receiver, stopper, return_exceptions=True)

    async def _hand_over(self, client: aiomqtt.Client) -> None:
        async for message in client.messages:
            taken = take_payload(str(message.topic), message.payload, self.counts)
            if isinstance(taken, MalformedError):
                self._log(f"message refused: {taken}")
            else:
                self._on_message(taken)

    def _log(self, text: str) -> None:
        """Log at most once in a while: whoever sends one bad message sends thousands."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s < _LOG_EVERY_S:
            self._unlogged += 1
            return
        _log.warning("%s%s", text, f" (and {self._unlogged} more like it)" if self._unlogged else "")
        self._logged_s, self._unlogged = now_s, 0


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
