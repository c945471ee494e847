"""A control block written as the exporter writes it."""

import os
from pathlib import Path

from lockstep.contracts.blob import write_blob
from lockstep.contracts.capture import NEXT_STEP, OPTIMIZER, CaptureRequest, StepBoundary, request_to_json
from lockstep.contracts.control_block import CONTROL_BYTES, ORDER_BYTES, ORDER_OFFSET, pack_control_header
from lockstep.contracts.paths import control_path, incoming_directory


class ControlBlock:
    """The one writer of a run's control block; `directory` is that of the run."""

    def __init__(self, directory: Path) -> None:
        incoming_directory(directory).mkdir(parents=True, exist_ok=True)
        self.path = control_path(directory)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        self._generation = 0
        os.pwrite(self._file, pack_control_header().ljust(CONTROL_BYTES, b"\0"), 0)

    def __del__(self) -> None:
        os.close(self._file)

    def store(self, value: object) -> None:
        self._generation += 1
        region = bytearray(ORDER_BYTES)
        write_blob(memoryview(region), 0, ORDER_BYTES, self._generation, value)
        os.pwrite(self._file, region, ORDER_OFFSET)

    def overwrite(self, position: int, data: bytes) -> None:
        os.pwrite(self._file, data, position)

    def order(self, request_id: int, **changes: object) -> None:
        self.store(request_to_json(make_order(request_id, **changes)))


EACH_OPTIMIZER_STEP = StepBoundary(OPTIMIZER, ends_per_step=1, first_end=0, first_step=0)
"""Of a training of one optimizer, as the accounting numbers its steps."""


def look_for_requests(agent) -> None:
    """Let an agent that records look now; a training's does so ten times a second, behind a store of marks."""
    if agent is not None and agent.ring is not None and agent.alive:
        agent.marks.poll_interval_ns = 0
        agent.marks.spend(0)
        agent.marks.flush()
        agent.marks.spend(0)  # polls, on the training thread


def make_order(request_id: int, **changes) -> CaptureRequest:
    """Return an order, for ranks of one optimizer unless `boundaries` differs."""
    values = {
        "ranks": [0],
        "first_step": NEXT_STEP,
        "steps": 2,
        "stacks": False,
        "shapes": True,
        "memory": False,
        "trace_max_bytes": 64 << 20,
    }
    values |= changes
    values.setdefault("boundaries", [EACH_OPTIMIZER_STEP] * len(values["ranks"]))
    return CaptureRequest(request_id=request_id, **values)
