"""Memory of this rank's device by torch's own counters, read now and then after a store of marks.

Unrun on a device (docs/devices.md). The allocator's statistics are counters of the host: no call to the device and no
synchronisation. Only where the training has imported torch and begun to use its device.
"""

import sys
from collections.abc import Callable
from typing import Any

INTERVAL_NS = 1_000_000_000
"""The nested statistics are some 60 numbers, made into dictionaries in tens of us."""


class DeviceMemoryCounters:
    """Used by the training thread only.

    What torch does not offer, in an old or a changed version, ends the reading and nothing else.
    """

    def __init__(self) -> None:
        self._due_ns = 0
        self._limit_bytes = 0
        self._is_over = False

    def poll(self, now_ns: int, store: Callable[[tuple[int, int, int, int]], None]) -> None:
        """Read the counters where that is due (CLOCK_MONOTONIC).

        `store` takes bytes reserved, allocated, allocated at most, and of the device.
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
