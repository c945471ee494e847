"""Derives the condition `LockstepSlowDevice` of Kubernetes nodes from open incidents. Pure.

A node is named by its exporter; the chart sets this to the name of the Kubernetes node. The condition is `True` for a
slow rank, or several on one node, whose cause is in the machine. It is `False` for nodes with ranks of which none is
slow, so that a restarted coordinator withdraws the condition that an earlier one set.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from coordinator.detect.anomalies import SLOW_RANK

if TYPE_CHECKING:
    from coordinator.decide.incidents import Incident
    from coordinator.run import Run

CONDITION = "LockstepSlowDevice"
CONTENT_TYPE = "application/strategic-merge-patch+json"
MACHINE_CAUSES = ("compute", "off_cpu")
"""Causes in the machine: the device's own work, and contention for a core. Data, GC and host code belong to the
program."""
NODES_MAX = 8
"""If an incident has more nodes, the fault is not in the nodes but in something they share."""
_SCOPES = ("rank", "node")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # a DNS subdomain, as Kubernetes requires
_MESSAGE_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCondition:
    """The desired condition of one node."""

    is_slow: bool
    message: str

    def body(self, unix_s: float) -> bytes:
        """Return the patch of the node's status; conditions are merged by type, so others are unchanged."""
        now = datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": CONDITION,
            "status": "True" if self.is_slow else "False",
            "reason": "SlowRank" if self.is_slow else "NoSlowRank",
            "message": self.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        return json.dumps({"status": {"conditions": [condition]}}).encode()


NOT_SLOW = NodeCondition(is_slow=False, message="No rank on this node is slower than its peers.")


def path_of(node: str) -> str:
    """Return the API server's path of a node's status."""
    return f"/api/v1/nodes/{quote(node, safe='')}/status"


def wanted_conditions(runs: "Iterable[Run]") -> dict[str, NodeCondition]:
    """Return the condition of each node with ranks of these runs, except names that are invalid in Kubernetes."""
    wanted: dict[str, NodeCondition] = {}
    slow: dict[str, NodeCondition] = {}
    for run in runs:
        nodes = run.membership.nodes
        wanted |= dict.fromkeys((node for node in nodes.values() if _NAME.fullmatch(node)), NOT_SLOW)
        for incident in run.machine.tracker.incidents.values():
            slow |= _slow_nodes(incident, nodes)
    return wanted | {node: condition for node, condition in slow.items() if node in wanted}


def _slow_nodes(incident: "Incident", nodes: Mapping[int, str]) -> dict[str, NodeCondition]:
    if incident.kind != SLOW_RANK or incident.scope not in _SCOPES or incident.cause not in MACHINE_CAUSES:
        return {}
    named = {nodes[rank] for rank in incident.ranks if rank in nodes}
    if len(named) > NODES_MAX:
        return {}
    what = f"rank {incident.ranks[0]} is slower than its peers, {incident.cause}"
    message = f"Incident {incident.id} of run {incident.run}: {what}"
    return dict.fromkeys(named, NodeCondition(is_slow=True, message=message[:_MESSAGE_CHARS]))
