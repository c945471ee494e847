"""When an exporter announces its runs and sends heartbeats, by the injected time."""

import time
from pathlib import Path

import pytest

from exporter.config import ExporterConfig
from exporter.runtime import Exporter
from lockstep.contracts import ring as layout
from lockstep.contracts.codec import decode
from lockstep.contracts.limits import ANNOUNCE_REFRESH_SECONDS
from lockstep.contracts.messages import NodeAlive, NodeAnnouncement
from tests.exporter.conftest import make_config, record

S = 10**9


class Station:
    """An exporter whose retained messages are collected instead of sent."""

    def __init__(self, config: ExporterConfig) -> None:
        self.exporter = Exporter(config)
        self.exporter._publisher.open()
        self.exporter._publisher.state = lambda topic, payload, **_: self.sent.append(decode(topic, payload))
        self.sent = []
        self.now_ns = time.monotonic_ns()

    def tick(self, seconds: float = 0.0) -> list:
        """Let time pass; return what a tick publishes."""
        self.now_ns += round(seconds * S)
        self.sent = []
        self.exporter.on_tick(self.now_ns)
        return [type(message) for message in self.sent]

    def of(self, form: type) -> list:
        return [message for message in self.sent if isinstance(message, form)]

    def close(self) -> None:
        self.exporter._rings.close()
        self.exporter._publisher.close()


@pytest.fixture
def station(root: Path, tmp_path: Path):
    station = Station(make_config(root, tmp_path, announce_seconds=10.0, scan_seconds=0.1))
    yield station
    station.close()


def test_an_unchanged_run_is_announced_once(station: Station, make_ring):
    """Then come heartbeats only, every ten seconds; after five minutes it is announced again."""
    ring = make_ring()
    assert station.tick() == [NodeAnnouncement, NodeAlive]
    step, announced_s = -1, []
    for second in range(1, 2 * int(ANNOUNCE_REFRESH_SECONDS) + 1):
        ring.write(record(step := step + 1))
        sent = station.tick(1.0)
        announced_s += [second] * sent.count(NodeAnnouncement)
        assert sent.count(NodeAlive) == (second % 10 == 0)
    assert announced_s == [ANNOUNCE_REFRESH_SECONDS, 2 * ANNOUNCE_REFRESH_SECONDS]


def test_a_change_is_announced_at_once(station: Station, make_ring):
    """A new rank and an end are; the next heartbeat is of the new list."""
    steps = make_ring(rank=0)
    station.tick()
    ring = make_ring(rank=1)
    assert station.tick(1.0) == [NodeAnnouncement]
    (announced,) = station.of(NodeAnnouncement)
    assert [info.rank for info in announced.ranks] == [0, 1]
    ring.state(layout.STATE_FINISHED)
    assert station.tick(1.0) == [NodeAnnouncement]
    (announced,) = station.of(NodeAnnouncement)
    steps.write(record(0))
    assert station.tick(9.0) == [NodeAlive]
    (heartbeat,) = station.of(NodeAlive)[0].runs
    assert (heartbeat.run, heartbeat.revision) == ("run-a", announced.revision)
    assert len(heartbeat.alive_unix_ns) == 2


def test_a_silent_run_reports_where_its_ranks_stand(station: Station, make_ring):
    """At once when it falls silent, then every ten seconds, for as long as that lasts."""
    ring = make_ring()
    ring.write(record(0))
    station.tick()
    assert station.tick(5.0) == []
    assert station.tick(0.5) == [NodeAnnouncement]
    assert station.of(NodeAnnouncement)[0].ranks[0].progress is not None
    assert station.tick(1.0) == []
    assert station.tick(4.0) == [NodeAnnouncement, NodeAlive]
    ring.write(record(1))
    assert station.tick(1.0) == [NodeAnnouncement]
    assert station.of(NodeAnnouncement)[0].ranks[0].progress is None
    assert NodeAnnouncement not in station.tick(4.0)


def test_a_run_that_vanished_has_no_heartbeat(station: Station, make_ring):
    """It is announced a last time; what is not announced yet has none either."""
    ring = make_ring()
    assert station.exporter._heartbeats() == []
    station.tick()
    assert len(station.exporter._heartbeats()) == 1
    ring.path.unlink()
    ring.path.parent.rmdir()
    assert NodeAnnouncement in station.tick(1.0)
    assert station.exporter._heartbeats() == []
