"""What the agent costs the training thread: by part, and of a whole training step.

    python benchmarks/agent_cost.py [--json] [--quick]

Parts: the same call with the agent and without it, in blocks that alternate; the cost is the median difference of the
blocks' medians. Whole step: a DDP step (gloo, one rank, five buckets) in pairs of blocks, one watched and one not, in
alternating order; the figure is the median of the pairs' ratios with its 95 % confidence interval from order
statistics, and the same harness with no agent on either side tells the noise floor. Hot figures: in a real job, whose
own work empties the caches between two calls, they are several times higher (see `agent_ns` in the records).

Exit code 1 when a part costs more than CEILING times its budget (DESIGN.md, section 5), or when the whole step surely
costs more than 1 %; the ceiling is wide because the machines that run this are shared.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from math import comb
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from lockstep.agent import bootstrap
from lockstep.agent.account import BACKWARD, DATA, FORWARD, Collective

CEILING = 10.0  # two noisy cores with other work on them tripled these figures; an order of magnitude is a defect
STEP_PART = "step without collectives, all marks"
STEP_BUDGET_NS = 5_000
PLAIN_COLLECTIVE_BUDGET_NS = 15_000
COMPLETED_COLLECTIVE_BUDGET_NS = 30_000
WHOLE_BUDGET_RATIO = 1.01
BATCH_ROWS = 8192  # a step of about 100 ms on one core, which is what the whole-step budget speaks of
STEPS_PER_BLOCK = 8


@dataclass(frozen=True)
class Cost:
    """One row of the table. `budget_ns` is None where the design sets none for the part alone."""

    part: str
    cost_ns: float
    bare_ns: float
    budget_ns: int | None


@dataclass(frozen=True)
class Ratio:
    """A paired comparison: median of ratios and its 95 % interval."""

    name: str
    median: float
    low: float
    high: float
    pairs: int
    step_ms: float


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
            "collective without completion",
            lambda: dist.reduce_scatter_tensor(part, tensor, async_op=True).wait(),
            PLAIN_COLLECTIVE_BUDGET_NS,
            blocks,
            calls,
        ),
        measure_difference(
            "collective with completion",
            lambda: dist.all_reduce(tensor, async_op=True).wait(),
            COMPLETED_COLLECTIVE_BUDGET_NS,
            blocks,
            calls,
        ),
        measure_difference("gc callback", partial(gc.collect, 0), None, blocks, calls),
    ]


class Marks:
    """A step's marks and its end, guarded as the hooks have them, without torch around them."""

    def __init__(self, agent: Any) -> None:
        self.recorder = agent.recorder
        names = ("enter_data", "leave_data", "enter_backward", "leave_backward")
        self._before = [agent.guard(getattr(self.recorder, name)) for name in names]
        self._enter_optimizer = agent.guard(self.recorder.enter_optimizer)
        self._leave_optimizer = agent.guard(self.recorder.leave_optimizer)

    def step(self) -> None:
        """Make all marks of a step without collectives."""
        for mark in self._before:
            mark()
        self._enter_optimizer(self)
        self._leave_optimizer()

    def end(self, collectives: int) -> None:
        """End a step of three spans with collectives of the reducer in the last one."""
        now = time.monotonic_ns()
        start = self.recorder._start_ns  # noqa: SLF001  (marks of a chosen shape)
        third = (now - start) // 3
        edges = (start, start + third, start + 2 * third, now)
        self.recorder._marks.spans += zip((DATA, FORWARD, BACKWARD), edges, edges[1:], strict=False)  # noqa: SLF001
        for index in range(collectives):
            collective = Collective(edges[2] + index, 5, 1024, synchronous=False)
            collective.done_ns = edges[2] + index + 100
            self.recorder.issue(collective)
        self.recorder._end_step(now)  # noqa: SLF001


def measure_step(blocks: int, calls: int) -> list[Cost]:
    """Return the cost of a step's marks and of what happens at its end."""
    rows: dict[str, list[float]] = {}
    for _ in range(blocks):
        with watched() as agent:
            marks = Marks(agent)
            parts: dict[str, Callable[[], Any]] = {
                STEP_PART: marks.step,
                "account, record, ring, control": partial(marks.end, 0),
                "the same with 5 collectives": partial(marks.end, 5),
                "control check alone": partial(agent._capture.at_boundary, 1),  # noqa: SLF001
            }
            for part, operation in parts.items():
                rows.setdefault(part, []).append(median_ns(operation, calls))
    return [
        Cost(part, statistics.median(values), 0.0, STEP_BUDGET_NS if part == STEP_PART else None)
        for part, values in rows.items()
    ]


def make_training() -> Callable[[], None]:
    """Return a function that runs one DDP training step with five gradient buckets."""
    layers = [layer for _ in range(5) for layer in (torch.nn.Linear(192, 192), torch.nn.GELU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.15)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = iter(DataLoader(Endless(), batch_size=None))
    value = torch.randn(BATCH_ROWS, 192)

    def step() -> None:
        next(batches)
        optimizer.zero_grad()
        model(value).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    return step


def compare(name: str, step: Callable[[], None], pairs: int, steps: int, *, agent: bool) -> Ratio:
    """Return the ratio of second blocks to first ones; the second ones are watched if `agent`."""
    ratios, bare = [], []
    for pair in range(pairs):
        times = {}
        for second in (False, True) if pair % 2 else (True, False):
            if second and agent:
                with watched():
                    step()
                    times[second] = median_ns(step, steps)
            else:
                step()
                times[second] = median_ns(step, steps)
        ratios.append(times[True] / times[False])
        bare.append(times[False])
    ratios.sort()
    rank = _interval_rank(pairs)
    return Ratio(name, statistics.median(ratios), ratios[rank], ratios[-1 - rank], pairs, statistics.median(bare) / 1e6)


def _interval_rank(count: int) -> int:
    """Return how many of `count` ordered values lie outside a 95 % interval of the median, at either end."""
    tail, rank = 0.0, 0
    while (tail := tail + comb(count, rank) / 2**count) < 0.025:
        rank += 1
    return max(rank - 1, 0)


def print_tables(costs: list[Cost], ratios: list[Ratio]) -> None:
    """Print what was measured, budgets beside it."""
    print(f"{'part':38}{'agent ns':>10}{'bare ns':>10}{'budget ns':>11}")
    for cost in costs:
        budget = f"{cost.budget_ns:>11,}" if cost.budget_ns else f"{'':>11}"
        print(f"{cost.part:38}{cost.cost_ns:>10,.0f}{cost.bare_ns:>10,.0f}{budget}")
    print(f"\n{'whole step':38}{'ratio':>10}{'95 % interval':>20}{'step ms':>10}{'pairs':>7}")
    for ratio in ratios:
        interval = f"{ratio.low:.4f} to {ratio.high:.4f}"
        print(f"{ratio.name:38}{ratio.median:>10.4f}{interval:>20}{ratio.step_ms:>10.2f}{ratio.pairs:>7}")


def over_ceiling(costs: list[Cost], ratios: list[Ratio]) -> list[str]:
    """Return what costs too much beyond doubt."""
    found = [
        f"{cost.part}: got {cost.cost_ns:.0f} ns, expected at most {CEILING:g} x {cost.budget_ns} ns"
        for cost in costs
        if cost.budget_ns and cost.cost_ns > CEILING * cost.budget_ns
    ]
    whole, floor = ratios
    limit = WHOLE_BUDGET_RATIO + max(floor.high - 1.0, 0.0)
    if whole.low > limit:
        found.append(f"whole step: got a ratio above {whole.low:.4f}, expected at most {limit:.4f}")
    return found


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument("--quick", action="store_true", help="fewer blocks, for a look")
    arguments = parser.parse_args()
    blocks, calls, pairs = (3, 300, 6) if arguments.quick else (9, 2000, 20)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # newer torch renames reduce_scatter_tensor
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCKSTEP_RUN": "cost"}
        os.environ["LOCKSTEP_DIR"] = directory
        dist.init_process_group("gloo", init_method=f"file://{Path(directory) / 'store'}", rank=0, world_size=1)
        costs = measure_hooks(blocks, calls) + measure_step(blocks, calls)
        step = make_training()
        ratios = [
            compare("agent on / off", step, pairs, STEPS_PER_BLOCK, agent=True),
            compare("off / off (noise floor)", step, pairs, STEPS_PER_BLOCK, agent=False),
        ]
        dist.destroy_process_group()
    print_tables(costs, ratios)
    problems = over_ceiling(costs, ratios)
    for problem in problems:
        print(problem, file=sys.stderr)
    if arguments.json:
        print(json.dumps({"parts": [asdict(c) for c in costs], "whole": [asdict(r) for r in ratios]}))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
