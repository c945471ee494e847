"""Ranks whose backwards nest so deep that autograd runs them on threads of its own, run by torchrun; knows no agent."""

from threading import Thread, get_ident

import torch
import torch.distributed as dist

import tests.support.loaded_torch  # noqa: F401

DEPTH = 65
"""Beyond MAX_DEPTH (60, torch/csrc/autograd/engine.h), up to which nested backwards run on the caller's stack."""
STEPS = 4
OWN, FUSED = 2, 3
"""All-reduces that autograd's thread issues in a step, and steps whose optimizer runs in the backward, on that thread."""


class Nested(torch.autograd.Function):
    """A backward inside a backward inside a backward; `work()` runs in the innermost."""

    @staticmethod
    def forward(context, value, depth, work):
        context.depth, context.work = depth, work
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        if context.depth == 0:
            context.work()
        else:
            with torch.enable_grad():
                inner = Nested.apply(torch.ones(1, requires_grad=True), context.depth - 1, context.work)
            torch.autograd.backward(inner)
        return gradient, None, None


def main():
    dist.init_process_group("gloo")
    saving = dist.new_group([0, 1])
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    training_thread = get_ident()

    def save():
        for _ in range(5):
            dist.all_reduce(torch.ones(1), group=saving)
        dist.all_reduce(torch.ones(1), group=saving, async_op=True).wait()

    def work():
        assert get_ident() != training_thread
        for _ in range(OWN):
            dist.all_reduce(torch.ones(1))
        thread = Thread(target=save)
        thread.start()
        thread.join()

    def work_and_step():
        work()
        optimizer.step()

    for step in range(STEPS + FUSED):
        optimizer.zero_grad()
        Nested.apply(weight, DEPTH, work if step < STEPS else work_and_step).backward()
        if step < STEPS:
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
