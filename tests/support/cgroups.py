"""A control group with a limit of memory, where this machine lets root make one: of cgroup v1 or v2."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.support.servers import wait_until

CGROUPS = Path("/sys/fs/cgroup")
UNAVAILABLE = "this user or container cannot make a control group that limits memory"
_LIMITS = {"memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), "": ("memory.max", "memory.swap.max")}
"""By folder below the root of groups, v1 and v2: the limit of memory, and that of swap, which some kernels lack."""
_EMPTY_SECONDS = 60.0


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path | None]:
    """Make a group, and remove it when its processes have ended; None where this machine makes none."""
    group = _make(limit_bytes)
    try:
        yield group
    finally:
        if group is not None:
            wait_until(lambda: _is_removed(group), _EMPTY_SECONDS, f"the end of the processes in {group}")


def _make(limit_bytes: int) -> Path | None:
    for parent, (memory, swap) in _LIMITS.items():
        group = CGROUPS / parent / f"lockstep-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / memory).write_text(str(limit_bytes))
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        with contextlib.suppress(OSError):
            (group / swap).write_text("0" if swap == "memory.swap.max" else str(limit_bytes))
        return group
    return None


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True
