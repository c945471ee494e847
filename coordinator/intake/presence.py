"""Which nodes are connected, and since when: what a node that is not has still to deliver is worth waiting for.

No clock and no I/O. A node that lost the broker, or whose exporter is restarted, comes back with all that it has
spooled meanwhile. Its ranks are no silent ranks. While all nodes are away, which is how an outage of the broker looks
from here, no rank is silent, however long that takes.
"""

from typing import NamedTuple

from lockstep.contracts.limits import NODES_MAX


class _State(NamedTuple):
    is_alive: bool | None
    """None before the first heartbeat."""
    since_s: float


class NodePresence:
    """The state of each node by heartbeats and last wills, `NODES_MAX` of them at most."""

    def __init__(self) -> None:
        self._of_node: dict[str, _State] = {}
        self._away = 0  # nodes that are not connected

    @property
    def alive(self) -> set[str]:
        """Nodes whose exporter is connected."""
        return {node for node, state in self._of_node.items() if state.is_alive}

    def note_announcement(self, node: str, now_s: float) -> None:
        """Note a node by its first announcement; its heartbeat follows."""
        if node not in self._of_node and len(self._of_node) < NODES_MAX:
            self._of_node[node] = _State(None, now_s)

    def note(self, node: str, now_s: float, *, is_alive: bool) -> None:
        """Note a heartbeat, which is news only if the node was away, or that it is away, from now on."""
        known = self._of_node.get(node)
        if known is None and len(self._of_node) >= NODES_MAX:
            return
        if known is None or not (is_alive and known.is_alive):
            self._away += (not is_alive) - (known is not None and known.is_alive is False)
            self._of_node[node] = _State(is_alive, now_s)

    def may_deliver(self, node: str, now_s: float, *, grace_seconds: float, rejoin_seconds: float) -> bool:
        """Whether a node may be about to deliver what it spooled.

        It is away and may return, it has just returned, or every node is away. Of an unknown node nothing is expected.
        """
        known = self._of_node.get(node)
        if known is None:
            return False
        if self._away == len(self._of_node):
            return True
        return now_s - known.since_s < (rejoin_seconds if known.is_alive is False else grace_seconds)
