"""Marks where the training thread itself waits for communication, in calls that return when it has ended.

`Work.wait` is called by synchronous collectives and users of asynchronous ones; `_broadcast_coalesced` is how DDP sends
parameters and buffers in its forward; the operator `wait_tensor` is how functional collectives wait. Which collective a
wait belongs to follows from the times at which collectives ended (lockstep/accounting): Work objects have no identity
that outlives the call, and keeping them would keep their tensors alive.
"""

from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

from lockstep.agent.hooks.patching import Removal, patch
from lockstep.agent.mark_writer import C_EXTENSION

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent


def install(agent: "Agent") -> Removal:
    """Patch the calls that block, as far as this torch has them."""
    import torch  # noqa: PLC0415  (training imported it)

    if not torch.distributed.is_available():
        return lambda: None
    removals = [
        patch(owner, name, _wrapped(agent, getattr(owner, name)))
        for owner, name in (
            (torch._C._distributed_c10d.Work, "wait"),  # noqa: SLF001  (public as torch.distributed.Work)
            (torch.distributed, "_broadcast_coalesced"),
        )
        if hasattr(owner, name)
    ]
    if hasattr(torch.ops._c10d_functional, "wait_tensor"):  # noqa: SLF001  (its only name)
        removals.append(_install_operator(agent, torch.ops._c10d_functional.wait_tensor.default))  # noqa: SLF001

    def remove() -> None:
        for removal in removals:
            removal()

    return remove


def _install_operator(agent: "Agent", operator: Any) -> Removal:
    """Put a kernel in front of `wait_tensor`, as hooks/collectives.py does and for the same reasons."""
    import torch  # noqa: PLC0415  (training imported it)

    after_key = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)  # noqa: SLF001

    def pass_on(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        return operator.redispatch(keyset & after_key, *args, **kwargs)

    library = torch.library.Library("_c10d_functional", "IMPL")
    library.impl("wait_tensor", _wrapped(agent, pass_on), "BackendSelect", with_keyset=True)
    return library._destroy  # type: ignore[no-any-return]  # noqa: SLF001  (the only way to take it off again)


def _wrapped(agent: "Agent", original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `original` between marks, in C where the agent has its extension: it costs a third with cold caches."""
    marks = agent.marks
    works_for_backward = agent.guard(agent.works_for_backward)
    if agent.mark_writer == C_EXTENSION:
        from lockstep.agent._marks import Waiting  # noqa: PLC0415  (optional)

        return Waiting(original, marks, works_for_backward, MethodType)
    return marks.waiting(original, works_for_backward, agent.boundary.absorbs)
