"""Which file system a directory lies on: rings belong in memory, because a disk would get every page written back."""

import os
import re
from pathlib import Path

MEMORY_FILESYSTEMS = ("tmpfs", "ramfs")
MOUNTINFO = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")
_POINT, _SEPARATOR = 4, "-"  # columns of proc(5): the mount point; the type follows a hyphen


def filesystem_of(path: Path, mountinfo: str) -> str:
    """Return the type of the file system of `path`; empty if `mountinfo` (text of MOUNTINFO) does not show it.

    The directory need not exist yet; links in its path are followed.
    """
    place, longest, found = os.path.realpath(path), -1, ""
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if _SEPARATOR not in fields[_POINT + 1 : -1]:
            continue
        point = _ESCAPED.sub(lambda digits: chr(int(digits[1], 8)), fields[_POINT])
        is_above = place == point or place.startswith(f"{point.rstrip('/')}/")
        if is_above and len(point) >= longest:  # of two mounts at one point, the later covers the other
            longest, found = len(point), fields[fields.index(_SEPARATOR, _POINT) + 1]
    return found


def is_on_disk(path: Path) -> bool | None:
    """Whether `path` lies on a file system that is not kept in memory; None if that cannot be read."""
    try:
        filesystem = filesystem_of(path, MOUNTINFO.read_text(errors="replace"))
    except OSError:
        return None
    return filesystem not in MEMORY_FILESYSTEMS if filesystem else None
