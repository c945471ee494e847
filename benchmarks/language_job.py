"""A small language model on RANKS ranks over gloo, with one fault on one rank, recorded by torch's profiler.

    python -m benchmarks.language_job FOLDER SEED

Another job than `tests.analysis.recorded_job`: a transformer in DistributedDataParallel with two micro-batches a step,
clipping and AdamW. The fault, its rank, its length and whether Python stacks are recorded follow from the seed; every
HEALTHY_SHARE-th job or so has none. Writes `FOLDER/rank<R>.json.gz`, and `FOLDER/work<R>.json` with what the kernel
counted of the training thread (`RankWork`). `benchmarks.recorded_jobs` runs and scores many.
"""

import gc
import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

RANKS = 4
STEPS = 4
HEALTHY = "healthy"
HEALTHY_SHARE = 0.4
FAULTS = ("attention", "loss", "loader", "collate", "backward", "optimizer", "collect", "log", "product")
LEAST_MS, MOST_MS = 25, 80
_WIDTH, _TOKENS, _WORDS, _BATCH, _MICRO_BATCHES = 64, 32, 500, 4, 2
_WORK_S = 0.03
"""A rank sleeps as long in each step, so that its length depends less on what else the machine does."""

_PRELOADED = ["torch.profiler", "torch._dynamo", "benchmarks.language_job"]
"""Imported once for all ranks of all jobs, which are forked from there: torch alone takes seconds of a core."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed gives: the fault (HEALTHY for none), the rank that has it, and its length in each step."""

    fault: str
    culprit: int
    seconds: float
    with_stack: bool

    @classmethod
    def of(cls, seed: int) -> "Plan":
        """Return the plan of a seed."""
        drawn = random.Random(seed)  # noqa: S311  (no secret)
        fault = HEALTHY if drawn.random() < HEALTHY_SHARE else drawn.choice(FAULTS)
        return cls(fault, drawn.randrange(RANKS), drawn.randint(LEAST_MS, MOST_MS) / 1000, drawn.random() < 0.5)


@dataclass(slots=True)
class RankWork:
    """What the training thread of a rank did until the end of each step's gradient averaging, in ns since its start.

    `on_cpu_ns` and `queued_ns` (ready to run, without a core) are the kernel's (`/proc/thread-self/schedstat`),
    `slept_ns` what the job slept on purpose. Their sum grows by what a rank needs before it meets the others; the rest
    of the time it waits for them. It owes nothing to the profiler or its trace.
    """

    on_cpu_ns: list[int] = field(default_factory=list)
    queued_ns: list[int] = field(default_factory=list)
    slept_ns: list[int] = field(default_factory=list)
    slept_so_far_ns: int = 0

    def counted(self, seconds: float) -> float:
        """Return how long to sleep on purpose, after counting it: who sleeps is the caller, which stacks then show."""
        self.slept_so_far_ns += round(seconds * 1e9)
        return seconds

    def note(self) -> None:
        """Read the counters."""
        on_cpu, queued, _ = Path("/proc/thread-self/schedstat").read_text().split()
        self.on_cpu_ns.append(int(on_cpu))
        self.queued_ns.append(int(queued))
        self.slept_ns.append(self.slept_so_far_ns)


WORK = RankWork()
"""Of this process."""


class Delay(torch.autograd.Function):
    """Passes a tensor through; waits in the backward."""

    @staticmethod
    def forward(context: object, hidden: torch.Tensor, seconds: float) -> torch.Tensor:  # noqa: D102
        context.seconds = seconds  # type: ignore[attr-defined]
        return hidden.view_as(hidden)

    @staticmethod
    def backward(context: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: D102
        time.sleep(WORK.counted(context.seconds))  # type: ignore[attr-defined]
        return gradient, None


class Text(Dataset):
    """Token sequences; with a fault the first sample of each step takes as long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        """Return more samples than are read."""
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return one sequence."""
        if self._seconds and index % (_BATCH * _MICRO_BATCHES) == 0:
            time.sleep(WORK.counted(self._seconds))
        return torch.arange(index, index + _TOKENS) % _WORDS


class Attention(nn.Module):
    """Causal attention of four heads."""

    def __init__(self, fault: str, seconds: float) -> None:
        super().__init__()
        self.projection, self.output = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self._sleep_s = seconds / _MICRO_BATCHES if fault == "attention" else 0.0
        self._busy_s = seconds / _MICRO_BATCHES if fault == "product" else 0.0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what every token attends to."""
        batch, tokens, width = hidden.shape
        heads = self.projection(hidden).view(batch, tokens, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        if self._sleep_s:
            time.sleep(WORK.counted(self._sleep_s))
        until_s = time.perf_counter() + self._busy_s
        while time.perf_counter() < until_s:
            torch.mm(self.output.weight.detach(), self.output.weight.detach())
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, tokens, width)
        return self.output(mixed)


class Block(nn.Module):
    """Attention and two linear layers."""

    def __init__(self, fault: str, seconds: float) -> None:
        super().__init__()
        self.attention = Attention(fault, seconds)
        self.layers = nn.Sequential(
            nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        hidden = hidden + self.attention(hidden)
        return hidden + self.layers(hidden)


class Model(nn.Module):
    """Two blocks between an embedding and a head."""

    def __init__(self, fault: str, seconds: float) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(_WORDS, _WIDTH), nn.Linear(_WIDTH, _WORDS)
        self.blocks = nn.Sequential(Block(HEALTHY, 0.0), Block(fault, seconds))
        self._backward_s = seconds / _MICRO_BATCHES if fault == "backward" else 0.0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a score of every word for every token."""
        hidden = self.blocks(self.embedding(tokens))
        if self._backward_s:
            hidden = Delay.apply(hidden, self._backward_s)
        return self.head(hidden)


class SlowAdamW(torch.optim.AdamW):
    """Waits in its step."""

    seconds = 0.0

    def step(self, closure: None = None) -> None:
        """Step, late."""
        time.sleep(WORK.counted(self.seconds))
        super().step(closure)


class Trainer:
    """The loop of one rank, with its fault."""

    def __init__(self, fault: str, seconds: float) -> None:
        self._fault, self._seconds = fault, seconds
        self._model = DistributedDataParallel(Model(fault, seconds), bucket_cap_mb=0.1)
        slow = fault == "optimizer"
        self._optimizer = (SlowAdamW if slow else torch.optim.AdamW)(self._model.parameters(), lr=1e-3)
        if slow:
            SlowAdamW.seconds = seconds
        text = Text(seconds if fault == "loader" else 0.0)
        self._batches = iter(DataLoader(text, batch_size=_BATCH, collate_fn=self._collate))
        self._collated = 0
        self._ballast: list[list[object]] = [[] for _ in range(200_000)] if fault == "collect" else []

    def _collate(self, samples: list[torch.Tensor]) -> torch.Tensor:
        self._collated += 1
        if self._fault == "collate" and self._collated % _MICRO_BATCHES == 0:
            time.sleep(WORK.counted(self._seconds))
        return torch.stack(samples)

    def step(self) -> None:
        """Train one step of two micro-batches."""
        time.sleep(WORK.counted(_WORK_S))
        for micro_batch in range(_MICRO_BATCHES):
            tokens = next(self._batches)
            if micro_batch < _MICRO_BATCHES - 1:
                with self._model.no_sync():
                    self.loss(tokens).backward()
            else:
                self.loss(tokens).backward()
        WORK.note()
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.log()

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss of one micro-batch."""
        scores = self._model(tokens)
        if self._fault == "loss":
            time.sleep(WORK.counted(self._seconds / _MICRO_BATCHES))
        return nn.functional.cross_entropy(scores[:, :-1].reshape(-1, _WORDS), tokens[:, 1:].reshape(-1))

    def log(self) -> None:
        """Do what a logger does after a step, or collect garbage."""
        until_s = time.perf_counter() + self._seconds
        while self._fault == "collect" and time.perf_counter() < until_s:
            gc.collect()
        if self._fault == "log":
            time.sleep(WORK.counted(self._seconds))


def run_rank(rank: int, folder: Path, plan: Plan) -> None:
    """Record STEPS steps of a rank."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(minutes=5))
    trainer = Trainer(plan.fault if rank == plan.culprit else HEALTHY, plan.seconds)
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


def record(folder: Path, seed: int) -> Plan:
    """Record the job of a seed into a folder, which is made; return what it was."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    plan = Plan.of(seed)
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    multiprocessing.start_processes(run_rank, (folder, plan), nprocs=RANKS, start_method="forkserver")
    (folder / "store").unlink(missing_ok=True)  # gloo removes it at the end
    return plan


if __name__ == "__main__":
    print(record(Path(sys.argv[1]), int(sys.argv[2])))
