"""A node's ranks and groups, the progress of each rank, and how it ended."""

from dataclasses import dataclass
from typing import Annotated

from lockstep.contracts.bounds import Count, Flags, Length, Name, OneOf, Range, Rank, StepIndex, UnixNs, WorldSize
from lockstep.contracts.facts import RankFacts
from lockstep.contracts.limits import GROUPS_PER_NODE_MAX, SPANS_PER_GROUP_MAX, WORLD_SIZE_MAX
from lockstep.contracts.ring import ISSUE_SLOTS

RUNNING, FINISHED, FAILED, GONE, UNWATCHED = "running", "finished", "failed", "gone", "unwatched"
RANK_STATES = (RUNNING, FINISHED, FAILED, GONE, UNWATCHED)
"""State of a rank's process: running; ended successfully; ended by an exception or with an exit code; ended by a signal
or for an unknown reason; running, but the agent disabled itself after a failure of its own."""

EXCEPTION, EXIT_CODE, SIGNAL, VANISHED = "exception", "exit_code", "signal", "vanished"
ENDINGS = (EXCEPTION, EXIT_CODE, SIGNAL, VANISHED)
"""How a process ended that did not end successfully; vanished: it no longer exists, and the kernel did not keep why."""

COLLECTIVE, SEND, RECEIVE = "collective", "send", "receive"
OPERATIONS = (COLLECTIVE, SEND, RECEIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueCount:
    """How often a rank has issued one operation in one group since its attempt began, and when it last did.

    `group` is the index of the group in the announcement's list; `peer` is the other rank of a send or receive, -1 for
    collectives.
    """

    group: Annotated[int, Range(0, GROUPS_PER_NODE_MAX - 1)]
    operation: Annotated[str, OneOf(OPERATIONS)]
    peer: Annotated[int, Range(-1, WORLD_SIZE_MAX - 1)]
    issued: Count
    last_unix_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """The progress of a rank that has long written no record: what its step records do not show yet.

    `last_step` is the last step that it has recorded, None for none. `flags` (`records.Flag`) are those of the running
    step so far. `is_alive` is whether its process exists, None if unknown. Times are from the node's clock, so those of
    ranks on different nodes are only comparable to its accuracy.
    """

    last_step: StepIndex | None
    flags: Flags
    issues: Annotated[list[IssueCount], Length(ISSUE_SLOTS)]
    is_alive: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnding:
    """How the process of a rank ended, if it did not end successfully.

    `code` is the exit code or the signal number, 0 for the other kinds. `exception` is the type of an exception and
    `frame` the innermost frame of the training's own code, "train.py(88): load"; the exception's message is left out,
    as it may hold data. `is_out_of_memory`: the kernel killed a process of its cgroup for lack of memory at that time.
    `is_orderly`: the exit code is the program's own, because Python ran its exit functions, which `os._exit` and a
    framework's kill skip. `unix_ns` is when the process itself recorded its end, otherwise when the exporter observed
    it. At `alive_unix_ns` (0: unknown) it was alive; that can be long before, if the node has no CPU time to spare.
    `last_step` is the last step in its ring, None if there is none.
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
"""[start, stop, step], as in `domains.pack_ranks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A process group that training created. `ranks` in range form (`domains.pack_ranks`)."""

    kind: Name
    name: Name
    ranks: Annotated[list[RankSpan], Length(SPANS_PER_GROUP_MAX)]
