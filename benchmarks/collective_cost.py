"""What observing a collective costs the training thread: behind the kernels in C++, and behind those in Python.

The latter with the agent's C extension and without it.

    lockstep build-hooks
    python -m benchmarks.collective_cost [--quick]

All-reduces of four numbers in a gloo group of one rank, synchronous and asynchronous with a wait, with everything
that a training has there: kernels, the patch of `Work.wait`, a ring in shared memory. Thread CPU time, less that of
the same calls without the agent, on one processor (placement.py). The variants take turns in many short rounds. Hot:
one call after another. Cold: 64 MB are touched before each call, which is what a training's own work does to the
caches; the lower quartile of a round. Frames and bytecodes are the agent's own, and do not depend on the machine:
tests/benchmarks/test_collective_cost.py holds them.

The floors are what any kernel in Python costs: one that only passes the collective on, and the same with an empty
callback on the future. No change of the agent touches them, but machines do: virtual ones of one kind took 7 and 25
us for the first, and one takes twice as long while others use its cores. What a variant adds in a round in which the
floor is slower than FLOOR is therefore scaled to the machine whose floors those are; in others it is as measured. A
figure is the median of the rounds. The rows "two processors" are what is added where the backend's threads run on
another one.

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
from benchmarks.collective_variants import BARE, FLOORS, KERNELS, NO_EXTENSION, OPERATIONS, Variant, agents
from benchmarks.cost_table import Cost, Row, table
from benchmarks.placement import one_processor, two_processors
from benchmarks.thread_time import cold_ns, warm_ns
from lockstep.agent.hooks import native

BUDGETS = {"C++": Cost(2_000, 15_000), "Python": Cost(12_000, 100_000)}
FORMER = {"synchronous": ("20", "240"), "asynchronous": ("24", "246")}
"""The agent that accounted in the training thread, us, on two shared cores; 27 frames and 532 bytecodes."""
FLOOR = {"synchronous": Cost(7_000, 53_000), "asynchronous": Cost(10_000, 60_000)}
"""What the floors cost the four-core machine that the budgets are for."""
NO_EXTENSION_BEYOND_FLOOR_NS = 8_000
"""Four marks, a look-up and a store in Python: 350 bytecodes at 20 ns, and ten calls to C. The budget of kernels in
Python leaves 5 and 2 us for them, which is missed (docs/collective-kernels.md): a host with neither a compiler nor a
wheel has a budget of its own."""

_COUNTED_CALLS = 3
_PACKAGE = str(Path(lockstep.__file__).parent)


@dataclass(frozen=True)
class Figure:
    """A cost as measured here, and as the machine that the budgets are for would have taken."""

    raw: Cost
    scaled: Cost


Figures = dict[str, dict[str, Figure]]
"""By operation and variant."""


@dataclass(frozen=True)
class Added:
    """What hooks add to a collective: on one processor, and hot on two, where there are two.

    `slowness`: how many times as long as their machine's this one's floors took, by operation, hot and cold.
    """

    bare: dict[str, Figure]
    one_processor: Figures
    two_processors: Figures
    slowness: "dict[str, Slowness]"


@dataclass(frozen=True)
class Interpreted:
    """What of the agent Python runs inside a call."""

    frames: int
    bytecodes: int

    def text(self) -> str:
        """Return both, for a line of a table."""
        return f"{self.frames} frames, {self.bytecodes} bytecodes"


FORMER_INTERPRETED = {"synchronous": Interpreted(27, 532), "asynchronous": Interpreted(32, 961)}
"""Of the agent that accounted in the training thread; of an asynchronous one, a fifth of what five added to a step."""
NOT_INTERPRETED = Interpreted(0, 0)
WITHOUT_EXTENSION = {"synchronous": Interpreted(2, 345), "asynchronous": Interpreted(4, 430)}
"""Most that runs on the training thread without the C extension (Python 3.11); with it, nothing does. The end of an
asynchronous one may be noted there: at once by 1 frame, or by 2 where it has ended before its callback is added."""


def measure(
    variants: dict[str, Variant], operation: Callable[[], None], *, rounds: int, calls: int, cold_calls: int
) -> dict[str, list[Cost]]:
    """Return what a call costs by variant, in each round; without `cold_calls` with warm caches only."""
    memory = bytearray(TOUCHED_BYTES if cold_calls else 0)
    found: dict[str, list[Cost]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, variant in variants.items():
            variant.enter()
            hot_ns = warm_ns(operation, calls)
            found[name].append(Cost(hot_ns, cold_ns(operation, cold_calls, memory) if cold_calls else None))
            variant.leave()
    return found


def measure_added(variants: dict[str, Variant], *, rounds: int, calls: int, cold_calls: int) -> Added:
    """Return what every variant, and the floor of each operation, adds to a call."""
    found = Added({}, {}, {}, {})
    for name, operation in OPERATIONS.items():
        floor, floor_variant = FLOORS[name]
        measured = variants | {floor: floor_variant}
        with one_processor():
            costs = measure(measured, operation, rounds=rounds, calls=calls, cold_calls=cold_calls)
        slowness = floor_slowness(costs, floor, FLOOR[name])
        found.slowness[name] = slowness
        found.bare[name] = slowness.figure(costs[BARE])
        found.one_processor[name] = {each: slowness.figure(own) for each, own in _less_bare(costs).items()}
        with two_processors() as are_two:
            if are_two:
                two = _less_bare(measure(measured, operation, rounds=rounds, calls=calls, cold_calls=0))
                always = slowness.constant()
                found.two_processors[name] = {each: always.figure(own) for each, own in two.items()}
    return found


@dataclass(frozen=True)
class Slowness:
    """How many times as long the floor took as on its machine, in each round: others use the cores for seconds."""

    hot: list[float]
    cold: list[float]

    def typical(self) -> tuple[float, float]:
        """Return the median of the rounds, hot and cold."""
        return statistics.median(self.hot), statistics.median(self.cold)

    def constant(self) -> "Slowness":
        """Return the same median for every round."""
        hot, cold = self.typical()
        return Slowness([hot] * len(self.hot), [cold] * len(self.cold))

    def check(self, what: str) -> Check:
        """Return the line that shows how fast this machine was, for rows of `what`."""
        hot, cold = self.typical()
        return Check(f"{what}, the floor here, against its machine", f"{hot:.2f} hot, {cold:.2f} cold")

    def figure(self, costs: list[Cost]) -> Figure:
        """Return the median of the rounds, as measured, and as the floor's machine would have taken if it is faster."""
        scaled = [
            Cost(cost.hot_ns / max(hot, 1.0), None if cost.cold_ns is None else cost.cold_ns / max(cold, 1.0))
            for cost, hot, cold in zip(costs, self.hot, self.cold, strict=True)
        ]
        return Figure(_median(costs), _median(scaled))


def _median(costs: list[Cost]) -> Cost:
    cold = [cost.cold_ns for cost in costs if cost.cold_ns is not None]
    return Cost(statistics.median(cost.hot_ns for cost in costs), statistics.median(cold) if cold else None)


def floor_slowness(costs: dict[str, list[Cost]], floor: str, expected: Cost) -> Slowness:
    """Return the slowness of each round by what the floor added in it; `expected` is what it adds on its machine."""
    added = _less_bare(costs)[floor]
    assert expected.cold_ns is not None
    return Slowness(
        [(cost.hot_ns or 1.0) / expected.hot_ns for cost in added],
        [(cost.cold_ns or 1.0) / expected.cold_ns for cost in added],
    )


def _less_bare(costs: dict[str, list[Cost]]) -> dict[str, list[Cost]]:
    return {
        name: [less(cost, bare) for cost, bare in zip(own, costs[BARE], strict=True)]
        for name, own in costs.items()
        if name != BARE
    }


def less(cost: Cost, bare: Cost) -> Cost:
    """Return what a call costs beyond a bare one."""
    cold_ns = None if cost.cold_ns is None or bare.cold_ns is None else cost.cold_ns - bare.cold_ns
    return Cost(cost.hot_ns - bare.hot_ns, cold_ns)


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
        rounds, calls, cold_calls = (9, 150, 5) if quick else (45, 300, 6)
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
    for operation, figures in added.one_processor.items():
        found.append(_row(f"{operation} collective, without the agent", added.bare[operation]))
        found += [
            _row(
                f"{operation}, {name}",
                figure,
                budget(name, operation),
                FORMER[operation] if name in KERNELS else ("", ""),
            )
            for name, figure in figures.items()
        ]
        found += [
            _row(f"{operation}, {name}, two processors", figure)
            for name, figure in added.two_processors.get(operation, {}).items()
        ]
    return found


def _row(what: str, figure: Figure, most: Cost | None = None, former: tuple[str, str] = ("", "")) -> Row:
    return Row(what, figure.scaled, most, former, figure.raw)


def budget(variant: str, operation: str) -> Cost | None:
    """Return what a variant may add to a collective, None for one that is only shown."""
    if variant == NO_EXTENSION:
        return Cost(FLOOR[operation].hot_ns + NO_EXTENSION_BEYOND_FLOOR_NS, BUDGETS["Python"].cold_ns)
    return BUDGETS.get(variant)


def check_slowness(added: Added) -> list[Check]:
    """Return the lines that show how fast this machine was."""
    return [slowness.check(operation) for operation, slowness in added.slowness.items()]


def check_interpreted(runs: dict[str, dict[str, Interpreted]]) -> list[Check]:
    """Return what Python runs inside collectives, with its budget."""
    checks = []
    for operation, by_variant in runs.items():
        checks.append(Check(f"former: {operation}, Python inside", FORMER_INTERPRETED[operation].text()))
        for name, found in by_variant.items():
            most = WITHOUT_EXTENSION[operation] if name == NO_EXTENSION else NOT_INTERPRETED
            check = Check(
                f"{operation}, {name}, Python inside",
                found.text(),
                f"at most {most.frames} and {most.bytecodes}",
                found.frames <= most.frames and found.bytecodes <= most.bytecodes,
            )
            checks += [check] if name != BARE else []
    return checks


def main() -> int:
    """Measure, print, compare with the budgets."""
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
