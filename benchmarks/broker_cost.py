"""What a message costs a service that receives it: CPU time by message, handler and acknowledgement included.

20,000 messages of 1.5 KB at QoS 1, which a real mosquitto on loopback has waiting; a batch of a node is that large. The
subscription is made first, then reading stands still while another process publishes, so that the cost is that of full
buffers, as after a pause of the coordinator. Run with `python -m benchmarks.broker_cost [--messages 20000] [--peers]
[--json]`; `--peers` measures gmqtt and aiomqtt too, where they are installed. Budget: 25 us a message.
"""

import argparse
import asyncio
import contextlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from lockstep.serving.broker import BrokerConfig
from lockstep.serving.mqtt import MqttBroker
from tests.support.servers import Mosquitto

BUDGET_US = 25.0
PAYLOAD_BYTES = 1500
TOPIC = "lockstep/v1/run/job/steps/node"
FILTER = "lockstep/v1/run/+/steps/+"
PACKET_MAX_BYTES = 1 << 20
# The peers read as soon as they can, and mosquitto drops beyond its queue: all of them get the same broker.
MOSQUITTO = "max_queued_messages 0\nmax_inflight_messages 65534\n"
Publish = Callable[[], Awaitable[None]]


class Counter:
    """Counts messages, and takes the CPU time of this thread at the last one."""

    def __init__(self, messages: int) -> None:
        self.left = messages
        self.cpu_s = 0.0
        self.done = asyncio.Event()

    def __call__(self) -> None:
        """Count one."""
        self.left -= 1
        if not self.left:
            self.cpu_s = time.thread_time()
            self.done.set()


def publish_all(port: int, messages: int) -> None:
    """Publish them; the target of a process."""

    async def publish() -> None:
        broker = MqttBroker(BrokerConfig(broker_port=port))
        async with broker.connect(
            client_id="writer", on_message=lambda *_: None, packet_max_bytes=PACKET_MAX_BYTES
        ) as session:
            window = asyncio.Semaphore(64)

            async def one() -> None:
                async with window:
                    await session.publish(TOPIC, bytes(PAYLOAD_BYTES))

            await asyncio.gather(*(one() for _ in range(messages)))
            await session.close()

    asyncio.run(publish())


async def ours(port: int, counter: Counter, publish: Publish) -> float:
    """Return the CPU seconds of lockstep's own client."""
    broker = MqttBroker(BrokerConfig(broker_port=port))
    async with broker.connect(
        client_id="reader", on_message=lambda _topic, _payload: counter(), packet_max_bytes=PACKET_MAX_BYTES
    ) as session:
        await session.subscribe([FILTER])
        await publish()
        begin_s = time.thread_time()
        await counter.done.wait()
        await session.close()
    return counter.cpu_s - begin_s


async def with_gmqtt(port: int, counter: Counter, publish: Publish) -> float:
    """Return the CPU seconds of gmqtt."""
    import gmqtt  # noqa: PLC0415  # type: ignore[import-not-found]

    client = gmqtt.Client("reader", receive_maximum=65534)
    subscribed = asyncio.Event()

    def on_message(*_: Any) -> int:
        counter()
        return 0

    client.on_message = on_message
    client.on_subscribe = lambda *_: subscribed.set()
    await client.connect("127.0.0.1", port)
    client.subscribe(FILTER, qos=1)
    await subscribed.wait()
    await publish()
    begin_s = time.thread_time()
    await counter.done.wait()
    await client.disconnect()
    return counter.cpu_s - begin_s


async def with_aiomqtt(port: int, counter: Counter, publish: Publish) -> float:
    """Return the CPU seconds of aiomqtt on paho."""
    import aiomqtt  # noqa: PLC0415
    from paho.mqtt.packettypes import PacketTypes  # noqa: PLC0415
    from paho.mqtt.properties import Properties  # noqa: PLC0415

    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.ReceiveMaximum = 65534
    async with aiomqtt.Client(
        "127.0.0.1", port, identifier="reader", protocol=aiomqtt.ProtocolVersion.V5, properties=properties
    ) as client:
        await client.subscribe(FILTER, qos=1)
        await publish()
        begin_s = time.thread_time()
        async for _ in client.messages:
            counter()
            if counter.done.is_set():
                break
    return counter.cpu_s - begin_s


CLIENTS = {"lockstep": ours, "gmqtt": with_gmqtt, "aiomqtt": with_aiomqtt}


def measure(name: str, messages: int, directory: Path) -> float:
    """Return the CPU microseconds that a message costs with the client `name`."""
    server = Mosquitto(directory, MOSQUITTO)
    server.start()
    writer = multiprocessing.get_context("spawn").Process(target=publish_all, args=(server.port, messages))

    async def publish() -> None:
        writer.start()
        writer.join()  # stands still on purpose: see above

    async def run() -> float:
        return await CLIENTS[name](server.port, Counter(messages), publish)

    try:
        return asyncio.run(run()) / messages * 1e6
    finally:
        server.stop()


def main() -> int:
    """Measure and print; return 1 beyond the budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3, help="the best one counts")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    for name in CLIENTS if arguments.peers else ("lockstep",):
        if name != "lockstep" and importlib.util.find_spec(name) is None:
            print(f"{name:20} not installed", file=sys.stderr)
            continue
        rounds = []
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as directory:
                rounds.append(measure(name, arguments.messages, Path(directory)))
        version = ""
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(name)
        figures[f"{name} {version}".strip()] = min(rounds)
    if arguments.json:
        print(json.dumps({"us_per_message": figures, "budget_us": BUDGET_US}))
    else:
        for name, figure in figures.items():
            print(f"{name:20} {figure:7.1f} us of CPU a message")
    mine = next(iter(figures.values()))
    print(f"budget {BUDGET_US:g} us: {'kept' if mine <= BUDGET_US else 'MISSED'}", file=sys.stderr)
    return int(mine > BUDGET_US)


if __name__ == "__main__":
    sys.exit(main())
