"""Samples the node's hardware during captures: cores of training threads, devices, memory bandwidth and network.

Host watch takes readings a second apart, longer than most functions. Here counters are read every PERIOD_NS on a thread
that runs only around captures and limits its own cost: it pauses until its reads have cost no more than COST_RATIO of a
core. PerfTracker (section 4.1) samples at 10 kHz with the vendor's tools; what /proc and /sys offer resolves functions
of tens of milliseconds.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from exporter.host_watch.device_counters import MEMORY, NVLINK, SM, DeviceCounters
from exporter.host_watch.host_reading import Key, Target
from exporter.host_watch.nvml import NvmlDevices, open_nvml
from exporter.host_watch.proc import thread_times_ns
from lockstep.contracts.node_samples import ResourceSeries

PERIOD_NS = 20_000_000
"""The kernel adds a running thread's time at its ticks, 1 to 10 ms apart."""
COST_RATIO = 0.004
NEAR_NS = 10_000_000_000
"""How long sampling continues after an event of a capture, as in `watch`."""
READINGS_MAX = 2048
CPU, NIC = "cpu", "nic"
_NODE: Key = ("", -1)
_CORE_NS = 1e9  # of one core or one device, per second
_MEGABIT_BYTES = 125_000
_IB_WORD_BYTES = 4  # PortRcvData and PortXmitData count words (InfiniBand Architecture, 16.1.3.5)

Series = dict[tuple[Key, str], deque[tuple[int, int]]]


class ResourceSampler:
    """Counters of the node and of ranks, with the time of each reading.

    The event loop calls `note_capture` and `series`; a thread takes the readings, and ends when no capture is near. If
    the node does not report a resource's peak, ratios are relative to the highest rate seen so far.
    """

    def __init__(
        self,
        *,
        root: Path = Path("/"),
        clock_ns: Callable[[], int] = time.monotonic_ns,
        pause: Callable[[float], object] = time.sleep,
        open_devices: Callable[[], NvmlDevices | None] = open_nvml,
    ) -> None:
        self._root = root
        self._clock_ns = clock_ns
        self._pause = pause
        self._open_devices = open_devices
        self._devices: DeviceCounters | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._until_ns = 0
        self._targets: Sequence[Target] = ()
        self._readings: Series = {}
        self._highest: dict[str, float] = {}
        self.cost_ns = 0
        """CPU time that the readings have used."""

    def note_capture(self, targets: Sequence[Target]) -> None:
        """Sample these ranks and the node for a while from now on."""
        with self._lock:
            self._targets = [target for target in targets if target.pid is not None]
            self._until_ns = self._clock_ns() + NEAR_NS
            if self._thread is None and self._targets:
                self._thread = threading.Thread(target=self._work, name="samples", daemon=True)
                self._thread.start()

    def sample(self) -> None:
        """Read every counter once."""
        began_ns = time.thread_time_ns()
        with self._lock:
            targets = self._targets
        values: dict[tuple[Key, str], int | None] = {
            (_NODE, NIC): network_bytes(self._root),
            (_NODE, MEMORY): memory_bytes(self._root),
        }
        for target in targets:
            assert target.pid is not None
            values[target.key, CPU] = thread_times_ns(target.pid, target.pid, str(self._root / "proc"))[0]
        now_ns = self._clock_ns()
        if self._devices is not None:
            values |= self._devices.read(targets, now_ns)
        with self._lock:
            for name, value in values.items():
                if value is not None:
                    self._readings.setdefault(name, deque(maxlen=READINGS_MAX)).append((now_ns, value))
            self.cost_ns += time.thread_time_ns() - began_ns

    def series(self, run: str, rank: int, start_ns: int, end_ns: int, *, offset_ns: int) -> dict[str, ResourceSeries]:
        """Return the samples around a span of CLOCK_MONOTONIC, by resource.

        Adding `offset_ns` converts times to the wall clock. A resource with fewer than two readings in the span is
        omitted. The memory is that of the rank's device, or the host's if it has none.
        """
        with self._lock:
            mine = {name: list(self._readings.get(((run, rank), name), ())) for name in (CPU, SM, MEMORY, NVLINK)}
            mine[MEMORY] = mine[MEMORY] or list(self._readings.get((_NODE, MEMORY), ()))
            mine[NIC] = list(self._readings.get((_NODE, NIC), ()))
            device_memory = bool(self._readings.get(((run, rank), MEMORY)))
        found = {}
        for resource, readings in mine.items():
            rates = _rates(_within(readings, start_ns, end_ns))
            if rates is None:
                continue
            begin_ns, period_ns, per_s = rates
            is_time = resource in (CPU, SM) or (resource == MEMORY and device_memory)
            peak = _CORE_NS if is_time else self._peak(resource, per_s)
            if peak > 0:
                ratios = [round(min(value / peak, 1.0), 4) for value in per_s]
                found[resource] = ResourceSeries(start_ns=begin_ns + offset_ns, period_ns=period_ns, ratios=ratios)
        return found

    def _peak(self, resource: str, per_s: Sequence[float]) -> float:
        self._highest[resource] = max(self._highest.get(resource, 0.0), *per_s)
        known = network_peak(self._root) if resource == NIC else None
        return known or self._highest[resource]

    def _work(self) -> None:
        devices = self._open_devices()
        self._devices = None if devices is None else DeviceCounters(devices)
        while True:
            with self._lock:
                if self._clock_ns() >= self._until_ns:
                    self._devices, self._thread = None, None
                    break
            before_ns = self.cost_ns
            self.sample()
            paid_ns = round((self.cost_ns - before_ns) / COST_RATIO)
            self._pause(max(PERIOD_NS, paid_ns) / 1e9)
        if devices is not None:
            devices.close()


def network_bytes(root: Path) -> int | None:
    """Return the bytes that the node's network devices and InfiniBand ports have moved; None without any."""
    totals = [
        _number(device / "statistics" / name) for device in _network_devices(root) for name in ("rx_bytes", "tx_bytes")
    ]
    words = [_number(port / "counters" / name) for port in _ports(root) for name in ("port_rcv_data", "port_xmit_data")]
    known = [value for value in totals if value is not None]
    known += [_IB_WORD_BYTES * value for value in words if value is not None]
    return sum(known) if known else None


def network_peak(root: Path) -> float | None:
    """Return the bytes per second that the node's network can send and receive; None if a device reports no speed."""
    speeds = [_number(device / "speed") for device in _network_devices(root)]
    rates = [_gigabits(port / "rate") for port in _ports(root)]
    if any(speed is None or speed <= 0 for speed in speeds) or None in rates or not (speeds or rates):
        return None
    megabits = sum(speed or 0 for speed in speeds) + sum(1000 * (rate or 0) for rate in rates)
    return 2.0 * _MEGABIT_BYTES * megabits


def memory_bytes(root: Path) -> int | None:
    """Return the bytes that the memory controllers moved (resctrl's mbm_total_bytes); None if it is not mounted."""
    folder = root / "sys/fs/resctrl/mon_data"
    values = [_number(path / "mbm_total_bytes") for path in _children(folder) if path.name.startswith("mon_L3_")]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _network_devices(root: Path) -> list[Path]:
    """Return the hardware devices; bridges, tunnels and the loopback carry the same bytes again."""
    return [path for path in _children(root / "sys/class/net") if (path / "device").exists()]


def _ports(root: Path) -> list[Path]:
    return [port for device in _children(root / "sys/class/infiniband") for port in _children(device / "ports")]


def _children(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in sorted(os.listdir(folder))]  # noqa: PTH208  (a third of what Paths cost)
    except OSError:
        return []


def _number(path: Path) -> int | None:
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return None


def _gigabits(path: Path) -> float | None:
    """Parse the rate of an InfiniBand port: "100 Gb/sec (4X EDR)"."""
    try:
        return float(path.read_text().partition(" ")[0])
    except (OSError, ValueError):
        return None


def _within(readings: Sequence[tuple[int, int]], start_ns: int, end_ns: int) -> list[tuple[int, int]]:
    """Return the readings in a span, along with the last one before it and the first one after it."""
    first = sum(at_ns < start_ns for at_ns, _ in readings) - 1
    last = sum(at_ns <= end_ns for at_ns, _ in readings) + 1
    return list(readings[max(first, 0) : last])


def _rates(readings: Sequence[tuple[int, int]]) -> tuple[int, int, list[float]] | None:
    """Resample counters read at irregular times to a regular grid: return start, period and rates per second.

    Where a counter decreases (a device reset, a different process), the rate is 0.
    """
    pairs = [(then, now) for then, now in pairwise(readings) if now[0] > then[0]]
    if not pairs:
        return None
    gaps_ns = sorted(now[0] - then[0] for then, now in pairs)
    period_ns = gaps_ns[len(gaps_ns) // 2]
    begin_ns, rates, at = readings[0][0], [], 0
    for middle_ns in range(begin_ns + period_ns // 2, pairs[-1][1][0], period_ns):
        while pairs[at][1][0] < middle_ns:
            at += 1
        (then_ns, then), (now_ns, now) = pairs[at]
        rates.append(max(now - then, 0) / (now_ns - then_ns) * 1e9)
    return (begin_ns + period_ns // 2, period_ns, rates) if rates else None
