"""Every collective, when it is issued: kernels in front of torch's c10d operators.

A kernel at the dispatch key BackendSelect sees them all (the DDP reducer's in C++, FSDP's, functional, compiled)
and passes on with `redispatch_boxed`, which releases the GIL; `call_boxed` would keep it and deadlock gloo. Patching
`torch.distributed.all_reduce` would miss every caller in C++. The kernels are those in C++ where a build fits this
process (native.py), else those in Python (python_kernel.py); both leave the same marks.

When a collective is done: of an asynchronous one the backend's thread reports it, by the Work's future. A synchronous
one is done when the training thread has waited for it (`hooks/waits.py`), and so is one that has no future (gloo's
send, recv and reduce-scatter): asking for futures is half of what a collective costs here. On a device a future only
orders streams, and a callback on it would disturb training (docs/devices.md): the device's timeline notes an event
behind those that run on the current stream; without a timeline the wait is recorded as not measured.
"""

import os
from typing import TYPE_CHECKING

from lockstep.agent.hooks import native
from lockstep.agent.hooks.collective_operators import operators
from lockstep.agent.hooks.patching import Removal

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

_COST_NS = {native.IN_CPP: 4_000, native.IN_PYTHON: 25_000}
"""What a collective takes of the training thread besides its marks: a third of what benchmarks/collective_cost.py
prints for cold caches, as real jobs showed it of the former agent. To measure each would cost as much."""


def install(agent: "Agent") -> Removal:
    """Put the kernels in place, or nothing where this torch has no distributed package."""
    import torch  # noqa: PLC0415  (training imported it)

    if not torch.distributed.is_available():
        return lambda: None
    try:
        module = native.load(os.environ)
    except native.NoNativeKernelsError as error:
        agent.attempt_facts.kernels = (native.IN_PYTHON, str(error))
        agent.marks.collective_cost_ns = _COST_NS[native.IN_PYTHON]
        return install_in_python(agent)
    from lockstep.agent.hooks import native_kernel  # noqa: PLC0415  (only where they fit)

    agent.attempt_facts.kernels = (native.IN_CPP, "")
    agent.marks.collective_cost_ns = _COST_NS[native.IN_CPP]
    return native_kernel.install(agent, module, operators())


def install_in_python(agent: "Agent") -> Removal:
    """Put the kernels in Python in place."""
    from lockstep.agent.hooks import python_kernel  # noqa: PLC0415  (only where there are none in C++)

    return python_kernel.install(agent, operators())
