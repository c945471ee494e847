"""The operators of c10d that have kernels of ours, and which of their arguments the kernels read."""

from collections.abc import Callable
from typing import Any, NamedTuple

from lockstep.agent.hooks.payloads import of_nothing, payload_counter
from lockstep.contracts.marks import OPERATORS

_PAYLOADS = {
    "barrier": None,
    "_reduce_scatter_base_": 1,
    "reduce_scatter_": 1,
    "reduce_scatter_tensor_coalesced_": 1,
    "alltoall_base_": 1,
    "alltoall_": 1,
    "gather_": 1,
}
"""Index of the argument whose tensors are the payload (contracts/bus_bytes.py), if it is not the first; None for
operators that move nothing."""
_ASYNC_NAMES = ("async_op", "asyncop")
_GROUP = "process_group"
_PEERS = {"send": "dst", "recv_": "src", "recv_any_source_": None}
"""Operators between two ranks, and the argument that names the other rank, if any does."""


class CollectiveOperator(NamedTuple):
    """An operator of c10d, and which of its `arguments` (names) the kernels read; None if it has none.

    `payload_index` is the index of the argument whose tensors are the payload, `types` are the arguments' types.
    """

    name: str
    arguments: tuple[str, ...]
    types: tuple[str, ...]
    payload_index: int | None

    @property
    def payload_counter(self) -> Callable[[Any], int]:
        """What counts the bytes of the payload."""
        return of_nothing if self.payload_form is None else payload_counter(self.payload_form)

    @property
    def payload_form(self) -> str | None:
        """Type of the payload (payloads.py)."""
        return None if self.payload_index is None else self.types[self.payload_index]

    @property
    def group_index(self) -> int:
        """Index of its process group."""
        return self.arguments.index(_GROUP)

    @property
    def async_index(self) -> int | None:
        """Index of the argument that makes the call asynchronous; without one it always is."""
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


def operators() -> list[CollectiveOperator]:
    """Return the operators that this torch has, except those for which the training has a kernel of its own."""
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
    """Whether the training has a kernel of its own there; ours would replace it, so the operator is left alone."""
    import torch  # noqa: PLC0415  (training imported it)

    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{name}", "BackendSelect"))  # noqa: SLF001
