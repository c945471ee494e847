"""Series of other exporters that the Rank dashboard shows next to ours, and how their labels meet ours.

Names are those of node_exporter, of NVIDIA's DCGM exporter and of the Ascend npu-exporter. Their panels have no data
where the exporter is not scraped.

A rank's own device is met by UUID where its agent knows one. An unknown UUID is a missing label, and so is that of a
series of another exporter: the two must not meet, so every query by UUID asks for one that is not empty.

Labels are made on our side, which is one series, or on one series an exporter: to relabel ten thousand devices costs
half a second.
"""

from dashboards.queries import RANK

LABELS = {
    "node_uname_info": ("nodename",),
    "node_memory_MemAvailable_bytes": (),
    "node_memory_MemTotal_bytes": (),
    "node_network_receive_bytes_total": ("device",),
    "node_network_transmit_bytes_total": ("device",),
    "DCGM_FI_DEV_SM_CLOCK": ("gpu", "UUID", "hostname", "Hostname"),
    "DCGM_FI_DEV_GPU_TEMP": ("gpu", "UUID", "hostname", "Hostname"),
    "DCGM_FI_DEV_POWER_USAGE": ("gpu", "UUID", "hostname", "Hostname"),
    "npu_chip_info_aicore_current_freq": ("id",),
    "npu_chip_info_temperature": ("id",),
    "npu_chip_info_power": ("id",),
}
"""Metric to the labels that queries use, besides job and instance."""

_INFO = f"lockstep_rank_info{{{RANK}}}"
_UUID = f'lockstep_rank_info{{{RANK},device_uuid!=""}}'
_HERE = f"max by (hostname) ({_INFO})"


def on_host(expr: str) -> str:
    """Return series of node_exporter, summed by instance, of the chosen rank's host."""
    named = 'label_replace(node_uname_info, "hostname", "$1", "nodename", "(.+)")'
    return f"{expr} and on (instance) ({named} and on (hostname) {_HERE})"


def own_gpu(metric: str) -> str:
    """Return a series of DCGM for the GPU that the chosen rank itself reports, by UUID."""
    renamed = f'label_replace({_UUID}, "UUID", "$1", "device_uuid", "(.+)")'
    return f"max by (gpu) ({metric} * on (UUID) group_left () max by (UUID) ({renamed}))"


def gpu_by_place(metric: str) -> str:
    """Return the same for a rank that reports none: of its host, the GPU whose number is its local rank."""
    alike = f"({metric} and on (gpu) {_place('gpu')})"
    return f"max by (gpu) ({_on_host(alike)} * on (hostname, gpu) group_left () {_place('gpu')})"


def of_gpus(metric: str) -> str:
    """Return a series of DCGM for each GPU of the chosen rank's host."""
    exporters = _on_host(f"count by (instance, hostname, Hostname) ({metric})")
    return f"max by (gpu) ({metric} and on (instance) ({exporters} and on (hostname) {_HERE}))"


def npu_by_place(metric: str) -> str:
    """Return a series of npu-exporter for the NPU of the chosen rank's host whose number is its local rank.

    There is no way by UUID: the exporter's `vdie_id` is the chip's, which no framework gives a process.
    """
    alike = f"({metric} and on (id) {_place('id')}) >= 0"
    return f"max by (id) ({_on_npu_host(alike)} * on (hostname, id) group_left () {_place('id')})"


def of_npus(metric: str) -> str:
    """Return a series of npu-exporter for each NPU of the chosen rank's host."""
    exporters = _on_npu_host(f"count by (instance) ({metric})")
    return f"max by (id) (({metric} and on (instance) ({exporters} and on (hostname) {_HERE})) >= 0)"


def _place(label: str) -> str:
    """Return 1 by host and number of the device that the rank has if its local rank is that number."""
    placed = f'label_replace({_INFO}, "{label}", "$1", "local_rank", "(.+)")'
    return f"max by (hostname, {label}) ({placed} unless on (run, rank) {_UUID})"


def _on_host(series: str) -> str:
    """Return series of DCGM with the host's name where newer releases write it; older ones write `Hostname`."""
    return f'label_replace({series}, "hostname", "$1", "Hostname", "(.+)")'


def _on_npu_host(series: str) -> str:
    """Return series of npu-exporter with their host's name; a reading of -1 is one that failed.

    It names no host: the one in `instance` is taken, which Prometheus has from discovery.
    """
    return f'label_replace({series}, "hostname", "$1", "instance", "([^:]+)(:[0-9]+)?")'
