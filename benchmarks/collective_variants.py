"""All-reduces in a gloo group of one rank: with the hooks of the agent in front of them, with none, with empty ones."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from lockstep.agent.agent import Agent
from lockstep.agent.hooks import collective_operators, collectives, native, native_kernel, waits
from lockstep.agent.hooks.patching import Removal

BARE = "bare"
_VALUE = torch.ones(4)

Install = Callable[[], Removal]


def synchronous() -> None:
    """Run a collective that waits for its end."""
    dist.all_reduce(_VALUE)


def asynchronous() -> None:
    """Run one and wait for it."""
    dist.all_reduce(_VALUE, async_op=True).wait()


OPERATIONS: dict[str, Callable[[], None]] = {"synchronous": synchronous, "asynchronous": asynchronous}


class Variant:
    """Hooks of collectives, in place between `enter` and `leave`."""

    def __init__(self, *installs: Install) -> None:
        self._installs = installs
        self._removals: list[Removal] = []

    def enter(self) -> None:
        """Put the hooks in place."""
        self._removals = [install() for install in self._installs]
        for _ in range(3):  # the first collective meets its group
            asynchronous()

    def leave(self) -> None:
        """Take them off."""
        while self._removals:
            self._removals.pop()()


def kernels_in_cpp(agent: Agent) -> Removal:
    """Put the kernels in C++ in place."""
    return native_kernel.install(agent, native.load(os.environ), collective_operators.operators())


NO_EXTENSION = "Python, no C extension"
KERNELS: dict[str, Callable[[Agent], Removal]] = {
    "C++": kernels_in_cpp,
    "Python": collectives.install_in_python,
    NO_EXTENSION: collectives.install_in_python,
}
"""By name; the agent of NO_EXTENSION is one that could not load its C extension."""


@contextmanager
def agents(kernels: dict[str, Callable[[Agent], Removal]]) -> Iterator[dict[str, Variant]]:
    """Hand out a variant for each of `kernels`, each with an agent that records, in a process group of one rank.

    Another one, BARE, has no hooks.
    """
    former = dict(os.environ)
    made: list[Agent] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:  # where rings lie
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCKSTEP_DIR": directory}
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            variants = {BARE: Variant()}
            for name, install in kernels.items():
                made.append(_recording(name))
                variants[name] = _hooked(made[-1], install)
            yield variants
            if any(agent.boundary.failures or agent.marks.failures for agent in made):
                raise SystemExit("the agent failed")
        finally:
            for agent in made:
                agent.remove()
            dist.destroy_process_group()
            os.environ.clear()
            os.environ.update(former)


def _recording(name: str) -> Agent:
    os.environ["LOCKSTEP_RUN"] = "".join(filter(str.isalpha, name))
    os.environ.pop("LOCKSTEP_AGENT_PID", None)
    absent = {"lockstep.agent._marks": None} if name == NO_EXTENSION else {}
    with patch.dict(sys.modules, absent):
        agent = Agent([])
    if not agent.wake():
        raise SystemExit("the agent does not record")
    return agent


def _hooked(agent: Agent, install: Callable[[Agent], Removal]) -> Variant:
    return Variant(lambda: install(agent), lambda: waits.install(agent))


def _empty_kernel(*, with_callback: bool) -> Removal:
    """Put a kernel in front of all-reduces that only passes them on, and adds an empty callback to their future."""
    after_key = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)  # noqa: SLF001
    redispatch = torch.ops.c10d.allreduce_.default._handle.redispatch_boxed  # noqa: SLF001
    unbox = torch._C._distributed_c10d.Work.unbox  # noqa: SLF001

    def kernel(keyset: Any, *args: Any) -> Any:
        return redispatch(keyset & after_key, *args)

    def callback(_future: Any) -> None:
        return

    def kernel_with_callback(keyset: Any, *args: Any) -> Any:
        result = redispatch(keyset & after_key, *args)
        unbox(result[-1]).get_future().add_done_callback(callback)
        return result

    library = torch.library.Library("c10d", "IMPL")
    chosen = kernel_with_callback if with_callback else kernel
    library.impl("allreduce_", chosen, "BackendSelect", with_keyset=True)
    return library._destroy  # type: ignore[no-any-return]  # noqa: SLF001


FLOORS = {
    "synchronous": ("floor: empty Python kernel", Variant(lambda: _empty_kernel(with_callback=False))),
    "asynchronous": ("floor: empty Python kernel, callback", Variant(lambda: _empty_kernel(with_callback=True))),
}
"""The least that a kernel in Python costs which learns of a collective's end, by operation: name and variant."""
