"""A trace as columns, the input of every analysis, independent of the profiler.

Shape suffix: E complete events ("ph": "X"), in the order of the file.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PYTHON = "python_function"
OPERATOR = "cpu_op"
ANNOTATION = "user_annotation"
RUNTIME = "cuda_runtime"
"""Calls into the device's runtime: CUDA, HIP and CANN alike."""
DRIVER = "cuda_driver"
KERNEL = "kernel"
COPY = "gpu_memcpy"
FILL = "gpu_memset"
SYNC = "cuda_sync"
"""Waits between streams of the device, if the profiler records them (enable_cuda_sync_events)."""
DEVICE_ANNOTATION = "gpu_user_annotation"

ABSENT = -1
"""Value of an integer column for events that do not record it."""

Mask = NDArray[np.bool_]
"""Which events, array of shape (n_events,)."""


class WorkKind(IntEnum):
    """Class of an event's work; every event has exactly one."""

    NOTHING = 0
    """Annotations, marks, waits on the device, the profiler's own rows: no work."""
    HOST = 1
    COMPUTE = 2
    MEMORY = 3
    """Copies and fills on the device."""
    COMMUNICATION = 4


class Occupancy(NamedTuple):
    """How a kernel's launch fills the device, as CUPTI's profilers estimate it; ABSENT where a figure is unknown.

    `blocks_per_sm` are thread blocks by multiprocessor, `warp_ratio` the share of its warps that can be resident.
    """

    blocks_per_sm: float
    warp_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveArguments:
    """The arguments of a collective; empty, None or ABSENT where it has none."""

    name: str = ""
    group: str = ""
    """Name of the process group, unique in a job where the writer makes it so."""
    description: str = ""
    ranks: tuple[int, ...] | None = None
    group_size: int = ABSENT
    in_elements: int = ABSENT
    out_elements: int = ABSENT
    dtype: str = ""
    sequence: int = ABSENT
    """Number within the group ("Seq"): with the group the key by which ranks' events match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncArguments:
    """What a recorded wait on the device waited for."""

    kind: str = ""
    waits_on_stream: int = ABSENT
    waits_on_correlation: int = ABSENT
    """Correlation of the cudaEventRecord call that was waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreClock:
    """The clock of a device's compute cores: from `time_ns[i]`, on the clock of the starts, it was `mhz[i]`.

    In order; only changes are kept. `device` is its number, ABSENT where the trace does not record it.
    """

    device: int
    time_ns: tuple[int, ...]
    mhz: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceMetadata:
    """The metadata of a trace; empty or ABSENT where it has none."""

    vendor: str = ""
    """nvidia, amd, ascend, mtia or cpu."""
    devices: tuple[str, ...] = ()
    backend: str = ""
    rank: int = ABSENT
    world_size: int = ABSENT
    host: str = ""
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Process groups by name, where the trace lists their ranks."""
    group_descriptions: dict[str, str] = field(default_factory=dict)
    """What process groups are for, by name, in the words of the training's framework."""
    clocks: tuple[CoreClock, ...] = ()
    """Of the compute cores, where the profiler samples them."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that the profiler noted."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of libraries that move data between ranks, by name."""
    clock_is_shared: bool = False
    """Whether starts are on a wall clock (a base, epoch times): ranks of one host can be laid side by side then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceColumns:
    """The complete events of one rank's trace; arrays are read, never written.

    `start_ns` and `duration_ns` are int64 arrays of shape (n_events,), exact to the ns that the profiler wrote, the
    start on the wall clock where the trace records its base. `name`, `category`, `thread`, `stream`, `shapes`, `stack`
    and `occupancy` are int32 codes of shape (n_events,) into `names`, `categories`, `threads` (process and thread id,
    as the file has them), `streams` (device, stream), `shape_texts`, `stacks` and `occupancies`; the last four are
    ABSENT where an event has none. `work` is int8, a `WorkKind`. `correlation` (a launch and what it launched),
    `external` (an operator and what it launched), `sequence` (a forward operator and its backward one) and `bytes` are
    int64, ABSENT where unknown.
    """

    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    name: NDArray[np.int32]
    category: NDArray[np.int32]
    thread: NDArray[np.int32]
    work: NDArray[np.int8]
    stream: NDArray[np.int32]
    shapes: NDArray[np.int32]
    stack: NDArray[np.int32]
    occupancy: NDArray[np.int32]
    correlation: NDArray[np.int64]
    external: NDArray[np.int64]
    sequence: NDArray[np.int64]
    bytes: NDArray[np.int64]
    names: list[str]
    categories: list[str]
    """Today's names of Kineto, whatever the age of the file."""
    threads: list[tuple[object, object]]
    thread_names: dict[int, str] = field(default_factory=dict)
    """By thread code, where the trace names its threads."""
    streams: list[tuple[int, int]] = field(default_factory=list)
    shape_texts: list[str] = field(default_factory=list)
    """Input dimensions and types as compact JSON: `[dims, types]`."""
    stacks: list[str] = field(default_factory=list)
    """Call stacks as the trace has them, innermost frame first, one frame a line."""
    occupancies: list[Occupancy] = field(default_factory=list)
    collectives: dict[int, CollectiveArguments] = field(default_factory=dict)
    """By event."""
    syncs: dict[int, SyncArguments] = field(default_factory=dict)
    """By event."""
    metadata: TraceMetadata = field(default_factory=TraceMetadata)
    trace_bytes: int
    """Size of the JSON, unpacked."""
    event_count: int
    """Events of every kind, flows and metadata included."""
    dropped_count: int
    """Complete events left out because a field of theirs made no sense."""
    _kept: dict[str, NDArray[Any]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> NDArray[np.int64]:
        """Return the end of every event; the loader has made sure that no sum overflows."""
        return self.kept("end_ns", lambda: self.start_ns + self.duration_ns)

    @property
    def on_device(self) -> Mask:
        """Return which events are work on a device."""
        return self.kept("on_device", lambda: (self.work > WorkKind.HOST) & (self.stream != ABSENT))

    def kept(self, name: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Return a value derived from the columns alone, computed once and cached; it must not be modified."""
        if name not in self._kept:
            self._kept[name] = make()
            self._kept[name].flags.writeable = False
        return self._kept[name]

    def category_code(self, category: str) -> int:
        """Return the code of `category`, or -1, which no event has."""
        return self.categories.index(category) if category in self.categories else -1

    def named(self, accept: Callable[[str], bool]) -> Mask:
        """Return which events have an accepted name; each name is tested once."""
        accepted: Mask = np.fromiter(map(accept, self.names), np.bool_, len(self.names))
        return accepted.take(self.name) if accepted.any() else np.zeros(len(self), np.bool_)

    def of_categories(self, *categories: str) -> Mask:
        """Return which events are of these categories."""
        accepted: Mask = np.array([each in categories for each in self.categories], np.bool_)
        return accepted.take(self.category)
