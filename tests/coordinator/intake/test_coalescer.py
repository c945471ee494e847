"""Batches wait for each other, but not for long and not without end."""

import asyncio

import pytest

from coordinator.intake import coalescer as module
from coordinator.intake.coalescer import COALESCED_RECORDS, BatchCoalescer
from coordinator.intake.streams import Receipt
from tests.coordinator.conftest import until
from tests.coordinator.scenarios import Scenario, generate

RECORDING = generate(Scenario(degrees="dp=8", steps=4))
RECEIPT = Receipt(1)


@pytest.fixture
def delivered():
    """Return what was delivered, one list for each time."""
    return []


async def test_what_came_together_is_delivered_together_and_in_order(delivered, monkeypatch):
    """Nothing is delivered at once; a moment later all of it is, and then nothing more."""
    monkeypatch.setattr(module, "COALESCE_S", 0.0)
    coalescer = BatchCoalescer(lambda batches, receipts: delivered.append(list(zip(batches, receipts, strict=True))))
    batches = [RECORDING.batch(step, step + 1) for step in range(3)]
    for batch in batches:
        coalescer.add(batch, RECEIPT)
    assert delivered == []
    task = asyncio.create_task(coalescer.run())
    await until(lambda: delivered)
    coalescer.add(RECORDING.batch(3, 4), RECEIPT)
    await until(lambda: len(delivered) == 2)
    assert delivered[0] == [(batch, RECEIPT) for batch in batches]
    assert delivered[1] == [(RECORDING.batch(3, 4), RECEIPT)]
    task.cancel()


async def test_enough_records_are_delivered_at_once(delivered):
    """What waits is bounded, whether batches are large or empty."""
    coalescer = BatchCoalescer(lambda batches, receipts: delivered.append(list(zip(batches, receipts, strict=True))))
    batch, empty = RECORDING.batch(0, 4), RECORDING.batch(0, 0)
    for _ in range(COALESCED_RECORDS // batch.count):
        coalescer.add(batch, RECEIPT)
    assert [len(batches) for batches in delivered] == [COALESCED_RECORDS // batch.count]
    for _ in range(COALESCED_RECORDS):
        coalescer.add(empty, RECEIPT)
    assert len(delivered) == 2


async def test_what_waits_can_be_delivered_now(delivered):
    """At the end, and before a message that must not overtake; nothing is delivered twice."""
    coalescer = BatchCoalescer(lambda batches, receipts: delivered.append(list(zip(batches, receipts, strict=True))))
    coalescer.add(RECORDING.batch(0, 1), RECEIPT)
    coalescer.flush()
    coalescer.flush()
    assert len(delivered) == 1
