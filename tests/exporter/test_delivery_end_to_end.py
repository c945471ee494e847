"""From rings to a coordinator through a real broker that is killed, drops, and has no subscriber."""

import asyncio
import contextlib
from dataclasses import dataclass

import pytest

from exporter.runtime import Exporter
from lockstep.contracts.messages import StepBatch
from lockstep.serving import mqtt
from tests.exporter.conftest import FakeRing, make_config, record, running, until
from tests.support.batches import columns_of, ranks_of
from tests.support.model_coordinator import ModelCoordinator, coordinating
from tests.support.servers import Mosquitto

RANKS = 2

pytestmark = pytest.mark.servers


@dataclass
class Training:
    """Ranks that make steps for as long as the test lasts."""

    rings: list[FakeRing]
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
    training = Training([make_ring(rank=rank, world_size=RANKS, slot_count=1024) for rank in range(RANKS)])
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
