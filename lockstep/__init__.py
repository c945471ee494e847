"""Lockstep: who holds a synchronous training job back.

This package enters training processes, so importing it costs no third-party package and starts nothing. `install` is
all that a torch job needs, and `lockstep run` does that for it; `step`, `step_end`, `annotate`, `phase` and
`communication` are for loops that no hook understands and for other frameworks (lockstep/agent/api.py).
"""

__version__ = "0.1.0"
__all__ = ["__version__", "annotate", "communication", "install", "phase", "step", "step_end"]

TYPE_CHECKING = False  # typing costs milliseconds at the start of every process
if TYPE_CHECKING:
    from typing import Any

    from lockstep.agent.api import annotate, communication, phase, step, step_end


def install() -> bool:
    """Watch this training process: what `lockstep run` does, by hand, in one call.

    Works before and after torch is imported, and on any launcher. Returns whether the agent is, or will be,
    watching. Never raises: a failure leaves one line on stderr and the training running without the agent.
    """
    from lockstep.agent.bootstrap import install as install_agent  # noqa: PLC0415  (services never need the agent)

    return install_agent()


def __getattr__(name: str) -> "Any":
    """Load the agent's calls when one is used first: services never need them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lockstep.agent import api  # noqa: PLC0415

    return getattr(api, name)
