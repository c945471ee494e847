"""A control block written as the exporter writes it."""

import mmap
import os
from pathlib import Path

from lockstep.contracts.blob import write_blob
from lockstep.contracts.control import (
    CONTROL_BYTES,
    NEXT_STEP,
    ORDER_BYTES,
    ORDER_OFFSET,
    ProfileOrder,
    order_to_json,
    pack_control_header,
)


class ControlBlock:
    """The one writer of a run's control block."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        file = os.open(directory / "control", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o660)
        os.posix_fallocate(file, 0, CONTROL_BYTES)
        self._map = mmap.mmap(file, CONTROL_BYTES)
        os.close(file)
        header = pack_control_header()
        self._map[: len(header)] = header
        self._generation = 0

    def store(self, value: object) -> None:
        self._generation += 1
        write_blob(memoryview(self._map), ORDER_OFFSET, ORDER_BYTES, self._generation, value)

    def order(self, request_id: int, **changes: object) -> None:
        self.store(order_to_json(make_order(request_id, **changes)))


def make_order(request_id: int, **changes) -> ProfileOrder:
    values = {
        "ranks": [0],
        "first_step": NEXT_STEP,
        "steps": 2,
        "stacks": False,
        "shapes": True,
        "memory": False,
        "trace_max_bytes": 64 << 20,
    }
    return ProfileOrder(request_id=request_id, **{**values, **changes})
