"""Steps without collectives: the marks that hooks make of them, and the calls of torch that hooks stand around."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from lockstep.agent import bootstrap


@contextmanager
def watched() -> Iterator[Any]:
    """Hand out the agent of this process, recording; nothing of it is left afterwards."""
    os.environ.pop("LOCKSTEP_AGENT_PID", None)
    if not bootstrap.install():
        raise SystemExit("the agent did not install")
    agent = bootstrap._agent  # noqa: SLF001  (the benchmark looks inside)
    assert agent is not None
    agent.wake()
    try:
        yield agent
        if agent.boundary.failures or agent.marks.failures:
            raise SystemExit("the agent failed")
    finally:
        bootstrap.uninstall()


class Idle(torch.optim.Optimizer):
    """An optimizer that does nothing, so that what is left are the hooks."""

    def step(self, closure: Any = None) -> None:
        """Do nothing."""


class Steps:
    """The marks of a step, as hooks make them."""

    def __init__(self, agent: Any) -> None:
        names = ("data_begin", "data_end", "backward_begin", "backward_end")
        self._before = [agent.mark(name) for name in names]
        self._optimizer = Idle([torch.ones(1, requires_grad=True)], {})
        self._pre_hook, self._post_hook = agent.mark("optimizer_pre_hook"), agent.mark("optimizer_post_hook")

    def step(self) -> None:
        """Make all marks of a step without collectives."""
        data_begin, data_end, backward_begin, backward_end = self._before
        data_begin()
        data_end()
        backward_begin()
        backward_end()
        self._pre_hook(self._optimizer, (), {})
        self._post_hook(self._optimizer, (), {})


class Endless(IterableDataset[Any]):
    """The same batch for ever, so that a fetch costs as little as torch allows."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield without end."""
        batch = torch.zeros(8, 64, dtype=torch.int64)
        while True:
            yield batch


def hooked_calls() -> dict[str, Callable[[], Any]]:
    """Return calls of torch that hooks stand around."""
    batches = iter(DataLoader(Endless(), batch_size=None))
    weight = torch.ones(1, requires_grad=True)
    optimizer = Idle([weight], {})

    def backward() -> None:
        (weight * 2).backward()

    return {
        "data hook, its batch counted": partial(next, batches),
        "backward hook": backward,
        "optimizer hooks": optimizer.step,
    }
