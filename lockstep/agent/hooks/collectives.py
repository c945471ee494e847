"""Every collective, when it is issued: kernels in front of torch's c10d operators.

A kernel at the dispatch key BackendSelect sees them all (the DDP reducer's in C++, FSDP's, functional, compiled)
and passes on with `redispatch_boxed`, which releases the GIL; `call_boxed` would keep it and deadlock gloo. Patching
`torch.distributed.all_reduce` would miss every caller in C++. The kernels are those in C++ where a build fits this
process (native.py), else those in Python (python_kernel.py); both leave the same marks.

When a collective is done: of an asynchronous one the backend's thread says so, through the Work's future. A synchronous
one is done when the training thread has waited for it (`hooks/waits.py`), and so is one that has no future (gloo's
send, recv and reduce-scatter): asking for futures is half of what a collective costs here. On a device a future only
orders streams, and a callback on it would disturb training (docs/devices.md): the device's timeline notes an event
behind those that run on the current stream; without a timeline the wait is recorded as not measured.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.agent.hooks import Removal, native
from lockstep.agent.hooks.payloads import of_nothing, payload_counter
from lockstep.contracts.marks import (
    OPERATORS,
)

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

_PAYLOADS = {
    "barrier": None,
    "_reduce_scatter_base_": 1,
    "reduce_scatter_": 1,
    "reduce_scatter_tensor_coalesced_": 1,
    "alltoall_base_": 1,
    "alltoall_": 1,
    "gather_": 1,
}
"""Index of the argument whose tensors are the payload (contracts/bus_bytes.py), where that is not the first one; None
moves nothing."""
_ASYNC_NAMES = ("async_op", "asyncop")
_COST_NS = {native.IN_CPP: 4_000, native.IN_PYTHON: 25_000}
"""What a collective takes of the training thread besides its marks: a third of what benchmarks/collective_cost.py
prints for cold caches, as real jobs showed it of the former agent. To measure each would cost as much."""
_GROUP = "process_group"
_PEERS = {"send": "dst", "recv_": "src", "recv_any_source_": None}
"""Operators between two ranks, and the argument that says who the other one is, if any does."""


class CollectiveOperator(NamedTuple):
    """An operator of c10d, and which of its `arguments` (their names) the kernels read; None: it has none such.

    `payload_index` is that of the argument whose tensors are the payload, `types` are the arguments' types.
    """

    name: str
    arguments: tuple[str, ...]
    types: tuple[str, ...]
    payload_index: int | None

    @property
    def payload_counter(self) -> Callable[[Any], int]:
        """What counts the bytes of the payload."""
        return of_nothing if self.payload_index is None else payload_counter(self.types[self.payload_index])

    @property
    def group_index(self) -> int:
        """Index of its process group."""
        return self.arguments.index(_GROUP)

    @property
    def async_index(self) -> int | None:
        """Index of the argument that says whether the call is asynchronous; without one it always is."""
        return next((self.arguments.index(name) for name in _ASYNC_NAMES if name in self.arguments), None)

    @property
    def peer_index(self) -> int | None:
        """Index of the other rank."""
        peer = _PEERS.get(self.name)
        return None if peer is None else self.arguments.index(peer)

    @property
    def is_pair(self) -> bool:
        """Whether two ranks of the group take part, not all."""
        return self.name in _PEERS

    @property
    def is_send(self) -> bool:
        """Whether this rank sends to another one."""
        return self.name == "send"


def install(agent: "Agent") -> Removal:
    """Put the kernels in place, or nothing where this torch has no distributed package."""
    import torch  # noqa: PLC0415  (training imported it)

    if not torch.distributed.is_available():
        return lambda: None
    try:
        module = native.load(os.environ)
    except native.NoNativeKernelsError as error:
        agent.settling.kernels = (native.IN_PYTHON, str(error))
        agent.marks.collective_cost_ns = _COST_NS[native.IN_PYTHON]
        return install_in_python(agent)
    from lockstep.agent.hooks import native_kernel  # noqa: PLC0415  (only where they fit)

    agent.settling.kernels = (native.IN_CPP, "")
    agent.marks.collective_cost_ns = _COST_NS[native.IN_CPP]
    return native_kernel.install(agent, module, operators())


def operators() -> list[CollectiveOperator]:
    """Return the operators that this torch has and the training has put no kernel of its own in front of."""
    import torch  # noqa: PLC0415  (training imported it)

    found = []
    for name in OPERATORS:
        if not hasattr(torch.ops.c10d, name) or _taken(name):
            continue
        arguments = getattr(torch.ops.c10d, name).default._schema.arguments  # noqa: SLF001  (public in C++ only)
        if not any(argument.kwarg_only for argument in arguments):  # c10d has none, and the kernels take none
            names = tuple(argument.name for argument in arguments)
            types = tuple(str(argument.type) for argument in arguments)
            found.append(CollectiveOperator(name, names, types, _PAYLOADS.get(name, 0)))
    return found


def _taken(name: str) -> bool:
    """Whether the training has put a kernel of its own there, which ours would replace: it is left alone."""
    import torch  # noqa: PLC0415  (training imported it)

    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{name}", "BackendSelect"))  # noqa: SLF001


def install_in_python(agent: "Agent") -> Removal:
    """Put the kernels in Python in place."""
    from lockstep.agent.hooks import python_kernel  # noqa: PLC0415  (only where there are none in C++)

    return python_kernel.install(agent, operators())
