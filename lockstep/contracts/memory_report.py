"""The memory of a node's ranks, as reported with heartbeats (`messages.RunHeartbeat`)."""

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from lockstep.contracts.bounds import Count, Length, OneOf, Range, Rank, StepIndex
from lockstep.contracts.limits import SUMMARY_MAX_BYTES

HOST, WORKERS, DEVICE = "host", "workers", "device"
MEMORY_PARTS = (HOST, WORKERS, DEVICE)
"""The rank's process, the processes that it started (DataLoader workers), and its device."""
MEMORY_LEVELS = 4
"""Windows of different length, the shortest first."""
_SLOPE_MAX = float(1 << 50)  # a petabyte a step


class MemorySlope(NamedTuple):
    """The robust slope of one part over one window of steps, and whether the node has found it to be steady growth."""

    part: str
    level: int
    first_step: int
    last_step: int
    bytes_per_step: float
    is_steady: bool


SlopeRow = tuple[
    Annotated[str, OneOf(MEMORY_PARTS)],
    Annotated[int, Range(0, MEMORY_LEVELS - 1)],
    StepIndex,
    StepIndex,
    Annotated[float, Range(-_SLOPE_MAX, _SLOPE_MAX)],
    bool,
]
"""A `MemorySlope` as sent, without names: a heartbeat of a node with eight ranks has a hundred of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """The memory of one rank after `step`; None is unknown.

    `host_bytes` and `workers_bytes` are resident memory without file pages and shared memory. `limit_bytes` and
    `available_bytes` belong to the control group, or the host, that leaves the least. `device_bytes` is what the
    framework's allocator has reserved of the device's `device_limit_bytes`.
    """

    rank: Rank
    step: StepIndex
    host_bytes: Count
    workers_bytes: Count | None = None
    available_bytes: Count | None = None
    limit_bytes: Count | None = None
    device_bytes: Count | None = None
    device_limit_bytes: Count | None = None
    trends: Annotated[list[SlopeRow], Length(len(MEMORY_PARTS) * MEMORY_LEVELS)] = field(default_factory=list)


KEPT_MAX = 32
"""Functions in a summary; its writer sends fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedAllocation:
    """A function whose tensors still existed at the end of a memory capture: their bytes and number."""

    function: Annotated[str, Length(SUMMARY_MAX_BYTES)]
    bytes: Count
    count: Count
