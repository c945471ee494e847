"""Series of other exporters that the Rank dashboard stands beside ours, and how their labels meet ours.

Names are those of node_exporter, of NVIDIA's DCGM exporter and of the Ascend npu-exporter. Their panels have no data
where the exporter is not scraped.
"""

from dashboards.queries import RUN

LABELS = {
    "node_uname_info": ("nodename",),
    "node_memory_MemAvailable_bytes": (),
    "node_memory_MemTotal_bytes": (),
    "node_network_receive_bytes_total": ("device",),
    "node_network_transmit_bytes_total": ("device",),
    "DCGM_FI_DEV_SM_CLOCK": ("gpu", "UUID", "hostname"),
    "DCGM_FI_DEV_GPU_TEMP": ("gpu", "UUID", "hostname"),
    "DCGM_FI_DEV_POWER_USAGE": ("gpu", "UUID", "hostname"),
    "npu_chip_info_aicore_current_freq": ("id",),
    "npu_chip_info_temperature": ("id",),
    "npu_chip_info_power": ("id",),
}
"""Metric to the labels that queries use, besides job and instance."""

_HERE = f'max by (hostname) (lockstep_rank_info{{{RUN},rank="$rank"}})'


def on_host(expr: str) -> str:
    """Return series of node_exporter, summed by instance, of the chosen rank's host."""
    named = 'label_replace(node_uname_info, "hostname", "$1", "nodename", "(.+)")'
    return f"{expr} and on (instance) ({named} and on (hostname) {_HERE})"


def of_gpus(metric: str) -> str:
    """Return a series of DCGM for each GPU of the chosen rank's host; older releases write `Hostname`."""
    named = f'label_replace({metric}, "hostname", "$1", "Hostname", "(.+)")'
    return f"max by (gpu) ({named} and on (hostname) {_HERE})"


def of_npus(metric: str) -> str:
    """Return a series of npu-exporter for each NPU of the chosen rank's host; -1 is a reading that failed.

    It names no host: the one in `instance` is taken, which Prometheus has from discovery.
    """
    named = f'label_replace({metric} >= 0, "hostname", "$1", "instance", "([^:]+)(:[0-9]+)?")'
    return f"max by (id) ({named} and on (hostname) {_HERE})"
