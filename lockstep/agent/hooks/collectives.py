"""Every collective, from the moment it is issued: kernels in front of torch's c10d operators.

A kernel at the dispatch key BackendSelect sees them all (the DDP reducer's in C++, FSDP's, functional, compiled)
and passes on with `redispatch`, which releases the GIL; `call_boxed` would keep it and deadlock gloo. Patching
`torch.distributed.all_reduce` would miss every caller in C++.

When a collective is done: of an asynchronous one the backend's thread says so, through the Work's future. A synchronous
one is done when the training thread has waited for it (`hooks/waits.py`), and so is one that has no future (gloo's
send, recv and reduce-scatter): asking for futures is half of what a collective costs here. On a device a future only
orders streams, and a callback on it would disturb training (docs/devices.md): the device's timeline notes an event
behind those that run on the current stream; without a timeline the wait is recorded as not measured.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep.agent.device.graphs import GRAPHS
from lockstep.agent.hooks import Removal
from lockstep.agent.traffic import bus_bytes
from lockstep.contracts.marks import PAYLOAD_BYTES_MAX, pack_call_site
from lockstep.contracts.ring import OTHER_SLOT

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

# Operator -> index of the argument whose tensors are its payload (traffic.py says what that is); None moves nothing.
OPERATORS: dict[str, int | None] = {
    "allreduce_": 0,
    "allreduce_coalesced_": 0,
    "_allgather_base_": 0,
    "allgather_": 0,
    "allgather_coalesced_": 0,
    "allgather_into_tensor_coalesced_": 0,
    "_reduce_scatter_base_": 1,
    "reduce_scatter_": 1,
    "reduce_scatter_tensor_coalesced_": 1,
    "broadcast_": 0,
    "barrier": None,
    "alltoall_base_": 1,
    "alltoall_": 1,
    "send": 0,
    "recv_": 0,
    "recv_any_source_": 0,
    "reduce_": 0,
    "gather_": 1,
    "scatter_": 0,
}
_ASYNC_NAMES = ("async_op", "asyncop")
_GROUP = "process_group"
_PEERS = {"send": "dst", "recv_": "src", "recv_any_source_": None}
"""Operators between two ranks, and the argument that says who the other one is, if any does."""


def install(agent: "Agent") -> Removal:
    """Put the kernels in place, or nothing where this torch has no distributed package."""
    import torch  # noqa: PLC0415  (training imported it)

    if not torch.distributed.is_available():
        return lambda: None
    library = torch.library.Library("c10d", "IMPL")
    operators = torch.ops.c10d
    for name, payload_index in OPERATORS.items():
        if hasattr(operators, name) and not _taken(name):
            library.impl(
                name,
                _kernel(agent, getattr(operators, name).default, name, payload_index),
                "BackendSelect",
                with_keyset=True,
            )
    return library._destroy  # type: ignore[no-any-return]  # noqa: SLF001  (the only way to take kernels off again)


def _taken(name: str) -> bool:
    """Whether the training has put a kernel of its own there, which ours would replace: it is left alone."""
    import torch  # noqa: PLC0415  (training imported it)

    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{name}", "BackendSelect"))  # noqa: SLF001


def _kernel(agent: "Agent", operator: Any, name: str, payload_index: int | None) -> Callable[..., Any]:
    """Return the kernel that stands in front of `operator`."""
    import torch  # noqa: PLC0415  (training imported it)

    after_key = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)  # noqa: SLF001
    redispatch = operator.redispatch
    before = agent.guard(_issuer(agent, operator, name, payload_index))
    after = agent.guard(_completer(agent))

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        issued = before(args, kwargs)
        result = redispatch(keyset & after_key, *args, **kwargs)
        if issued is not None:
            after(*issued, result, args)
        return result

    return kernel


def _issuer(agent: "Agent", operator: Any, name: str, payload_index: int | None) -> Callable[..., tuple[int, bool] | None]:
    """Return a function that notes a call of `operator`.

    It returns its ordinal and whether it is synchronous, or None if it is not the training thread's.
    """
    import torch  # noqa: PLC0415  (training imported it)

    names = [argument.name for argument in operator._schema.arguments]  # noqa: SLF001  (public in C++ only)
    group_index = names.index(_GROUP)
    async_index = next((names.index(name) for name in _ASYNC_NAMES if name in names), None)
    unbox = torch._C._distributed_c10d.ProcessGroup.unbox  # noqa: SLF001
    is_collective, is_send = name not in _PEERS, name == "send"
    peer = _PEERS.get(name)
    peer_index = None if peer is None else names.index(peer)
    marks = agent.marks
    group_of, pair_slot = agent.groups.of, agent.groups.pair_slot
    captures, dispatched = GRAPHS.captures, GRAPHS.dispatched

    def issue(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, bool] | None:
        if not agent.records_here() and not agent.wake():
            return None
        torch_group = unbox(args[group_index])
        group = group_of(torch_group)
        slot = group.slot if is_collective else OTHER_SLOT
        if peer_index is not None:
            slot = pair_slot(torch_group, is_send, args[peer_index])
        payload = 0 if payload_index is None else min(payload_bytes(args[payload_index]), PAYLOAD_BYTES_MAX)
        synchronous = False
        if async_index is not None:
            synchronous = not (args[async_index] if len(args) > async_index else kwargs.get(names[async_index], True))
        site = pack_call_site(name, synchronous=synchronous, domain=group.kind, slot=slot, group_size=group.size)
        ordinal = marks.issue(site, payload)
        if captures:
            dispatched(group.kind, payload, bus_bytes(name, payload, group.size), marks.thread)
        return None if ordinal is None else (ordinal, synchronous)

    return issue


def _completer(agent: "Agent") -> Callable[..., None]:
    """Return a function that sees to it that somebody notes when a collective is done."""
    import torch  # noqa: PLC0415  (training imported it)

    unbox = torch._C._distributed_c10d.Work.unbox  # noqa: SLF001
    marks = agent.marks
    in_flight = agent.in_flight
    tensor_type = torch.Tensor
    has_future = True

    def work_of(result: Any) -> Any:
        """Return its Work; None for NCCL's synchronous collectives, which run on the current stream."""
        work = result[-1] if isinstance(result, list | tuple) else result
        return None if work is None else unbox(work)

    def future_of(result: Any) -> Any | None:
        nonlocal has_future
        if not has_future:
            return None
        try:
            return work_of(result).get_future()
        except RuntimeError:  # the backend has none for this operator; asking costs 40 us, so once is enough
            has_future = False
            return None

    def complete(ordinal: int, synchronous: bool, result: Any, args: tuple[Any, ...]) -> None:  # noqa: FBT001  (hot: positional calls are the fast ones)
        if on_device(args[0], tensor_type):
            if agent.device is None:
                marks.done_unknown(ordinal)
            else:
                agent.device.completed(ordinal, in_order=synchronous and work_of(result) is None)
        elif synchronous or (future := future_of(result)) is None:
            marks.expect(ordinal)
        elif future.done():  # its callback would run here, where torch swallows what a signal handler raises in it
            marks.done(ordinal)
        else:
            _note_end(marks, ordinal, future, in_flight)

    return complete


def _note_end(marks: Any, ordinal: int, future: Any, in_flight: dict[int, Any]) -> None:
    """Let the backend's thread note when `future` is done."""
    done = marks.done

    def note(_future: Any) -> None:
        done(ordinal)
        in_flight.pop(ordinal, None)

    in_flight[ordinal] = future
    future.add_done_callback(note)


def payload_bytes(tensors: Any) -> int:
    """Return the size of a tensor or of nested lists of tensors."""
    if isinstance(tensors, list | tuple):
        return sum(payload_bytes(tensor) for tensor in tensors)
    return int(tensors.numel() * tensors.element_size())


def on_device(tensors: Any, tensor_type: Any) -> bool:
    """Whether the first tensor of a tensor or of nested lists of tensors lives on a device."""
    while not isinstance(tensors, tensor_type):
        if not tensors:
            return False
        tensors = tensors[0]
    return not bool(tensors.is_cpu)
