"""Every collective, from the moment it is issued: kernels in front of torch's c10d operators.

A kernel at the dispatch key BackendSelect sees them all (the DDP reducer's in C++, FSDP's, functional, compiled)
and passes on with `redispatch`, which releases the GIL; `call_boxed` would keep it and deadlock gloo. Patching
`torch.distributed.all_reduce` would miss every caller in C++.

When a collective is done, the backend's thread says so through the Work's future. Without a future (gloo's send, recv
and reduce-scatter) `hooks/waits.py` sees the training thread wait. On a device a future is complete as soon as the
kernel is queued, which is not when it is done: none is asked for there, and the wait is recorded as not measured.
"""

from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from lockstep.agent.account import UNKNOWN_NS, Collective
from lockstep.agent.hooks import Removal

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

# Operator -> index of the argument whose tensors are what is moved; None moves nothing.
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
    "alltoall_base_": 0,
    "alltoall_": 0,
    "send": 0,
    "recv_": 0,
    "recv_any_source_": 0,
    "reduce_": 0,
    "gather_": 1,
    "scatter_": 0,
}
_ASYNC_NAMES = ("async_op", "asyncop")
_GROUP = "process_group"


def install(agent: "Agent") -> Removal:
    """Put the kernels in place, or nothing where this torch has no distributed package."""
    import torch  # noqa: PLC0415  (training imported it)

    if not torch.distributed.is_available():
        return lambda: None
    library = torch.library.Library("c10d", "IMPL")
    operators = torch.ops.c10d
    for name, payload_index in OPERATORS.items():
        if hasattr(operators, name):
            library.impl(
                name,
                _kernel(agent, getattr(operators, name).default, payload_index),
                "BackendSelect",
                with_keyset=True,
            )
    return library._destroy  # type: ignore[no-any-return]  # noqa: SLF001  (the only way to take kernels off again)


def _kernel(agent: "Agent", operator: Any, payload_index: int | None) -> Callable[..., Any]:
    """Return the kernel that stands in front of `operator`."""
    import torch  # noqa: PLC0415  (training imported it)

    after_key = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)  # noqa: SLF001
    redispatch = operator.redispatch
    before = agent.guard(_issuer(agent, operator, payload_index))
    after = agent.guard(_completer(agent))

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        collective = before(args, kwargs)
        result = redispatch(keyset & after_key, *args, **kwargs)
        if collective is not None:
            after(collective, result, args)
        return result

    return kernel


def _issuer(agent: "Agent", operator: Any, payload_index: int | None) -> Callable[..., Collective | None]:
    """Return a function that notes a call of `operator`, or returns None if it is not the training thread's."""
    import torch  # noqa: PLC0415  (training imported it)

    names = [argument.name for argument in operator._schema.arguments]  # noqa: SLF001  (public in C++ only)
    group_index = names.index(_GROUP)
    async_index = next((names.index(name) for name in _ASYNC_NAMES if name in names), None)
    unbox = torch._C._distributed_c10d.ProcessGroup.unbox  # noqa: SLF001
    recorder = agent.recorder
    groups = agent.groups

    def issue(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Collective | None:
        now = monotonic_ns()
        if not recorder.records_here() and not agent.wake():
            return None
        kind = groups.kind_of(unbox(args[group_index]))
        payload = 0 if payload_index is None else payload_bytes(args[payload_index])
        synchronous = False
        if async_index is not None:
            synchronous = not (args[async_index] if len(args) > async_index else kwargs.get(names[async_index], True))
        collective = Collective(monotonic_ns(), kind, payload, synchronous)
        recorder.issue(collective)
        recorder.spend(collective.issue_ns - now)
        return collective

    return issue


def _completer(agent: "Agent") -> Callable[..., None]:
    """Return a function that has the backend's thread note when a collective is done."""
    import torch  # noqa: PLC0415  (training imported it)

    unbox = torch._C._distributed_c10d.Work.unbox  # noqa: SLF001
    recorder = agent.recorder
    tensor_type = torch.Tensor

    has_future = True

    def complete(collective: Collective, result: Any, args: tuple[Any, ...]) -> None:
        nonlocal has_future
        now = monotonic_ns()
        if on_device(args[0], tensor_type):
            collective.done_ns = UNKNOWN_NS
        elif not has_future:
            collective.done_ns = now
        else:
            try:
                future = unbox(result[-1] if isinstance(result, list | tuple) else result).get_future()
            except RuntimeError:  # the backend has none for this operator; asking costs 40 us, so once is enough
                has_future = False
                collective.done_ns = now
            else:
                future.add_done_callback(_noter(collective))
        if get_ident() == recorder.thread:
            recorder.spend(monotonic_ns() - now)

    return complete


def _noter(collective: Collective) -> Callable[[Any], None]:
    def note(_future: Any) -> None:
        collective.done_ns = monotonic_ns()

    return note


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
