"""What observing a collective costs the training thread: behind the kernels in C++, and behind those in Python.

    lockstep build-hooks
    python -m benchmarks.collective_cost [--quick]

All-reduces of four numbers in a gloo group of one rank, synchronous and asynchronous with a wait, with everything
that a training has there: kernels, the patch of `Work.wait`, a ring in shared memory. Thread CPU time, less that of
the same calls without the agent, on one processor (placement.py); the variants take turns, and a figure is the median
of what a variant and the bare calls of its round differ by. Hot: one call after another. Cold: 64 MB are touched
before each call, which is what a training's own work does to the caches; the lower quartile of a round. Frames and
bytecodes are the agent's own, and do not depend on the machine: tests/benchmarks/test_collective_cost.py holds them.

The floors are what any kernel in Python costs: one that only passes the collective on, and the same with an empty
callback on the future. No change of the agent touches them, but machines do: virtual ones of one kind took 7 and 25
us for the first. All costs are therefore scaled to the machine whose floors are FLOOR, with which the table agrees
for its floors by definition. The rows "two processors" are what is added where the backend's threads run on another
one.

Exit code 1 when a budget is missed, 2 when the kernels in C++ are not built.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import lockstep
from benchmarks.caches import TOUCHED_BYTES
from benchmarks.checks import Check, has_missed
from benchmarks.collective_variants import BARE, FLOORS, KERNELS, OPERATIONS, Variant, agents
from benchmarks.cost_table import Cost, Row, table
from benchmarks.placement import one_processor, two_processors
from benchmarks.thread_time import cold_ns, warm_ns
from lockstep.agent.hooks import native

BUDGETS = {"C++": Cost(2_000, 15_000), "Python": Cost(12_000, 100_000)}
FORMER = {"synchronous": ("20", "240"), "asynchronous": ("24", "246")}
"""The agent that accounted in the training thread, us, on two shared cores; 27 frames and 532 bytecodes."""
FLOOR = {"synchronous": Cost(7_000, 53_000), "asynchronous": Cost(10_000, 60_000)}
"""What the floors cost the four-core machine that the budgets are for."""
FRAMES_MAX = 2
BYTECODES_MAX = {"synchronous": 70, "asynchronous": 70}
"""On the training thread, behind the kernels in Python."""

_COUNTED_CALLS = 3
_PACKAGE = str(Path(lockstep.__file__).parent)

Costs = dict[str, dict[str, Cost]]
"""By operation and variant."""


@dataclass(frozen=True)
class Added:
    """What hooks add to a collective, scaled: on one processor, and hot on two, where there are two.

    `slowness`: how many times as long as their machine's this one's floors took, by operation, hot and cold.
    """

    bare: dict[str, Cost]
    one_processor: Costs
    two_processors: Costs
    slowness: dict[str, tuple[float, float]]


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
            hot[name].append(warm_ns(operation, calls))
            if cold_calls:
                cold[name].append(cold_ns(operation, cold_calls, memory))
            variant.leave()
    return {name: Cost(_typical(hot, name), _typical(cold, name) if cold_calls else None) for name in variants}


def _typical(costs: dict[str, list[float]], name: str) -> float:
    """Return the median of what no hooks cost, and of what a variant costs beyond that in the same round."""
    added = [own - bare for own, bare in zip(costs[name], costs[BARE], strict=True)]
    return statistics.median(costs[BARE]) + statistics.median(added)


def measure_added(variants: dict[str, Variant], *, rounds: int, calls: int, cold_calls: int) -> Added:
    """Return what every variant, and the floor of each operation, adds to a call."""
    found = Added({}, {}, {}, {})
    for name, operation in OPERATIONS.items():
        floor, floor_variant = FLOORS[name]
        measured = variants | {floor: floor_variant}
        with one_processor():
            costs = measure(measured, operation, rounds=rounds, calls=calls, cold_calls=cold_calls)
        one = _less_bare(costs)
        hot, cold = found.slowness[name] = _slowness(one[floor], FLOOR[name])
        found.bare[name] = _scaled(costs[BARE], hot, cold)
        found.one_processor[name] = {each: _scaled(cost, hot, cold) for each, cost in one.items()}
        with two_processors() as are_two:
            if are_two:
                two = _less_bare(measure(measured, operation, rounds=rounds, calls=calls, cold_calls=0))
                found.two_processors[name] = {each: _scaled(cost, hot, cold) for each, cost in two.items()}
    return found


def _slowness(floor: Cost, expected: Cost) -> tuple[float, float]:
    assert floor.cold_ns is not None
    assert expected.cold_ns is not None
    return floor.hot_ns / expected.hot_ns, floor.cold_ns / expected.cold_ns


def _scaled(cost: Cost, hot: float, cold: float) -> Cost:
    return Cost(cost.hot_ns / hot, None if cost.cold_ns is None else cost.cold_ns / cold)


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
    """Return what Python runs for a collective on the training thread, by operation and variant.

    The least of a few calls: ten times a second, one looks for requests.
    """
    found: dict[str, dict[str, Interpreted]] = {name: {} for name in OPERATIONS}
    for name, variant in variants.items():
        variant.enter()
        for operation, call in OPERATIONS.items():
            counts = [interpreted(call) for _ in range(_COUNTED_CALLS)]
            found[operation][name] = min(counts, key=lambda each: each.bytecodes)
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


def check_slowness(added: Added) -> list[Check]:
    """Return the lines that show how fast this machine was."""
    return [
        Check(f"{operation}, the floor here, against its machine", f"{hot:.2f} hot, {cold:.2f} cold")
        for operation, (hot, cold) in added.slowness.items()
    ]


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
    lines, checks = rows(added), [*check_slowness(added), *check_interpreted(runs)]
    print(table(lines))
    for check in checks:
        print(check.text())
    return int(has_missed(checks) or any(line.is_met is False for line in lines))


if __name__ == "__main__":
    sys.exit(main())
