"""What is written together, and when."""

import asyncio
from types import SimpleNamespace

from coordinator.decide import events as ev
from coordinator.effects import Effects
from coordinator.intake.streams import SETTLED, Streams
from coordinator.leadership import Leadership
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from coordinator.state_writer import StateWriter
from coordinator.store import Store
from lockstep.contracts.delivery import FrameHeader
from lockstep.contracts.errors import MalformedError
from lockstep.serving.fault_isolation import outcomes_of
from tests.coordinator.conftest import START_UNIX_S, announce
from tests.coordinator.scenarios import Scenario, generate

NOW = START_UNIX_S + 10
FAULTY = generate(Scenario(degrees="dp=4", steps=60).with_fault("data", 2, seconds=0.2, begin=40))


class NoBus:
    """Acknowledges nothing."""

    def acknowledge(self):
        pass


def test_an_incident_is_written_with_what_was_settled_when_it_opened():
    """Whenever a write falls, the records that a run has evaluated are those that the ledger has settled.

    Otherwise a coordinator killed behind it would have evaluated what its nodes still hold, and may drop and count as lost.
    """
    runs = Runs(CoordinatorConfig(), Policy(), {}, lambda: 0.0)
    streams, store = Streams("c1", 1), Store("")
    bus = NoBus()
    writer = StateWriter(runs, bus, store, streams)
    effects = Effects(runs, bus, writer, lambda work, _: work.close(), lambda: NOW, leadership=Leadership("c1", 1))
    nodes = {"n0": (0, 1), "n1": (2, 3)}
    for node, ranks in nodes.items():
        streams.announce(node, 7)
        effects.perform(runs.take(announce(*ranks, node=node), NOW))
    writes = 0
    for step in range(60):
        for node, ranks in nodes.items():
            batch = FAULTY.batch(step, step + 1, ranks=ranks, node=node)
            _, receipt = streams.take(node, FrameHeader(7, step + 1, step + 1, batch.count))
            receipt.outcomes = {SETTLED: batch.count}
            receipt.hold()
            effects.perform(runs.take_batches([batch], NOW + step, [receipt]))
        assert asyncio.run(effects.writer.flush())
        memory = store.load_runs().get("job")
        if memory is not None:
            writes += 1
            _, ledger = store.load_streams()
            assert memory.evaluated.records == ledger[SETTLED]
    assert writes
    assert store.incidents()
    store.close()


def diagnosed_with(error, monkeypatch):
    """Return the evidence of a diagnosis that ends with `error`, and what was counted of it."""
    found = []
    runs = SimpleNamespace(feed=lambda _, event: found.append(event) or [])
    effects = Effects(runs, NoBus(), None, None, lambda: NOW, leadership=Leadership("c1", 1))

    def explained(**_):
        raise error

    monkeypatch.setattr("coordinator.effects.explain", explained)
    order = ev.Diagnose(
        cause_id="c",
        incident_id="job-1",
        request_id=1,
        diagnosis_id=1,
        cause="compute",
        scope="rank",
        suspects=(),
        peers=(),
        step_seconds=1.0,
        excess_seconds=0.1,
    )
    asyncio.run(effects._diagnose("job", order))
    return found[0].evidence, outcomes_of(effects.isolation)


def test_a_bug_in_a_diagnosis_is_counted_and_what_a_peer_sent_is_not(monkeypatch):
    """The incident has the reason in both cases; a bug goes into the metric of dropped inputs, with its traceback."""
    evidence, dropped = diagnosed_with(KeyError("calls"), monkeypatch)
    assert evidence == ("the diagnosis failed: 'calls'",)
    assert dropped == {"refused": 0, "failed": 1, "quarantined": 0}
    malformed = MalformedError("tree", where="summary", got=1, expected="2")
    evidence, dropped = diagnosed_with(malformed, monkeypatch)
    assert evidence == (f"the diagnosis failed: {malformed}",)
    assert dropped == {"refused": 0, "failed": 0, "quarantined": 0}
    evidence, _ = diagnosed_with(AssertionError(), monkeypatch)
    assert evidence == ("the diagnosis failed: AssertionError",)
