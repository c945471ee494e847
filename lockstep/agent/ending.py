"""Describes the exception that ends a training: its type and frame, never its message, which may contain data."""

import os
import sys
from pathlib import Path
from time import monotonic_ns
from types import TracebackType
from typing import Any

_TEXT_MAX = 128  # characters, as `limits.NAME_MAX_BYTES`
_FRAMES_MAX = 10_000  # an infinite recursion is as deep as Python allows
_LIBRARIES = (f"{Path(os.__file__).parent}/", f"{Path(__file__).parents[1]}/", "<frozen")
_INSTALLED = ("/site-packages/", "/dist-packages/")


def last_error() -> BaseException | None:
    """Return the exception that ends this process, as far as Python records one; it does not for `sys.exit`."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def cause_of(error: BaseException) -> BaseException | None:
    """Return what ended a child of multiprocessing, None if it ended normally.

    `torch.multiprocessing.spawn` turns an exception of its function into `sys.exit(1)`.
    """
    if not isinstance(error, SystemExit):
        return error
    return None if error.code in (None, 0) else error.__context__ or error


def describe_ending(error: BaseException) -> dict[str, Any]:
    """Return the description of an exception for the ring: type, frame, and the time (CLOCK_MONOTONIC, ns)."""
    return {
        "exception": _plain(type(error).__name__),
        "frame": _plain(own_frame(error.__traceback__)),
        "monotonic_ns": monotonic_ns(),
    }


def own_frame(traceback: TracebackType | None) -> str:
    """Return the innermost frame of the training's own code, else the innermost one: "train.py(88): load"."""
    own = innermost = ""
    for _ in range(_FRAMES_MAX):
        if traceback is None:
            break
        code = traceback.tb_frame.f_code
        innermost = f"{Path(code.co_filename).name}({traceback.tb_lineno}): {code.co_name}"
        if not _is_foreign(code.co_filename):
            own = innermost
        traceback = traceback.tb_next
    return own or innermost


def _is_foreign(filename: str) -> bool:
    return filename.startswith(_LIBRARIES) or any(part in filename for part in _INSTALLED)


def _plain(text: str) -> str:
    """Return `text` in ASCII, at most `_TEXT_MAX` characters."""
    return text.encode("ascii", "replace").decode()[:_TEXT_MAX]
