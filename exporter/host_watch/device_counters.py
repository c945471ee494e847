"""Counters of the devices that captured ranks use, from the management library of their vendor."""

from collections.abc import Sequence

from exporter.host_watch.host_reading import Key, Target
from exporter.host_watch.nvml import NvmlDevices

SM, MEMORY, NVLINK = "sm", "memory", "nvlink"


class DeviceCounters:
    """Counters of the ranks' devices; used by one thread.

    NVML returns shares of time, which become counters of busy ns: a share covers the time since the previous reading.
    """

    def __init__(self, devices: NvmlDevices) -> None:
        self._devices = devices
        self._device_by_pid: dict[int, int] = {}
        self._busy_ns: dict[tuple[Key, str], tuple[int, int]] = {}

    def read(self, targets: Sequence[Target], now_ns: int) -> dict[tuple[Key, str], int | None]:
        """Return the counters of the targets' devices; a rank that uses no device, or several, has none."""
        if any(target.pid not in self._device_by_pid for target in targets):
            unknown = {target.pid: -1 for target in targets if target.pid is not None}
            self._device_by_pid = unknown | self._devices.device_by_pid()
        found: dict[tuple[Key, str], int | None] = {}
        for target in targets:
            device = self._device_by_pid.get(target.pid or 0, -1)
            if device < 0:
                continue
            shares = self._devices.utilization(device)
            if shares is not None:
                for name, share in zip((SM, MEMORY), shares, strict=True):
                    found[target.key, name] = self._busy((target.key, name), share, now_ns)
            found[target.key, NVLINK] = self._devices.nvlink_bytes(device)
        return found

    def _busy(self, key: tuple[Key, str], share: float, now_ns: int) -> int:
        before_ns, busy_ns = self._busy_ns.get(key, (now_ns, 0))
        self._busy_ns[key] = now_ns, busy_ns + round(share * (now_ns - before_ns))
        return self._busy_ns[key][1]
