"""A GPT trained with DistributedDataParallel on the CPU, as it is or in turn with changes of it.

    torchrun --nproc-per-node 4 ... whatif_changes_job.py --changes '[{"samples": 16}, {"ranks": 4}]'

Blocks of unchanged steps stand before and after each block of changed ones, so that the machine's own drift cancels.

It knows nothing of Lockstep.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY = 4, 256, 4, 128, 512
_SKIPPED_STEPS, _MEASURED_STEPS = 2, 5


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output for `x`, both of shape (samples, tokens, WIDTH)."""
        b, s, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(b, s, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A decoder whose output weights are its embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of shape (samples, tokens, VOCABULARY) for `tokens` of shape (samples, tokens)."""
        x = self.blocks(self.token(tokens) + self.position.weight)
        return self.norm(x) @ self.token.weight.T


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What a step is: samples of a rank, micro-batches, size of a bucket in MiB (None: DDP's), and number of ranks."""

    samples: int = 8
    micro_batches: int = 1
    bucket_mib: float | None = None
    ranks: int = 2


class StepTimes(NamedTuple):
    """Seconds of a step: before backward, in backward, in the optimizer."""

    forward: float
    backward: float
    optimizer: float


class Training:
    """The model of a rank and its optimizer, trained as a variant has it."""

    def __init__(self, variant: Variant) -> None:
        group = dist.new_group(list(range(variant.ranks)))
        self.takes_part = dist.get_rank() < variant.ranks
        self._variant = variant
        torch.manual_seed(0)
        if self.takes_part:
            self._model = DistributedDataParallel(GPT(), bucket_cap_mb=variant.bucket_mib, process_group=group)
            self._optimizer = torch.optim.AdamW(self._model.parameters())

    def step(self, *, exchange: bool = True) -> StepTimes:
        """Train for a step; with `exchange`, ranks sum their gradients."""
        count = self._variant.micro_batches
        forward_s = backward_s = 0.0
        begin_s = time.perf_counter()
        self._optimizer.zero_grad()
        for micro in range(count):
            tokens = torch.randint(VOCABULARY, (self._variant.samples // count, CONTEXT + 1))
            sums = exchange and micro == count - 1
            with contextlib.nullcontext() if sums else self._model.no_sync():
                logits = self._model(tokens[:, :-1]).flatten(0, 1)
                loss = functional.cross_entropy(logits, tokens[:, 1:].flatten())
                middle_s = time.perf_counter()
                loss.backward()
                end_s = time.perf_counter()
            forward_s, backward_s, begin_s = forward_s + middle_s - begin_s, backward_s + end_s - middle_s, end_s
        self._optimizer.step()
        return StepTimes(forward_s, backward_s, time.perf_counter() - begin_s)


def measured_block(training: Training) -> dict[str, float] | None:
    """Return the medians of a block of steps, seconds; None on a rank that does not take part.

    The parts are those of steps that exchange nothing; `exchange` is what a step takes longer that does.
    """
    dist.barrier()
    if not training.takes_part:
        return None
    times = {}
    for exchange in (True, False):
        steps = [training.step(exchange=exchange) for _ in range(_SKIPPED_STEPS + _MEASURED_STEPS)][_SKIPPED_STEPS:]
        times[exchange] = steps
    parts = {name: median(getattr(step, name) for step in times[False]) for name in StepTimes._fields}
    step_s, local_s = (median(map(sum, times[exchange])) for exchange in (True, False))
    return {"step": step_s, **parts, "exchange": step_s - local_s}


def alternated(base: Variant, changes: Sequence[Variant], rounds: int) -> list[dict[str, Any]]:
    """Return the blocks of every change and the block of `base` before and after each, in their order."""
    trainings = [Training(variant) for variant in (base, *changes)]
    pairs = [index for number in range(1, len(trainings)) for index in (0, number)]
    return [{"variant": index, "seconds": measured_block(trainings[index])} for index in (*pairs * rounds, 0)]


def main() -> None:
    """Train until the process is ended, or alternate with `--changes` and print the blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=json.loads, help="JSON: a list of variants, as mappings of their fields")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    if arguments.changes is not None:
        blocks = alternated(Variant(), [Variant(**each) for each in arguments.changes], arguments.rounds)
        if dist.get_rank() == 0:
            print(json.dumps(blocks), flush=True)
        return
    training = Training(Variant())
    while True:
        training.step()


if __name__ == "__main__":
    main()
