"""What no one expects to be raised costs what it happened to, and is counted."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from exporter import runtime
from exporter.capturing.captures import Captures
from exporter.config import ExporterConfig
from exporter.runtime import Exporter
from lockstep.contracts import topics
from lockstep.contracts.codec import encode
from lockstep.contracts.messages import (
    Acknowledgement,
    CaptureRequest,
    StepBatch,
)
from lockstep.serving.fault_isolation import outcomes_of


@pytest.fixture
def clock_ns() -> Callable[[], int]:
    """Return the machine's clock: the exporters of this file read it, too."""
    return time.monotonic_ns


class SurpriseError(Exception):
    """What no one expects."""


def surprise(*_, **__):
    raise SurpriseError("surprise")


def dropped(exporter: Exporter) -> dict[str, int]:
    return outcomes_of(exporter._isolation, exporter._rings.isolation, exporter._publisher.isolation)


def test_a_surprise_in_a_request_costs_the_request(config: ExporterConfig, monkeypatch):
    """Three of a run in a row, and its requests are left alone for a minute; those of others are taken."""
    exporter = Exporter(config)
    request = CaptureRequest(run="run-a", node="node-1", request_id=1, ranks=[0], first_step=1, steps=1)
    with monkeypatch.context() as patch:
        patch.setattr(Captures, "admit", surprise)
        for _ in range(5):
            exporter._on_request(request)
    assert dropped(exporter) == {"refused": 0, "failed": 3, "quarantined": 2}
    sent = []
    monkeypatch.setattr(exporter._requests, "_on_answer", lambda run, *_: sent.append(run))
    exporter._on_request(request)
    exporter._on_request(replace(request, run="run-b"))
    assert sent == ["run-b"]


def test_a_surprise_in_an_acknowledgement_is_counted(config: ExporterConfig, monkeypatch):
    """The session goes on without it, and the next one is taken as always."""
    exporter = Exporter(config)
    publisher = exporter._publisher
    topic = topics.node_topic("node-1", topics.ACK)
    ours = {"node": "node-1", "coordinator": "c", "incarnation": 1}
    foreign = encode(Acknowledgement(**ours, stream_id=1, received=0, committed=0))
    with monkeypatch.context() as patch:
        patch.setattr(publisher, "_on_acknowledgement", surprise)
        for _ in range(4):
            publisher._receive(topic, foreign)
    assert dropped(exporter) == {"refused": 0, "failed": 4, "quarantined": 0}
    publisher._receive(topic, foreign)
    assert exporter.counts.rejected["acknowledgement"] == 1


def test_a_message_that_cannot_be_encoded_costs_its_records(config: ExporterConfig):
    """They are counted as lost, and the exporter goes on."""
    exporter = Exporter(config)
    batch = StepBatch(run="run-a", node="node-1", sent_unix_ns=1 << 64, count=0, layout="rank", records=b"")
    exporter._put(topics.STEPS, batch, 7)
    assert exporter.counts.lost["spool"] == 7
    assert dropped(exporter)["refused"] == 1


def test_a_surprise_in_one_run_leaves_the_others_announced(config: ExporterConfig, make_ring, monkeypatch):
    """Each run is announced by itself."""
    make_ring(run="run-a")
    make_ring(run="run-b")
    exporter = Exporter(config)
    exporter._rings.scan(0)
    announced = []
    monkeypatch.setattr(exporter._publisher, "state", lambda topic, *_, **__: announced.append(topic))
    original = runtime.announcement

    def raising(run, node):
        return surprise() if run.name == "run-a" else original(run, node)

    monkeypatch.setattr(runtime, "announcement", raising)
    exporter._announce(periodic=False, refresh=False)
    assert announced == [topics.run_topic("run-b", topics.ANNOUNCE, "node-1")]
    assert dropped(exporter)["failed"] == 1
    exporter._rings.close()
