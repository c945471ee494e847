"""The metrics of an exporter about the memory of its ranks."""

from lockstep.contracts.memory_report import MEMORY_PARTS
from lockstep.contracts.metric import Metric

DEVICE_ALLOCATED, DEVICE_PEAK = "device_allocated", "device_peak"
MEMORY_KINDS = (*MEMORY_PARTS, DEVICE_ALLOCATED, DEVICE_PEAK)
"""Values of the label of sizes: the parts that may grow, and the device memory that tensors hold now and held at peak.
"""

MEMORY: tuple[Metric, ...] = (
    Metric(
        name="lockstep_memory_bytes",
        type="gauge",
        help="Memory of a rank: resident memory of its process (host) and of the processes it started (workers), "
        "both without pages of files and shared memory; on its device, by the framework's counters, the memory that "
        "the allocator has reserved (device), that tensors hold (device_allocated), and that they have held at most "
        "(device_peak).",
        source="exporter",
        labels=("run", "rank", "kind"),
        values=MEMORY_KINDS,
        full_values=(DEVICE_ALLOCATED, DEVICE_PEAK),
        level="default",
    ),
    Metric(
        name="lockstep_memory_limit_bytes",
        type="gauge",
        help="Memory limit of a rank's process: that of the control group that leaves the least, or the host's "
        "memory if it leaves less.",
        source="exporter",
        labels=("run", "rank"),
        level="full",
        below="min",
        below_level="default",
    ),
    Metric(
        name="lockstep_memory_available_bytes",
        type="gauge",
        help="Memory that the process can still allocate below that limit; unused pages of files count as free.",
        source="exporter",
        labels=("run", "rank"),
        level="full",
        below="min",
        below_level="default",
    ),
    Metric(
        name="lockstep_memory_growth_bytes_per_step",
        type="gauge",
        help="Robust slope of a part of a rank's memory that grows steadily with the steps; absent without steady "
        "growth.",
        source="exporter",
        labels=("run", "rank", "part"),
        values=MEMORY_PARTS,
        level="full",
    ),
)
