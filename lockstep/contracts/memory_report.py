"""What a node reports of the memory of its ranks, with heartbeats (`messages.RunHeartbeat`)."""

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
    """The robust slope of one part over one window of steps, and whether it is steady growth, as the node has found."""

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
"""A `MemorySlope` as it travels, without names: a node of eight ranks has a hundred in each heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """The memory of one rank after `step`; None is not known.

    `host_bytes` and `workers_bytes` are resident memory without pages of files and shared memory. `limit_bytes` and
    `available_bytes` are of the control group, or the host, that leaves the least. `device_bytes` is what the
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
"""Functions of a summary; its writer names fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAllocation:
    """A function whose tensors were still there at the end of a memory capture: their bytes, and how many they are."""

    function: Annotated[str, Length(SUMMARY_MAX_BYTES)]
    bytes: Count
    count: Count
