"""The C++ kernels, built once for all tests of this checkout that need them."""

import fcntl
import os
import shutil
from functools import cache
from pathlib import Path

import pytest

from lockstep.agent.hooks import native
from lockstep.agent.mark_writer import C_EXTENSION, mark_buffer_type
from lockstep.cli.native_hooks.build import build
from lockstep.contracts.native_hooks import HOOKS_VARIABLE

KERNELS = ("Python", "C++")
DIRECTORY = Path(__file__).resolve().parents[3] / "build" / "native_hooks"


@cache
def directory():
    """Return the directory of builds, with one for this process's torch; skips where nothing can be compiled."""
    if mark_buffer_type()[1] != C_EXTENSION:
        pytest.skip("the C extension is not installed: python setup.py build_ext --inplace")
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("no C++ compiler")
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with (DIRECTORY.parent / "native_hooks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        target = native.target_of_process()
        if not (DIRECTORY / target.directory_name / "manifest.json").exists():
            build(DIRECTORY, os.environ)
    return DIRECTORY


def kernels_environment(kernels):
    """Return the variables with which a training has the kernels in Python or those in C++."""
    return {HOOKS_VARIABLE: str(directory() if kernels == "C++" else DIRECTORY / "none")}


def library():
    """Return the path of the library."""
    return directory() / native.target_of_process().directory_name / "_collectives.so"
