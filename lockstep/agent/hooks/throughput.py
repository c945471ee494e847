"""What a model computes: each optimizer's parameters at its first step, the number format at the first backward.

After the first backward whose graph has a matrix product only a set lookup per optimizer step is left. Goes behind
hooks/backward.py: it borrows the engine that this one puts in place, and gives it back.
"""

import os
from collections.abc import Iterable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from lockstep.agent.hooks import Removal
from lockstep.agent.throughput.flops import ModelFlops
from lockstep.agent.throughput.options import read_options
from lockstep.agent.throughput.precision import product_dtype

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

LOOKS_MAX = 16
"""Backwards whose graph is looked at: a warm-up's may hold no product."""


def install(agent: "Agent") -> Removal:
    """Answer the recorder's question for model FLOPs from now on."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: PLC0415  (training imported it)

    recorder = agent.recorder

    def compilations() -> int:
        return 0 if recorder.compilations is None else recorder.compilations()

    flops = ModelFlops(read_options(os.environ), recorder.flag, compilations)
    recorder.flops = flops
    meet = agent.guard(flops.meet)

    abandon = agent.guard(flops.abandon)

    def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        thread = get_ident()
        if thread == recorder.thread:
            meet(optimizer)
        elif thread == flops.measuring_thread:  # the agent took itself out in the measured step
            abandon()

    handle = register_optimizer_step_pre_hook(before)
    restore = _borrow_engine(agent, flops)

    def remove() -> None:
        flops.abandon()
        restore()
        handle.remove()

    return remove


def _borrow_engine(agent: "Agent", flops: ModelFlops) -> Removal:
    """Look at the graphs of the first backwards, then leave the engine as it was."""
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

    guarded = agent.guard(look)

    def run_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        guarded(tensors if isinstance(tensors, tuple | list) else (tensors,))
        return run(tensors, *args, **kwargs)

    def restore() -> None:
        if vars(engine).get("run_backward") is run_backward:
            del engine.run_backward

    engine.run_backward = run_backward
    return restore
