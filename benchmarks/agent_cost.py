"""What the agent costs the training thread, hot and cold, beside what it cost when it accounted there; and its memory.

    lockstep build-hooks && python -m benchmarks.agent_cost [--json] [--quick]

Step: the six marks of a step without collectives (data, backward, optimizer: begin and end), made through the methods
that the hooks call, with the stores, signs of life and looks for requests that fall due meanwhile. Hooks: the same
where they stand, around calls of torch; the call without the agent is subtracted. Collectives: benchmarks/
collective_cost.py, whose budgets are judged here as well. Share: a step and two asynchronous collectives, of 100 ms.

Thread CPU time. Hot: the least of several rounds. Cold: 64 MB are touched before each call, which is what a training's
own work does to the caches; the lower quartile. Memory: by how much a rank grows, its ring included. Whole step:
benchmarks/agent_job.py, whose records' own `agent_ns` is an estimate from these figures (agent.py).

Exit code 1 when a budget is missed, 2 when the C extension or the kernels in C++ are not built.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from benchmarks import collective_cost
from benchmarks.agent_job import JobCost, run_job
from benchmarks.caches import TOUCHED_BYTES, touch
from benchmarks.checks import Check, has_missed
from benchmarks.thread_time import cold_ns, empty, hot_ns
from lockstep.agent import bootstrap
from lockstep.agent.hooks import native
from lockstep.agent.mark_writer import C_EXTENSION

STEP_HOT_BUDGET_NS = 2_000
STEP_COLD_BUDGET_NS = 15_000
SHARE_STEP_NS = 100_000_000
SHARE_HOT_BUDGET = 0.0002
SHARE_COLD_BUDGET = 0.0005
MEMORY_BUDGET_BYTES = 4 << 20
"""The ring is 2.1 MiB of it, in shared memory; what Python allocates for the agent's modules is the rest."""
WHOLE_BUDGET_RATIO = 1.01

BEFORE = {
    "a step": "9 to 13 us hot, 137 to 145 us cold",
    "synchronous": "20 us hot, 240 us cold",
    "asynchronous": "24 us hot, 246 us cold",
    "share of a 100 ms step": "0.37 %",
}
"""The agent that accounted in the training thread, on two shared cores, torch 2.13 CPU, gloo."""

Cost = tuple[float, float]
"""(hot, cold), ns."""


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
        if agent.boundary.failures or agent.marks.failures:
            raise SystemExit("the agent failed")
    finally:
        bootstrap.uninstall()


class Idle(torch.optim.Optimizer):
    """An optimizer that does nothing, so that what is left are the hooks."""

    def step(self, closure: Any = None) -> None:
        """Do nothing."""


class Steps:
    """The marks of a step, as hooks make them."""

    def __init__(self, agent: Any) -> None:
        names = ("data_begin", "data_end", "backward_begin", "backward_end")
        self._before = [agent.mark(name) for name in names]
        self._optimizer = Idle([torch.ones(1, requires_grad=True)], {})
        self._pre_hook, self._post_hook = agent.mark("optimizer_pre_hook"), agent.mark("optimizer_post_hook")

    def step(self) -> None:
        """Make all marks of a step without collectives."""
        data_begin, data_end, backward_begin, backward_end = self._before
        data_begin()
        data_end()
        backward_begin()
        backward_end()
        self._pre_hook(self._optimizer, (), {})
        self._post_hook(self._optimizer, (), {})


class Endless(IterableDataset[Any]):
    """The same batch for ever, so that a fetch costs as little as torch allows."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield without end."""
        batch = torch.zeros(8, 64, dtype=torch.int64)
        while True:
            yield batch


def hooked_calls() -> dict[str, Callable[[], Any]]:
    """Return calls of torch that hooks stand around."""
    batches = iter(DataLoader(Endless(), batch_size=None))
    weight = torch.ones(1, requires_grad=True)
    optimizer = Idle([weight], {})

    def backward() -> None:
        (weight * 2).backward()

    return {
        "data hook, its batch counted": partial(next, batches),
        "backward hook": backward,
        "optimizer hooks": optimizer.step,
    }


def measure_step(memory: bytearray, calls: int, cold_calls: int) -> Cost:
    """Return what the marks of a step cost."""
    with watched() as agent:
        if agent.mark_writer != C_EXTENSION:
            raise LookupError("the C extension is not installed: python setup.py build_ext --inplace")
        step = Steps(agent).step
        for _ in range(100):  # the first steps settle
            step()
        return hot_ns(step, calls), cold_ns(step, cold_calls, memory) - cold_ns(empty, cold_calls, memory)


def measure_hooks(memory: bytearray, rounds: int, calls: int, cold_calls: int) -> dict[str, Cost]:
    """Return what the hooks add to calls of torch, in rounds that take turns with bare ones."""
    found: dict[str, list[Cost]] = {}
    operations = hooked_calls()
    for _ in range(rounds):
        bare = {name: (hot_ns(call, calls), cold_ns(call, cold_calls, memory)) for name, call in operations.items()}
        with watched():
            for _ in range(50):
                for call in operations.values():
                    call()
            for name, call in operations.items():
                hot, cold = hot_ns(call, calls), cold_ns(call, cold_calls, memory)
                found.setdefault(name, []).append((hot - bare[name][0], cold - bare[name][1]))
    return {
        name: (statistics.median(hot for hot, _ in costs), statistics.median(cold for _, cold in costs))
        for name, costs in found.items()
    }


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
ring = os.path.join(os.environ["LOCKSTEP_DIR"], os.environ["LOCKSTEP_RUN"], "0.ring")
print(private_kib() - before + (os.stat(ring).st_blocks // 2 if sys.argv[1] == "on" else 0))
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


def check_costs(step: Cost, hooks: dict[str, Cost], collectives: dict[str, dict[str, Cost]]) -> list[Check]:
    """Return what a step, its hooks and collectives (by operation and kernels) cost, beside their budgets."""
    checks = [
        Check("before: a step", BEFORE["a step"]),
        _within("a step without collectives, hot", step[0], STEP_HOT_BUDGET_NS),
        _within("a step without collectives, cold", step[1], STEP_COLD_BUDGET_NS),
        *(Check(name, f"{hot:,.0f} ns hot, {cold / 1000:.1f} us cold") for name, (hot, cold) in hooks.items()),
    ]
    for operation, by_kernels in collectives.items():
        checks.append(Check(f"before: a collective, {operation}", BEFORE[operation]))
        for kernels, (hot, cold) in by_kernels.items():
            checks += [
                _within(f"{operation}, {kernels}, hot", hot, collective_cost.HOT_BUDGET_NS[kernels]),
                _within(f"{operation}, {kernels}, cold", cold, collective_cost.COLD_BUDGET_NS[kernels]),
            ]
    added = collectives["asynchronous"]["C++"]
    return [
        *checks,
        Check("before: two collectives, share of a 100 ms step", BEFORE["share of a 100 ms step"]),
        _share("two collectives, share of a 100 ms step, hot", step[0] + 2 * added[0], SHARE_HOT_BUDGET),
        _share("two collectives, share of a 100 ms step, cold", step[1] + 2 * added[1], SHARE_COLD_BUDGET),
    ]


def _within(what: str, cost_ns: float, budget_ns: int) -> Check:
    return Check(what, f"{cost_ns:,.0f} ns", f"at most {budget_ns:,} ns", cost_ns <= budget_ns)


def _share(what: str, cost_ns: float, budget: float) -> Check:
    share = cost_ns / SHARE_STEP_NS
    return Check(what, f"{share:.4%}", f"at most {budget:.2%}", share <= budget)


def check_whole(memory_bytes: int, jobs: list[JobCost]) -> list[Check]:
    """Return memory, and what a whole step of a job of two ranks shows; `jobs` are one watched and one not."""
    found = [
        Check(
            "memory of a rank",
            f"{memory_bytes / 2**20:.2f} MiB",
            f"at most {MEMORY_BUDGET_BYTES >> 20} MiB",
            memory_bytes <= MEMORY_BUDGET_BYTES,
        )
    ]
    watched_job, floor = jobs
    for ratio, noise in zip(watched_job.ratios, floor.ratios, strict=True):
        limit = WHOLE_BUDGET_RATIO + max(noise.high - 1.0, 0.0)
        shown = f"{ratio.median:.4f} ({ratio.low:.4f} to {ratio.high:.4f})"
        found.append(Check(f"whole step, {ratio.name}, on / off", shown, f"not above {limit:.4f}", ratio.low <= limit))
    if watched_job.agent_us is not None:
        what = f"agent_ns of its records, {watched_job.collectives} collectives"
        found.append(Check(what, f"{watched_job.agent_us:.0f} us a step"))
    return found


def measure(directory: str, *, quick: bool) -> list[Check]:
    """Measure all of it."""
    memory = bytearray(TOUCHED_BYTES)
    touch(memory)
    calls, cold_calls, rounds, pairs = (2_000, 20, 3, 12) if quick else (20_000, 100, 9, 100)
    jobs = [run_job(name, directory, pairs, agent=agent) for name, agent in (("on", True), ("noise floor", False))]
    dist.init_process_group("gloo", init_method=f"file://{Path(directory) / 'store'}", rank=0, world_size=1)
    step = measure_step(memory, calls, cold_calls)
    hooks = measure_hooks(memory, rounds, calls // 20, cold_calls)
    dist.destroy_process_group()
    collectives = collective_cost.added(quick=quick)
    memory_bytes = measure_memory(directory, 1 if quick else 3)
    return check_costs(step, hooks, collectives) + check_whole(memory_bytes, jobs)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument("--quick", action="store_true", help="fewer calls, for a look")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:  # where rings lie
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCKSTEP_RUN": "cost"}
        os.environ["LOCKSTEP_DIR"] = directory
        try:
            checks = measure(directory, quick=arguments.quick)
        except (LookupError, native.NoNativeKernelsError) as error:
            print(error, file=sys.stderr)
            return 2
    for line in checks:
        print(line.text())
    if arguments.json:
        print(json.dumps({line.what: {"value": line.value, "met": line.is_met} for line in checks}))
    return int(has_missed(checks))


if __name__ == "__main__":
    sys.exit(main())
