"""Commands that take the node of an incident out of scheduling, to copy, for Kubernetes and Slurm. Pure.

Lockstep runs none of them. A node is named by its exporter: in the chart this is the name of the Kubernetes node,
elsewhere that of the host. Names come from the bus. A name that is special to a shell, an option parser or Slurm's host
lists gets no command, and in addition every word is quoted.
"""

import re
import shlex
from typing import TYPE_CHECKING

from coordinator.detect.anomalies import CRASH, HANG, SLOW_LINK, SLOW_RANK
from lockstep.html.markup import Html, join, muted, tag

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.decide.incidents import Incident

NODES_MAX = 8
"""If there are more nodes, the fault is not in the nodes but in something they share."""
_OF_NODES = (SLOW_RANK, SLOW_LINK, HANG, CRASH)
_SCOPES = ("rank", "node")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


def node_commands(incident: "Incident", nodes: "Iterable[str]") -> tuple[tuple[str, str], ...]:
    """Return (scheduler, shell command) for each node; empty if no single node is to blame."""
    if incident.kind not in _OF_NODES or incident.scope not in _SCOPES:
        return ()
    named = [node for node in dict.fromkeys(nodes) if _NAME.fullmatch(node)]
    if len(named) > NODES_MAX:
        return ()
    reason = f"Reason=Lockstep incident {incident.id}"
    return tuple(
        (scheduler, shlex.join(words))
        for node in named
        for scheduler, words in (
            ("Kubernetes", ["kubectl", "cordon", node]),
            ("Slurm", ["scontrol", "update", f"NodeName={node}", "State=DRAIN", reason]),
        )
    )


def render_commands(commands: tuple[tuple[str, str], ...]) -> Html:
    """Return the commands as text to copy; empty if there are none."""
    if not commands:
        return Html()
    rows = [join((tag("dt", scheduler), tag("dd", tag("code", command)))) for scheduler, command in commands]
    return join(
        (
            tag("h4", "If the node is to blame, take it out of scheduling"),
            tag("dl", *rows),
            muted(
                "These commands stop nothing that runs there: restart the job from its last checkpoint on another "
                "node. ",
                tag("code", "kubectl uncordon"),
                " and ",
                tag("code", "State=RESUME"),
                " undo them.",
            ),
        )
    )
