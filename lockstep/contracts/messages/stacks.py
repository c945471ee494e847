"""Stacks of the ranks' processes: request and result."""

from dataclasses import dataclass, field
from typing import Annotated

from lockstep.contracts.bounds import MESSAGE_VERSION, Count, Length, Name, Range, Rank, Reason, UnixNs, Version
from lockstep.contracts.limits import (
    ISSUED_MAX,
    RANKS_PER_NODE_MAX,
    STACK_FILE_MAX_CHARS,
    STACK_FRAMES_MAX,
    STACK_FUNCTION_MAX_CHARS,
    STACK_THREADS_MAX,
)

StackFrame = tuple[
    Annotated[str, Length(STACK_FILE_MAX_CHARS)],
    Annotated[int, Range(0, (1 << 31) - 1)],
    Annotated[str, Length(STACK_FUNCTION_MAX_CHARS)],
]
"""The end of a source file's path, the line in it, 0 if unknown, and the function."""
_ShortText = Annotated[str, Length(64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRequest:
    """A request to one node for the stacks of some of its ranks, without stopping any process."""

    run: Name
    node: Name
    request_id: Count
    ranks: Annotated[list[Rank], Length(RANKS_PER_NODE_MAX)]
    term: Count = 0
    """The fencing token of the requesting coordinator (`CoordinatorAlive`)."""
    version: Version = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStack:
    """The Python frames of a thread, innermost first. C and C++ frames below the innermost one are not included."""

    is_training: bool
    frames: Annotated[list[StackFrame], Length(STACK_FRAMES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCollective:
    """A collective that a rank has issued, from its Flight Recorder (`lockstep/trace/flight_recorder.py`)."""

    group: _ShortText
    description: _ShortText
    sequence: Count
    operation: _ShortText
    tensors: _ShortText
    state: _ShortText


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStacks:
    """The stacks of one rank's process at one moment, the training thread's first.

    `reason` is why there are none. `omitted_frames` is how many frames of all threads did not fit the message's limit.
    `collectives` are the latest ones of each group in a dump of torch's Flight Recorder, empty without a dump.
    """

    run: Name
    node: Name
    rank: Rank
    request_id: Count
    unix_ns: UnixNs
    threads: Annotated[list[ThreadStack], Length(STACK_THREADS_MAX)]
    omitted_frames: Count = 0
    reason: Reason = ""
    collectives: Annotated[list[RecordedCollective], Length(ISSUED_MAX)] = field(default_factory=list)
    version: Version = MESSAGE_VERSION
