"""Sums timed operations by rank, communicator and operation, and counts who arrived last. Pure.

In one collective (communicator and sequence number) the rank whose kernel ran shortest arrived last: the kernels of the
others were running while they waited for it.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from exporter.host_watch.host_reading import Key
from exporter.inspector.domain_times import Membership
from exporter.inspector.lines import InspectedOperation
from lockstep.contracts.inspector_metrics import OTHER_OPERATION, PLACES_MAX

PENDING_MAX = 4096
"""Collectives for which some rank's line is still missing: seconds of a busy node."""
LAST_RATIO, LAST_MIN_NS = 0.2, 20_000
"""Least wait of the others, relative to the transfer and absolute: launches scatter by some microseconds."""
_NAME_MAX = 64
_SECONDS_PER_NS = 1e-9
MEMBERSHIPS_MAX = 64
"""Communicators of a rank that differ in size or in its place: at most twice as many as there are kinds of groups."""

Place = tuple[str, str]
"""Communicator (as in its label) and operation."""


@dataclass(slots=True)
class CollectiveTotals:
    """Sums over operations; `arrivals` counts those in which others waited for this rank, `arrival_wait_ns` in all."""

    count: int = 0
    time_ns: int = 0
    size_bytes: int = 0
    bus_bytes: float = 0.0
    arrivals: int = 0
    arrival_wait_ns: int = 0


InspectorView = Mapping[Place, CollectiveTotals]
OPERATION_VALUES: dict[str, Callable[[CollectiveTotals], float]] = {
    "lockstep_nccl_operations_total": lambda totals: totals.count,
    "lockstep_nccl_operation_time_seconds_total": lambda totals: totals.time_ns * _SECONDS_PER_NS,
    "lockstep_nccl_operation_bytes_total": lambda totals: totals.size_bytes,
    "lockstep_nccl_operation_bus_bytes_total": lambda totals: totals.bus_bytes,
    "lockstep_nccl_last_arrivals_total": lambda totals: totals.arrivals,
    "lockstep_nccl_last_arrival_wait_seconds_total": lambda totals: totals.arrival_wait_ns * _SECONDS_PER_NS,
}
"""By series name, in base units."""


class InspectorAccounts:
    """Sums of every rank. Bounded: places of a rank and incomplete collectives are evicted oldest first."""

    def __init__(self) -> None:
        self._totals: dict[Key, dict[Place, CollectiveTotals]] = {}
        self._time_ns: dict[Key, dict[Membership, int]] = {}
        self._pending: OrderedDict[tuple[str, str, str, int], dict[int, tuple[Key, int]]] = OrderedDict()

    def add(self, key: Key, one: InspectedOperation) -> None:
        """Count an operation for the rank `key`, whose process wrote the line."""
        place = self._place(key, one)
        totals = self._totals.setdefault(key, {}).setdefault(place, CollectiveTotals())
        totals.count += 1
        totals.time_ns += one.duration_ns
        totals.size_bytes += one.size_bytes
        totals.bus_bytes += one.bus_bytes or 0.0
        if one.is_collective:
            times_ns = self._time_ns.setdefault(key, {})
            membership = one.rank_count, one.communicator_rank
            if membership in times_ns or len(times_ns) < MEMBERSHIPS_MAX:
                times_ns[membership] = times_ns.get(membership, 0) + one.duration_ns
        if one.is_collective and one.operation != OTHER_OPERATION and one.rank_count > 1:
            self._arrive(key, one)

    def _place(self, key: Key, one: InspectedOperation) -> Place:
        known = self._totals.get(key, {})
        name = one.name if one.name not in ("", "unknown") and one.name.isprintable() else ""
        label = name[:_NAME_MAX] or f"{one.rank_count} ranks on {one.node_count} nodes"
        place = label, one.operation
        if place not in known and len(known) >= PLACES_MAX - 1:
            return OTHER_OPERATION, OTHER_OPERATION
        return place

    def _arrive(self, key: Key, one: InspectedOperation) -> None:
        name = key[0], one.communicator, one.operation, one.sequence
        seen = self._pending.setdefault(name, {})
        seen[one.communicator_rank] = key, one.duration_ns
        if len(seen) == one.rank_count:
            del self._pending[name]
            self._note_last(list(seen.values()), one)
        elif len(self._pending) > PENDING_MAX:
            self._pending.popitem(last=False)

    def _note_last(self, arrived: list[tuple[Key, int]], one: InspectedOperation) -> None:
        last, shortest_ns = min(arrived, key=lambda each: each[1])
        others_ns = [duration_ns for key, duration_ns in arrived if key != last]
        waited_ns = round(median(others_ns)) - shortest_ns if others_ns else 0
        if waited_ns < max(LAST_RATIO * shortest_ns, LAST_MIN_NS):
            return
        totals = self._totals[last].setdefault(self._place(last, one), CollectiveTotals())
        totals.arrivals += 1
        totals.arrival_wait_ns += waited_ns

    def forget_others(self, keys: set[Key]) -> None:
        """Forget ranks that are not among `keys`."""
        self._totals = {key: totals for key, totals in self._totals.items() if key in keys}
        self._time_ns = {key: times_ns for key, times_ns in self._time_ns.items() if key in keys}
        gone = [name for name, seen in self._pending.items() if any(key not in keys for key, _ in seen.values())]
        for name in gone:
            del self._pending[name]

    def times_ns(self) -> dict[Key, dict[Membership, int]]:
        """Return copies of the time in collectives, by run and rank, and by communicator size and place in it."""
        return {key: dict(times_ns) for key, times_ns in self._time_ns.items()}

    def views(self) -> dict[Key, InspectorView]:
        """Return copies of the sums, by run and rank."""
        return {key: {place: replace(each) for place, each in own.items()} for key, own in self._totals.items()}
