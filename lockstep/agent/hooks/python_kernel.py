"""HOT (budget 12 us a collective): the kernels in front of collectives that torch calls as Python (collectives.py).

Each is an object of the C extension (_collective_kernel.h), which leaves to Python what is not common; a function where
there is no extension.
"""

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from lockstep.agent.device.graphs import GRAPHS
from lockstep.agent.hooks.device_collectives import complete_on_device, issue_on_device
from lockstep.agent.hooks.patching import Removal
from lockstep.agent.hooks.payloads import LIST, TENSOR, is_on_device
from lockstep.agent.mark_writer import C_EXTENSION
from lockstep.contracts.marks import OPERATOR_INDEX, PAYLOAD_BYTES_MAX, SLOT_BITS, SLOT_SHIFT, SYNCHRONOUS
from lockstep.contracts.ring import OTHER_SLOT

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent
    from lockstep.agent.hooks.collective_operators import CollectiveOperator

_ALWAYS_ASYNC = 1 << 30
"""More arguments than any operator has."""
_NONE = -1


def install(agent: "Agent", operators: "Sequence[CollectiveOperator]") -> Removal:
    """Put a kernel in front of each of `operators`, and return what takes them off again."""
    import torch  # noqa: PLC0415  (training imported it)

    library = torch.library.Library("c10d", "IMPL")
    make = _kernel_in_c if agent.mark_writer == C_EXTENSION else _kernel
    for operator in operators:
        library.impl(operator.name, make(agent, operator), "BackendSelect", with_keyset=True)
    return library._destroy  # type: ignore[no-any-return]  # noqa: SLF001  (the only way to take kernels off again)


def _kernel_in_c(agent: "Agent", operator: "CollectiveOperator") -> Callable[..., Any]:
    """Return the kernel that stands in front of `operator`: C runs no bytecode for a common collective."""
    import torch  # noqa: PLC0415  (training imported it)

    from lockstep.agent._marks import CollectiveKernel  # noqa: PLC0415  (optional)

    keys, key_set, c10d = torch._C.DispatchKey, torch._C.DispatchKeySet, torch._C._distributed_c10d  # noqa: SLF001
    handle = _handle(operator)
    return CollectiveKernel(
        agent.marks,
        handle=handle,
        redispatch=type(handle).redispatch_boxed,
        raw_repr=key_set.raw_repr,
        has=key_set.has,
        after_key=torch._C._dispatch_keyset_full_after(keys.BackendSelect),  # noqa: SLF001
        host_key=keys.CPU,
        unbox_group=c10d.ProcessGroup.unbox,
        unbox_work=c10d.Work.unbox,
        known=agent.groups.known,
        captures=GRAPHS.captures,
        issue_any=_issuer(agent, operator),
        complete=_completer(agent),
        absorbs=agent.boundary.absorbs,
        group_index=_NONE if operator.is_pair else operator.group_index,
        payload_index=_NONE if operator.payload_index is None else operator.payload_index,
        async_index=_NONE if operator.async_index is None else operator.async_index,
        bits=OPERATOR_INDEX[operator.name],
        synchronous_bits=OPERATOR_INDEX[operator.name] | SYNCHRONOUS,
    )


def _handle(operator: "CollectiveOperator") -> Any:
    import torch  # noqa: PLC0415  (training imported it)

    return getattr(torch.ops.c10d, operator.name).default._handle  # noqa: SLF001  (its `redispatch` is slower)


def _kernel(agent: "Agent", operator: "CollectiveOperator") -> Callable[..., Any]:
    """Return the same in Python."""
    import torch  # noqa: PLC0415  (training imported it)

    from lockstep.agent.call_marks import KernelCalls  # noqa: PLC0415  (where there is no extension)

    keys, c10d = torch._C.DispatchKey, torch._C._distributed_c10d  # noqa: SLF001
    after_key = torch._C._dispatch_keyset_full_after(keys.BackendSelect)  # noqa: SLF001
    calls = KernelCalls(
        redispatch=_handle(operator).redispatch_boxed,
        raw_repr=torch._C.DispatchKeySet.raw_repr,  # noqa: SLF001
        look_at_keys=lambda keyset: (keyset & after_key, keyset.has(keys.CPU)),
        unbox_group=c10d.ProcessGroup.unbox,
        unbox_work=c10d.Work.unbox,
        issue_any=_issuer(agent, operator),
        complete=_completer(agent),
        absorbs=agent.boundary.absorbs,
    )
    is_common = operator.payload_form in {TENSOR, LIST} and not operator.is_pair
    return agent.marks.kernel(
        calls,
        agent.groups.known if is_common else {},
        GRAPHS.captures,
        group_index=operator.group_index,
        payload_index=operator.payload_index or 0,
        async_index=_ALWAYS_ASYNC if operator.async_index is None else operator.async_index,
        is_list=operator.payload_form == LIST,
        bits=OPERATOR_INDEX[operator.name],
    )


def _issuer(agent: "Agent", operator: "CollectiveOperator") -> Callable[[int, Any], int | None]:
    """Return what notes any collective: of a group met now, of another thread, of many tensors, in a graph."""
    import torch  # noqa: PLC0415  (training imported it)

    unbox = torch._C._distributed_c10d.ProcessGroup.unbox  # noqa: SLF001
    groups, marks = agent.groups, agent.marks
    pair_site, count = _pair_site(agent, operator), operator.payload_counter
    group_index, payload_index = operator.group_index, operator.payload_index or 0

    def issue_any(bits: int, args: Any) -> int | None:
        if get_ident() != marks.thread and not agent.records_here() and not agent.wake():
            return None
        group = unbox(args[group_index])
        site = groups.of(group).site
        if pair_site is not None:
            site = pair_site(group, site, args)
        return issue_on_device(agent, site | bits, min(count(args[payload_index]), PAYLOAD_BYTES_MAX))

    return issue_any


def _pair_site(agent: "Agent", operator: "CollectiveOperator") -> Callable[[Any, int, Any], int] | None:
    """Return what gives the call site of an operator between two ranks, None for those of a whole group."""
    if not operator.is_pair:
        return None
    groups, is_send, peer_index = agent.groups, operator.is_send, operator.peer_index

    def pair_site(group: Any, site: int, args: Any) -> int:
        slot = OTHER_SLOT if peer_index is None else groups.pair_slot(group, is_send, args[peer_index])
        return site & ~SLOT_BITS | slot << SLOT_SHIFT

    return pair_site


def _completer(agent: "Agent") -> Callable[[int, bool, Any, Any], bool]:
    """Return what notes the end of a collective of a device or without a Work, and whether it is such a collective."""
    marks = agent.marks

    def complete(ordinal: int, synchronous: bool, tensors: Any, result: Any) -> bool:  # noqa: FBT001  (hot)
        if is_on_device(tensors):
            work = result[-1] if type(result) is tuple else result
            complete_on_device(agent, ordinal, in_order=synchronous and work is None)  # on the current stream
        elif result is None:
            marks.expect(ordinal)
        else:
            return False
        return True

    return complete
