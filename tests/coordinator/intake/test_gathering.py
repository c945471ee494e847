"""Batches wait for each other, but not for long and not without end."""

import asyncio

import pytest

from coordinator.intake import gathering as module
from coordinator.intake.gathering import GATHER_RECORDS, Gathering
from tests.coordinator.conftest import until
from tests.coordinator.scenarios import Scenario, generate

RECORDING = generate(Scenario(degrees="dp=8", steps=4))


@pytest.fixture
def taken():
    """Return what was taken, one list for each time."""
    return []


async def test_what_came_together_is_taken_together_and_in_order(taken, monkeypatch):
    """Nothing is taken at once; a moment later all of it is, and then nothing more."""
    monkeypatch.setattr(module, "GATHER_S", 0.0)
    gathering = Gathering(taken.append)
    batches = [RECORDING.batch(step, step + 1) for step in range(3)]
    for batch in batches:
        gathering.add(batch)
    assert taken == []
    task = asyncio.create_task(gathering.keep_taking())
    await until(lambda: taken)
    gathering.add(RECORDING.batch(3, 4))
    await until(lambda: len(taken) == 2)
    assert taken[0] == batches
    assert [batch.sequence for batch in taken[1]] == [3]
    task.cancel()


async def test_enough_records_are_taken_at_once(taken):
    """What waits is bounded, whether batches are large or empty."""
    gathering = Gathering(taken.append)
    batch, empty = RECORDING.batch(0, 4), RECORDING.batch(0, 0)
    for _ in range(GATHER_RECORDS // batch.count):
        gathering.add(batch)
    assert [len(batches) for batches in taken] == [GATHER_RECORDS // batch.count]
    for _ in range(GATHER_RECORDS):
        gathering.add(empty)
    assert len(taken) == 2


async def test_what_waits_can_be_taken_now(taken):
    """At the end, and before a message that must not overtake; nothing is taken twice."""
    gathering = Gathering(taken.append)
    gathering.add(RECORDING.batch(0, 1))
    gathering.take()
    gathering.take()
    assert len(taken) == 1
