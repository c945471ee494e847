"""Dynamo's count of graphs as the agent reads it; real compilations are in tests/agent/frameworks."""

import sys
from collections import Counter, defaultdict
from types import ModuleType

import pytest

from lockstep.agent.hooks.compilation import counter

DYNAMO = "torch._dynamo.utils"


@pytest.fixture
def dynamo(monkeypatch):
    """Put a module with dynamo's counters, as empty as after its import, in dynamo's place."""
    module = ModuleType(DYNAMO)
    module.counters = defaultdict(Counter)
    monkeypatch.setitem(sys.modules, DYNAMO, module)
    return module


def test_without_dynamo_nothing_was_compiled(monkeypatch):
    """A process that never loaded dynamo has compiled 0 graphs, and asking does not load it."""
    monkeypatch.delitem(sys.modules, DYNAMO, raising=False)
    assert counter()() == 0
    assert DYNAMO not in sys.modules


def test_dynamo_that_arrives_late_is_counted(monkeypatch, dynamo):
    """The count begins whenever dynamo does, also when it is first met half imported."""
    monkeypatch.delitem(sys.modules, DYNAMO)
    count = counter()
    assert count() == 0
    monkeypatch.setitem(sys.modules, DYNAMO, ModuleType(DYNAMO))
    assert count() == 0
    monkeypatch.setitem(sys.modules, DYNAMO, dynamo)
    dynamo.counters["stats"]["unique_graphs"] += 2
    assert count() == 2


def test_asking_leaves_the_counters_alone(dynamo):
    """Dynamo's counters are the user's to print: reading adds no entry."""
    assert counter()() == 0
    assert dict(dynamo.counters) == {}


def test_count_survives_cleared_counters(dynamo):
    """Who clears dynamo's counters does not make the count fall."""
    count = counter()
    dynamo.counters["stats"]["unique_graphs"] += 3
    assert count() == 3
    dynamo.counters.clear()
    assert count() == 3
    dynamo.counters["stats"]["unique_graphs"] += 1
    assert count() == 4
