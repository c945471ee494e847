"""Dynamo's count of graphs as the agent reads it; real compilations are in tests/agent/frameworks."""

import sys
from collections import Counter, defaultdict
from types import ModuleType

import pytest

from lockstep.agent.hooks.compilation import compiled_graphs, counters
from lockstep.contracts.marks import MarkKind
from tests.agent.mark_buffers import WRITERS, Ring

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
    assert (counters(), compiled_graphs()) == (None, 0)
    assert DYNAMO not in sys.modules


def test_dynamo_that_arrives_late_is_found(monkeypatch, dynamo):
    """Its counters are there whenever dynamo is, not while it is imported."""
    monkeypatch.setitem(sys.modules, DYNAMO, ModuleType(DYNAMO))
    assert counters() is None
    monkeypatch.setitem(sys.modules, DYNAMO, dynamo)
    dynamo.counters["stats"]["unique_graphs"] += 2
    assert counters() is dynamo.counters
    assert compiled_graphs() == 2


def test_asking_leaves_the_counters_alone(dynamo):
    """Dynamo's counters are the user's to print: reading adds no entry."""
    assert compiled_graphs() == 0
    assert dict(dynamo.counters) == {}


@pytest.mark.parametrize("name", WRITERS)
def test_what_a_step_compiled_is_noted_before_its_end(tmp_path, dynamo, name):
    """A mark where the count has changed, and it never falls: who clears the counters is none the wiser."""
    ring = Ring(tmp_path, name)
    ring.buffer.compilations = counters()
    ring.buffer.begin()
    for change in (lambda: None, lambda: dynamo.counters["stats"].update(unique_graphs=3), dynamo.counters.clear):
        change()
        ring.buffer.step_end()
    dynamo.counters["stats"]["unique_graphs"] += 1
    ring.buffer.step_end()
    ring.buffer.step_end()
    ring.buffer.flush()
    ends = [mark.argument if mark.kind == MarkKind.COMPILED else None for mark in ring.marks()]
    assert ends == [None, 0, None, 3, None, None, 4, None, None]
    ring.close()


@pytest.mark.parametrize("name", WRITERS)
def test_counters_of_another_form_are_no_failure(tmp_path, name):
    """What another torch keeps under these names is not known here."""
    ring = Ring(tmp_path, name)
    ring.buffer.begin()
    for found in ({"stats": {"unique_graphs": "many"}}, {"stats": 3}, {}):
        ring.buffer.compilations = found
        ring.buffer.step_end()
    ring.close()
