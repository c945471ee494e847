"""A small language model on RANKS ranks over gloo, with one fault on one rank, recorded by torch's profiler.

    python -m benchmarks.language_job FOLDER SEED [KIND]

Other jobs than `tests.analysis.recorded_job`: KIND is one of `language_trainers.TRAINERS`, data_parallel by default.
The fault, its rank, its length and whether Python stacks are recorded follow from kind and seed; HEALTHY_SHARE of the
jobs or so have none. Writes `FOLDER/rank<R>.json.gz`, and `FOLDER/work<R>.json` with what the kernel counted of the
training thread (`RankWork`). `benchmarks.recorded_jobs` runs and scores many.
"""

import gc
import json
import os
import random
import sys
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.language_model import HEALTHY, WORK, Fault
from benchmarks.language_trainers import RANKS, TRAINERS

STEPS = 4
HEALTHY_SHARE = 0.4
FAULTS = ("attention", "loss", "loader", "collate", "backward", "optimizer", "collect", "log", "product")
LEAST_MS, MOST_MS = 25, 80
DATA_PARALLEL, PIPELINE = "data_parallel", "pipeline"

_PRELOADED = ["torch.profiler", "torch._dynamo", "benchmarks.language_trainers"]
"""Imported once for all ranks of all jobs, which are forked from there: torch alone takes seconds of a core."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed gives: the fault (HEALTHY for none), its rank, its length in each step; and the kind of job."""

    fault: str
    culprit: int
    seconds: float
    with_stack: bool
    kind: str = DATA_PARALLEL

    @classmethod
    def of(cls, seed: int, kind: str = DATA_PARALLEL, longer: int = 1) -> "Plan":
        """Return the plan of a seed, the fault `longer` times as long.

        A pipeline's loss is on its last stage, the upper half of the ranks.
        """
        drawn = random.Random(seed if kind == DATA_PARALLEL else f"{kind} {seed}")  # noqa: S311  (no secret)
        fault = HEALTHY if drawn.random() < HEALTHY_SHARE else drawn.choice(FAULTS)
        culprit = drawn.randrange(RANKS)
        if kind == PIPELINE and fault == "loss":
            culprit = RANKS // 2 + culprit % (RANKS // 2)
        return cls(fault, culprit, longer * drawn.randint(LEAST_MS, MOST_MS) / 1000, drawn.random() < 0.5, kind)

    def fault_of(self, rank: int) -> Fault:
        """Return what is wrong on a rank."""
        if rank != self.culprit or self.fault == HEALTHY:
            return Fault()
        return Fault(self.fault, self.seconds, TRAINERS[self.kind].micro_batches)


def run_rank(rank: int, folder: Path, plan: Plan) -> None:
    """Record STEPS steps of a rank."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(minutes=5))
    trainer = TRAINERS[plan.kind](plan.fault_of(rank), folder)
    gc.collect()
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=2, active=STEPS),
        on_trace_ready=lambda recorder: recorder.export_chrome_trace(str(folder / f"rank{rank}.json.gz")),
        with_stack=plan.with_stack,
    ) as recorder:
        for _ in range(3 + STEPS):
            trainer.step()
            recorder.step()
    (folder / f"work{rank}.json").write_text(json.dumps(asdict(WORK)))
    dist.barrier()
    dist.destroy_process_group()


def record(folder: Path, plan: Plan) -> None:
    """Record a job into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    multiprocessing.start_processes(run_rank, (folder, plan), nprocs=RANKS, start_method="forkserver")
    for name in ("store", "checkpoint.pt"):  # gloo removes its own at the end
        (folder / name).unlink(missing_ok=True)


if __name__ == "__main__":
    given = Plan.of(int(sys.argv[2]), *sys.argv[3:4])
    record(Path(sys.argv[1]), given)
    print(given)
