"""What observing a collective costs the training thread: behind the kernels in C++, and behind those in Python.

    lockstep build-hooks
    python -m benchmarks.collective_cost [--quick]

All-reduces of four numbers in a gloo group of one rank, synchronous and asynchronous with a wait, with everything that
a training has there: kernels, the patch of `Work.wait`, a ring in shared memory. Thread CPU time, less that of the same
calls without the agent, on one processor (placement.py); the variants take turns, so that what else the machine does
meets all of them. Hot: the least of the rounds. Cold: 64 MB are touched before each call, which is what a training's
own work does to the caches; the lower quartile of a round, and the median of what the rounds' differ by. Frames and
bytecodes are the agent's own, and do not depend on the machine: tests/benchmarks/test_collective_cost.py holds them.

The floors are what any kernel in Python costs: one that only passes the collective on, and the same with an empty
callback on the future. The rows "two processors" are what is added where the backend's threads run on another one.

Exit code 1 when a budget is missed, 2 when the kernels in C++ are not built.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import lockstep
from benchmarks.caches import TOUCHED_BYTES, touch
from benchmarks.checks import Check, has_missed
from benchmarks.collective_variants import BARE, FLOORS, KERNELS, OPERATIONS, Variant, agents
from benchmarks.cost_table import Cost, Row, table
from benchmarks.placement import one_processor, two_processors
from lockstep.agent.hooks import native

BUDGETS = {"C++": Cost(2_000, 15_000), "Python": Cost(12_000, 100_000)}
FORMER = {"synchronous": ("20", "240"), "asynchronous": ("24", "246")}
"""The agent that accounted in the training thread, us, on two shared cores; 27 frames and 532 bytecodes."""
FRAMES_MAX = 3
BYTECODES_MAX = {"synchronous": 122, "asynchronous": 140}
"""On the training thread, behind the kernels in Python."""

_PACKAGE = str(Path(lockstep.__file__).parent)

Costs = dict[str, dict[str, Cost]]
"""By operation and variant."""


@dataclass(frozen=True)
class Added:
    """What hooks add to a collective: on one processor, and hot on two, where there are two."""

    bare: dict[str, Cost]
    one_processor: Costs
    two_processors: Costs


@dataclass(frozen=True)
class Interpreted:
    """What of the agent Python runs inside a call."""

    frames: int
    bytecodes: int


def measure(
    variants: dict[str, Variant], operation: Callable[[], None], *, rounds: int, calls: int, cold_calls: int
) -> dict[str, Cost]:
    """Return what a call costs by variant; without `cold_calls` with warm caches only."""
    memory = bytearray(TOUCHED_BYTES if cold_calls else 0)
    hot: dict[str, list[float]] = {name: [] for name in variants}
    cold: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, variant in variants.items():
            variant.enter()
            hot[name].append(_time_ns(operation, calls) / calls)
            if cold_calls:
                cold[name].append(_cold_ns(operation, cold_calls, memory))
            variant.leave()
    if not cold_calls:
        return {name: Cost(min(times)) for name, times in hot.items()}
    bare = statistics.median(cold[BARE])
    return {
        name: Cost(
            min(times),
            bare + statistics.median(own - other for own, other in zip(cold[name], cold[BARE], strict=True)),
        )
        for name, times in hot.items()
    }


def measure_added(variants: dict[str, Variant], *, rounds: int, calls: int, cold_calls: int) -> Added:
    """Return what every variant, and the floor of each operation, adds to a call."""
    bare, one, two = {}, {}, {}
    for name, operation in OPERATIONS.items():
        floor, floor_variant = FLOORS[name]
        measured = variants | {floor: floor_variant}
        with one_processor():
            costs = measure(measured, operation, rounds=rounds, calls=calls, cold_calls=cold_calls)
        bare[name], one[name] = costs[BARE], _less_bare(costs)
        with two_processors() as are_two:
            if are_two:
                two[name] = _less_bare(measure(measured, operation, rounds=rounds, calls=calls, cold_calls=0))
    return Added(bare, one, two)


def _less_bare(costs: dict[str, Cost]) -> dict[str, Cost]:
    bare = costs[BARE]
    return {
        name: Cost(
            cost.hot_ns - bare.hot_ns,
            None if cost.cold_ns is None or bare.cold_ns is None else cost.cold_ns - bare.cold_ns,
        )
        for name, cost in costs.items()
        if name != BARE
    }


def measure_with_agents(*, quick: bool) -> tuple[Added, dict[str, dict[str, Interpreted]]]:
    """Return what hooks add to collectives, and what Python runs in them.

    Raises
    ------
    native.NoNativeKernelsError
        The kernels in C++ are not built.
    """
    native.load(os.environ)
    with agents(KERNELS) as variants:
        runs = count(variants)
        rounds, calls, cold_calls = (5, 300, 8) if quick else (15, 1_000, 16)
        return measure_added(variants, rounds=rounds, calls=calls, cold_calls=cold_calls), runs


def _cold_ns(operation: Callable[[], None], calls: int, memory: bytearray) -> float:
    times = []
    for _ in range(calls):
        touch(memory)
        times.append(_time_ns(operation, 1))
    return statistics.quantiles(times, n=4)[0]


def _time_ns(operation: Callable[[], None], calls: int) -> int:
    began = time.thread_time_ns()
    for _ in range(calls):
        operation()
    return time.thread_time_ns() - began


def interpreted(operation: Callable[[], None]) -> Interpreted:
    """Count the agent's frames and bytecodes in a call."""
    frames = bytecodes = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal frames, bytecodes
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return trace
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        frames += event == "call"
        bytecodes += event == "opcode"
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        operation()
    finally:
        sys.settrace(former)
    return Interpreted(frames, bytecodes)


def count(variants: dict[str, Variant]) -> dict[str, dict[str, Interpreted]]:
    """Return what Python runs for a collective on the training thread, by operation and variant."""
    found: dict[str, dict[str, Interpreted]] = {name: {} for name in OPERATIONS}
    for name, variant in variants.items():
        variant.enter()
        for operation, call in OPERATIONS.items():
            found[operation][name] = interpreted(call)
        variant.leave()
    return found


def rows(added: Added) -> list[Row]:
    """Return what hooks add to collectives, as lines of a table."""
    found = []
    for operation, costs in added.one_processor.items():
        found.append(Row(f"{operation} collective, without the agent", added.bare[operation]))
        found += [
            Row(f"{operation}, {name}", cost, BUDGETS.get(name), FORMER[operation] if name in BUDGETS else ("", ""))
            for name, cost in costs.items()
        ]
        found += [
            Row(f"{operation}, {name}, two processors", cost)
            for name, cost in added.two_processors.get(operation, {}).items()
        ]
    return found


def check_interpreted(runs: dict[str, dict[str, Interpreted]]) -> list[Check]:
    """Return what Python runs inside collectives, with its budget."""
    return [
        Check(
            f"{operation}, {name}, Python inside",
            f"{found.frames} frames, {found.bytecodes} bytecodes",
            f"at most {FRAMES_MAX} and {BYTECODES_MAX[operation]}",
            found.frames <= FRAMES_MAX and found.bytecodes <= BYTECODES_MAX[operation],
        )
        for operation, by_variant in runs.items()
        for name, found in by_variant.items()
        if name != BARE
    ]


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer calls, for a look")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    try:
        added, runs = measure_with_agents(quick=quick)
    except native.NoNativeKernelsError as error:
        print(f"kernels in C++: {error}", file=sys.stderr)
        return 2
    lines, checks = rows(added), check_interpreted(runs)
    print(table(lines))
    for check in checks:
        print(check.text())
    return int(has_missed(checks) or any(line.is_met is False for line in lines))


if __name__ == "__main__":
    sys.exit(main())
