"""What ranks and groups a node has, how far each rank is, and how it ended."""

from dataclasses import dataclass
from typing import Annotated

from lockstep.contracts.bounds import Count, Flags, Length, Name, OneOf, Range, Rank, StepIndex, UnixNs, WorldSize
from lockstep.contracts.facts import RankFacts
from lockstep.contracts.limits import GROUPS_PER_NODE_MAX, SPANS_PER_GROUP_MAX, WORLD_SIZE_MAX
from lockstep.contracts.ring import ISSUE_SLOTS

RUNNING, FINISHED, FAILED, GONE, UNWATCHED = "running", "finished", "failed", "gone", "unwatched"
RANK_STATES = (RUNNING, FINISHED, FAILED, GONE, UNWATCHED)
"""Of a rank's process: it runs; it ended well; it ended by an exception or with an exit code; it ended by a signal, or
no one knows how; it runs, and the agent took itself out after a failure of its own."""

EXCEPTION, EXIT_CODE, SIGNAL, VANISHED = "exception", "exit_code", "signal", "vanished"
ENDINGS = (EXCEPTION, EXIT_CODE, SIGNAL, VANISHED)
"""What ended a process that did not end well; vanished: it is not there any more, and the kernel did not keep why."""

COLLECTIVE, SEND, RECEIVE = "collective", "send", "receive"
OPERATIONS = (COLLECTIVE, SEND, RECEIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueCount:
    """How often a rank has issued one operation in one group since its attempt began, and when it last did.

    `group` is the place of the group in the announcement's list; `peer` the other rank of a send or receive, -1 for
    collectives.
    """

    group: Annotated[int, Range(0, GROUPS_PER_NODE_MAX - 1)]
    operation: Annotated[str, OneOf(OPERATIONS)]
    peer: Annotated[int, Range(-1, WORLD_SIZE_MAX - 1)]
    issued: Count
    last_unix_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """Where a rank stands that has written no record for long: what its step records do not show yet.

    `last_step` is the last step that it has recorded, None for none. `flags` (`records.Flag`) are what is known of the
    running step. `is_alive` is whether its process exists, None where that is unknown. Clocks are the node's:
    times of ranks on different nodes are comparable to its accuracy only.
    """

    last_step: StepIndex | None
    flags: Flags
    issues: Annotated[list[IssueCount], Length(ISSUE_SLOTS)]
    is_alive: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnding:
    """How the process of a rank ended that did not end well.

    `code` is the exit code or the number of the signal, 0 for the other kinds. `exception` is the type of an exception
    and `frame` the innermost frame of the training's own code, "train.py(88): load"; no message, which may hold data.
    `is_out_of_memory`: the kernel killed a process of its cgroup for want of memory just then. `is_orderly`: the exit
    code is the program's own, since Python ran its exit functions, which `os._exit` and a framework's kill leave out.
    `unix_ns` is when the process itself noted its end, else when the exporter saw it. At `alive_unix_ns` (0: not known)
    it lived, long before that where the node has no processor time to spare. `last_step` is the last step that its ring
    holds, None where it holds none.
    """

    unix_ns: UnixNs
    kind: Annotated[str, OneOf(ENDINGS)]
    code: Annotated[int, Range(0, 255)] = 0
    exception: Name = ""
    frame: Name = ""
    is_out_of_memory: bool = False
    is_orderly: bool = False
    alive_unix_ns: UnixNs = 0
    last_step: StepIndex | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """One rank of a node. `attempt` distinguishes incarnations; `state` is one of RANK_STATES.

    `ending` is None unless the state is failed or gone. `facts` is None until the rank has written them, after its
    first step; `progress` is None unless no rank of the run on this node makes steps.
    """

    rank: Rank
    local_rank: Rank
    world_size: WorldSize
    hostname: Name
    attempt: UnixNs
    state: Annotated[str, OneOf(RANK_STATES)]
    heartbeat_unix_ns: UnixNs
    facts: RankFacts | None = None
    progress: RankProgress | None = None
    ending: RankEnding | None = None


RankSpan = Annotated[list[Annotated[int, Range(0, WORLD_SIZE_MAX)]], Length(3, least=3)]
"""[start, stop, step], as `domains.pack_ranks` makes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A process group that training created. `ranks` in range form (`domains.pack_ranks`)."""

    kind: Name
    name: Name
    ranks: Annotated[list[RankSpan], Length(SPANS_PER_GROUP_MAX)]
