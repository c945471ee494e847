"""A real DDP job of two ranks over gloo, whose steps run with the agent and without it in turns.

Both ranks put the agent in and take it out between the same steps. A pair is a block of steps with it and one without,
in random order, so that what changes slowly or regularly on the machine is on both sides; the first step of a block, in
which a new agent meets its process groups, is not timed. The figure is the median of the pairs' ratios with its 95 %
confidence interval from order statistics. With `agent=False` nothing is put in on either side: what remains is the
noise floor of the same harness.

Two clocks: the wall, which is what the user feels and what other work on the machine disturbs, and the CPU time of the
rank's process, gloo's threads included.
"""

import gc
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.nn.parallel import DistributedDataParallel

from exporter.reading.attempt_steps import AttemptSteps
from exporter.reading.ring_file import RingFile
from lockstep.agent import bootstrap
from lockstep.agent.agent import Agent
from lockstep.agent.lineage import OWNER_VARIABLE
from lockstep.contracts.paths import ring_path
from lockstep.contracts.records import RECORD_INDEX

RANKS = 2
STORE = "job.store"
WIDTH = 192
BATCH_ROWS = 6144  # a step of about 100 ms, which is what the budget speaks of
WARM_UP_STEPS = 5
STEPS_PER_BLOCK = 3
SETTLED_STEPS = 30  # of one agent, at the end of the job: what its records give as its cost is theirs
PAIRS_MIN = 6  # fewer have no 95 % interval
START_LIMIT_S = 90.0  # importing torch takes two ranks 3 s on idle cores
RUN = "job"


@dataclass(frozen=True)
class Ratio:
    """A paired comparison of blocks: median of ratios and its 95 % interval."""

    name: str
    median: float
    low: float
    high: float
    pairs: int
    step_ms: float


@dataclass(frozen=True)
class JobCost:
    """What rank 0 of a job measured; `agent_us` and `collectives` are those of its own records, per step."""

    name: str
    ratios: list[Ratio]
    agent_us: float | None
    collectives: int


@dataclass(frozen=True)
class JobPlan:
    """So many pairs in a directory, fewer where they take `limit_s`; with `agent` or to measure the noise floor."""

    name: str
    directory: str
    pairs: int
    agent: bool
    limit_s: float


def run_job(plan: JobPlan) -> JobCost:
    """Run the job in processes of its own and return what it measured.

    Raises
    ------
    torch.multiprocessing.ProcessRaisedException
        A rank failed.
    TimeoutError
        The ranks do not end.
    """
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    (Path(plan.directory) / STORE).unlink(missing_ok=True)
    started = multiprocessing.start_processes(
        _rank, args=(plan, answers), nprocs=RANKS, join=False, start_method="spawn"
    )
    assert started is not None
    deadline_s = time.monotonic() + START_LIMIT_S + 2 * plan.limit_s
    while not started.join(timeout=1.0):  # raises where a rank failed; what it answers fits into the pipe
        if time.monotonic() > deadline_s:
            for process in started.processes:
                process.kill()
            limit_s = START_LIMIT_S + 2 * plan.limit_s
            raise TimeoutError(f"job {plan.name}: got no end within {limit_s:.0f} s, expected one")
    ratios, agent_us, collectives = answers.get()
    return JobCost(plan.name, ratios, agent_us, collectives)


def _rank(rank: int, plan: JobPlan, answers: Any) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"LOCKSTEP_DIR": plan.directory, "LOCKSTEP_RUN": RUN}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{Path(plan.directory) / STORE}", rank=rank, world_size=RANKS)
    chance = random.Random(7)  # noqa: S311  (the same order on both ranks)
    step = _training()
    for _ in range(WARM_UP_STEPS):
        step()
    walls: dict[bool, list[float]] = {True: [], False: []}
    processors: dict[bool, list[float]] = {True: [], False: []}
    began = time.monotonic()
    for pair in range(plan.pairs):
        if pair >= PAIRS_MIN and _is_over(began + plan.limit_s):
            break
        for second in chance.choice(((False, True), (True, False))):
            wall, processor = _timed(step, watched=second and plan.agent)
            walls[second].append(wall)
            processors[second].append(processor)
    reported = _recorded_cost(step, plan.directory) if plan.agent else (None, 0)
    if rank == 0:
        ratios = [_compare("wall time", walls), _compare("CPU time", processors)]
        answers.put((ratios, *reported))
    del step  # its model holds the group, whose threads would live into the end of the interpreter and abort it
    gc.collect()
    dist.destroy_process_group()


def _is_over(deadline_s: float) -> bool:
    """Whether rank 0's clock is past the deadline: the answer is the same on all ranks."""
    over = torch.tensor(int(time.monotonic() > deadline_s))
    dist.broadcast(over, 0)
    return bool(over)


def _training() -> Callable[[], None]:
    """Return a function that runs one DDP step with two gradient buckets."""
    layers = [layer for _ in range(5) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.5)
    optimizer = torch.optim.AdamW(model.parameters())
    value = torch.randn(BATCH_ROWS, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(value).square().mean().backward()
        optimizer.step()

    return step


def _timed(step: Callable[[], None], *, watched: bool) -> tuple[float, float]:
    """Return wall and CPU seconds of a block that both ranks begin together."""
    if watched:
        _watch()
    step()
    dist.barrier()
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(STEPS_PER_BLOCK):
        step()
    took = time.perf_counter() - wall, time.process_time() - processor
    if watched:
        _unwatch()
    return took


def _watch() -> Agent:
    os.environ.pop(OWNER_VARIABLE, None)
    bootstrap.install()
    agent = bootstrap._agent  # noqa: SLF001  (the benchmark looks inside)
    assert agent is not None
    agent.wake()
    return agent


def _unwatch() -> None:
    if bootstrap._agent is None or bootstrap._agent.boundary.failures:  # noqa: SLF001
        raise SystemExit("the agent failed")
    bootstrap.uninstall()


def _recorded_cost(step: Callable[[], None], directory: str) -> tuple[float, int]:
    """Return what rank 0's records give as the median cost of its agent, us a step, and the collectives of a step."""
    agent = _watch()
    for _ in range(2 * SETTLED_STEPS):
        step()
    agent.marks.flush()
    ring = RingFile(ring_path(Path(directory) / RUN, 0), 0)
    records = AttemptSteps(ring.header.block_count).read(ring.blocks, ring.header.block_count).records[-SETTLED_STEPS:]
    ring.close()
    dist.barrier()  # before the ring of the other rank may go
    _unwatch()
    agent_us = float(np.median(records[:, RECORD_INDEX["agent_ns"]])) / 1e3
    return agent_us, int(records[-1, RECORD_INDEX["world_count"]])


def _compare(name: str, seconds: dict[bool, list[float]]) -> Ratio:
    ratios = sorted(watched / bare for watched, bare in zip(seconds[True], seconds[False], strict=True))
    pairs = len(ratios)
    outside = _outside_interval(pairs)
    bare_ms = statistics.median(seconds[False]) / STEPS_PER_BLOCK * 1e3
    return Ratio(name, statistics.median(ratios), ratios[outside], ratios[-1 - outside], pairs, bare_ms)


def _outside_interval(count: int) -> int:
    """Return how many of `count` ordered values lie outside a 95 % interval of the median, at either end."""
    tail, rank = 0.0, 0
    while (tail := tail + comb(count, rank) / 2**count) < 0.025:
        rank += 1
    return max(rank - 1, 0)
