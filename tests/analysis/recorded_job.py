"""A real job of RANKS ranks over gloo, healthy and with one fault each on CULPRIT, recorded by torch's profiler: run as a script.

    python -m tests.analysis.recorded_job tests/analysis/recorded healthy forward forward_stacks ...

The recordings in `recorded` are one of three sets (torch 2.13), the one recorded with least else on the machine. Each leaves
`FOLDER/FAULT/rank<R>.json.gz`. A fault that ends in STACKS is recorded with Python stacks, others without.
Every rank stands WORK_S a step in work that needs no core, so that a step's length does not hang on what else the machine
does. Faults sleep, or collect garbage, for about FAULT_S: longer than what a scheduler takes from a healthy rank.
"""

import gc
import hashlib
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, Dataset

RANKS = 4
CULPRIT = 2
STEPS = 3
FAULT_S = 0.04
DRAWN = "held_out"
"""In folders of such names the culprit and the length of the fault follow from a hash of the name."""
WORK_S = 0.03
STACKS = "_stacks"
HEALTHY, FORWARD, COLLECT, LOADER, ANNOTATED = ("healthy", "forward", "collect", "loader", "annotated")
BACKWARD, OPTIMIZER = ("backward", "optimizer")
_WIDTH = 64


def drawn(folder: str) -> tuple[int, float]:
    """Return the culprit and the length of the fault in a folder: those above, or as its name draws them."""
    if not folder.startswith(DRAWN):
        return CULPRIT, FAULT_S
    drawn_rank, drawn_ms = hashlib.sha256(folder.encode()).digest()[:2]
    return drawn_rank % RANKS, (20 + drawn_ms % 40) / 1000


class Fault:
    """How long faults take in this process."""

    seconds = FAULT_S


class SlowBackward(torch.autograd.Function):
    """Passes a tensor through; sleeps in the backward."""

    @staticmethod
    def forward(_context: object, batch: torch.Tensor) -> torch.Tensor:
        return batch.view_as(batch)

    @staticmethod
    def backward(_context: object, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(Fault.seconds)
        return gradient


class SlowSGD(torch.optim.SGD):
    """Sleeps in its step."""

    def step(self, closure: None = None) -> None:
        time.sleep(Fault.seconds)
        super().step(closure)


class Samples(Dataset):
    """Vectors; one read in each batch is slow if asked."""

    def __init__(self, *, slow: bool) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.slow and index % 8 == 0:
            time.sleep(Fault.seconds)
        return torch.full((_WIDTH,), float(index % 7))


class Layers(nn.Module):
    """Three layers; forward or backward sleeps if `fault` is on it."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.layers = nn.Sequential(
            nn.Linear(_WIDTH, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if self.fault == FORWARD:
            time.sleep(Fault.seconds)
        if self.fault == BACKWARD:
            return SlowBackward.apply(self.layers(batch))
        return self.layers(batch)


def collect(ballast: list[list[object]]) -> None:
    """Collect garbage for about FAULT_S."""
    until = time.perf_counter() + Fault.seconds
    while time.perf_counter() < until:
        gc.collect()
    assert ballast


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: object, fault: str, ballast: list) -> None:
    with record_function("augment"):
        time.sleep(WORK_S)
    with record_function("data"):
        batch = next(batches)
        if fault == ANNOTATED:
            time.sleep(Fault.seconds)
        batch = batch - batch.sum() / batch.numel()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if fault == COLLECT:
        collect(ballast)


def record(rank: int, name: str, folder: Path) -> None:
    """Record STEPS steps of a rank."""
    culprit, Fault.seconds = drawn(folder.name)
    fault = name.removesuffix(STACKS) if rank == culprit else HEALTHY
    model = DistributedDataParallel(Layers(fault))
    optimizer = (SlowSGD if fault == OPTIMIZER else torch.optim.SGD)(model.parameters(), lr=1e-3)
    batches = iter(DataLoader(Samples(slow=fault == LOADER), batch_size=8))
    ballast = [[] for _ in range(200_000)] if fault == COLLECT else []
    gc.collect()
    path = folder / name / f"rank{rank}.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=2, active=STEPS),
        on_trace_ready=lambda recorder: recorder.export_chrome_trace(str(path)),
        with_stack=name.endswith(STACKS),
    ) as recorder:
        for _ in range(3 + STEPS):
            train_step(model, optimizer, batches, fault, ballast)
            recorder.step()
    dist.barrier()


def run_rank(rank: int, folder: Path, names: list[str]) -> None:
    """Record all jobs on one rank."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(minutes=5))
    for name in names:
        record(rank, name, folder)
    dist.destroy_process_group()


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    multiprocessing.spawn(run_rank, (folder, sys.argv[2:]), nprocs=RANKS)


if __name__ == "__main__":
    main()
