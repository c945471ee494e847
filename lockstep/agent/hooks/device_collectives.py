"""Collectives of tensors on a device, which both kinds of kernels mark while holding the interpreter lock."""

from typing import TYPE_CHECKING

from lockstep.agent.device.graphs import GRAPHS
from lockstep.contracts.bus_bytes import bus_bytes
from lockstep.contracts.marks import DETAIL_BITS, DOMAIN_MASK, DOMAIN_SHIFT, SYNCHRONOUS

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent


def issue_on_device(agent: "Agent", call_site: int, payload_bytes: int) -> int | None:
    """Mark a collective and return its ordinal, None if nothing is recorded; a graph under capture stores it."""
    ordinal = agent.marks.issue(call_site, payload_bytes)
    if GRAPHS.captures:
        operator, size = call_site & (SYNCHRONOUS - 1), call_site >> DETAIL_BITS
        domain = call_site >> DOMAIN_SHIFT & DOMAIN_MASK
        moved = bus_bytes(operator, payload_bytes, size)
        GRAPHS.dispatched(domain, payload_bytes, moved, agent.marks.thread)
    return ordinal


def complete_on_device(agent: "Agent", ordinal: int, *, in_order: bool) -> None:
    """Queue the event that shows when a collective has ended, if the device has a timeline.

    `in_order`: it runs on the current stream, behind earlier work there.
    """
    if agent.device is None:
        agent.marks.done_unknown(ordinal)
    else:
        agent.device.completed(ordinal, in_order=in_order)
