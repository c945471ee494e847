"""HOT (budget 12 us a collective): every collective, when it is issued: kernels in front of torch's c10d operators.

A kernel at the dispatch key BackendSelect sees them all (the DDP reducer's in C++, FSDP's, functional, compiled)
and passes on with `redispatch_boxed`, which releases the GIL; `call_boxed` would keep it and deadlock gloo. Patching
`torch.distributed.all_reduce` would miss every caller in C++. The kernels are those in C++ where a build fits this
process (native.py), else those below; both leave the same marks.

When a collective is done: of an asynchronous one the backend's thread says so, through the Work's future. A synchronous
one is done when the training thread has waited for it (`hooks/waits.py`), and so is one that has no future (gloo's
send, recv and reduce-scatter): asking for futures is half of what a collective costs here. On a device a future only
orders streams, and a callback on it would disturb training (docs/devices.md): the device's timeline notes an event
behind those that run on the current stream; without a timeline the wait is recorded as not measured.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any

from lockstep.agent.device.graphs import GRAPHS
from lockstep.agent.hooks import Removal, native, native_kernel
from lockstep.agent.hooks.device_collectives import complete_on_device, issue_on_device
from lockstep.agent.hooks.payloads import is_on_device, of_nothing, payload_counter
from lockstep.contracts.marks import (
    OPERATOR_INDEX,
    OPERATORS,
    PAYLOAD_BYTES_MAX,
    SLOT_BITS,
    SLOT_SHIFT,
    SYNCHRONOUS,
)
from lockstep.contracts.ring import OTHER_SLOT

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
_ALWAYS_ASYNC = 1 << 30
"""More arguments than any operator has."""
_ASYNC_NAMES = ("async_op", "asyncop")
_COST_NS = {native.IN_CPP: 4_000, native.IN_PYTHON: 25_000}
"""What a collective takes of the training thread besides its marks: a third of what benchmarks/collective_cost.py
prints for cold caches, as real jobs showed it of the former agent. To measure each would cost as much."""
_GROUP = "process_group"
_PEERS = {"send": "dst", "recv_": "src", "recv_any_source_": None}
"""Operators between two ranks, and the argument that says who the other one is, if any does."""


@dataclass(frozen=True, slots=True)
class CollectiveOperator:
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
    """Put the kernels below in place."""
    import torch  # noqa: PLC0415  (training imported it)

    library = torch.library.Library("c10d", "IMPL")
    for operator in operators():
        library.impl(operator.name, _kernel(agent, operator), "BackendSelect", with_keyset=True)
    return library._destroy  # type: ignore[no-any-return]  # noqa: SLF001  (the only way to take kernels off again)


def _kernel(agent: "Agent", operator: CollectiveOperator) -> Callable[..., Any]:  # noqa: C901, PLR0915  (one frame)
    """Return the kernel that stands in front of `operator`: one frame, as each costs a microsecond in cold caches."""
    import torch  # noqa: PLC0415  (training imported it)

    keys = torch._C.DispatchKey  # noqa: SLF001
    after_key = torch._C._dispatch_keyset_full_after(keys.BackendSelect)  # noqa: SLF001
    host_key = keys.CPU
    redispatch = getattr(torch.ops.c10d, operator.name).default._handle.redispatch_boxed  # noqa: SLF001  (as `redispatch`)
    unbox = torch._C._distributed_c10d.ProcessGroup.unbox  # noqa: SLF001
    marks, groups, absorbs, captures = agent.marks, agent.groups, agent.boundary.absorbs, GRAPHS.captures
    known, meet, issue, expect = groups.known, groups.of, marks.issue, marks.expect
    unbox_work, note_end = torch._C._distributed_c10d.Work.unbox, marks.note_end  # noqa: SLF001
    complete, has_future = _completer(agent), True
    pair_site, count = _pair_site(agent, operator), operator.payload_counter
    group_index, payload_index = operator.group_index, operator.payload_index or 0
    async_index = _ALWAYS_ASYNC if operator.async_index is None else operator.async_index
    async_bits = OPERATOR_INDEX[operator.name]
    synchronous_bits = async_bits | SYNCHRONOUS

    def records() -> bool:
        return agent.records_here() or agent.wake()

    def kernel(keyset: Any, *args: Any) -> Any:  # noqa: C901, PLR0912  (as above)
        nonlocal has_future
        ordinal = None
        try:
            if get_ident() == marks.thread or records():
                group = unbox(args[group_index])
                site = (known(id(group)) or meet(group)).site
                if pair_site is not None:
                    site = pair_site(group, site, args)
                synchronous = len(args) > async_index and not args[async_index]  # defaults at the end are left out
                site |= synchronous_bits if synchronous else async_bits
                payload = count(args[payload_index])
                if payload > PAYLOAD_BYTES_MAX:  # noqa: PLR1730  (hot: min() takes three times as long)
                    payload = PAYLOAD_BYTES_MAX
                ordinal = issue_on_device(agent, site, payload) if captures else issue(site, payload)
        except Exception as error:  # part of the failure boundary (boundary.py)
            if not absorbs(kernel, error):
                raise
        result = redispatch(keyset & after_key, *args)
        if ordinal is not None:
            try:
                if not keyset.has(host_key):
                    complete(ordinal, synchronous, args[payload_index], result)
                elif synchronous or not has_future:
                    expect(ordinal)
                else:  # as `note_later`, which is a frame; `isinstance` takes five times as long
                    try:
                        future = unbox_work(result[-1] if type(result) is tuple else result).get_future()
                    except RuntimeError:
                        has_future = False
                        expect(ordinal)
                    else:
                        note_end(ordinal, future)
            except Exception as error:  # as above
                if not absorbs(kernel, error):
                    raise
        return result

    return kernel


def _pair_site(agent: "Agent", operator: CollectiveOperator) -> Callable[[Any, int, Any], int] | None:
    """Return what gives the call site of an operator between two ranks, None for those of a whole group."""
    if not operator.is_pair:
        return None
    groups, is_send, peer_index = agent.groups, operator.is_send, operator.peer_index

    def pair_site(group: Any, site: int, args: Any) -> int:
        slot = OTHER_SLOT if peer_index is None else groups.pair_slot(group, is_send, args[peer_index])
        return site & ~SLOT_BITS | slot << SLOT_SHIFT

    return pair_site


def _completer(agent: "Agent") -> Callable[[int, bool, Any, Any], None]:
    """Return a function that sees to it that the end of a collective is noted, whatever its tensors live on."""
    expect, note_later = agent.marks.expect, _end_noter(agent)

    def complete(ordinal: int, synchronous: bool, tensors: Any, result: Any) -> None:  # noqa: FBT001  (hot)
        if is_on_device(tensors):
            work = result[-1] if type(result) is tuple else result
            complete_on_device(agent, ordinal, in_order=synchronous and work is None)  # on the current stream
        elif synchronous:
            expect(ordinal)
        else:
            note_later(ordinal, result)

    return complete


def _end_noter(agent: "Agent") -> Callable[[int, Any], None]:
    """Return a function that has a thread of the backend note the end of an asynchronous collective on the host."""
    import torch  # noqa: PLC0415  (training imported it)

    unbox = torch._C._distributed_c10d.Work.unbox  # noqa: SLF001
    expect, note_end = agent.marks.expect, agent.marks.note_end
    has_future = True

    def note_later(ordinal: int, result: Any) -> None:
        nonlocal has_future
        work = result[-1] if type(result) is tuple else result
        if has_future and work is not None:
            try:
                future = unbox(work).get_future()
            except RuntimeError:  # the backend has none for this operator; asking costs 40 us, so once is enough
                has_future = False
            else:
                note_end(ordinal, future)
                return
        expect(ordinal)

    return note_later
