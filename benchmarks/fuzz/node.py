"""What an exporter shows of its rings, for areas that look at it."""

from benchmarks.fuzz import seeds
from exporter.counts import DeliveryStatus, ExporterCounters
from exporter.exposing.snapshot import NodeSnapshot, take_snapshot
from exporter.reading.rings import Rings

_DELIVERY = DeliveryStatus(
    connected=True,
    spool_bytes=0,
    spool_messages=0,
    spool_limit_bytes=1 << 20,
    published=0,
    resent=0,
    coordinators=1,
    acknowledged_unix_ns=seeds.UNIX_NS,
)


def node_snapshot(rings: Rings, counts: ExporterCounters, now_ns: int) -> NodeSnapshot:
    """Return the node as it is at `now_ns` (CLOCK_MONOTONIC)."""
    return take_snapshot(
        rings,
        counts,
        now_ns=now_ns,
        unix_ns=seeds.UNIX_NS,
        stale_ns=10**12,
        delivery=_DELIVERY,
        tick_duration_ns=0,
    )
