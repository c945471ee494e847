"""Keeps Kineto's log lines about our captures out of the training's standard error.

torch's profiler library writes lines such as `USDT:2026-11-23 ... profiler_start` above every log level, and torch has
no function to suppress them; `KINETO_LOG_LEVEL` would have to be set before torch is imported, and would silence the
training's own profilers too. So the level, a variable exported by libtorch_cpu, is raised while ours starts or stops.
If the library has no such variable the lines stay.
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
    """Suppress Kineto's log in the block; exceptions pass."""
    level = _level()
    if level is None:
        yield
        return
    before = level.value
    level.value = _SILENT
    try:
        yield
    finally:
        if level.value == _SILENT:  # otherwise torch has set it meanwhile
            level.value = before


def _level() -> "ctypes.c_int | None":
    """Return the level of Kineto's log, None if this torch does not export it."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.__file__:
        return None
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        loaded = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ctypes.c_int.in_dll(loaded, _LEVEL)
    except (OSError, ValueError):  # built otherwise
        return None
