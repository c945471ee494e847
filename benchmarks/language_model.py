"""The small language model of recorded jobs, its data and optimizer, each with a place for one fault.

A transformer of two blocks between an embedding and a head. What sleeps on purpose counts it (`WORK`), so that the
kernel's counters and the sleeps together state what a rank needed (`benchmarks.recorded_truth`).
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

HEALTHY = "healthy"
WIDTH, TOKENS, WORDS, BATCH = 64, 32, 500, 4


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong on a rank: the kind, HEALTHY for nothing, its length in a step, and in a micro-batch."""

    kind: str = HEALTHY
    seconds: float = 0.0
    micro_batches: int = 1

    def seconds_of(self, kind: str) -> float:
        """Return the length in each step if the fault is of this kind, else 0."""
        return self.seconds if self.kind == kind else 0.0

    def seconds_of_each(self, kind: str) -> float:
        """Return the length in each micro-batch if the fault is of this kind, else 0."""
        return self.seconds_of(kind) / self.micro_batches


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

    def __init__(self, fault: Fault) -> None:
        self._seconds, self._samples = fault.seconds_of("loader"), BATCH * fault.micro_batches

    def __len__(self) -> int:
        """Return more samples than are read."""
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return one sequence."""
        if self._seconds and index % self._samples == 0:
            time.sleep(WORK.counted(self._seconds))
        return torch.arange(index, index + TOKENS) % WORDS


class Attention(nn.Module):
    """Causal attention of four heads."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.projection, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self._sleep_s, self._busy_s = fault.seconds_of_each("attention"), fault.seconds_of_each("product")

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what every token attends to."""
        batch, tokens, width = hidden.shape
        heads = self.projection(hidden).view(batch, tokens, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        if self._sleep_s:
            time.sleep(WORK.counted(self._sleep_s))
        until_s = time.perf_counter() + self._busy_s
        while self._busy_s and time.perf_counter() < until_s:
            torch.mm(self.output.weight.detach(), self.output.weight.detach())
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, tokens, width)
        return self.output(mixed)


class Block(nn.Module):
    """Attention and two linear layers."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.attention = Attention(fault)
        self.layers = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        hidden = hidden + self.attention(hidden)
        return hidden + self.layers(hidden)


class Model(nn.Module):
    """Two blocks between an embedding and a head, or the first or the last half of these."""

    def __init__(self, fault: Fault, *, has_first: bool = True, has_last: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH) if has_first else nn.Identity()
        self.head = nn.Linear(WIDTH, WORDS) if has_last else nn.Identity()
        faults = [Fault(), fault] if has_first and has_last else [fault]
        self.blocks = nn.Sequential(*map(Block, faults))
        self._backward_s = fault.seconds_of_each("backward")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a score of every word for every token, or what the next half takes."""
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
