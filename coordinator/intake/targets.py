"""Which exporters there are to scrape, for Prometheus' HTTP service discovery.

No clock and no I/O. An exporter that went away stays a target for a while: a scrape that fails is what tells that it is
down, and a target that vanishes tells nothing.
"""

from dataclasses import dataclass
from typing import Any

from lockstep.contracts.messages import ADDRESS, NodeAlive

GONE_KEPT_S = 3600.0
"""Longer than any alert waits; a node that was taken out of the cluster is forgotten afterwards."""
_NODES_MAX = 100_000
_SCHEMES = ("http", "https")


@dataclass(slots=True)
class _Target:
    address: str
    scheme: str
    gone_s: float | None


class Targets:
    """What exporters said of themselves, by node."""

    def __init__(self) -> None:
        self._of_node: dict[str, _Target] = {}

    def hear(self, message: NodeAlive, now_s: float) -> None:
        """Take a heartbeat or a last will. One without an address is left out: Prometheus refuses whole lists."""
        known = self._of_node.get(message.node)
        is_address = ADDRESS.fullmatch(message.address) is not None and message.scheme in _SCHEMES
        if message.alive and is_address:
            if known is not None or len(self._of_node) < _NODES_MAX:
                self._of_node[message.node] = _Target(message.address, message.scheme, None)
        elif known is not None:
            known.gone_s = now_s if known.gone_s is None else known.gone_s

    def listed(self, now_s: float) -> list[dict[str, Any]]:
        """Return the list as Prometheus reads it, ordered by node; forgets who is gone for long."""
        gone = [n for n, t in self._of_node.items() if t.gone_s is not None and now_s > t.gone_s + GONE_KEPT_S]
        for node in gone:
            del self._of_node[node]
        return [
            {
                "targets": [target.address],
                "labels": {
                    "__scheme__": target.scheme,
                    "__meta_lockstep_node": node,
                    "__meta_lockstep_alive": "false" if target.gone_s is not None else "true",
                },
            }
            for node, target in sorted(self._of_node.items())
        ]
