"""The raw traces of a run on disk: whether one may be read, and which have to go.

Paths are built from two integers of a rank's answer, below the run's own directory; neither a link in place of the
folder nor one in place of the file is followed.
"""

import os
import re
import stat
from pathlib import Path

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import TRACE_MAX_BYTES
from lockstep.contracts.paths import trace_path

_TRACE = re.compile(r"([0-9]{1,19})-([0-9]{1,7})\.json\Z")


def check_trace(directory: Path, request_id: int, rank: int) -> tuple[Path, int]:
    """Return path and bytes of a trace that may be read.

    Raises
    ------
    MalformedError
        There is none, it is no regular file, or it is too large.
    """
    path = trace_path(directory, request_id, rank)
    try:
        folder, status = path.parent.lstat(), path.lstat()
    except OSError as error:
        raise MalformedError("trace", where=str(path), got=error.strerror, expected="a file") from error
    if not stat.S_ISDIR(folder.st_mode) or not stat.S_ISREG(status.st_mode):
        raise MalformedError("trace", where=str(path), got="a link or no regular file", expected="a file")
    if status.st_size > TRACE_MAX_BYTES:
        raise MalformedError("trace", where=str(path), got=status.st_size, expected=f"at most {TRACE_MAX_BYTES} bytes")
    return path, status.st_size


def trim_traces(directory: Path, keep_bytes: int, in_use: set[int]) -> int:
    """Delete the oldest traces of a run until at most `keep_bytes` are left, and return how many went.

    Traces of the requests `in_use` stay: they are being written or wait to be summarised.
    """
    try:
        folder = os.open(directory / "traces", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return _trim(folder, keep_bytes, in_use)
    finally:
        os.close(folder)


def _trim(folder: int, keep_bytes: int, in_use: set[int]) -> int:
    found: list[tuple[int, str, int]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _TRACE.match(entry.name)
            if match and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                found.append((status.st_mtime_ns, entry.name, status.st_size))
    total = sum(size for _, _, size in found)
    deleted = 0
    for _, name, size in sorted(found):
        if total <= keep_bytes:
            break
        if int(name.split("-")[0]) in in_use:
            continue
        os.unlink(name, dir_fd=folder)
        total -= size
        deleted += 1
    return deleted
