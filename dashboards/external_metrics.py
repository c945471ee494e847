"""Queries for other exporters' series on the Rank dashboard, with their labels matched to ours.

Names are those of node_exporter, of NVIDIA's DCGM exporter and of the Ascend npu-exporter. Their panels have no data if
the exporter is not scraped.

A rank's own device is matched by UUID if its agent knows it. An unknown UUID is a missing label, which another
exporter's series may lack too. The two must not match, so every query by UUID requires a non-empty one.

`label_replace` applies to our series, of which there is one, or to one series per exporter: to relabel ten thousand
devices takes half a second.
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
"""Metric to the labels that queries use, in addition to job and instance."""

_INFO = f"lockstep_rank_info{{{RANK}}}"
_UUID = f'lockstep_rank_info{{{RANK},device_uuid!=""}}'
_HERE = f"max by (hostname) ({_INFO})"


def on_host(expr: str) -> str:
    """Return node_exporter's series for the chosen rank's host, summed by instance."""
    named = 'label_replace(node_uname_info, "hostname", "$1", "nodename", "(.+)")'
    return f"{expr} and on (instance) ({named} and on (hostname) {_HERE})"


def own_gpu(metric: str) -> str:
    """Return a DCGM series for the GPU that the chosen rank itself reports, by UUID."""
    renamed = f'label_replace({_UUID}, "UUID", "$1", "device_uuid", "(.+)")'
    return f"max by (gpu) ({metric} * on (UUID) group_left () max by (UUID) ({renamed}))"


def gpu_by_place(metric: str) -> str:
    """Return the same for a rank that reports no UUID: the GPU of its host whose number is its local rank."""
    alike = f"({metric} and on (gpu) {_place('gpu')})"
    return f"max by (gpu) ({_on_host(alike)} * on (hostname, gpu) group_left () {_place('gpu')})"


def of_gpus(metric: str) -> str:
    """Return a DCGM series for each GPU of the chosen rank's host."""
    exporters = _on_host(f"count by (instance, hostname, Hostname) ({metric})")
    return f"max by (gpu) ({metric} and on (instance) ({exporters} and on (hostname) {_HERE}))"


def npu_by_place(metric: str) -> str:
    """Return a series of npu-exporter for the NPU of the chosen rank's host whose number is its local rank.

    Matching by UUID is impossible: the exporter's `vdie_id` is the chip's, which no framework reports to a process.
    """
    alike = f"({metric} and on (id) {_place('id')}) >= 0"
    return f"max by (id) ({_on_npu_host(alike)} * on (hostname, id) group_left () {_place('id')})"


def of_npus(metric: str) -> str:
    """Return a series of npu-exporter for each NPU of the chosen rank's host."""
    exporters = _on_npu_host(f"count by (instance) ({metric})")
    return f"max by (id) (({metric} and on (instance) ({exporters} and on (hostname) {_HERE})) >= 0)"


def _place(label: str) -> str:
    """Return 1 by host and device number, for the rank that has that number as its local rank."""
    placed = f'label_replace({_INFO}, "{label}", "$1", "local_rank", "(.+)")'
    return f"max by (hostname, {label}) ({placed} unless on (run, rank) {_UUID})"


def _on_host(series: str) -> str:
    """Return DCGM series with the host's name in the label of newer releases; older ones write `Hostname`."""
    return f'label_replace({series}, "hostname", "$1", "Hostname", "(.+)")'


def _on_npu_host(series: str) -> str:
    """Return npu-exporter's series with their host's name; a reading of -1 is a failed one.

    The exporter does not report the host: it is taken from `instance`, which Prometheus has from discovery.
    """
    return f'label_replace({series}, "hostname", "$1", "instance", "([^:]+)(:[0-9]+)?")'
