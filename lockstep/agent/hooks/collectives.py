"""Marks every collective when it is issued, by kernels in front of torch's c10d operators.

A kernel at the dispatch key BackendSelect sees all of them (the DDP reducer's in C++, FSDP's, functional, compiled) and
passes on with `redispatch_boxed`, which releases the GIL; `call_boxed` would hold it and deadlock gloo. Patching
`torch.distributed.all_reduce` would miss every caller in C++. The kernels are in C++ if a build fits this process
(native.py), else in Python (python_kernel.py); both make the same marks.

The end of an asynchronous collective is reported by the backend's thread, through the Work's future. A synchronous one
ends when the training thread has waited for it (`hooks/waits.py`), and so does one without a future (gloo's send, recv
and reduce-scatter): requesting futures is half of the cost of a collective here. On a device a future only orders
streams, and a callback on it would disturb training (docs/devices.md). There the device's timeline queues an event
behind collectives on the current stream; without a timeline the wait is recorded as not measured.
"""

import os
from typing import TYPE_CHECKING

from lockstep.agent.hooks import native
from lockstep.agent.hooks.collective_operators import operators
from lockstep.agent.hooks.patching import Removal

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

_COST_NS = {native.IN_CPP: 4_000, native.IN_PYTHON: 25_000}
"""Cost of a collective on the training thread besides its marks: a third of what benchmarks/collective_cost.py prints
for cold caches, as real jobs showed. Measuring each would cost as much."""


def install(agent: "Agent") -> Removal:
    """Install the kernels, unless this torch has no distributed package."""
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
    """Install the kernels in Python."""
    from lockstep.agent.hooks import python_kernel  # noqa: PLC0415  (only where there are none in C++)

    return python_kernel.install(agent, operators())
