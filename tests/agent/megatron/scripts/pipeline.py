"""Two pipeline stages of two tensor-parallel ranks, in the manner of Megatron-LM; knows nothing of the agent.

1F1B schedule with point-to-point sends, backward straight through the autograd engine, data on the first
tensor-parallel rank only, a chained optimizer, groups described as in megatron/core/parallel_state.py.
"""

import os
import time

import torch
import torch.distributed as dist
from torch.autograd.variable import Variable
from torch.utils.data import DataLoader, TensorDataset

import tests.support.loaded_torch  # noqa: F401

TP, PP, MICRO_BATCHES, BATCH, WIDTH = 2, 2, 3, 4, 32
STEPS = int(os.environ["STEPS"])
LATE_SECONDS = 0.06


def make_groups():
    """Make Megatron's groups for order tp-dp-pp with one data-parallel rank."""
    rank = dist.get_rank()
    mine = {}
    for description, lists in {
        "TENSOR_MODEL_PARALLEL_GROUP": [[0, 1], [2, 3]],
        "PIPELINE_MODEL_PARALLEL_GROUP": [[0, 2], [1, 3]],
        "EMBEDDING_GROUP": [[0, 2], [1, 3]],
        "MODEL_PARALLEL_GROUP": [[0, 1, 2, 3]],
    }.items():
        for ranks in lists:
            group = dist.new_group(ranks, group_desc=description)
            if rank in ranks:
                mine[description] = group
    return mine


class ReduceForward(torch.autograd.Function):
    """Sum over the tensor-parallel group on the way forward."""

    @staticmethod
    def forward(_ctx, value, group):
        value = value.clone()
        dist.all_reduce(value, group=group)
        return value

    @staticmethod
    def backward(_ctx, grad):
        return grad, None


class ReduceBackward(torch.autograd.Function):
    """Sum over the tensor-parallel group on the way back."""

    @staticmethod
    def forward(ctx, value, group):
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group, async_op=True).wait()
        return grad, None


class Stage(torch.nn.Module):
    """A column-parallel and a row-parallel layer."""

    def __init__(self, group):
        super().__init__()
        self.group = group
        self.column = torch.nn.Linear(WIDTH, WIDTH // TP)
        self.row = torch.nn.Linear(WIDTH // TP, WIDTH)

    def forward(self, value):
        value = torch.relu(self.column(ReduceBackward.apply(value, self.group)))
        return ReduceForward.apply(self.row(value), self.group)


class ChainedOptimizer:
    """Steps several optimizers as one; no torch optimizer itself."""

    def __init__(self, optimizers):
        self.chained_optimizers = optimizers

    def zero_grad(self):
        for optimizer in self.chained_optimizers:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.chained_optimizers:
            optimizer.step()


def custom_backward(output, grad):
    if grad is None:
        grad = torch.ones_like(output)
    Variable._execution_engine.run_backward(
        tensors=(output,),
        grad_tensors=(grad,),
        keep_graph=False,
        create_graph=False,
        inputs=(),
        allow_unreachable=True,
        accumulate_grad=True,
    )


def exchange(*operations):
    for request in dist.batch_isend_irecv(list(operations)):
        request.wait()


class Schedule:
    """One forward and backward pass of all micro-batches over both stages."""

    def __init__(self, groups, model, loader):
        self.group = groups["PIPELINE_MODEL_PARALLEL_GROUP"]
        self.tp_group = groups["TENSOR_MODEL_PARALLEL_GROUP"]
        rank = dist.get_rank()
        self.first = rank < TP
        self.peer = (rank + TP) % (TP * PP)
        self.source = rank // TP * TP
        self.late = rank == int(os.environ["SLOW"])
        self.model = model
        self.batches = loader

    def batch(self):
        value = torch.empty(BATCH, WIDTH)
        if self.batches is not None:
            value = next(self.batches)[0]
        dist.broadcast(value, self.source, group=self.tp_group)
        return value

    def forward(self, value):
        if self.late:
            time.sleep(LATE_SECONDS)
        return self.model(value)

    def send(self, value):
        return dist.P2POp(dist.isend, value, self.peer, self.group)

    def receive(self, value):
        return dist.P2POp(dist.irecv, value, self.peer, self.group)

    def run_first(self):
        """Run the first stage: one forward ahead, then one forward and one backward in turn."""
        pending = []
        for micro_batch in range(MICRO_BATCHES + 1):
            grad = torch.empty(BATCH, WIDTH)
            if micro_batch < MICRO_BATCHES:
                pending.append(self.forward(self.batch()))
                sent = pending[-1].detach()
            if micro_batch == 0:
                exchange(self.send(sent))
                continue
            both = [self.receive(grad)]
            if micro_batch < MICRO_BATCHES:
                both.insert(0, self.send(sent))
            exchange(*both)
            custom_backward(pending.pop(0), grad)

    def run_last(self):
        """Run the last stage: a forward and its backward at once, for each micro-batch that arrives."""
        arrived = torch.empty(BATCH, WIDTH)
        exchange(self.receive(arrived))
        for micro_batch in range(MICRO_BATCHES):
            value = arrived.requires_grad_()
            target = self.batch()
            output = (self.forward(value) - target).square().mean()
            custom_backward(output, None)
            arrived = torch.empty(BATCH, WIDTH)
            both = [self.send(value.grad)]
            if micro_batch + 1 < MICRO_BATCHES:
                both.append(self.receive(arrived))
            exchange(*both)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=int(os.environ["RANK"]), world_size=TP * PP)
    groups = make_groups()
    model = Stage(groups["TENSOR_MODEL_PARALLEL_GROUP"])
    loader = None
    if dist.get_rank() % TP == 0:
        loader = iter(DataLoader(TensorDataset(torch.randn(STEPS * MICRO_BATCHES * BATCH, WIDTH)), batch_size=BATCH))
    optimizer = ChainedOptimizer(
        [torch.optim.AdamW(model.column.parameters()), torch.optim.AdamW(model.row.parameters())]
    )
    schedule = Schedule(groups, model, loader)
    for _ in range(STEPS):
        optimizer.zero_grad()
        if schedule.first:
            schedule.run_first()
        else:
            schedule.run_last()
        dist.all_reduce(model.row.weight.grad, group=groups["EMBEDDING_GROUP"])
        norm = sum(parameter.grad.square().sum() for parameter in model.parameters())
        dist.all_reduce(norm, group=groups["MODEL_PARALLEL_GROUP"])
        optimizer.step()
    dist.destroy_process_group()


main()
