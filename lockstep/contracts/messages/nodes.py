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

    `revision` grows with every change; heartbeats use it to refer to this list of ranks. An unchanged announcement is
    sent again after `limits.ANNOUNCE_REFRESH_SECONDS`.
    """

    run: Name
    node: Name
    ranks: Annotated[list[RankInfo], Length(RANKS_PER_NODE_MAX)]
    groups: Annotated[list[GroupInfo], Length(GROUPS_PER_NODE_MAX)]
    revision: Sequence = 0
    version: Version = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeartbeat:
    """When each rank of a run on one node was last known to be alive, in the order of the announcement `revision`.

    That is the current time if the rank's process exists, otherwise the agent's last sign of life. `memory` covers the
    ranks whose processes the node can read.
    """

    run: Name
    revision: Sequence
    alive_unix_ns: Annotated[list[UnixNs], Length(RANKS_PER_NODE_MAX)]
    memory: Annotated[list[RankMemory], Length(RANKS_PER_NODE_MAX)] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAlive:
    """Retained heartbeat of an exporter; the broker sends it with `alive` false as its last will.

    Prometheus scrapes it at `address`, host and port. `stream_id` identifies the stream of its spool (`delivery.py`);
    each coordinator answers with an `Acknowledgement` of its offsets in that stream. `runs` holds the heartbeats of its
    ranks; a run without one has nothing to report in this message. `term` is the highest of any request here
    (`CoordinatorAlive`): a leader with a lower term adopts a higher one.
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
    """A coordinator's offsets in a node's stream: the last sequence received, and the last one committed.

    `coordinator` is its name and `incarnation` its start time (unix ns): after a restart it may have received less than
    before. `resend` requests what follows `received` again, because a frame is missing. While `hold` is set, the node
    must send nothing, because the coordinator has no capacity for what follows `received`. Sequence 0 is before the
    first message. Beyond `received`, the node may have `window_messages` and `window_bytes` in flight, and always one
    message.
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

    Of the live coordinators, the leader requests captures. `term` grows with each change of leader, and nodes refuse
    requests of a term below the highest that they have seen (a fencing token). It is at least the unix time of the
    change in seconds, and at most `limits.TERM_AHEAD_SECONDS_MAX` more.
    """

    coordinator: Name
    alive: bool
    incarnation: UnixNs
    unix_ns: UnixNs
    term: Count = 0
    version: Version = MESSAGE_VERSION
