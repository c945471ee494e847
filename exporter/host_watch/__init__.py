"""What of the node stands in a rank's way: waits for a CPU, throttling, other processes on its cores.

    proc, cgroups   the kernel's files, each read by one function
    reading         one look at the node: `Target` in, `Reading` out
    intervals       what happened between two looks, by rank
    watch           `HostWatch`: looks again and again, keeps totals and the last intervals
    sampler         cores, devices, memory bandwidth and network every 20 ms around captures
    device_counters, nvml   what the ranks' devices do, where NVIDIA's driver is
    targets         the ranks to look at, from their rings

Only the standard library. What this node does not let us read is absent, never 0.
"""

from exporter.host_watch.host_reading import Target
from exporter.host_watch.sampler import ResourceSampler
from exporter.host_watch.targets import find_targets
from exporter.host_watch.watch import HostTotals, HostWatch, NodeLoad

__all__ = ["HostTotals", "HostWatch", "NodeLoad", "ResourceSampler", "Target", "find_targets"]
