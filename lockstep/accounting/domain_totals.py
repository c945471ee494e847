"""Totals of a step's collectives, by domain."""

from lockstep.accounting.events import IN_FLIGHT, UNKNOWN_NS, StepEvents
from lockstep.contracts.records import DOMAIN_KINDS, MISSING


class DomainTotals:
    """Totals as lists by domain; `shortest_ns` is MISSING if the end of no collective is known.

    `unknown` are the domains with a collective whose end will never be known, `in_flight` those with a collective whose
    end was not noted.
    """

    __slots__ = ("bus_bytes", "count", "in_flight", "payload_bytes", "shortest_ns", "unknown")

    def __init__(self) -> None:
        self.count = [0] * len(DOMAIN_KINDS)
        self.payload_bytes = [0] * len(DOMAIN_KINDS)
        self.bus_bytes = [0] * len(DOMAIN_KINDS)
        self.shortest_ns = [MISSING] * len(DOMAIN_KINDS)
        self.unknown: set[int] = set()
        self.in_flight: set[int] = set()

    def add(self, domain: int, count: int, payload_bytes: int, bus_bytes: int) -> None:
        """Add collectives."""
        self.count[domain] += count
        self.payload_bytes[domain] += payload_bytes
        self.bus_bytes[domain] += bus_bytes


def total(events: StepEvents) -> DomainTotals:
    """Return the totals of the dispatched collectives."""
    totals = DomainTotals()
    count, payload, bus, shortest = totals.count, totals.payload_bytes, totals.bus_bytes, totals.shortest_ns
    for collective in (*events.collectives, *events.aside):
        domain, payload_bytes, bus_bytes, _ = collective.traffic
        count[domain] += 1
        payload[domain] += payload_bytes
        bus[domain] += bus_bytes
        if collective.done_ns > IN_FLIGHT:
            took = collective.done_ns - collective.issue_ns
            if took < shortest[domain] or shortest[domain] == MISSING:
                shortest[domain] = took
        elif collective.done_ns == UNKNOWN_NS:
            totals.unknown.add(domain)
        else:
            totals.in_flight.add(domain)
    return totals
