"""Lockstep: who holds a synchronous training job back.

This package enters training processes, so importing it costs no third-party package and starts nothing. `install` is
all that a torch job needs, and `lockstep run` does that for it; `step`, `step_end`, `annotate`, `phase` and
`communication` are for loops that no hook understands and for other frameworks (lockstep/agent/api.py). `open_trace`,
`analyze`, `read_steps` and `incidents` are for notebooks and scripts (lockstep/notebook) and need the extra `notebook`.
"""

from lockstep.contracts.version import VERSION

__version__ = VERSION
__all__ = [
    "__version__",
    "analyze",
    "annotate",
    "communication",
    "incidents",
    "install",
    "open_trace",
    "phase",
    "read_steps",
    "step",
    "step_end",
]

TYPE_CHECKING = False  # typing costs milliseconds at the start of every process
if TYPE_CHECKING:
    from typing import Any

    from lockstep.agent.api import annotate, communication, phase, step, step_end
    from lockstep.notebook.analyses import analyze
    from lockstep.notebook.coordinators import incidents
    from lockstep.notebook.step_logs import read_steps
    from lockstep.notebook.traces import open_trace

_NOTEBOOK = {"analyze": "analyses", "incidents": "coordinators", "open_trace": "traces", "read_steps": "step_logs"}


def install() -> bool:
    """Watch this training process: what `lockstep run` does, by hand, in one call.

    Works before and after torch is imported, and on any launcher. Returns whether the agent is, or will be,
    watching. Never raises: a failure leaves one line on stderr and the training running without the agent.
    """
    from lockstep.agent.bootstrap import install as install_agent  # noqa: PLC0415  (services never need the agent)

    return install_agent()


def __getattr__(name: str) -> "Any":
    """Load a call when it is used first: services never need the agent's, training never needs the notebook's."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _NOTEBOOK:
        from importlib import import_module  # noqa: PLC0415  (already loaded by the interpreter)

        return getattr(import_module(f"lockstep.notebook.{_NOTEBOOK[name]}"), name)
    from lockstep.agent import api  # noqa: PLC0415

    return getattr(api, name)
