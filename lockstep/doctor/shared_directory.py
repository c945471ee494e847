"""Checks the directory that a node's agents and exporter share: its file system, and unmonitored training processes."""

import os
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from lockstep.contracts.errors import ConfigError, MalformedError
from lockstep.contracts.filesystems import MEMORY_FILESYSTEMS, MOUNTINFO, filesystem_of
from lockstep.contracts.locks import lock_holder
from lockstep.contracts.paths import DEFAULT_ROOT, ROOT_VARIABLE, root_directory, unwatched_directory
from lockstep.contracts.unwatched import MARK_MAX_BYTES, MARKS_MAX, unpack_mark
from lockstep.doctor.files import text_of
from lockstep.doctor.verdict import OK, UNKNOWN, WARN, Check

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SHOWN_MAX = 4


def read_shared_directory(environment: Mapping[str, str], mountinfo: Path = MOUNTINFO) -> dict[str, Any]:
    """Return its path and file system type, and reason and text of each process that trains without being monitored.

    Where the environment gives no usable path, `problem` states why, and the rest is of the default one.
    """
    root, problem = Path(DEFAULT_ROOT), ""
    try:
        root = root_directory(environment)
    except ConfigError as error:
        problem = str(error)
    return {
        "path": str(root),
        "problem": problem,
        "filesystem": filesystem_of(root, text_of(mountinfo)),
        "unwatched": list(_unwatched(unwatched_directory(root))),
    }


def _unwatched(directory: Path) -> list[dict[str, str]]:
    found = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in islice(entries, MARKS_MAX):
            with suppress(OSError, MalformedError):
                mark = _held_mark(Path(entry.path))
                if mark is not None:
                    found.append({"reason": mark[0], "text": mark[1]})
    return found


def _held_mark(path: Path) -> tuple[str, str] | None:
    file = os.open(path, _FLAGS)
    try:
        return None if lock_holder(file) is None else unpack_mark(os.pread(file, MARK_MAX_BYTES, 0), where=str(path))
    finally:
        os.close(file)


def check_shared_directory(facts: Mapping[str, Any]) -> Check:
    """Whether rings lie in memory: on a disk, the kernel repeatedly writes each of their pages back."""
    name = "shared directory"
    values = facts.get("shared_directory")
    if isinstance(values, Mapping) and values.get("problem"):
        advice = f"set {ROOT_VARIABLE} to the root of the node's exporter, or not at all"
        found = f"{values['problem']}: no rank is monitored with it"
        return Check(name=name, verdict=WARN, found=found, advice=advice)
    if not isinstance(values, Mapping) or not values.get("filesystem"):
        return Check(name=name, verdict=UNKNOWN, found="its file system is not known")
    found = f"{values.get('path')} on {values['filesystem']}"
    if values["filesystem"] in MEMORY_FILESYSTEMS:
        return Check(name=name, verdict=OK, found=found)
    return Check(
        name=name,
        verdict=WARN,
        found=f"{found}: the kernel writes what each rank marks back to it, and a full or slow disk holds ranks up",
        advice=f"mount a tmpfs there, or set {ROOT_VARIABLE} and the exporter's root to a directory in /dev/shm",
    )


def check_unwatched(facts: Mapping[str, Any]) -> Check:
    """Whether processes of the node train without being monitored."""
    name = "unwatched processes"
    values = facts.get("shared_directory")
    listed = values.get("unwatched") if isinstance(values, Mapping) else None
    if not isinstance(listed, list):
        return Check(name=name, verdict=UNKNOWN, found="missing from these facts: an older version wrote them")
    marks = [mark for mark in listed if isinstance(mark, Mapping)]
    shown = [f"{mark.get('reason')}: {mark.get('text')}" for mark in marks[:_SHOWN_MAX]]
    more = [f"and {len(marks) - _SHOWN_MAX} more"] if len(marks) > _SHOWN_MAX else []
    return Check(
        name=name,
        verdict=WARN if marks else OK,
        found="; ".join(shown + more) or "none, as far as an exporter has run here",
        advice='see "What is not watched" in the page on launchers' if marks else "",
    )
