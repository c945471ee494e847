"""The mark of a process that trains but cannot be monitored, for the node's exporter.

A small file below the exporter's own directory, locked for as long as the process lives: the exporter counts those that
are locked and removes the others. Without such a directory (no exporter, or one of another user) there is no mark; the
line on stderr is written either way.
"""

import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lockstep.agent.boundary import describe, warn
from lockstep.agent.descriptors import hold, move_high
from lockstep.agent.shared_directory import check_directory, trusted_uids
from lockstep.contracts.errors import ConfigError, LockstepError, MalformedError
from lockstep.contracts.paths import DEFAULT_ROOT, EXPORTER_NAME, root_directory, unwatched_directory
from lockstep.contracts.unwatched import UnwatchedReason, pack_mark

_MODE = 0o640
_OPEN_MODE = 0o644
"""Where the directory is open to all: no group is the exporter's and the training user's there."""
_NO_FILE = -1
_marked: dict[int, int] = {}
"""Pid of this process once it has its mark, and the descriptor; a forked child inherits it and is another process."""


def report(error: OSError | LockstepError, environ: Mapping[str, str]) -> None:
    """Print why this process is not monitored while it trains, and leave the mark."""
    text = describe(error)
    warn(f"agent not installed: {text}")
    mark(_reason(error), text, environ)


def report_once(reason: UnwatchedReason, text: str, environ: Mapping[str, str]) -> None:
    """Print why this process is not monitored while it trains, and leave the mark, unless it has one."""
    if os.getpid() not in _marked:
        warn(f"this process trains and is not monitored: {text}")
        mark(reason, text, environ)


def mark(reason: UnwatchedReason, text: str, environ: Mapping[str, str]) -> None:
    """Leave this process's one mark, where there is a directory for it; never raises."""
    if os.getpid() in _marked:
        return
    _marked.clear()
    _marked[os.getpid()] = _NO_FILE
    with suppress(OSError, LockstepError):
        root = _root(environ)
        trusted = trusted_uids(environ)
        for path in (root, root / EXPORTER_NAME, unwatched_directory(root)):
            check_directory(path, trusted, what="directory of marks")
        path = unwatched_directory(root) / f"{os.getpid()}-{time.monotonic_ns()}"
        _marked[os.getpid()] = _write(path, pack_mark(reason, text))


def _root(environ: Mapping[str, str]) -> Path:
    """Return the configured root; the default one, where an exporter may be, if that is the mistake to be marked."""
    try:
        return root_directory(environ)
    except ConfigError:
        return Path(DEFAULT_ROOT)


def withdraw() -> None:
    """Withdraw this process's mark, because it is monitored after all. The exporter removes the file."""
    file = _marked.pop(os.getpid(), _NO_FILE)
    if file != _NO_FILE:
        with suppress(OSError):
            os.close(file)


def _write(path: Path, content: bytes) -> int:
    """Create the file and keep it open for its lock, until the process ends. Return the descriptor."""
    file = move_high(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE))
    hold(file)
    is_open = path.parent.stat().st_mode & stat.S_IWOTH
    os.fchmod(file, _OPEN_MODE if is_open else _MODE)  # whatever the umask took
    os.write(file, content)  # an empty mark, for want of space, counts as malformed
    return file


def _reason(error: OSError | LockstepError) -> UnwatchedReason:
    if isinstance(error, ConfigError):
        return "identity"
    return "refused" if isinstance(error, MalformedError) else "ring"
