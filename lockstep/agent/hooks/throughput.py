"""Determines a model's work: each optimizer's parameters at its first step, the number format at the first backward.

After the first backward whose graph has a matrix product nothing remains installed. Must be installed after
hooks/backward.py: it borrows the engine that this hook installs, and gives it back.
"""

import os
from collections.abc import Iterable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from lockstep.agent.hooks.compilation import compiled_graphs
from lockstep.agent.hooks.patching import Removal
from lockstep.agent.throughput.flops import ModelFlopsReporter
from lockstep.agent.throughput.options import read_options
from lockstep.agent.throughput.precision import product_dtype

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

LOOKS_MAX = 16
"""Backwards whose graph is inspected: a warm-up's may contain no matrix product."""


def install(agent: "Agent") -> Removal:
    """Leave marks of the model's FLOPs from now on."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: PLC0415  (training imported it)

    marks, facts = agent.marks, agent.attempt_facts
    flops = ModelFlopsReporter(read_options(os.environ), marks.flag, compiled_graphs)
    facts.flops = flops
    marks.meet = agent.boundary.contain(facts.meet, "an optimizer's parameters")
    abandon = agent.guard(flops.abandon)

    def before(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not flops.is_measuring:
            handle.remove()
        elif get_ident() == flops.measuring_thread != marks.thread:  # the agent took itself out while it measured
            abandon()

    handle = register_optimizer_step_pre_hook(before)
    if not flops.is_measuring:
        handle.remove()
    restore = _borrow_engine(agent, flops)

    def remove() -> None:
        marks.meet = facts.flops = None
        flops.abandon()
        restore()
        handle.remove()

    return remove


def _borrow_engine(agent: "Agent", flops: ModelFlopsReporter) -> Removal:
    """Inspect the graphs of the first backwards, then restore the engine."""
    from torch.autograd.variable import Variable  # noqa: PLC0415  (training imported torch)

    engine: Any = Variable._execution_engine  # noqa: SLF001  (the engine has no public name)
    if not hasattr(engine, "__dict__"):  # torch's own, which takes no attributes
        return lambda: None
    run = engine.run_backward
    looks = 0

    def look(roots: Iterable[Any]) -> None:
        nonlocal looks
        looks += 1
        flops.dtype = product_dtype(roots)
        if flops.dtype or looks == LOOKS_MAX:
            restore()

    contained = agent.boundary.contain(look, "number formats of a backward's graph")

    def run_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        contained(tensors if isinstance(tensors, tuple | list) else (tensors,))
        return run(tensors, *args, **kwargs)

    def restore() -> None:
        if vars(engine).get("run_backward") is run_backward:
            del engine.run_backward

    engine.run_backward = run_backward
    return restore
