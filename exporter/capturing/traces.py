"""The raw traces of a run on disk: validates new ones and deletes old ones.

A rank moves a complete trace into `incoming`. The exporter moves it into a directory of its own before checking it, so
the file that was checked is the file that is read. Names are built from two integers of the rank's answer.
"""

import contextlib
import json
import os
import re
import stat
from dataclasses import asdict
from pathlib import Path

from exporter.shared_directory import run_status
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import TRACE_MAX_BYTES
from lockstep.contracts.node_samples import NodeSamples, samples_path
from lockstep.contracts.paths import incoming_directory, trace_name, traces_directory

_TRACE = re.compile(r"([0-9]{1,19})-([0-9]{1,7})\.json\Z")


def take_over_trace(directory: Path, request_id: int, rank: int) -> tuple[Path, int]:
    """Move a trace out of reach of the node's users; return its path and its size in bytes.

    Raises
    ------
    MalformedError
        There is none, it is not a regular file of the user who trains, or it is too large; it is then deleted.
    """
    name = trace_name(request_id, rank)
    path = traces_directory(directory) / name
    try:
        owner = run_status(directory).st_uid
        incoming_directory(directory).joinpath(name).rename(path)
        status = path.lstat()
    except OSError as error:
        raise MalformedError("trace", where=str(path), got=error.strerror, expected="a file") from error
    try:
        _check(status, owner, str(path))
    except MalformedError:
        with contextlib.suppress(OSError):  # a directory stays, and is never read
            path.unlink()
        raise
    return path, status.st_size


def _check(status: os.stat_result, owner: int, where: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise MalformedError("trace", where=where, got=stat.filemode(status.st_mode), expected="a regular file")
    if status.st_uid != owner:
        raise MalformedError("owner of the trace", where=where, got=f"uid {status.st_uid}", expected=f"uid {owner}")
    if status.st_size > TRACE_MAX_BYTES:
        raise MalformedError("trace", where=where, got=status.st_size, expected=f"at most {TRACE_MAX_BYTES} bytes")


def write_samples(trace: Path, samples: NodeSamples) -> None:
    """Write the node's samples next to a trace, if there are any.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    if samples.resources or samples.host is not None:
        samples_path(trace).write_text(json.dumps(asdict(samples), separators=(",", ":")))


def trim_traces(directory: Path, keep_bytes: int, in_use: set[int]) -> int:
    """Delete the oldest traces of a run until at most `keep_bytes` are left; return how many were deleted.

    Traces of the requests `in_use` stay: they are being written or wait to be summarised.

    Raises
    ------
    OSError
        A trace cannot be deleted.
    """
    found = sorted(_list(incoming_directory(directory)) + _list(traces_directory(directory)))
    total = sum(size for _, size, _ in found)
    deleted = 0
    for _, size, path in found:
        if total <= keep_bytes:
            break
        if int(path.name.split("-")[0]) in in_use:
            continue
        path.unlink()
        samples_path(path).unlink(missing_ok=True)
        total -= size
        deleted += 1
    return deleted


def _list(folder: Path) -> list[tuple[int, int, Path]]:
    """Return time, size and path of each trace; empty without the folder."""
    found: list[tuple[int, int, Path]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _TRACE.match(entry.name) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, status.st_size, folder / entry.name))
    except FileNotFoundError:
        return found
    return found
