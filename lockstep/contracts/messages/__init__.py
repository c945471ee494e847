"""Messages on the bus: plain frozen dataclasses, one module per subject. `codec.py` encodes and decodes them.

Every message carries `version`. The topic (`topics.py`) also contains the names of run and node, and a message whose
names differ from its topic's is refused. Wall-clock times are `_unix_ns`. Numbers, texts and lists declare their bounds
(`bounds.py`), which decoding enforces. Captures are in `contracts/capture.py`, because the agent reads them too.
"""

from lockstep.contracts.bounds import MESSAGE_VERSION
from lockstep.contracts.capture import CaptureRequest, CaptureResult
from lockstep.contracts.messages.nodes import (
    ADDRESS,
    Acknowledgement,
    CoordinatorAlive,
    NodeAlive,
    NodeAnnouncement,
    RunHeartbeat,
)
from lockstep.contracts.messages.ranks import (
    COLLECTIVE,
    ENDINGS,
    EXCEPTION,
    EXIT_CODE,
    FAILED,
    FINISHED,
    GONE,
    OPERATIONS,
    RANK_STATES,
    RECEIVE,
    RUNNING,
    SEND,
    SIGNAL,
    UNWATCHED,
    VANISHED,
    GroupInfo,
    IssueCount,
    RankEnding,
    RankInfo,
    RankProgress,
    RankSpan,
)
from lockstep.contracts.messages.stacks import RankStacks, RecordedCollective, StackFrame, StackRequest, ThreadStack
from lockstep.contracts.messages.steps import LAPPED, LOSS_REASONS, TORN, StepBatch
from lockstep.contracts.messages.summaries import (
    FUNCTION_CLASSES,
    CallNode,
    HostSpan,
    PatternCaller,
    PatternRow,
    PatternTable,
    TraceSummary,
)

__all__ = [
    "ADDRESS",
    "COLLECTIVE",
    "ENDINGS",
    "EXCEPTION",
    "EXIT_CODE",
    "FAILED",
    "FINISHED",
    "FUNCTION_CLASSES",
    "GONE",
    "LAPPED",
    "LOSS_REASONS",
    "MESSAGE_VERSION",
    "OPERATIONS",
    "RANK_STATES",
    "RECEIVE",
    "RUNNING",
    "SEND",
    "SIGNAL",
    "TORN",
    "UNWATCHED",
    "VANISHED",
    "Acknowledgement",
    "CallNode",
    "CaptureRequest",
    "CaptureResult",
    "CoordinatorAlive",
    "GroupInfo",
    "HostSpan",
    "IssueCount",
    "NodeAlive",
    "NodeAnnouncement",
    "PatternCaller",
    "PatternRow",
    "PatternTable",
    "RankEnding",
    "RankInfo",
    "RankProgress",
    "RankSpan",
    "RankStacks",
    "RecordedCollective",
    "RunHeartbeat",
    "StackFrame",
    "StackRequest",
    "StepBatch",
    "ThreadStack",
    "TraceSummary",
]
