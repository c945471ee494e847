"""Lockstep: who holds a synchronous training job back.

This package enters training processes, so importing it costs no third-party package and starts nothing.
"""

from lockstep.agent.bootstrap import install

__version__ = "0.1.0"
__all__ = ["__version__", "install"]
