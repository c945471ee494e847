"""Lockstep: who holds a synchronous training job back.

This package enters training processes, so importing it costs no third-party package and starts nothing.
"""

__version__ = "0.1.0"
__all__ = ["__version__", "install"]


def install() -> bool:
    """Watch this training process: what `lockstep run` does, by hand, in one call.

    Works before and after torch is imported, and only where RANK is set. Returns whether the agent is, or will be,
    watching. Never raises: a failure leaves one line on stderr and the training running without the agent.
    """
    from lockstep.agent.bootstrap import install as install_agent  # noqa: PLC0415  (services never need the agent)

    return install_agent()
