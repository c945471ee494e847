"""How much memory this process may still allocate: the least of the host's and of its control groups' free memory.

Roots are parameters, so that tests can provide their own /proc and /sys.
"""

from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Return the available bytes, None if nothing shows them."""
    found = [_field_bytes(_read(proc / "meminfo"), "MemAvailable:", 1024)]
    found += [_free_bytes(folder, names) for folder, names in _groups(_read(proc / "self" / "cgroup"), cgroups)]
    return min((value for value in found if value is not None), default=None)


def _groups(text: str, cgroups: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Yield the folders of the process's memory cgroup and its parents, with the names of their files.

    A container may see its own group as the root, under a path of the host: the part of the path that exists is used,
    and the root.
    """
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            root, names = cgroups, _V2
        elif "memory" in controllers.split(","):
            root, names = cgroups / "memory", _V1
        else:
            continue
        folder = root / path.lstrip("/")
        yield root, names
        yield from ((each, names) for each in (folder, *folder.parents) if root in each.parents)


def _free_bytes(folder: Path, names: tuple[str, str, str]) -> int | None:
    """Return a group's free bytes, None without a limit; unused file pages count as free."""
    limit_name, usage_name, reclaimable_name = names
    limit, usage = _number(_read(folder / limit_name)), _number(_read(folder / usage_name))
    if limit is None or usage is None:  # "max" is no limit
        return None
    return max(0, limit - usage + (_field_bytes(_read(folder / "memory.stat"), reclaimable_name, 1) or 0))


def _field_bytes(text: str, name: str, unit_bytes: int) -> int | None:
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            value = _number(words[1])
            return None if value is None else value * unit_bytes
    return None


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # missing, or not readable for us: it shows nothing
        return ""
