"""What on the node slows a rank: waits for a CPU, CPU throttling, other processes on its cores.

    proc, cgroups   the kernel's files, each read by one function
    host_reading    one reading of the node: `Target` in, `HostReading` out
    intervals       what happened between two readings, by rank
    watch           `HostWatch`: takes readings periodically, keeps totals and the latest intervals
    sampler         cores, devices, memory bandwidth and network every 20 ms around captures
    device_counters, nvml   the activity of the ranks' devices, where NVIDIA's driver is installed
    targets         the ranks to read, from their rings

Only the standard library. What cannot be read on this node is absent, never 0.
"""

from exporter.host_watch.host_reading import Target
from exporter.host_watch.sampler import ResourceSampler
from exporter.host_watch.targets import find_targets
from exporter.host_watch.watch import HostTotals, HostWatch, NodeLoad

__all__ = ["HostTotals", "HostWatch", "NodeLoad", "ResourceSampler", "Target", "find_targets"]
