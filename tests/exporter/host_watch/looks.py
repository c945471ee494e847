"""Looks at rank 0 of a run, made by hand; times in seconds."""

from typing import Any

from exporter.host_watch.host_reading import HostReading, RankReading, Target
from exporter.host_watch.intervals import Interval
from exporter.host_watch.watch import HostSample
from tests.exporter.host_watch.conftest import S

KEY = ("run", 0)
TARGET = Target(run="run", rank=0, ring="/nowhere", pid=1)


def look(at_s: float, interval: Interval | None = None, cost_ns: int = 0, *, shown: bool = True) -> HostSample:
    reading = HostReading(
        at_ns=round(at_s * S),
        ranks={KEY: RankReading()} if shown else {},
        processes={},
        affinities={},
        busy_ns={},
        pressure_ns=5,
        load=1.5,
    )
    return HostSample(reading=reading, intervals={} if interval is None else {KEY: interval}, cost_ns=cost_ns)


def interval(begin_s: float, end_s: float, **values: Any) -> Interval:
    return Interval(begin_ns=round(begin_s * S), end_ns=round(end_s * S), **values)
