"""What the files of a rank cost the training thread: ways to store 16 bytes, and the agent's own operations.

    python -m benchmarks.ring_cost [--quick]

Nanoseconds of thread CPU, hot: the median of several rounds, scaled to the reference machine. Then the length of a
training step with six stores while another thread computes in Python all the time: a call that releases the interpreter
lock may have to wait for it. This shows on idle cores only, where the other thread wakes up in time to take the lock.
Steps with the different ways take turns, so that all meet the same machine.
"""

import argparse
import mmap
import os
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.thread_time import ReferenceMachine
from exporter.capturing.control import write_control
from lockstep.agent.control import ControlReader
from lockstep.agent.descriptors import pwrite
from lockstep.agent.mark_writer import mark_buffer_type
from lockstep.agent.ring import FLAGS_OFFSET, RingWriter
from lockstep.contracts.marks import BLOCK_MARKS, pack_call_site
from lockstep.contracts.paths import control_path
from lockstep.contracts.ring import BLOCKS_OFFSET, ISSUES_OFFSET, RingHeader

_FILE_BYTES = 1 << 19
_OFFSET = 1024
_STORES = 6  # of a step with two collectives: blocks, issues, a sign of life, a look at the control block
_PAIR = struct.Struct("<2Q")


def ways(directory: Path) -> dict[str, Callable[[], object]]:
    """Return ways to store a pair of words in a file in shared memory."""
    file = os.open(directory / "file", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, _FILE_BYTES)
    words = memoryview(mmap.mmap(file, _FILE_BYTES)).cast("Q")

    def store() -> None:
        words[_OFFSET // 8] = 1
        words[_OFFSET // 8 + 1] = 2

    return {
        "a shared mapping (a truncated file: SIGBUS)": store,
        "os.pwrite": lambda: os.pwrite(file, _PAIR.pack(1, 2), _OFFSET),
        "the agent's pwrite": lambda: pwrite(file, _PAIR.pack(1, 2), _PAIR.size, _OFFSET),
    }


def busy_step_ms(stores: dict[str, Callable[[], object]], steps: int) -> dict[str, float]:
    """Return the mean length of a small training step with six stores while a thread computes in Python."""
    weight = torch.ones(64, 64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)
    batch = torch.ones(8, 64)
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            total = 0
            for number in range(1000):
                total += number

    def step(store: Callable[[], object]) -> float:
        began = time.perf_counter_ns()
        for part in (optimizer.zero_grad, lambda: (batch @ weight).sum().backward(), optimizer.step):
            for _ in range(_STORES // 3):
                store()
            part()
        return (time.perf_counter_ns() - began) / 1e6

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        taken: dict[str, list[float]] = {name: [] for name in stores}
        for _ in range(steps):
            for name, store in stores.items():
                taken[name].append(step(store))
    finally:
        stop.set()
        thread.join()
    return {name: statistics.mean(times) for name, times in taken.items()}


def operations(directory: Path) -> dict[str, Callable[[], object]]:
    """Return what the training thread does with its ring and its control block."""
    run = directory / "run"
    header = RingHeader(
        rank=0, local_rank=0, world_size=1, pid=os.getpid(), attempt=1, clock_offset_ns=0, hostname="node"
    )
    ring = RingWriter(run, header)
    write_control(run, None)
    reader = ControlReader(control_path(run), frozenset({os.geteuid()}))
    marks = mark_buffer_type()[0](
        ring.file, BLOCKS_OFFSET, ring.block_count, issues_offset=ISSUES_OFFSET, flags_offset=FLAGS_OFFSET
    )
    marks.begin()
    site = pack_call_site("barrier", synchronous=True, domain=5, slot=5, group_size=2)

    def block() -> None:
        for _ in range(BLOCK_MARKS):
            marks.data_begin()

    return {
        "a collective issued": lambda: marks.issue(site, 0),
        "a sign of life": lambda: ring.show_life(time.monotonic_ns()),
        "a block of marks": block,
        "a look at the control block": lambda: reader.poll(time.monotonic_ns()),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer calls, for a look")
    quick = parser.parse_args().quick
    calls, steps = (3_000, 50) if quick else (30_000, 300)
    torch.set_num_threads(1)
    machine = ReferenceMachine()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        stores = {"nothing": lambda: None, **ways(Path(directory))}
        steps_ms = busy_step_ms(stores, steps)
        print(f"{'store of 16 bytes':46}{'ns':>8}{'step with a busy thread, ms':>32}")
        for name, store in stores.items():
            print(f"{name:46}{machine.hot_ns(store, calls):>8,.0f}{steps_ms[name]:>32.2f}")
        print(f"\n{'operation':46}{'ns':>8}")
        for name, operation in operations(Path(directory)).items():
            print(f"{name:46}{machine.hot_ns(operation, calls):>8,.0f}")
    print(f"\n{machine.check().text()}")


if __name__ == "__main__":
    main()
