"""Reads NVML, NVIDIA's management library: busy time, memory and NVLink traffic of the devices that ranks use.

Only the standard library: the driver's own libnvidia-ml through ctypes, without CUDA and without a context on the
device. Not yet tested on a device: the tests replace the library (docs/devices.md). Source: NVML API reference, device
queries, field values and structures.
"""

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
SUCCESS, INSUFFICIENT_SIZE = 0, 7
PROCESSES_MAX = 256
"""Compute processes of one device; MPS and MIG have tens."""
NVLINK_SENT_KIB, NVLINK_RECEIVED_KIB = 138, 139  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX
ALL_LINKS = 0xFFFFFFFF
_KIB = 1024


class Utilization(ctypes.Structure):
    """nvmlUtilization_t: per cent of the last sample period, 1/6 to 1 s long, with work on SMs and memory."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t, version 2 and 3."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_memory_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t; `value` is its union as the unsigned 64 bits that counters have."""

    _fields_ = (
        ("field_id", ctypes.c_uint),
        ("scope_id", ctypes.c_uint),
        ("timestamp_us", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("value_type", ctypes.c_int),
        ("status", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )


class NvmlDevices:
    """The node's devices by index; a query that the driver refuses returns None and is not an error."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handles = list(self._opened_handles())

    def _opened_handles(self) -> Iterable[ctypes.c_void_p]:
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != SUCCESS:
            return
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == SUCCESS:
                yield handle

    def device_by_pid(self) -> dict[int, int]:
        """Return the device of each compute process that uses exactly one.

        Pids are those of the exporter's namespace; from inside another one no process is found. The devices' order is
        not CUDA's, so a rank's own index does not identify a device here.
        """
        found: dict[int, list[int]] = {}
        for device, handle in enumerate(self._handles):
            for pid in self._pids(handle):
                found.setdefault(pid, []).append(device)
        return {pid: devices[0] for pid, devices in found.items() if len(devices) == 1}

    def _pids(self, handle: ctypes.c_void_p) -> set[int]:
        count, processes = ctypes.c_uint(PROCESSES_MAX), (ProcessInfo * PROCESSES_MAX)()
        try:
            query = self._library.nvmlDeviceGetComputeRunningProcesses_v3
        except AttributeError:  # a driver older than 510
            return set()
        status = query(handle, ctypes.byref(count), processes)
        return {each.pid for each in processes[: count.value]} if status == SUCCESS else set()

    def utilization(self, device: int) -> tuple[float, float] | None:
        """Return the shares of time with work on the SMs and on the device's memory, over the last sample period."""
        found = Utilization()
        status = self._library.nvmlDeviceGetUtilizationRates(self._handles[device], ctypes.byref(found))
        return (found.gpu / 100, found.memory / 100) if status == SUCCESS else None

    def nvlink_bytes(self, device: int) -> int | None:
        """Return the bytes that all NVLinks of a device have sent and received; None without links."""
        values = (FieldValue * 2)(
            FieldValue(field_id=NVLINK_SENT_KIB, scope_id=ALL_LINKS),
            FieldValue(field_id=NVLINK_RECEIVED_KIB, scope_id=ALL_LINKS),
        )
        if self._library.nvmlDeviceGetFieldValues(self._handles[device], ctypes.c_int(2), values) != SUCCESS:
            return None
        if any(each.status != SUCCESS for each in values):
            return None
        return _KIB * int(sum(each.value for each in values))

    def close(self) -> None:
        """Release the driver, which cannot be unloaded otherwise; do not use the object afterwards."""
        self._library.nvmlShutdown()


def open_nvml(load: Callable[[str], Any] = ctypes.CDLL) -> NvmlDevices | None:
    """Return the node's devices, or None on a node without NVIDIA's driver."""
    try:
        library = load(LIBRARY)
        if library.nvmlInit_v2() != SUCCESS:
            return None
    except (OSError, AttributeError):  # no such library, or one from before 2013
        return None
    return NvmlDevices(library)
