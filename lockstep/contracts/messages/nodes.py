"""What a node announces of its ranks, the heartbeats of exporters and coordinators, and acknowledgements."""

import re
from dataclasses import dataclass, field
from typing import Annotated

from lockstep.contracts.bounds import (
    MESSAGE_VERSION,
    Count,
    Length,
    Name,
    OneOf,
    Sequence,
    StreamId,
    UnixNs,
    Version,
)
from lockstep.contracts.delivery import WINDOW_BYTES_MAX, WINDOW_MESSAGES_MAX
from lockstep.contracts.limits import GROUPS_PER_NODE_MAX, RANKS_PER_NODE_MAX, RUNS_PER_NODE_MAX
from lockstep.contracts.memory_report import RankMemory
from lockstep.contracts.messages.ranks import GroupInfo, RankInfo

_SCHEMES = ("http", "https")
_ADDRESS_MAX_CHARS = 253 + 6  # a host name, a colon and a port
ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}")
"""Host and port as Prometheus takes a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnnouncement:
    """Retained: the ranks and groups of a run on one node, published when they change.

    `revision` grows with every change and names this list of ranks in heartbeats. An unchanged one goes out again after
    `limits.ANNOUNCE_REFRESH_SECONDS`.
    """

    run: Name
    node: Name
    ranks: Annotated[list[RankInfo], Length(RANKS_PER_NODE_MAX)]
    groups: Annotated[list[GroupInfo], Length(GROUPS_PER_NODE_MAX)]
    revision: Sequence = 0
    version: Version = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeartbeat:
    """When each rank of a run on one node was last known to live, in the order of the announcement `revision`.

    That is now where the rank's process exists, else the last sign of life that its agent gave. `memory` is of the
    ranks whose processes the node can read.
    """

    run: Name
    revision: Sequence
    alive_unix_ns: Annotated[list[UnixNs], Length(RANKS_PER_NODE_MAX)]
    memory: Annotated[list[RankMemory], Length(RANKS_PER_NODE_MAX)] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAlive:
    """Retained heartbeat of an exporter; the broker sends it with `alive` false as its last will.

    `address` is host and port at which Prometheus reaches it. `stream_id` names the stream of its spool
    (`delivery.py`): each coordinator answers with an `Acknowledgement` of where it stands in it. `runs` holds the
    heartbeats of its ranks; a run without one has none to report in this message. `term` is the highest that an order
    had here (`CoordinatorAlive`): a leader of a lower one takes another.
    """

    node: Name
    alive: bool
    unix_ns: UnixNs
    stream_id: StreamId
    address: Annotated[str, Length(_ADDRESS_MAX_CHARS)] = ""
    scheme: Annotated[str, OneOf(_SCHEMES)] = "http"
    runs: Annotated[list[RunHeartbeat], Length(RUNS_PER_NODE_MAX)] = field(default_factory=list)
    term: Count = 0
    version: Version = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """Where a coordinator stands in a node's stream: the last sequence received, and the last one committed.

    `coordinator` is its name and `incarnation` when it was started (unix ns): after a restart it may have received less
    than before. `resend` asks for what follows `received` again, because a frame is missing. While `hold` is set
    nothing is to be sent: what follows `received` has no room at the coordinator. 0 is the sequence before the first.
    The node may have `window_messages` and `window_bytes` under way beyond `received`, and always one message.
    """

    node: Name
    coordinator: Name
    incarnation: UnixNs
    stream_id: StreamId
    received: Sequence
    committed: Sequence
    resend: bool = False
    hold: bool = False
    window_messages: Count = WINDOW_MESSAGES_MAX
    window_bytes: Count = WINDOW_BYTES_MAX
    version: Version = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorAlive:
    """Retained heartbeat of a coordinator; the broker sends it with `alive` false as its last will.

    Of the coordinators that are alive the one that leads orders captures: `term` grows with each change of leader, and
    nodes refuse orders of a term below the highest that they have seen (a fencing number). It is at least the unix time
    of the change in seconds, and at most `limits.TERM_AHEAD_SECONDS_MAX` more.
    """

    coordinator: Name
    alive: bool
    incarnation: UnixNs
    unix_ns: UnixNs
    term: Count = 0
    version: Version = MESSAGE_VERSION
