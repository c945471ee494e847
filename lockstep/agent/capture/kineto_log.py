"""Keeps what Kineto logs of our captures out of the training's standard error.

torch's profiler library writes lines such as `USDT:2026-11-23 ... profiler_start` above every level of its log, and
torch has no function to stop them; `KINETO_LOG_LEVEL` would have to be set before torch is imported, and would silence
the training's own profilers too. So the level, a variable that libtorch_cpu exports, is raised while ours begins or
ends. Where the library has no such variable the lines stay.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_LEVEL = "_ZN9libkineto6Logger14severityLevel_E"  # std::atomic<int> libkineto::Logger::severityLevel_
_SILENT = 99
"""Above all of Kineto's levels, of which torch 2.13 has six."""


@contextlib.contextmanager
def silent_kineto() -> Iterator[None]:
    """Let Kineto log nothing meanwhile; what it cannot do it raises all the same."""
    level = _level()
    if level is None:
        yield
        return
    before = level.value
    level.value = _SILENT
    try:
        yield
    finally:
        if level.value == _SILENT:  # else torch has set it meanwhile
            level.value = before


def _level() -> "ctypes.c_int | None":
    """Return the level of Kineto's log, None where this torch has none to set."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.__file__:
        return None
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        loaded = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ctypes.c_int.in_dll(loaded, _LEVEL)
    except (OSError, ValueError):  # built otherwise
        return None
