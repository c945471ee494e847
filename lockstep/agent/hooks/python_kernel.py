"""HOT (budget 12 us a collective): the kernels in front of torch's collectives in Python (collectives.py)."""

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from lockstep.agent.device.graphs import GRAPHS
from lockstep.agent.hooks import Removal
from lockstep.agent.hooks.device_collectives import complete_on_device, issue_on_device
from lockstep.agent.hooks.payloads import is_on_device
from lockstep.contracts.marks import OPERATOR_INDEX, PAYLOAD_BYTES_MAX, SLOT_BITS, SLOT_SHIFT, SYNCHRONOUS
from lockstep.contracts.ring import OTHER_SLOT

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent
    from lockstep.agent.hooks.collectives import CollectiveOperator

_ALWAYS_ASYNC = 1 << 30
"""More arguments than any operator has."""


def install(agent: "Agent", operators: "Sequence[CollectiveOperator]") -> Removal:
    """Put a kernel in front of each of `operators`, and return what takes them off again."""
    import torch  # noqa: PLC0415  (training imported it)

    library = torch.library.Library("c10d", "IMPL")
    for operator in operators:
        library.impl(operator.name, _kernel(agent, operator), "BackendSelect", with_keyset=True)
    return library._destroy  # type: ignore[no-any-return]  # noqa: SLF001  (the only way to take kernels off again)


def _kernel(agent: "Agent", operator: "CollectiveOperator") -> Callable[..., Any]:  # noqa: C901, PLR0915  (one frame)
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


def _pair_site(agent: "Agent", operator: "CollectiveOperator") -> Callable[[Any, int, Any], int] | None:
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
