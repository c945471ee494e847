"""How long control groups were throttled, i.e. stopped by the kernel for exceeding their CPU quota.

cgroup v2 (cpu.stat, microseconds) and v1 (cpu.stat of the cpu controller, nanoseconds). A process stops while any group
that contains it is throttled, so all of them count. That includes the visible root, which in a container is the
container's own group, and which on a host is truly 0.
"""

from exporter.kernel_files import CGROUPS, PROC, group_folders, number_field, read

_FILE_BYTES = 16 << 10
_V2, _V1 = (b"throttled_usec", 1000), (b"throttled_time", 1)


def throttled_ns(pid: int, proc: str = PROC, cgroups: str = CGROUPS) -> dict[str, int]:
    """Return the throttled time so far of each group that contains the process.

    Empty if no group counts it: there is no CPU limit, or the groups are not visible.
    """
    found = {}
    for folder, is_v2 in group_folders(pid, "cpu", proc, cgroups):
        field, unit_ns = _V2 if is_v2 else _V1
        value = number_field(read(f"{folder}/cpu.stat", _FILE_BYTES), field)
        if value is not None:
            found[folder] = value * unit_ns
    return found
