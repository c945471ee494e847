"""The self-test of a build, in its own process: real collectives must leave the same marks as with the Python kernels.

    python -m lockstep.cli.native_hooks.self_test LIBRARY

A gloo group of one rank runs each operator that one rank can run, synchronously and asynchronously, behind the Python
kernels and behind those of the library. Exit code 0 if the marks are equal, otherwise 1 with the differences on stderr.
"""

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist

from lockstep.agent.boundary import FailureGuard
from lockstep.agent.groups import ProcessGroups
from lockstep.agent.hooks import collective_operators, collectives, native, native_kernel
from lockstep.agent.hooks.patching import Removal
from lockstep.agent.mark_writer import mark_buffer_type
from lockstep.contracts.marks import BLOCK_BYTES, BLOCK_COUNT, KIND_MASK, MARK_STRUCT, MarkKind, unpack_block
from lockstep.contracts.ring import ISSUES_BYTES

_WAIT_S = 20.0
_ENDS = (MarkKind.DONE, MarkKind.EXPECT)
Noted = list[tuple[str, int, int, int]]
"""(kind, detail, ordinal, argument) of each mark, by ordinal and kind."""


class RecordingStub:
    """The part of an agent that the kernels need, over a buffer with its own file; the calling thread trains."""

    def __init__(self, file: int) -> None:
        self.boundary = FailureGuard(self._stop)
        self.guard = self.boundary.guard
        self.groups = ProcessGroups(lambda _groups: None, environ={})
        buffer_type, self.mark_writer = mark_buffer_type()
        self.marks: Any = buffer_type(file, 0, BLOCK_COUNT, issues_offset=BLOCK_COUNT * BLOCK_BYTES)
        self.in_flight: dict[int, Any] = {}
        self.device = None
        self.alive = True
        self._file = file
        self.marks.begin()

    def _stop(self, _failures: int) -> None:
        self.alive = False
        self.marks.thread = 0

    def wake(self) -> bool:
        """Start recording; nothing to do here."""
        return False

    def records_here(self) -> bool:
        """Whether the calling thread trains, or works for a backward."""
        in_backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001  (as hooks/backward.py)
        return bool(get_ident() == self.marks.thread or (self.marks.thread and in_backward))

    def written(self) -> list[tuple[int, int, int, int, int]]:
        """Return all marks until now."""
        self.marks.flush()
        data = os.pread(self._file, BLOCK_COUNT * BLOCK_BYTES, 0)
        slots = (data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES))
        blocks = sorted(filter(None, map(unpack_block, slots)), key=lambda block: block.sequence)
        return [mark for block in blocks for mark in MARK_STRUCT.iter_unpack(block.marks)]


@contextmanager
def recording(install: Callable[[Any], Removal]) -> Iterator[RecordingStub]:
    """Yield a stub for which `install` has installed kernels."""
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), BLOCK_COUNT * BLOCK_BYTES + ISSUES_BYTES)
        stub = RecordingStub(file.fileno())
        remove = install(stub)
        try:
            yield stub
        finally:
            remove()
            stub.marks.thread = 0


def run_collectives() -> None:
    """Run what one rank can."""
    value, other = torch.ones(6), torch.ones(6)
    group = dist.new_group([0])
    for is_async in (False, True):
        works = [
            dist.all_reduce(value, group=group, async_op=is_async),
            dist.broadcast(value, 0, async_op=is_async),
            dist.reduce(value, 0, async_op=is_async),
            dist.all_gather([other], value, async_op=is_async),
            dist.all_gather_into_tensor(other, value, async_op=is_async),
            dist.reduce_scatter_tensor(other, value, async_op=is_async),
            dist.all_to_all_single(other, value, async_op=is_async),
            dist.gather(value, [other], async_op=is_async),
            dist.scatter(value, [other], async_op=is_async),
            dist.barrier(async_op=is_async),
        ]
        for work in works:
            if work is not None:
                work.wait()


def noted(stub: RecordingStub, failed: int = 0) -> Noted:
    """Return the issues and the ends of all collectives, once each but those that failed has one.

    A backend's thread may be late.
    """
    deadline = time.monotonic() + _WAIT_S
    while True:
        found = [mark for mark in stub.written() if mark[1] & KIND_MASK in (MarkKind.ISSUE, *_ENDS)]
        ends = sum(mark[1] & KIND_MASK != MarkKind.ISSUE for mark in found)
        if 2 * ends + failed == len(found) or time.monotonic() > deadline:
            return sorted(
                (MarkKind(kind & KIND_MASK).name, detail, ordinal, argument)
                for _, kind, detail, ordinal, argument in found
            )
        time.sleep(0.001)


def compare(library: Path) -> list[str]:
    """Return how a library's kernels differ from those in Python; empty if they do not."""
    module = native.import_library(library)
    found: list[Noted] = []
    for install in (
        collectives.install_in_python,
        lambda stub: native_kernel.install(stub, module, collective_operators.operators()),
    ):
        with recording(install) as stub:
            run_collectives()
            found.append(noted(stub))
            if stub.boundary.failures:
                return ["the kernels failed"]
            gc.collect()
    expected, got = found
    if not expected:
        return ["the kernels in Python noted nothing"]
    return [f"got {mark}, expected {other}" for mark, other in zip(got, expected, strict=False) if mark != other] + (
        [f"got {len(got)} marks, expected {len(expected)}"] if len(got) != len(expected) else []
    )


def main() -> int:
    """Compare, and print the differences."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    differences = compare(Path(sys.argv[1]))
    for difference in differences:
        print(difference, file=sys.stderr)
    dist.destroy_process_group()
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
