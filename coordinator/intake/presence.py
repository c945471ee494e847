"""Tracks which nodes are connected and since when, to decide whether their undelivered records are worth waiting for.

No clock and no I/O. A node that lost the broker, or whose exporter restarts, returns with everything that it spooled
meanwhile, so its ranks do not count as silent. While all nodes are disconnected, which is how an outage of the broker
looks to the coordinator, no rank is silent, however long the outage lasts.
"""

from typing import NamedTuple

from lockstep.contracts.limits import NODES_MAX


class _State(NamedTuple):
    is_alive: bool | None
    """None before the first heartbeat."""
    since_s: float


class NodePresence:
    """The connection state of each node, from heartbeats and last wills; at most `NODES_MAX` nodes."""

    def __init__(self) -> None:
        self._of_node: dict[str, _State] = {}
        self._away = 0  # nodes that are not connected

    @property
    def alive(self) -> set[str]:
        """Return the nodes whose exporter is connected."""
        return {node for node, state in self._of_node.items() if state.is_alive}

    def note_announcement(self, node: str, now_s: float) -> None:
        """Register a node at its first announcement, which precedes its first heartbeat."""
        if node not in self._of_node and len(self._of_node) < NODES_MAX:
            self._of_node[node] = _State(None, now_s)

    def note(self, node: str, now_s: float, *, is_alive: bool) -> None:
        """Note that a node is connected (a heartbeat) or disconnected as of `now_s`.

        A repeated heartbeat changes nothing.
        """
        known = self._of_node.get(node)
        if known is None and len(self._of_node) >= NODES_MAX:
            return
        if known is None or not (is_alive and known.is_alive):
            self._away += (not is_alive) - (known is not None and known.is_alive is False)
            self._of_node[node] = _State(is_alive, now_s)

    def may_deliver(self, node: str, now_s: float, *, grace_seconds: float, rejoin_seconds: float) -> bool:
        """Return whether a node may be about to deliver spooled records.

        True if it is disconnected and may still return, if it has just returned, or if all nodes are disconnected;
        false for an unknown node.
        """
        known = self._of_node.get(node)
        if known is None:
            return False
        if self._away == len(self._of_node):
            return True
        return now_s - known.since_s < (rejoin_seconds if known.is_alive is False else grace_seconds)
