"""How long control groups were throttled: stopped by the kernel because they had used up their share of the CPU.

cgroup v2 (cpu.stat, microseconds) and v1 (cpu.stat of the cpu controller, nanoseconds). A process stands still while
any group that contains it is throttled, so all of them count, the root of what we see too: in a container it is the
container's own, and on a host it is truly 0.
"""

from exporter.kernel_files import CGROUPS, PROC, group_folders, number_field, read

_FILE_BYTES = 16 << 10
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
