"""A small model trained with DistributedDataParallel over gloo; rank 2 keeps 5 MiB of every step from step 100 on.

Run by torchrun. It knows nothing of Lockstep. All ranks allocate a large temporary in each step, and evaluate now and
then, which takes memory for as long. The leak ends after `LEAK_STEPS`, so that a test that fails harms no one.
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import tests.support.loaded_torch  # noqa: F401

LEAK_RANK, ONSET_STEP, LEAK_STEPS = 2, 100, 400
LEAK_BYTES = 5 << 20
STEP_SECONDS = 0.3
"""Longer than the time between two samples also on a machine that is so busy that an exporter gets every third."""
TEMPORARY_BYTES = 32 << 20
EVALUATE_EVERY, EVALUATION_STEPS = 60, 5
WIDTH = 64


class History:
    """What a metric keeps, although it needs the last value only."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.kept: list[Tensor] = []

    def keep_activations(self, step: int) -> None:
        if self.rank == LEAK_RANK and ONSET_STEP <= step < ONSET_STEP + LEAK_STEPS:
            self.kept.append(torch.ones(LEAK_BYTES // 4))


def evaluate(step: int) -> Tensor | None:
    """Return what an evaluation holds while it lasts."""
    return torch.ones(2 * TEMPORARY_BYTES // 4) if step % EVALUATE_EVERY < EVALUATION_STEPS else None


def main() -> None:
    """Train until stopped."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history = History(dist.get_rank())
    step = 0
    held = None
    while True:
        began_s = time.monotonic()
        temporary = torch.ones(TEMPORARY_BYTES // 4)
        loss = model(torch.ones(8, WIDTH)).square().mean() * temporary[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.keep_activations(step)
        held = evaluate(step)
        del temporary
        step += 1
        time.sleep(max(began_s + STEP_SECONDS - time.monotonic(), 0))
        assert held is None or len(held)


if __name__ == "__main__":
    main()
