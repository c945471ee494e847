"""A real DDP job of two ranks over gloo, whose steps run with the agent and without it in turns.

Both ranks put the agent in and take it out between the same steps. A pair is a block of steps with it and one without,
in random order, so that what changes slowly or regularly on the machine is on both sides; the first step of a block, in
which a new agent meets its process groups, is not timed. The figure is the median of the pairs' ratios with its 95 %
confidence interval from order statistics. With `agent=False` nothing is put in on either side: what remains is the
noise floor of the same harness.

Two clocks: the wall, which is what the user feels and what other work on the machine disturbs, and the CPU time of the
rank's process, gloo's threads included.
"""

import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.nn.parallel import DistributedDataParallel

from lockstep.agent import bootstrap
from lockstep.agent.agent import Agent
from lockstep.agent.lineage import OWNER_VARIABLE
from lockstep.contracts.records import RECORD_INDEX, RECORD_STRUCT

RANKS = 2
STORE = "job.store"
WIDTH = 192
BATCH_ROWS = 6144  # a step of about 100 ms, which is what the budget speaks of
WARM_UP_STEPS = 5
STEPS_PER_BLOCK = 3
SETTLED_STEPS = 60  # of one agent, at the end of the job: what it says of its own cost is theirs


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
    """What rank 0 of a job measured; `agent_us` and `collectives` are what its own records say, per step."""

    name: str
    ratios: list[Ratio]
    agent_us: float | None
    collectives: int


def run_job(name: str, directory: str, pairs: int, *, agent: bool) -> JobCost:
    """Run the job in processes of its own and return what it measured."""
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    (Path(directory) / STORE).unlink(missing_ok=True)
    started = multiprocessing.start_processes(
        _rank, args=(directory, pairs, agent, answers), nprocs=RANKS, join=False, start_method="spawn"
    )
    assert started is not None
    ratios, agent_us, collectives = answers.get()
    while not started.join():
        continue
    return JobCost(name, ratios, agent_us, collectives)


def _rank(rank: int, directory: str, pairs: int, agent: bool, answers: Any) -> None:  # noqa: FBT001  (called by torch)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"LOCKSTEP_DIR": directory, "LOCKSTEP_RUN": "job"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{Path(directory) / STORE}", rank=rank, world_size=RANKS)
    chance = random.Random(7)  # noqa: S311  (the same order on both ranks)
    step = _training()
    for _ in range(WARM_UP_STEPS):
        step()
    walls: dict[bool, list[float]] = {True: [], False: []}
    processors: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(pairs):
        for second in chance.choice(((False, True), (True, False))):
            wall, processor = _timed(step, watched=second and agent)
            walls[second].append(wall)
            processors[second].append(processor)
    estimated = _self_estimated(step) if agent else (None, 0)
    if rank == 0:
        ratios = [_compare("wall time", walls, pairs), _compare("CPU time", processors, pairs)]
        answers.put((ratios, *estimated))
    dist.destroy_process_group()


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


def _self_estimated(step: Callable[[], None]) -> tuple[float, int]:
    """Return the median of what one agent says it cost a step, in us, and the collectives of a step."""
    agent = _watch()
    records: list[tuple[int, ...]] = []
    store = agent.recorder._store  # noqa: SLF001

    def keep(record: bytearray) -> None:
        store(record)
        records.append(RECORD_STRUCT.unpack(record))

    agent.recorder._store = keep  # noqa: SLF001
    for _ in range(2 * SETTLED_STEPS):
        step()
    _unwatch()
    settled = records[-SETTLED_STEPS:]
    agent_ns = statistics.median(record[RECORD_INDEX["agent_ns"]] for record in settled)
    return agent_ns / 1e3, settled[-1][RECORD_INDEX["world_count"]]


def _compare(name: str, seconds: dict[bool, list[float]], pairs: int) -> Ratio:
    ratios = sorted(watched / bare for watched, bare in zip(seconds[True], seconds[False], strict=True))
    outside = _outside_interval(pairs)
    bare_ms = statistics.median(seconds[False]) / STEPS_PER_BLOCK * 1e3
    return Ratio(name, statistics.median(ratios), ratios[outside], ratios[-1 - outside], pairs, bare_ms)


def _outside_interval(count: int) -> int:
    """Return how many of `count` ordered values lie outside a 95 % interval of the median, at either end."""
    tail, rank = 0.0, 0
    while (tail := tail + comb(count, rank) / 2**count) < 0.025:
        rank += 1
    return max(rank - 1, 0)
