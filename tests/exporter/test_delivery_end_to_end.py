"""From rings to a coordinator through a real broker that is killed, drops, and has no subscriber."""

import asyncio
import contextlib
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.services import shipped_broker
from exporter.runtime import Exporter
from lockstep.contracts import topics
from lockstep.contracts.messages import StepBatch
from lockstep.serving import mqtt
from lockstep.serving.broker import BrokerConfig
from lockstep.serving.mqtt import MqttBroker
from tests.exporter.conftest import make_config, record, running, until
from tests.support.alert_loop import lockstep
from tests.support.batches import columns_of, ranks_of
from tests.support.mark_ring import MarkRing
from tests.support.model_coordinator import ModelCoordinator, coordinating
from tests.support.servers import Mosquitto, get_json, wait_ready

RANKS = 2

pytestmark = pytest.mark.servers


@dataclass
class Training:
    """Ranks that make steps for as long as the test lasts."""

    rings: list[MarkRing]
    steps: int = 0

    async def run(self) -> None:
        while True:
            for ring in self.rings:
                ring.write(record(self.steps))
            self.steps += 1
            await asyncio.sleep(0.01)

    async def go_on(self, steps: int) -> None:
        """Wait until so many more steps are made."""
        target = self.steps + steps
        await until(lambda: self.steps >= target, 60)


def steps_of(messages: list, rank: int) -> list[int]:
    found: list[int] = []
    for batch in messages:
        if isinstance(batch, StepBatch):
            found += columns_of(batch)["step"][ranks_of(batch) == rank].tolist()
    return found


async def test_every_record_arrives_once_and_in_order_whatever_the_broker_does(root, tmp_path, make_ring, monkeypatch):
    """No subscriber, a broker killed, a queue that drops, a coordinator killed, an exporter restarted: nothing is lost."""
    monkeypatch.setattr(mqtt, "RECEIVE_MAX", 2)  # else the broker never queues for a subscriber that is there
    broker = Mosquitto(tmp_path, "max_queued_messages 10\n")
    broker.start()
    model = ModelCoordinator()
    config = make_config(root, tmp_path, broker_port=broker.port)
    training = Training([make_ring(rank=rank, world_size=RANKS, block_count=1024) for rank in range(RANKS)])
    task = asyncio.create_task(training.run())
    try:
        async with running(Exporter(config)) as exporter:
            await until(lambda: exporter._publisher.connected)
            await training.go_on(100)  # without a subscriber
            async with coordinating(broker.port, model) as coordinator:
                await coordinator.until(lambda: len(steps_of([m for _, m in coordinator.messages], 0)) >= 100)
                broker.kill()
                await until(lambda: not exporter._publisher.connected)
                await training.go_on(100)
                broker.start()
                await until(lambda: exporter._publisher.connected)
                await training.go_on(20)
                coordinator.pause()  # its queue at the broker holds ten messages, and the window is 64
                published = exporter._publisher.status().published
                await until(lambda: exporter._publisher.status().published > published + 20)
                coordinator.resume()
                await until(lambda: exporter._publisher.status().resent > 0)
                await training.go_on(20)
            before = coordinator.messages
            await training.go_on(50)  # without a subscriber again
        model.commit()
        async with running(Exporter(config)) as exporter, coordinating(broker.port, model) as coordinator:
            await training.go_on(50)
            task.cancel()
            last = training.steps - 1
            for rank in range(RANKS):
                await coordinator.until(
                    lambda rank=rank: steps_of([m for _, m in coordinator.messages], rank)[-1:] == [last]
                )
            await until(lambda: exporter._publisher.spool.waiting_messages == 0)
            messages = [message for _, message in before + coordinator.messages]
            assert coordinator.lost_frames == []
            assert sum(exporter.counts.lost.values()) == 0
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        broker.stop()
    for rank in range(RANKS):
        assert steps_of(messages, rank) == list(range(training.steps))


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) << 10


async def ledger_of(url: str) -> dict[str, int]:
    """Return what has become of all records, by outcome."""
    shown = await asyncio.to_thread(get_json, f"{url}/api/v1/streams")
    return {outcome: records for outcome, records in shown["ledger"].items() if records}


async def flood(port: int, megabytes: int) -> None:
    """Publish messages of 1 MiB for all coordinators, as a node that was taken over may."""
    broker = MqttBroker(BrokerConfig(broker_host="127.0.0.1", broker_port=port))
    async with broker.connect(client_id="flood", on_message=lambda *_: None, packet_max_bytes=1 << 20) as session:
        topic, payload = topics.run_topic("flood", topics.STEPS, "flood"), bytes(1 << 20)
        for _ in range(0, megabytes, 16):
            await asyncio.gather(*(session.publish(topic, payload) for _ in range(16)))
        await session.close()


async def test_a_coordinator_that_stands_still_costs_the_broker_bounded_memory_and_no_record(root, tmp_path, make_ring):
    """Stopped while 640 MiB are published: the broker drops beyond its queue, and all that was dropped is delivered."""
    broker = shipped_broker(tmp_path)
    broker.start()
    training = Training([make_ring(rank=rank, world_size=RANKS, block_count=1024) for rank in range(RANKS)])
    task = asyncio.create_task(training.run())
    config = make_config(root, tmp_path, broker_port=broker.port)
    try:
        with lockstep(tmp_path, broker.port, "coordinator") as (coordinator, url, log):
            await asyncio.to_thread(wait_ready, f"{url}/-/ready", coordinator, log)
            async with running(Exporter(config)) as exporter:
                await until(lambda: exporter._publisher.status().coordinators, 60)
                coordinator.send_signal(signal.SIGSTOP)
                await flood(broker.port, 400)
                published = exporter._publisher.status().published
                await until(lambda: exporter._publisher.status().published > published + 3, 60)
                await flood(broker.port, 240)
                assert resident_bytes(broker.pid) < 400 << 20
                coordinator.send_signal(signal.SIGCONT)
                await until(lambda: exporter._publisher.status().resent > 0, 120)
                await training.go_on(50)
                task.cancel()
                expected = {"settled": RANKS * training.steps}
                async with asyncio.timeout(120):
                    while (ledger := await ledger_of(url)) != expected:
                        assert sum(ledger.values()) <= expected["settled"]
                await until(lambda: exporter._publisher.spool.waiting_messages == 0, 60)
                assert sum(exporter.counts.lost.values()) == 0
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        broker.stop()
