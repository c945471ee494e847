"""What marks cost the training thread: both writers, hot, cold and in bytecodes.

    python setup.py build_ext --inplace   # once, where the C extension is not installed
    python -m benchmarks.mark_cost [--quick]

A step has six marks (data, backward, optimizer: begin and end) and is stored at its end; benchmarks/agent_cost.py
measures it in C, with everything that a rank has there. A synchronous collective has four marks (issue, expected end,
wait begin and end), and its issue is stored at once. Thread CPU time as the reference
machine would take it (thread_time.py). Hot: the median of several rounds. Cold: 64 MB are touched before each call,
as a training's own work does; the lower quartile of the calls, less that of an empty Python call.
Bytecodes do not depend on the machine: tests/benchmarks/test_mark_cost.py holds them.

Exit code 1 when a budget is missed, 2 when the C extension is not there.
"""

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from benchmarks.caches import TOUCHED_BYTES
from benchmarks.checks import Check, has_missed
from benchmarks.thread_time import ReferenceMachine
from lockstep.agent.mark_buffer import MarkBuffer
from lockstep.contracts.marks import BLOCK_BYTES, BLOCK_COUNT, pack_call_site
from lockstep.contracts.ring import ISSUES_BYTES

MARK_BUDGET_NS = 100
"""Most of it is the clock, which takes 20 ns on a machine and 50 on a virtual one."""
PYTHON_STEP_HOT_BUDGET_NS = 5_000
"""A clock, a pack and a check of the thread in each mark, and a store, written in Python: 4.7 to 5.4 us measured, where
the agent that accounted in the training thread took 9 to 13."""

FORMER_STEP = Check("former: a step of six marks", "9 to 13 us hot, 137 to 145 us cold", "1951 bytecodes")
"""Of the agent that accounted in the training thread, in Python, on two shared cores."""

_SITE = pack_call_site("allreduce_", synchronous=True, domain=3, slot=1, group_size=8)


@dataclass(frozen=True)
class Part:
    """A writer's operation; costs are ns of thread CPU, `bytecodes` those that Python ran inside the call."""

    hot_ns: float
    cold_ns: float
    bytecodes: int


class MarkedSteps:
    """The operations that are measured, over a buffer of either writer."""

    def __init__(self, buffer: MarkBuffer) -> None:
        self.mark = buffer.data_begin
        self._marks = (buffer.data_begin, buffer.data_end, buffer.backward_begin, buffer.backward_end)
        self._optimizer_begin, self._optimizer_end = buffer.optimizer_begin, buffer.optimizer_end
        self._issue, self._expect = buffer.issue, buffer.expect
        self._wait_begin, self._wait_end = buffer.wait_begin, buffer.wait_end
        self._flush = buffer.flush

    def step(self) -> None:
        """Make the six marks of a step without collectives and store them."""
        data_begin, data_end, backward_begin, backward_end = self._marks
        data_begin()
        data_end()
        backward_begin()
        backward_end()
        self._optimizer_begin(self)
        self._optimizer_end()
        self._flush()  # a step of 10 ms is stored by its end; those of a benchmark are shorter

    def collective(self) -> None:
        """Make the marks of a synchronous collective."""
        ordinal = self._issue(_SITE, 4096)
        assert ordinal is not None
        self._expect(ordinal)
        self._wait_begin()
        self._wait_end()


@contextmanager
def buffer_of(kind: type[MarkBuffer]) -> Iterator[MarkBuffer]:
    """Hand out a buffer that records into a ring in shared memory."""
    with tempfile.TemporaryFile(dir="/dev/shm") as file:  # where rings lie
        os.posix_fallocate(file.fileno(), 0, BLOCK_COUNT * BLOCK_BYTES + ISSUES_BYTES)
        buffer = kind(file.fileno(), 0, BLOCK_COUNT, issues_offset=BLOCK_COUNT * BLOCK_BYTES)
        buffer.begin()
        yield buffer
        if buffer.failures:
            raise SystemExit(f"{buffer.failures} stores failed")


def count_bytecodes(operation: Callable[[], Any]) -> int:
    """Return how many bytecodes Python runs for `operation`; those of this file are the benchmark's and left out."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode" and frame.f_code.co_filename != __file__
        return trace

    former, is_collecting = sys.gettrace(), gc.isenabled()
    gc.disable()  # a collection would run others' callbacks and finalisers
    sys.settrace(trace)
    try:
        operation()
    finally:
        sys.settrace(former)
        if is_collecting:
            gc.enable()
    return count


def measure(
    machine: ReferenceMachine, operation: Callable[[], Any], memory: bytearray, *, calls: int, cold_calls: int
) -> Part:
    """Return the cost of an operation."""
    bytecodes = count_bytecodes(operation)
    cold = machine.cold_beyond_empty_ns(operation, cold_calls, memory)
    return Part(machine.hot_ns(operation, calls), max(cold, 0.0), bytecodes)


def settled(operation: Callable[[], Any]) -> Callable[[], Any]:
    """Return `operation` after its first calls."""
    for _ in range(24):
        operation()
    return operation


OPERATIONS = {"a mark": "mark", "a step of six marks": "step", "a synchronous collective": "collective"}


def measure_all(
    machine: ReferenceMachine, extension: type[MarkBuffer], *, quick: bool
) -> tuple[dict[str, dict[str, Part]], float]:
    """Return the costs by writer and operation, and the hot cost of a call that appends nothing, ns."""
    calls, cold_calls = (2_000, 20) if quick else (20_000, 100)
    memory = bytearray(TOUCHED_BYTES)
    found: dict[str, dict[str, Part]] = {"C": {}, "Python": {}}
    for what, method in OPERATIONS.items():
        for name, kind in (("C", extension), ("Python", MarkBuffer)):
            if (name, method) == ("C", "step"):  # benchmarks/agent_cost.py measures it as hooks make it
                continue
            with buffer_of(kind) as buffer:
                operation = settled(getattr(MarkedSteps(buffer), method))
                found[name][what] = measure(machine, operation, memory, calls=calls, cold_calls=cold_calls)
    inert = extension(0, 0, 1)
    return found, machine.hot_ns(inert.data_begin, calls)


def check(found: dict[str, dict[str, Part]], empty_call_ns: float) -> list[Check]:
    """Return every figure, with its budget where it has one."""
    checks = [
        Check(
            f"{operation}, {writer}",
            f"{part.hot_ns:,.0f} ns hot, {part.cold_ns / 1000:.1f} us cold",
            f"{part.bytecodes} bytecodes",
        )
        for operation in OPERATIONS
        for writer, part in ((writer, parts[operation]) for writer, parts in found.items() if operation in parts)
    ]
    mark_ns = found["C"]["a mark"].hot_ns - empty_call_ns
    fallback = found["Python"]["a step of six marks"]
    return [
        *checks,
        FORMER_STEP,
        _at_most("C, a mark beyond an empty call, hot", mark_ns, MARK_BUDGET_NS),
        _at_most("Python, a step, hot", fallback.hot_ns, PYTHON_STEP_HOT_BUDGET_NS),
    ]


def _at_most(what: str, cost_ns: float, budget_ns: int) -> Check:
    return Check(what, f"{cost_ns:,.0f} ns", f"at most {budget_ns:,} ns", cost_ns <= budget_ns)


def main() -> int:
    """Measure, print, compare with the budgets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer calls, for a look")
    quick = parser.parse_args().quick
    try:
        from lockstep.agent._marks import MarkBuffer as Extension  # noqa: PLC0415  (optional)
    except ImportError as error:
        print(f"the C extension is not installed ({error}): python setup.py build_ext --inplace", file=sys.stderr)
        return 2
    machine = ReferenceMachine()
    checks = [*check(*measure_all(machine, Extension, quick=quick)), machine.check()]
    for line in checks:
        print(line.text())
    return int(has_missed(checks))


if __name__ == "__main__":
    sys.exit(main())
