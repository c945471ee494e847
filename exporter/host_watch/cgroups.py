"""How long control groups were throttled: stopped by the kernel because they had used up their share of the CPU.

cgroup v2 (cpu.stat, microseconds) and v1 (cpu.stat of the cpu controller, nanoseconds). A process stands still while
any group that contains it is throttled, so all of them count, the root of what we see too: in a container it is the
container's own, and on a host it says truly 0.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from exporter.host_watch.proc import PROC, number_field, read

CGROUPS = "/sys/fs/cgroup"
_FILE_BYTES = 16 << 10
_LEVELS_MAX = 16  # a pod's container is the fifth
_V2, _V1 = (b"throttled_usec", 1000), (b"throttled_time", 1)


def throttled_ns(pid: int, proc: str = PROC, cgroups: str = CGROUPS) -> dict[str, int]:
    """Return by group, those that contain the process, how long it was throttled so far.

    Empty where no group counts it: no limit of CPU, or groups that are not shown to us.
    """
    found = {}
    for folder, is_v2 in group_folders(pid, "cpu", proc, cgroups):
        field, unit_ns = _V2 if is_v2 else _V1
        value = number_field(read(f"{folder}/cpu.stat", _FILE_BYTES), field)
        if value is not None:
            found[folder] = value * unit_ns
    return found


def group_folders(pid: int, controller: str, proc: str = PROC, cgroups: str = CGROUPS) -> Iterator[tuple[str, bool]]:
    """Yield the folders of the groups that contain the process, the innermost first, and whether they are of cgroup v2.

    Where it is in another cgroup namespace than we are, its path leads above our root or to a folder that is not there:
    then there is nothing to read, for our root is not its.
    """
    for line in read(f"{proc}/{pid}/cgroup", _FILE_BYTES).decode(errors="replace").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        is_v2 = number == "0"
        if is_v2:
            mounts: tuple[str, ...] = (cgroups, f"{cgroups}/unified")
        elif controller in controllers.split(","):
            mounts = tuple(dict.fromkeys((f"{cgroups}/{controller}", f"{cgroups}/{controllers}")))
        else:
            continue
        group = PurePosixPath(path)
        if not group.is_absolute() or ".." in group.parts:
            continue
        levels = [group, *group.parents][:_LEVELS_MAX]
        for mount in mounts:
            if Path(f"{mount}{group}").is_dir():
                yield from ((f"{mount}{level}".rstrip("/"), is_v2) for level in levels)
