"""The kernel's files under /proc and /sys/fs/cgroup: read without waiting; what cannot be read is empty or None."""

import os
from collections.abc import Iterator

PROC = "/proc"
CGROUPS = "/sys/fs/cgroup"
_CGROUP_BYTES = 16 << 10
_LEVELS_MAX = 16  # a pod's container is at level five


def read(path: str, limit_bytes: int) -> bytes:
    """Return up to `limit_bytes` of a file, or nothing if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(descriptor, limit_bytes)
    except OSError:  # the process ended in between
        return b""
    finally:
        os.close(descriptor)


def number_field(text: bytes, name: bytes) -> int | None:
    """Return the number after `name` on the line that begins with it, or None if there is none."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None


def group_folders(pid: int, controller: str, proc: str = PROC, cgroups: str = CGROUPS) -> Iterator[tuple[str, bool]]:
    """Yield the folder of each group that contains the process, innermost first, and whether it is cgroup v2.

    If the process is in a different cgroup namespace, its path leads above our root or to a missing folder. Then
    nothing is yielded, because our root is not its root.
    """
    for line in read(f"{proc}/{pid}/cgroup", _CGROUP_BYTES).decode(errors="replace").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        is_v2 = number == "0"
        if is_v2:
            mounts: tuple[str, ...] = (cgroups, f"{cgroups}/unified")
        elif controller in controllers.split(","):
            mounts = tuple(dict.fromkeys((f"{cgroups}/{controller}", f"{cgroups}/{controllers}")))
        else:
            continue
        names = [name for name in path.split("/") if name]
        if not path.startswith("/") or ".." in names:
            continue
        levels = ["/".join(("", *names[:depth])) for depth in range(len(names), -1, -1)][:_LEVELS_MAX]
        for mount in mounts:
            if os.path.isdir(f"{mount}{levels[0]}"):  # noqa: PTH112  (a Path costs ten times as much)
                yield from ((f"{mount}{level}", is_v2) for level in levels)
