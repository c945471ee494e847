"""A small model trained with DistributedDataParallel over gloo; rank 1 is slow in one phase after another.

Run by torchrun. It knows nothing of Lockstep. Every rank computes a while in forward, backward and optimizer; in each
block of steps the slow rank sleeps besides in one of them, or computes more. Work is CPU time: on a crowded machine all of
it takes longer alike.
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import tests.support.loaded_torch  # noqa: F401

HEALTHY_STEPS = 2
BLOCK_STEPS = 10
BLOCKS = [(phase, asleep) for asleep in (True, False) for phase in ("forward", "backward", "optimizer")]
SLEEP_SECONDS = 0.1
MORE_SECONDS = 0.03
WORK_SECONDS = 0.005
"""CPU time of each phase of every rank."""
SLOW_RANK = 1
WIDTH = 64


class Fault:
    """What is wrong with this rank in this step; `here(phase)` is called in each phase."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.step = 0

    def here(self, phase: str) -> None:
        block = (self.step - HEALTHY_STEPS) // BLOCK_STEPS
        is_slow = self.rank == SLOW_RANK and block >= 0 and BLOCKS[block][0] == phase
        asleep = is_slow and BLOCKS[block][1]
        if asleep:
            time.sleep(SLEEP_SECONDS)
        compute(WORK_SECONDS + MORE_SECONDS * (is_slow and not asleep))


def compute(seconds: float) -> None:
    """Compute for so much CPU time of this thread."""
    end = time.thread_time() + seconds
    wide = torch.ones(WIDTH, WIDTH)
    while time.thread_time() < end:
        functional.softmax(wide @ wide, dim=-1)


class Model(nn.Module):
    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, batch: Tensor) -> Tensor:
        self.fault.here("forward")
        hidden = self.layers(batch)
        if hidden.requires_grad:
            hidden.register_hook(lambda _gradient: self.fault.here("backward"))
        return hidden


class Optimizer(torch.optim.SGD):
    """One whose step is slow on request."""

    fault: Fault

    def step(self, closure=None):
        self.fault.here("optimizer")
        return super().step(closure)


def main() -> None:
    """Train the healthy steps and all blocks."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    fault = Fault(dist.get_rank())
    model = DistributedDataParallel(Model(fault))
    optimizer = Optimizer(model.parameters(), lr=0.01)
    optimizer.fault = fault
    for step in range(HEALTHY_STEPS + BLOCK_STEPS * len(BLOCKS)):
        fault.step = step
        loss = model(torch.ones(8, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
