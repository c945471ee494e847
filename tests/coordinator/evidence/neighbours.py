"""Static pages of other exporters under their real metric names, with one planted cause, and a server that shows them.

A site is three hosts of two devices each; the suspect is device 0 of host 0.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from coordinator.evidence.machines import Machine
from tests.support.servers import metrics_pages

HOSTS, DEVICES = 3, 2
SUSPECT, PEERS, ALL = PLACES = ("suspect", "peers", "all")
NVIDIA, AMD, ASCEND, NODE = "nvidia", "amd", "ascend", "node"

# Name with its own labels -> value of a gauge, or growth of a counter a second.
DEVICE_GAUGES = {
    NVIDIA: {
        "DCGM_FI_DEV_SM_CLOCK": 1980.0,
        "DCGM_FI_DEV_MEM_CLOCK": 2619.0,
        "DCGM_FI_DEV_GPU_TEMP": 61.0,
        "DCGM_FI_DEV_MEMORY_TEMP": 70.0,
        "DCGM_FI_DEV_POWER_USAGE": 640.0,
        "DCGM_FI_DEV_GPU_UTIL": 99.0,
        "DCGM_FI_DEV_XID_ERRORS": 0.0,
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0.0,
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 0.0,
    },
    AMD: {
        'gpu_clock{clock_index="0",clock_type="GPU_CLOCK_TYPE_SYSTEM"}': 2100.0,
        'gpu_clock{clock_index="8",clock_type="GPU_CLOCK_TYPE_MEMORY"}': 1300.0,
        "gpu_junction_temperature": 66.0,
        "gpu_ecc_uncorrect_total": 0.0,
    },
    ASCEND: {
        "npu_chip_info_aicore_current_freq": 1800.0,
        "npu_chip_info_temperature": 55.0,
        "npu_chip_info_health_status": 1.0,
        "npu_chip_info_hbm_ecc_double_bit_error_cnt": 0.0,
    },
}
DEVICE_COUNTERS = {
    NVIDIA: {
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0.0,
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0.0,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0.0,
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 40_000.0,
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 0.0,
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 0.0,
        "DCGM_FI_DEV_THERMAL_VIOLATION": 0.0,
        "DCGM_FI_DEV_POWER_VIOLATION": 0.0,
        'lockstep_nccl_operation_time_seconds_total{communicator="dp",operation="AllReduce"}': 0.5,
        'lockstep_nccl_operations_total{communicator="dp",operation="AllReduce"}': 100.0,
        'lockstep_nccl_operation_bus_bytes_total{communicator="dp",operation="AllReduce"}': 2e10,
        'lockstep_nccl_last_arrivals_total{communicator="dp",operation="AllReduce"}': 10.0,
        'lockstep_nccl_operation_time_seconds_total{communicator="tp",operation="AllGather"}': 0.02,
        'lockstep_nccl_operations_total{communicator="tp",operation="AllGather"}': 10.0,
        'lockstep_nccl_operation_bus_bytes_total{communicator="tp",operation="AllGather"}': 8e9,
        'lockstep_nccl_last_arrivals_total{communicator="tp",operation="AllGather"}': 1.0,
    },
    AMD: {
        "pcie_replay_count": 0.0,
        "gpu_violation_socket_thermal_residency_accumulated": 0.0,
        "gpu_violation_ppt_residency_accumulated": 0.0,
    },
    ASCEND: {"npu_chip_roce_rx_err_pkt_num": 0.0},
}
NODE_GAUGES = {
    "node_memory_MemTotal_bytes": 2.0e12,
    "node_memory_MemAvailable_bytes": 1.5e12,
    'node_network_speed_bytes{device="eth0"}': 1.25e10,
    'node_infiniband_rate_bytes_per_second{device="mlx5_0",port="1"}': 5.0e10,
    'node_infiniband_rate_bytes_per_second{device="mlx5_1",port="1"}': 5.0e10,
}
NODE_COUNTERS = {
    'node_cpu_seconds_total{cpu="0",mode="idle"}': 0.6,
    'node_cpu_seconds_total{cpu="0",mode="user"}': 0.4,
    "node_pressure_cpu_waiting_seconds_total": 0.01,
    "node_pressure_memory_waiting_seconds_total": 0.0,
    "node_pressure_io_waiting_seconds_total": 0.01,
    "node_vmstat_oom_kill": 0.0,
    'node_disk_io_time_seconds_total{device="nvme0n1"}': 0.1,
    'node_network_receive_errs_total{device="eth0"}': 0.0,
    'node_network_receive_drop_total{device="eth0"}': 0.0,
    'node_network_transmit_bytes_total{device="eth0"}': 1.0e9,
    'node_network_receive_bytes_total{device="eth0"}': 1.0e9,
    'node_infiniband_symbol_error_total{device="mlx5_0",port="1"}': 0.0,
    'node_infiniband_link_downed_total{device="mlx5_1",port="1"}': 0.0,
    'node_infiniband_port_transmit_wait_total{device="mlx5_0",port="1"}': 50.0,
    'node_infiniband_port_data_transmitted_bytes_total{device="mlx5_0",port="1"}': 1.0e9,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What changes at the onset on the machines that have it, and the cause that must be named."""

    vendor: str
    cause: str
    changes: Mapping[str, float]

    @property
    def name(self) -> str:
        return "-".join([self.vendor, self.cause, *(series.partition("{")[0] for series in self.changes)])


_CLOCK, _TEMPERATURE = "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_TEMP"
_AMD_CLOCK = 'gpu_clock{clock_index="0",clock_type="GPU_CLOCK_TYPE_SYSTEM"}'
FAULTS = (
    Fault(NVIDIA, "lower_clock", {_CLOCK: 1410.0}),
    Fault(NVIDIA, "thermal_throttling", {_CLOCK: 1410.0, _TEMPERATURE: 87.0}),
    Fault(NVIDIA, "thermal_throttling", {_CLOCK: 1410.0, "DCGM_FI_DEV_THERMAL_VIOLATION": 400_000.0}),
    Fault(NVIDIA, "thermal_throttling", {_CLOCK: 1410.0, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 64.0}),
    Fault(NVIDIA, "power_throttling", {_CLOCK: 1500.0, "DCGM_FI_DEV_POWER_VIOLATION": 400_000.0}),
    Fault(NVIDIA, "power_throttling", {_CLOCK: 1500.0, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 4.0}),
    *(Fault(NVIDIA, "memory_errors", {"DCGM_FI_DEV_XID_ERRORS": xid}) for xid in (48.0, 63.0, 64.0, 94.0, 95.0)),
    Fault(NVIDIA, "nvlink_errors", {"DCGM_FI_DEV_XID_ERRORS": 74.0}),
    Fault(NVIDIA, "device_lost", {"DCGM_FI_DEV_XID_ERRORS": 79.0}),
    Fault(NVIDIA, "xid", {"DCGM_FI_DEV_XID_ERRORS": 31.0}),
    Fault(NVIDIA, "memory_errors", {"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 1.0}),
    Fault(NVIDIA, "memory_errors", {"DCGM_FI_DEV_ROW_REMAP_FAILURE": 1.0}),
    Fault(NVIDIA, "memory_errors", {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 1.0}),
    Fault(NVIDIA, "pcie_replays", {"DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 30.0}),
    Fault(NVIDIA, "nvlink_errors", {"DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 8.0}),
    Fault(NVIDIA, "nvlink_errors", {"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 8.0}),
    Fault(NVIDIA, "nvlink_bandwidth", {"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 20_000.0}),
    Fault(
        NVIDIA,
        "late_arrival",
        {'lockstep_nccl_operation_time_seconds_total{communicator="dp",operation="AllReduce"}': 0.1},
    ),
    Fault(
        NVIDIA,
        "late_arrival",
        {'lockstep_nccl_last_arrivals_total{communicator="dp",operation="AllReduce"}': 80.0},
    ),
    Fault(
        NVIDIA,
        "collective_bandwidth",
        {'lockstep_nccl_operation_time_seconds_total{communicator="tp",operation="AllGather"}': 0.05},
    ),
    Fault(AMD, "lower_clock", {_AMD_CLOCK: 1400.0}),
    Fault(AMD, "thermal_throttling", {_AMD_CLOCK: 1400.0, "gpu_junction_temperature": 99.0}),
    Fault(AMD, "thermal_throttling", {"gpu_violation_socket_thermal_residency_accumulated": 1.0}),
    Fault(AMD, "power_throttling", {_AMD_CLOCK: 1400.0, "gpu_violation_ppt_residency_accumulated": 1.0}),
    Fault(AMD, "memory_errors", {"gpu_ecc_uncorrect_total": 3.0}),
    Fault(AMD, "pcie_replays", {"pcie_replay_count": 20.0}),
    Fault(ASCEND, "lower_clock", {"npu_chip_info_aicore_current_freq": 1000.0}),
    Fault(
        ASCEND, "thermal_throttling", {"npu_chip_info_aicore_current_freq": 1000.0, "npu_chip_info_temperature": 92.0}
    ),
    Fault(ASCEND, "unhealthy_device", {"npu_chip_info_health_status": 0.0}),
    Fault(ASCEND, "memory_errors", {"npu_chip_info_hbm_ecc_double_bit_error_cnt": 2.0}),
    Fault(ASCEND, "network_errors", {"npu_chip_roce_rx_err_pkt_num": 9.0}),
    Fault(NODE, "cpu_pressure", {"node_pressure_cpu_waiting_seconds_total": 0.6}),
    Fault(NODE, "cpu_pressure", {'node_cpu_seconds_total{cpu="0",mode="idle"}': 0.02}),
    Fault(NODE, "memory_pressure", {"node_pressure_memory_waiting_seconds_total": 0.3}),
    Fault(NODE, "memory_pressure", {"node_memory_MemAvailable_bytes": 4.0e10}),
    Fault(NODE, "oom_kill", {"node_vmstat_oom_kill": 1.0}),
    Fault(NODE, "disk_saturation", {"node_pressure_io_waiting_seconds_total": 0.7}),
    Fault(NODE, "disk_saturation", {'node_disk_io_time_seconds_total{device="nvme0n1"}': 0.98}),
    Fault(NODE, "network_errors", {'node_network_receive_errs_total{device="eth0"}': 12.0}),
    Fault(NODE, "network_errors", {'node_network_receive_drop_total{device="eth0"}': 12.0}),
    Fault(NODE, "network_saturation", {'node_network_transmit_bytes_total{device="eth0"}': 1.24e10}),
    Fault(NODE, "infiniband_errors", {'node_infiniband_symbol_error_total{device="mlx5_0",port="1"}': 6.0}),
    Fault(NODE, "infiniband_errors", {'node_infiniband_link_downed_total{device="mlx5_1",port="1"}': 1.0}),
    Fault(NODE, "infiniband_rate", {'node_infiniband_rate_bytes_per_second{device="mlx5_1",port="1"}': 2.5e10}),
    Fault(NODE, "infiniband_congestion", {'node_infiniband_port_transmit_wait_total{device="mlx5_0",port="1"}': 9e5}),
)
"""Every cause of queries.toml, by every series that it reads."""


@dataclass
class Site:
    """Three hosts that show one fault in one place; `machines` are what the coordinator knows of them."""

    number: int
    fault: Fault
    place: str

    @property
    def run(self) -> str:
        return f"{self.place}-{self.number}"

    def host(self, number: int) -> str:
        return f"s{self.number}-{self.place}-n{number}"

    def uuid(self, host: int, device: int) -> str:
        return f"GPU-{self.number:08x}-{PLACES.index(self.place):04x}-{host:04x}-{device:04x}-000000000000"

    @property
    def machines(self) -> tuple[Machine, ...]:
        return tuple(
            Machine(
                ranks=(host * DEVICES + device,),
                is_suspect=(host, device) == (0, 0),
                hosts=frozenset({self.host(host)}),
                local_rank=device,
                uuid=self.uuid(host, device) if self.vendor == NVIDIA else "",
                run=self.run,
            )
            for host in range(HOSTS)
            for device in range(DEVICES)
        )

    @property
    def vendor(self) -> str:
        return NVIDIA if self.fault.vendor == NODE else self.fault.vendor

    def has_fault(self, host: int, device: int | None) -> bool:
        is_suspect = host == 0 and device in (0, None)
        return {SUSPECT: is_suspect, PEERS: not is_suspect, ALL: True}[self.place]

    @cached_property
    def gauges(self) -> dict[bool, str]:
        """Return the lines that do not change within a phase, by whether it is the one after the onset."""
        texts = {}
        for is_after in (False, True):
            lines = [f"{series} {changes.get(name, quiet) if is_after else quiet}"
                     for series, name, quiet, changes, is_counter in self._all_series() if not is_counter]  # fmt: skip
            hosts = [
                f'node_uname_info{{instance="{self._instance(host)}",nodename="{self.host(host)}.cluster.lan"}} 1'
                for host in range(HOSTS)
            ]
            texts[is_after] = "\n".join([*hosts, *lines])
        return texts

    @cached_property
    def counters(self) -> list[tuple[str, float, float]]:
        """Return (series, growth a second before the onset, growth a second since) of each counter."""
        return [
            (series, quiet, changes.get(name, quiet))
            for series, name, quiet, changes, is_counter in self._all_series()
            if is_counter
        ]

    def text(self, before_s: float, after_s: float) -> str:
        """Return the page so long into both phases."""
        lines = [f"{series} {1000.0 + quiet * before_s + rate * after_s}" for series, quiet, rate in self.counters]
        return "\n".join([self.gauges[after_s > 0], *lines])

    def _instance(self, host: int) -> str:
        return f"10.{self.number}.{PLACES.index(self.place)}.{host}:9100"

    def _all_series(self) -> Iterator[tuple[str, str, float, Mapping[str, float], bool]]:
        for host in range(HOSTS):
            places = [(None, f'instance="{self._instance(host)}"', NODE_GAUGES, NODE_COUNTERS)]
            for device in range(DEVICES):
                labels = self._device_labels(host, device)
                places.append((device, labels, DEVICE_GAUGES[self.vendor], DEVICE_COUNTERS[self.vendor]))
            for device, labels, gauges, counters in places:
                changes = self.fault.changes if self.has_fault(host, device) else {}
                for values, is_counter in ((gauges, False), (counters, True)):
                    for name, quiet in values.items():
                        own = self._rank_labels(host, device) if name.startswith("lockstep_") else labels
                        yield _labelled(name, own), name, quiet, changes, is_counter

    def _rank_labels(self, host: int, device: int | None) -> str:
        rank = host * DEVICES + (device or 0)
        return f'run="{self.run}",rank="{rank}",hostname="{self.host(host)}",local_rank="{device}"'

    def _device_labels(self, host: int, device: int) -> str:
        name = self.host(host)
        if self.vendor == NVIDIA:
            return (
                f'gpu="{device}",UUID="{self.uuid(host, device)}",Hostname="{name}",modelName="NVIDIA H100 80GB HBM3"'
            )
        if self.vendor == AMD:
            return f'gpu_id="{device}",hostname="{name}",serial_number="{name}{device}"'
        return f'id="{device}",instance="{name}:8082"'


def _labelled(series: str, labels: str) -> str:
    name, _, own = series.partition("{")
    return f"{name}{{{labels}{',' + own if own else '}'}"


class Pages:
    """The sites of each place as one static page: their samples at `times_s`; faults begin at `onset_s` (unix seconds).

    Samples carry their times, so that one scrape has all of them, whenever a machine under load gets to it.
    """

    def __init__(self, sites: list[Site], times_s: Sequence[float], onset_s: float) -> None:
        self._text_of = {
            place: "\n".join([*_lines([site for site in sites if site.place == place], times_s, onset_s), ""])
            for place in PLACES
        }

    def served(self) -> contextlib.AbstractContextManager[str]:
        """Yield the address, `/PLACE` being a page."""
        return metrics_pages(lambda path: self._text_of[path.removeprefix("/")])


def _lines(sites: list[Site], times_s: Sequence[float], onset_s: float) -> Iterator[str]:
    for at_s in times_s:
        before_s, after_s = min(at_s, onset_s) - times_s[0], max(at_s - onset_s, 0.0)
        stamp = round(at_s * 1000)
        for site in sites:
            yield from (f"{line} {stamp}" for line in site.text(before_s, after_s).split("\n"))


def scrape_configuration(address: str, *, interval_s: int) -> str:
    """Return Prometheus' configuration: each place is a target, and the labels of the pages are kept."""
    jobs = "\n".join(
        f"  - {{job_name: {place}, honor_labels: true, metrics_path: /{place}, static_configs: [{{targets: ['{address}']}}]}}"
        for place in PLACES
    )
    return f"global: {{scrape_interval: {interval_s}s, scrape_timeout: {interval_s}s}}\nscrape_configs:\n{jobs}\n"
