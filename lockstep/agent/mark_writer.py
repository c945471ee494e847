"""Selects the mark writer of this process: the C extension, or the Python implementation without it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.agent.mark_buffer import MarkBuffer

C_EXTENSION = "C extension"
PURE_PYTHON = "pure Python"


def mark_buffer_type() -> "tuple[type[MarkBuffer], str]":
    """Return the class of mark buffers to use, and its language; selected at start, not at import."""
    try:
        from lockstep.agent._marks import CollectiveKernel as _  # noqa: F401, PLC0415  (older builds have none)
        from lockstep.agent._marks import MarkBuffer as Extension  # noqa: PLC0415  (optional)
    except ImportError:  # no compiler at installation, a build for another machine, or one before an update
        from lockstep.agent.mark_buffer import MarkBuffer  # noqa: PLC0415

        return MarkBuffer, PURE_PYTHON
    return Extension, C_EXTENSION
