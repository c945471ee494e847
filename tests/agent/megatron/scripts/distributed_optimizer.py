"""Two data-parallel ranks with optimizer state divided between them, in the manner of Megatron-LM's distributed optimizer.

Gradients are reduce-scattered bucket by bucket while backward runs, parameters gathered while the next forward begins.
Knows nothing of the agent.
"""

import os
import time

import torch
import torch.distributed as dist

import tests.support.loaded_torch  # noqa: F401

WORLD, WIDTH, LAYERS = 2, 64, 2
STEPS = int(os.environ["STEPS"])
LATE_SECONDS = 0.12


class Bucket:
    """The parameters and gradients of one layer, flat; this rank owns a part of both."""

    def __init__(self, layer, group):
        parameters = list(layer.parameters())
        count = sum(parameter.numel() for parameter in parameters)
        size = -(-count // WORLD) * WORLD
        self.group = group
        self.values = torch.zeros(size)
        self.gradients = torch.zeros(size)
        part = slice(size // WORLD * dist.get_rank(), size // WORLD * (dist.get_rank() + 1))
        self.own_gradient = torch.empty(size // WORLD)
        self.own = torch.nn.Parameter(self.values[part])
        self.left = self.count = len(parameters)
        self.scattered = self.gathered = None
        offset = 0
        for parameter in parameters:
            stop = offset + parameter.numel()
            self.values[offset:stop] = parameter.detach().flatten()
            parameter.data = self.values[offset:stop].view_as(parameter)
            parameter.main_grad = self.gradients[offset:stop].view_as(parameter)
            parameter.register_post_accumulate_grad_hook(self._ready)
            offset = stop
        layer.register_forward_pre_hook(self._gathered_before)

    def _ready(self, parameter):
        parameter.main_grad.copy_(parameter.grad)
        parameter.grad = None
        self.left -= 1
        if self.left == 0:
            self.left = self.count
            self.scattered = dist.reduce_scatter_tensor(
                self.own_gradient, self.gradients, group=self.group, async_op=True
            )

    def finish_gradients(self):
        self.scattered.wait()
        self.own.grad = self.own_gradient

    def gather(self):
        self.gathered = dist.all_gather_into_tensor(
            self.values, self.own.detach().clone(), group=self.group, async_op=True
        )

    def _gathered_before(self, _layer, _inputs):
        if self.gathered is not None:
            self.gathered.wait()
            self.gathered = None


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=WORLD)
    group = dist.new_group([0, 1], group_desc="DATA_PARALLEL_GROUP_WITH_CP")
    expert_group = dist.new_group([0, 1], group_desc="EXPERT_DATA_PARALLEL_GROUP")
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    buckets = [Bucket(model[0], group), Bucket(model[1], expert_group)]
    optimizers = [torch.optim.AdamW([bucket.own]) for bucket in buckets]
    for _ in range(STEPS):
        value = torch.randn(8, WIDTH)
        if rank == int(os.environ["SLOW"]):
            time.sleep(LATE_SECONDS)
        model(value).square().mean().backward()
        for bucket in buckets:
            bucket.finish_gradients()
        for optimizer in optimizers:
            optimizer.step()
        for bucket in buckets:
            bucket.gather()
    for bucket in buckets:
        bucket.gathered.wait()
    dist.destroy_process_group()


main()
