"""What the agent costs the training thread: by part, in memory, and of a whole training step.

    python -m benchmarks.agent_cost [--json] [--quick]

Parts: the same call with the agent and without it, in blocks that alternate; the cost is the median difference of the
blocks' medians. Memory: what Python allocated in the agent's files, and the ring. Whole step: benchmarks/agent_job.py.

Parts are hot figures: in a real job, whose own work empties the caches between two calls, they are several times higher
(`agent_ns` of the job's own records is printed beside them).

Exit code 1 when a part costs more than CEILING times its budget (DESIGN.md, section 5), memory more than its budget, or
when the whole step surely costs more than 1 %; the ceiling is wide because the machines that run this are shared.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.agent_job import JobCost, run_job
from lockstep.agent import bootstrap
from lockstep.agent.account import BACKWARD, DATA, FORWARD, Collective
from lockstep.contracts.records import RECORD_BYTES

CEILING = 10.0  # two noisy cores with other work on them tripled these figures; an order of magnitude is a defect
STEP_PART = "step without collectives, all marks"
STEP_BUDGET_NS = 5_000
PLAIN_COLLECTIVE_BUDGET_NS = 15_000
COMPLETED_COLLECTIVE_BUDGET_NS = 30_000
MEMORY_BUDGET_BYTES = 2 << 20
WHOLE_BUDGET_RATIO = 1.01


@dataclass(frozen=True)
class Cost:
    """One row of the table. `budget_ns` is None where the design sets none for the part alone."""

    part: str
    cost_ns: float
    bare_ns: float
    budget_ns: int | None


@contextmanager
def watched() -> Iterator[Any]:
    """Hand out the agent of this process, recording; nothing of it is left afterwards."""
    os.environ.pop("LOCKSTEP_AGENT_PID", None)
    if not bootstrap.install():
        raise SystemExit("the agent did not install")
    agent = bootstrap._agent  # noqa: SLF001  (the benchmark looks inside)
    assert agent is not None
    agent.wake()
    try:
        yield agent
        if agent.boundary.failures:
            raise SystemExit("the agent failed")
    finally:
        bootstrap.uninstall()


class Endless(IterableDataset[Any]):
    """The same batch for ever, so that a fetch costs as little as torch allows."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield without end."""
        batch = torch.zeros(8, 64, dtype=torch.int64)
        while True:
            yield batch


class Idle(torch.optim.Optimizer):
    """An optimizer that does nothing, so that what is left are the hooks."""

    def step(self, closure: Any = None) -> None:
        """Do nothing."""


def median_ns(operation: Callable[[], Any], calls: int) -> float:
    """Return the median time of one call."""
    clock = time.perf_counter_ns
    times = []
    for _ in range(calls):
        began = clock()
        operation()
        times.append(clock() - began)
    return statistics.median(times)


def measure_difference(part: str, operation: Callable[[], Any], budget_ns: int | None, blocks: int, calls: int) -> Cost:
    """Return what the agent adds to `operation`."""
    differences, bare = [], []
    for _ in range(blocks):
        without = median_ns(operation, calls)
        with watched():
            operation()
            differences.append(median_ns(operation, calls) - without)
        bare.append(without)
    return Cost(part, statistics.median(differences), statistics.median(bare), budget_ns)


def measure_hooks(blocks: int, calls: int) -> list[Cost]:
    """Return the cost of each hook on the call that it stands at."""
    batches = iter(DataLoader(Endless(), batch_size=None))
    weight = torch.ones(1, requires_grad=True)
    optimizer = Idle([weight], {})
    tensor, part = torch.ones(64), torch.ones(64)

    def backward() -> None:
        (weight * 2).backward()

    return [
        measure_difference("data hook", partial(next, batches), None, blocks, calls),
        measure_difference("backward hook", backward, None, blocks, calls),
        measure_difference("optimizer hooks", optimizer.step, None, blocks, calls),
        measure_difference(
            "collective without completion (synchronous)",
            lambda: dist.all_reduce(tensor),
            PLAIN_COLLECTIVE_BUDGET_NS,
            blocks,
            calls,
        ),
        measure_difference(
            "the same where the backend has none",
            lambda: dist.reduce_scatter_tensor(part, tensor, async_op=True).wait(),
            PLAIN_COLLECTIVE_BUDGET_NS,
            blocks,
            calls,
        ),
        measure_difference(
            "collective with completion (asynchronous)",
            lambda: dist.all_reduce(tensor, async_op=True).wait(),
            COMPLETED_COLLECTIVE_BUDGET_NS,
            blocks,
            calls,
        ),
        measure_difference("gc callback", partial(gc.collect, 0), None, blocks, calls),
    ]


class Steps:
    """A step's marks and its end, guarded as the hooks have them, without torch around them."""

    def __init__(self, agent: Any) -> None:
        self.recorder = agent.recorder
        names = ("enter_data", "leave_data", "enter_backward", "leave_backward")
        self._before = [agent.guard_mark(getattr(self.recorder, name)) for name in names]
        self._enter_optimizer = agent.guard(self.recorder.enter_optimizer)
        self._leave_optimizer = agent.guard_mark(self.recorder.leave_optimizer)

    def step(self) -> None:
        """Make all marks of a step without collectives."""
        for mark in self._before:
            mark()
        self._enter_optimizer(self)
        self._leave_optimizer()

    def end(self, collectives: int) -> None:
        """End a step of three spans with collectives of the reducer in the last one."""
        now = time.monotonic_ns()
        draft = self.recorder._draft  # noqa: SLF001  (marks of a chosen shape)
        third = (now - draft.start_ns) // 3
        edges = (draft.start_ns, draft.start_ns + third, draft.start_ns + 2 * third, now)
        draft.marks.spans += zip((DATA, FORWARD, BACKWARD), edges, edges[1:], strict=False)
        for index in range(collectives):
            collective = Collective(edges[2] + index, 5, 1024, 1024, synchronous=False)
            collective.done_ns = edges[2] + index + 100
            self.recorder.issue(collective)
        self.recorder._end_step(now)  # noqa: SLF001


def measure_step(blocks: int, calls: int) -> list[Cost]:
    """Return the cost of a step's marks and of what happens at its end."""
    rows: dict[str, list[float]] = {}
    record = bytes(RECORD_BYTES)
    for _ in range(blocks):
        with watched() as agent:
            steps = Steps(agent)
            parts: dict[str, Callable[[], Any]] = {
                STEP_PART: steps.step,
                "of which the end: account, record, ring": partial(steps.end, 0),
                "the end with 5 collectives": partial(steps.end, 5),
                "one record into the ring": partial(agent.ring.write, record),
                "control check": partial(agent.capture.at_boundary, 100),
            }
            for part, operation in parts.items():
                rows.setdefault(part, []).append(median_ns(operation, calls))
    return [
        Cost(part, statistics.median(values), 0.0, STEP_BUDGET_NS if part == STEP_PART else None)
        for part, values in rows.items()
    ]


MEMORY_PROGRAM = """
import gc, os, re, sys, torch
def private_kib():
    gc.collect()
    with open("/proc/self/smaps_rollup") as file:
        sizes = re.findall(r"(?:Private_Clean|Private_Dirty|Shared_Dirty): +(\\d+)", file.read())
    return sum(int(size) for size in sizes)
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
def train(steps):
    for _ in range(steps):
        weight.sum().backward()
        optimizer.step()
train(300)
before = private_kib()
if sys.argv[1] == "on":
    import lockstep
    assert lockstep.install()
train(1500)
print(private_kib() - before)
"""


def measure_memory(directory: str, processes: int) -> int:
    """Return by how many bytes more a rank grows with the agent than without, ring included: medians of processes."""
    environ = {**os.environ, "LOCKSTEP_DIR": directory, "LOCKSTEP_RUN": "memory"}
    environ.pop("LOCKSTEP_AGENT_PID", None)
    grown_kib: dict[str, list[int]] = {"on": [], "off": []}
    for _ in range(processes):
        for agent, grown in grown_kib.items():
            command = [sys.executable, "-c", MEMORY_PROGRAM, agent]
            done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
            grown.append(int(done.stdout))
    return int(statistics.median(grown_kib["on"]) - statistics.median(grown_kib["off"])) << 10


def print_tables(costs: list[Cost], memory_bytes: int, jobs: list[JobCost]) -> None:
    """Print what was measured, budgets beside it."""
    print(f"{'part':46}{'agent ns':>10}{'bare ns':>10}{'budget ns':>11}")
    for cost in costs:
        budget = f"{cost.budget_ns:>11,}" if cost.budget_ns else f"{'':>11}"
        print(f"{cost.part:46}{cost.cost_ns:>10,.0f}{cost.bare_ns:>10,.0f}{budget}")
    print(f"\nmemory of a rank: {memory_bytes / 2**20:.2f} MiB, budget {MEMORY_BUDGET_BYTES / 2**20:.0f} MiB")
    print(
        f"\n{'whole step of a DDP job of two ranks':40}{'on / off':>10}{'95 % interval':>20}{'step ms':>10}{'pairs':>7}"
    )
    for job in jobs:
        for ratio in job.ratios:
            interval = f"{ratio.low:.4f} to {ratio.high:.4f}"
            row = f"{job.name}, {ratio.name}"
            print(f"{row:40}{ratio.median:>10.4f}{interval:>20}{ratio.step_ms:>10.2f}{ratio.pairs:>7}")
        if job.agent_us is not None:
            print(f"{'agent_ns of its records':40}{job.agent_us:>8.0f}us{job.collectives:>14} collectives a step")


def over_ceiling(costs: list[Cost], memory_bytes: int, jobs: list[JobCost]) -> list[str]:
    """Return what costs too much beyond doubt."""
    found = [
        f"{cost.part}: got {cost.cost_ns:.0f} ns, expected at most {CEILING:g} x {cost.budget_ns} ns"
        for cost in costs
        if cost.budget_ns and cost.cost_ns > CEILING * cost.budget_ns
    ]
    if memory_bytes > MEMORY_BUDGET_BYTES:
        found.append(f"memory: got {memory_bytes} bytes, expected at most {MEMORY_BUDGET_BYTES}")
    watched_job, floor = jobs
    for ratio, noise in zip(watched_job.ratios, floor.ratios, strict=True):
        limit = WHOLE_BUDGET_RATIO + max(noise.high - 1.0, 0.0)
        if ratio.low > limit:
            found.append(f"whole step, {ratio.name}: got a ratio above {ratio.low:.4f}, expected at most {limit:.4f}")
    return found


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument("--quick", action="store_true", help="fewer blocks, for a look")
    arguments = parser.parse_args()
    blocks, calls, pairs = (3, 300, 12) if arguments.quick else (9, 2000, 100)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # newer torch renames reduce_scatter_tensor
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCKSTEP_RUN": "cost"}
        os.environ["LOCKSTEP_DIR"] = directory
        jobs = [
            run_job("agent on", directory, pairs, agent=True),
            run_job("noise floor", directory, pairs, agent=False),
        ]
        dist.init_process_group("gloo", init_method=f"file://{Path(directory) / 'store'}", rank=0, world_size=1)
        costs = measure_hooks(blocks, calls) + measure_step(blocks, calls)
        dist.destroy_process_group()
        memory_bytes = measure_memory(directory, 1 if arguments.quick else 3)
    print_tables(costs, memory_bytes, jobs)
    problems = over_ceiling(costs, memory_bytes, jobs)
    for problem in problems:
        print(problem, file=sys.stderr)
    if arguments.json:
        found = {"parts": [asdict(c) for c in costs], "memory_bytes": memory_bytes, "jobs": [asdict(j) for j in jobs]}
        print(json.dumps(found))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
