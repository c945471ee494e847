"""What observing a collective costs the training thread: behind the kernels in C++, and behind those in Python.

    lockstep build-hooks
    python -m benchmarks.collective_cost [--quick]

All-reduces of four numbers in a gloo group of one rank, synchronous and asynchronous with a wait, with everything that
a training has there: kernels, the patch of `Work.wait`, a ring in shared memory. Thread CPU time, less that of the same
calls without the agent; the variants take turns, so that what else the machine does meets all of them. Hot: the least
of the rounds. Cold: 64 MB are touched before each call, which is what a training's own work does to the caches; the
lower quartile of a round, and the median of what the rounds' differ by. Frames and bytecodes are the agent's own, and
do not depend on the machine: tests/benchmarks/test_collective_cost.py holds them.

The agent that accounted in the training thread took 24 us hot and 246 us cold of an asynchronous collective, 20 and 240
of a synchronous one, and ran 27 frames and 532 bytecodes for it, on two shared cores.

Exit code 1 when a budget is missed, 2 when the kernels in C++ are not built.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

import lockstep
from benchmarks.caches import TOUCHED_BYTES, touch
from benchmarks.checks import Check, has_missed
from lockstep.agent.agent import Agent
from lockstep.agent.hooks import Removal, collectives, native, native_kernel, waits

HOT_BUDGET_NS = {"C++": 2_000, "Python": 12_000}
COLD_BUDGET_NS = {"C++": 15_000, "Python": 100_000}
FRAMES_MAX = 5
BYTECODES_MAX = 150
"""Of a synchronous collective behind the kernels in Python."""

_PACKAGE = str(Path(lockstep.__file__).parent)
_BARE = "bare"
_VALUE = torch.ones(4)


def synchronous() -> None:
    """Run a collective that waits for its end."""
    dist.all_reduce(_VALUE)


def asynchronous() -> None:
    """Run one and wait for it."""
    dist.all_reduce(_VALUE, async_op=True).wait()


OPERATIONS: dict[str, Callable[[], None]] = {"synchronous": synchronous, "asynchronous": asynchronous}


class Variant:
    """An agent that records, whose hooks of collectives are in place between `enter` and `leave`."""

    def __init__(self, agent: Agent | None, install: Callable[[Agent], Removal]) -> None:
        self._agent, self._install = agent, install
        self._removals: list[Removal] = []

    def enter(self) -> None:
        """Put the hooks in place."""
        if self._agent is not None:
            self._removals = [self._install(self._agent), waits.install(self._agent)]
            for _ in range(3):  # the first collective meets its group
                synchronous()

    def leave(self) -> None:
        """Take them off."""
        while self._removals:
            self._removals.pop()()


def kernels_in_cpp(agent: Agent) -> Removal:
    """Put the kernels in C++ in place."""
    return native_kernel.install(agent, native.load(os.environ), collectives.operators())


KERNELS: dict[str, Callable[[Agent], Removal]] = {"C++": kernels_in_cpp, "Python": collectives.install_in_python}


@contextmanager
def agents(kernels: dict[str, Callable[[Agent], Removal]]) -> Iterator[dict[str, Variant]]:
    """Hand out a variant for each of `kernels` and one without an agent, in a process group of one rank."""
    former = dict(os.environ)
    made: list[Agent] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:  # where rings lie
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCKSTEP_DIR": directory}
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            variants = {_BARE: Variant(None, collectives.install_in_python)}
            for name, install in kernels.items():
                os.environ["LOCKSTEP_RUN"] = "".join(filter(str.isalpha, name))
                os.environ.pop("LOCKSTEP_AGENT_PID", None)
                made.append(Agent([]))
                if not made[-1].wake():
                    raise SystemExit("the agent does not record")
                variants[name] = Variant(made[-1], install)
            yield variants
            if any(agent.boundary.failures or agent.marks.failures for agent in made):
                raise SystemExit("the agent failed")
        finally:
            for agent in made:
                agent.remove()
            dist.destroy_process_group()
            os.environ.clear()
            os.environ.update(former)


def measure(
    variants: dict[str, Variant], operation: Callable[[], None], *, rounds: int, calls: int, cold_calls: int
) -> dict[str, tuple[float, float]]:
    """Return (hot, cold) CPU time of a call by variant, ns."""
    memory = bytearray(TOUCHED_BYTES)
    hot: dict[str, list[float]] = {name: [] for name in variants}
    cold: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, variant in variants.items():
            variant.enter()
            hot[name].append(_time_ns(operation, calls) / calls)
            cold[name].append(_cold_ns(operation, cold_calls, memory))
            variant.leave()
    bare_cold = statistics.median(cold[_BARE])
    added = {
        name: statistics.median(own - bare for own, bare in zip(cold[name], cold[_BARE], strict=True)) for name in cold
    }
    return {name: (min(hot[name]), bare_cold + added[name]) for name in variants}


def added(*, quick: bool) -> dict[str, dict[str, tuple[float, float]]]:
    """Return what the kernels add to a call, (hot, cold) in ns, by operation and kernels.

    Raises
    ------
    native.NoNativeKernelsError
        Those in C++ are not built.
    """
    native.load(os.environ)
    with agents(KERNELS) as variants:
        costs = measure_operations(variants, quick=quick)
    return {
        operation: {
            name: (hot - measured[_BARE][0], cold - measured[_BARE][1])
            for name, (hot, cold) in measured.items()
            if name != _BARE
        }
        for operation, measured in costs.items()
    }


def measure_operations(variants: dict[str, Variant], *, quick: bool) -> dict[str, dict[str, tuple[float, float]]]:
    """Return what `measure` gives, by operation."""
    rounds, calls, cold_calls = (5, 300, 8) if quick else (25, 1_000, 16)
    return {
        name: measure(variants, operation, rounds=rounds, calls=calls, cold_calls=cold_calls)
        for name, operation in OPERATIONS.items()
    }


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


@dataclass(frozen=True)
class Interpreted:
    """What of the agent Python runs inside a call."""

    frames: int
    bytecodes: int


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


def count(variants: dict[str, Variant]) -> dict[str, Interpreted]:
    """Return what Python runs for a synchronous collective, by kernels."""
    found = {}
    for name, variant in variants.items():
        variant.enter()
        found[name] = interpreted(synchronous)
        variant.leave()
    return found


def check(costs: dict[str, dict[str, tuple[float, float]]], runs: dict[str, Interpreted]) -> list[Check]:
    """Return every figure, beside its budget."""
    checks = []
    for operation, measured in costs.items():
        bare_hot, bare_cold = measured[_BARE]
        checks.append(Check(f"{operation}, without the agent", f"{bare_hot:,.0f} ns, {bare_cold / 1000:.1f} us cold"))
        for kernels, hot_budget_ns in HOT_BUDGET_NS.items():
            hot, cold = measured[kernels]
            checks += [
                _at_most(f"{operation}, {kernels}, adds hot", hot - bare_hot, hot_budget_ns),
                _at_most(f"{operation}, {kernels}, adds cold", cold - bare_cold, COLD_BUDGET_NS[kernels]),
            ]
    for kernels in HOT_BUDGET_NS:
        found = runs[kernels]
        checks.append(
            Check(
                f"synchronous, {kernels}, Python inside",
                f"{found.frames} frames, {found.bytecodes} bytecodes",
                f"at most {FRAMES_MAX} and {BYTECODES_MAX}",
                found.frames <= FRAMES_MAX and found.bytecodes <= BYTECODES_MAX,
            )
        )
    return checks


def _at_most(what: str, cost_ns: float, budget_ns: int) -> Check:
    return Check(what, f"{cost_ns:,.0f} ns", f"at most {budget_ns:,} ns", cost_ns <= budget_ns)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer calls, for a look")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    try:
        native.load(os.environ)
    except native.NoNativeKernelsError as error:
        print(f"kernels in C++: {error}", file=sys.stderr)
        return 2
    with agents(KERNELS) as variants:
        runs = count(variants)
        costs = measure_operations(variants, quick=quick)
    checks = check(costs, runs)
    for line in checks:
        print(line.text())
    return int(has_missed(checks))


if __name__ == "__main__":
    sys.exit(main())
