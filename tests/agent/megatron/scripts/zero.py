"""Two ranks in the manner of DeepSpeed's ZeRO stage 2: one optimizer stepped once for each of its parameter groups.

Gradients are reduced by hooks during backward, over a group that no one described. Knows nothing of the agent.
"""

import os
import time

import torch
import torch.distributed as dist

import tests.support.loaded_torch  # noqa: F401

WORLD, WIDTH = 2, 64
STEPS = int(os.environ["STEPS"])
LATE_SECONDS = 0.12


class ZeroOptimizer:
    """Owns a part of each parameter group, flat, and steps the wrapped optimizer for one group at a time."""

    def __init__(self, layers, group):
        self.group = group
        self.values = []
        self.parts = []
        self.reduced = []
        for index, layer in enumerate(layers):
            parameter = layer.weight
            flat = parameter.detach().flatten()
            parameter.data = flat.view_as(parameter)
            part = flat.chunk(WORLD)[dist.get_rank()]
            self.values.append(flat)
            self.parts.append(torch.nn.Parameter(part))
            self.reduced.append(torch.empty_like(part))
            parameter.register_post_accumulate_grad_hook(lambda parameter, index=index: self._reduce(parameter, index))
        self.optimizer = torch.optim.AdamW([{"params": [part]} for part in self.parts])

    def _reduce(self, parameter, index):
        dist.reduce_scatter_tensor(self.reduced[index], parameter.grad.flatten(), group=self.group)
        parameter.grad = None

    def step(self):
        groups = self.optimizer.param_groups
        for index, part in enumerate(self.parts):
            part.grad = self.reduced[index]
            self.optimizer.param_groups = [groups[index]]
            self.optimizer.step()
            self.optimizer.param_groups = groups
            part.grad = None
        for value, part in zip(self.values, self.parts, strict=True):
            dist.all_gather_into_tensor(value, part.detach().clone(), group=self.group)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=WORLD)
    group = dist.new_group(range(WORLD))
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))
    optimizer = ZeroOptimizer(list(model), group)
    for _ in range(STEPS):
        value = torch.randn(8, WIDTH)
        if rank == int(os.environ["SLOW"]):
            time.sleep(LATE_SECONDS)
        model(value).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


main()
