"""Which exporters there are to scrape, for Prometheus' HTTP service discovery.

No clock and no I/O. An exporter that went away stays a target for a while: a scrape that fails is what alerts, and a
target that vanishes raises no alert.
"""

from dataclasses import dataclass
from typing import Any

from coordinator.intake.refusals import NODE, Refusals
from lockstep.contracts.limits import HEARTBEAT_SECONDS_MAX, NODES_MAX
from lockstep.contracts.messages import ADDRESS, NodeAlive

GONE_KEPT_S = 3600.0
"""Longer than any alert waits; a node that was taken out of the cluster is forgotten afterwards."""
_SILENT_S = 6 * HEARTBEAT_SECONDS_MAX  # after which a target gives way to another node, where there are too many
_SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class _Target:
    """`seen_s` is when it was last known to live: its last heartbeat, or the first word that it is gone."""

    address: str
    scheme: str
    is_alive: bool
    seen_s: float


class Targets:
    """What exporters announced of themselves, by node: those that were seen longest ago first.

    There are `NODES_MAX` at most. Where there are so many, a node that sends heartbeats takes the place of one that
    sends none any more, so that invented nodes keep no real one out for long.
    """

    def __init__(self, refusals: Refusals | None = None, *, nodes_max: int = NODES_MAX) -> None:
        self._refusals = refusals or Refusals()
        self._nodes_max = nodes_max
        self._of_node: dict[str, _Target] = {}

    def receive(self, message: NodeAlive, now_s: float) -> None:
        """Take a heartbeat or a last will. One without an address is left out: Prometheus refuses whole lists."""
        is_target = message.alive and ADDRESS.fullmatch(message.address) is not None and message.scheme in _SCHEMES
        known = self._of_node.get(message.node)
        if known is None and (not is_target or not self._has_place(message.node, now_s)):
            return
        if is_target:
            self._place(message.node, _Target(message.address, message.scheme, is_alive=True, seen_s=now_s))
        elif known is not None and known.is_alive:
            self._place(message.node, _Target(known.address, known.scheme, is_alive=False, seen_s=now_s))

    def _place(self, node: str, target: _Target) -> None:
        """Replace a target; it is now the one that was seen last."""
        self._of_node.pop(node, None)
        self._of_node[node] = target

    def _has_place(self, node: str, now_s: float) -> bool:
        """Whether there is a place for another node; who was seen longest ago gives up its own if that was long ago."""
        if len(self._of_node) < self._nodes_max:
            return True
        oldest = next(iter(self._of_node))
        if now_s - self._of_node[oldest].seen_s <= _SILENT_S:
            self._refusals.add(NODE, f"node {node}, {self._nodes_max} others send heartbeats")
            return False
        del self._of_node[oldest]
        return True

    def url_of(self, node: str) -> str | None:
        """Return the address of a node's exporter that lives, None where it is not known."""
        target = self._of_node.get(node)
        return f"{target.scheme}://{target.address}" if target is not None and target.is_alive else None

    def listed(self, now_s: float) -> list[dict[str, Any]]:
        """Return the list as Prometheus reads it, ordered by node; forgets nodes that were seen too long ago."""
        gone = [node for node, target in self._of_node.items() if now_s > target.seen_s + GONE_KEPT_S]
        for node in gone:
            del self._of_node[node]
        return [
            {
                "targets": [target.address],
                "labels": {
                    "__scheme__": target.scheme,
                    "__meta_lockstep_node": node,
                    "__meta_lockstep_alive": "true" if target.is_alive else "false",
                },
            }
            for node, target in sorted(self._of_node.items())
        ]
