"""Lists the exporters to scrape, for Prometheus' HTTP service discovery.

No clock and no I/O. An exporter that disappeared stays a target for a while: a failing scrape raises an alert, whereas
a target that vanishes raises none.
"""

from dataclasses import dataclass
from typing import Any

from coordinator.intake.refusals import NODE, Refusals
from lockstep.contracts.limits import HEARTBEAT_SECONDS_MAX, NODES_MAX
from lockstep.contracts.messages import ADDRESS, NodeAlive

GONE_KEPT_S = 3600.0
"""How long a disappeared exporter stays listed. Longer than any alert's `for`; then the node counts as
decommissioned."""
_SILENT_S = 6 * HEARTBEAT_SECONDS_MAX  # after this, a target gives way to a new node if the list is full
_SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class _Target:
    """`seen_s` is when it was last known to be alive: its last heartbeat, or the first report that it is gone."""

    address: str
    scheme: str
    is_alive: bool
    seen_s: float


class Targets:
    """The announced address of each exporter, by node; least recently seen first.

    There are at most `nodes_max`. At the limit, a new node that sends heartbeats replaces one that no longer does, so
    fake nodes cannot exclude a real one for long.
    """

    def __init__(self, refusals: Refusals | None = None, *, nodes_max: int = NODES_MAX) -> None:
        self._refusals = refusals or Refusals()
        self._nodes_max = nodes_max
        self._of_node: dict[str, _Target] = {}

    def receive(self, message: NodeAlive, now_s: float) -> None:
        """Apply a heartbeat or a last will.

        One without a valid address is ignored: Prometheus would reject the whole list.
        """
        is_target = message.alive and ADDRESS.fullmatch(message.address) is not None and message.scheme in _SCHEMES
        known = self._of_node.get(message.node)
        if known is None and (not is_target or not self._has_place(message.node, now_s)):
            return
        if is_target:
            self._place(message.node, _Target(message.address, message.scheme, is_alive=True, seen_s=now_s))
        elif known is not None and known.is_alive:
            self._place(message.node, _Target(known.address, known.scheme, is_alive=False, seen_s=now_s))

    def _place(self, node: str, target: _Target) -> None:
        """Store a target as the most recently seen one."""
        self._of_node.pop(node, None)
        self._of_node[node] = target

    def _has_place(self, node: str, now_s: float) -> bool:
        """Return whether another node fits.

        If the list is full, the least recently seen node is dropped, provided that it has been silent for `_SILENT_S`.
        """
        if len(self._of_node) < self._nodes_max:
            return True
        oldest = next(iter(self._of_node))
        if now_s - self._of_node[oldest].seen_s <= _SILENT_S:
            self._refusals.add(NODE, f"node {node}, {self._nodes_max} others send heartbeats")
            return False
        del self._of_node[oldest]
        return True

    def url_of(self, node: str) -> str | None:
        """Return the URL of a node's live exporter; None if there is none."""
        target = self._of_node.get(node)
        return f"{target.scheme}://{target.address}" if target is not None and target.is_alive else None

    def listed(self, now_s: float) -> list[dict[str, Any]]:
        """Return the list in Prometheus' format, ordered by node; drop nodes that were not seen for `GONE_KEPT_S`."""
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
