"""Two ranks in the manner of torchtitan: FSDP2 over a device mesh, optimizers inside an optimizer.

Knows nothing of the agent.
"""

import os
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW, Optimizer

import tests.support.loaded_torch  # noqa: F401

WORLD, WIDTH = 2, 64
STEPS = int(os.environ["STEPS"])
LATE_SECONDS = 0.12


class OptimizersContainer(Optimizer):
    """An optimizer for each part of a model, and one around them."""

    def __init__(self, parts):
        self.optimizers = [AdamW(part.parameters()) for part in parts]
        super().__init__([parameter for part in parts for parameter in part.parameters()], {})

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (1, WORLD), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh["dp_shard"])
    optimizer = OptimizersContainer([model[0], model[2]])
    for _ in range(STEPS):
        value = torch.randn(8, WIDTH)
        if rank == int(os.environ["SLOW"]):
            time.sleep(LATE_SECONDS)
        model(value).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
