"""Why a capture cannot begin now: no torch, another profiler, no directory for its trace, or no space there."""

import os
import sys
import threading
from pathlib import Path

from lockstep.agent.boundary import describe
from lockstep.agent.shared_directory import check_directory
from lockstep.contracts.capture import CaptureRequest
from lockstep.contracts.errors import PeerError
from lockstep.contracts.paths import incoming_directory

FREE_MARGIN_BYTES = 16 << 20
"""Rings of other ranks on the same file system must still fit."""


def find_obstacle(order: CaptureRequest, directory: Path, trusted: frozenset[int]) -> str:
    """Return why `order` cannot be executed now, or an empty string."""
    if "torch" not in sys.modules:
        return "torch is not loaded in this process"
    import torch  # noqa: PLC0415  (training imported it)

    flag = getattr(torch.autograd.profiler, "_is_profiler_enabled", False)  # that of all threads, for profilers
    if torch.autograd._profiler_enabled() or flag:  # noqa: SLF001  (that began before the agent was there)
        return "another profiler is running"
    if order.stacks and (sys.getprofile() or threading.getprofile()):  # torch takes its place on every thread, for good
        return "the training profiles Python by sys.setprofile (cProfile and others)"
    needed = order.trace_max_bytes + FREE_MARGIN_BYTES
    try:
        check_directory(incoming_directory(directory), trusted, what="directory of incoming traces")
        status = os.statvfs(directory)
    except (OSError, PeerError) as error:
        return f"trace directory: {describe(error)}"
    free = status.f_bavail * status.f_frsize
    return f"free space: got {free} bytes, expected at least {needed}" if free < needed else ""
