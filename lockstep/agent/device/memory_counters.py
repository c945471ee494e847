"""Device memory of this rank by torch's own counters, read now and then after a store of marks.

Untested on a device (docs/devices.md). The allocator's statistics are counters on the host: no device call and no
synchronisation. Read only once the training has imported torch and begun to use its device.
"""

import sys
from collections.abc import Callable
from typing import Any

INTERVAL_NS = 1_000_000_000
"""The nested statistics are about 60 numbers, converted to dictionaries in tens of us."""


class DeviceMemoryCounters:
    """Used by the training thread only.

    If torch, in an old or a changed version, lacks these counters, only this reading ends.
    """

    def __init__(self) -> None:
        self._due_ns = 0
        self._limit_bytes = 0
        self._is_over = False

    def poll(self, now_ns: int, store: Callable[[tuple[int, int, int, int]], None]) -> None:
        """Read the counters if that is due (`now_ns`: CLOCK_MONOTONIC).

        `store` receives bytes: reserved, allocated, peak allocated, and the device's total.
        """
        if now_ns < self._due_ns or self._is_over:
            return
        self._due_ns = now_ns + INTERVAL_NS
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        try:
            if cuda is not None and cuda.is_initialized():
                store(self._read(cuda))
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
            self._is_over = True

    def _read(self, cuda: Any) -> tuple[int, int, int, int]:
        stats = cuda.memory_stats_as_nested_dict()
        if not self._limit_bytes:
            self._limit_bytes = int(cuda.get_device_properties(cuda.current_device()).total_memory)
        allocated = stats["allocated_bytes"]["all"]
        return (
            int(stats["reserved_bytes"]["all"]["current"]),
            int(allocated["current"]),
            int(allocated["peak"]),
            self._limit_bytes,
        )
