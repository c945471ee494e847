"""The directories that a node's users share with its exporter: the root, and the exporter's own directory in it.

    <root>/                          owned by root or the exporter; sticky, so users cannot move each other's entries
    <root>/<run>/                    created by the user who trains, who alone writes there
    <root>/.exporter/                the exporter's own; everyone can pass through
    <root>/.exporter/<run>/          for the run's group: control block, and the two directories of traces
    <root>/.exporter/<run>/incoming/ the only place where two users write: ranks move traces in, the exporter moves
                                     them out; sticky, so no user of the group can remove or replace another's
    <root>/.exporter/<run>/traces/   the traces that were moved out
    <root>/.exporter/.unwatched/     for all training users: marks of processes that train unmonitored; sticky
    <root>/.exporter/.inspector/     for all training users: files of the NCCL Inspector; sticky

The exporter writes only below `.exporter`, so a user's link elsewhere cannot redirect its writes.
"""

import logging
import os
import shutil
import stat
from pathlib import Path

from lockstep.contracts.errors import ConfigError, FileAccessError, MalformedError
from lockstep.contracts.filesystems import is_on_disk
from lockstep.contracts.ownership import ROOT_UID, visible_uid
from lockstep.contracts.paths import (
    EXPORTER_NAME,
    exporter_directory,
    incoming_directory,
    inspector_directory,
    is_name,
    traces_directory,
    unwatched_directory,
)

_log = logging.getLogger(__name__)

_ROOT_MODE_OF_ROOT = 0o1777
"""A root exporter reads the rings of every user, whatever their groups."""
_ROOT_MODE = 0o3770
"""Any other exporter reads the rings of its group, which the directory passes on."""
_OWN_MODE = 0o755
_RUN_MODE = 0o750
_INCOMING_MODE = 0o1770
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def prepare_root(root: Path) -> None:
    """Create the root and the exporter's own directory if missing, and remove what is left of runs that are gone.

    Raises
    ------
    ConfigError
        One of them is not a directory, cannot be created, or belongs to a user who could change its content.
    """
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        _make(root, _ROOT_MODE_OF_ROOT if os.geteuid() == ROOT_UID else _ROOT_MODE)
        status = _check_owner(root, {visible_uid(ROOT_UID), os.geteuid()})
        _make_sticky(root, status)
        for path in _prepare_own(root).iterdir():
            if is_name(path.name):
                remove_gone(root / path.name)
        _prepare_open(root, status)
        if is_on_disk(root):
            _log.warning("root %s is not in memory: marks are written back to it; use a tmpfs, such as /dev/shm", root)
    except OSError as error:
        raise FileAccessError(f"root {root}", error, expected="a directory that can be used") from error


def run_status(directory: Path) -> os.stat_result:
    """Return the status of a run's directory, whose owner is the user who trains.

    Raises
    ------
    OSError
        There is none.
    MalformedError
        It is a link, or not a directory.
    """
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode):
        got = stat.filemode(status.st_mode)
        raise MalformedError("run directory", where=str(directory), got=got, expected="a directory, no link")
    return status


def prepare_run(directory: Path) -> int:
    """Create the exporter's directories of a run for the group of the run's directory; return that group's gid.

    Raises
    ------
    OSError, MalformedError, ConfigError
        The run has no directory, or the exporter's cannot be created.
    """
    gid = run_status(directory).st_gid
    _prepare_own(directory.parent)
    _share(exporter_directory(directory), _RUN_MODE, gid)
    _share(incoming_directory(directory), _INCOMING_MODE, gid)
    _share(traces_directory(directory), _RUN_MODE, gid)
    return gid


def remove_gone(directory: Path) -> bool:
    """Remove the exporter's files of a run if the run's directory is gone; return whether it is."""
    if directory.is_dir() and not directory.is_symlink():
        return False
    shutil.rmtree(exporter_directory(directory), onerror=_log_left)
    return True


def _log_left(_function: object, path: str, error: tuple[type[BaseException], BaseException, object]) -> None:
    if not isinstance(error[1], FileNotFoundError):
        _log.info("%s is left: %s", path, error[1])


def _prepare_own(root: Path) -> Path:
    """Return the directory that only this exporter can write, and everyone can read."""
    own = root / EXPORTER_NAME
    _make(own, _OWN_MODE)
    _check_owner(own, {os.geteuid()})
    _set_mode(own, _OWN_MODE)
    return own


def _prepare_open(root: Path, status: os.stat_result) -> None:
    """Create the directories where users of the root leave marks and files; the exporter works without them too."""
    for path, lost in (
        (unwatched_directory(root), "unwatched processes are not counted"),
        (inspector_directory(root), "lockstep run starts no NCCL Inspector"),
    ):
        try:
            if status.st_mode & stat.S_IWOTH:
                _make(path, _ROOT_MODE_OF_ROOT)
                _set_mode(path, _ROOT_MODE_OF_ROOT)
            else:
                _share(path, _ROOT_MODE, status.st_gid)
        except OSError as error:
            _log.warning("%s: got %s, expected a directory that all training users can write to: %s", path, error, lost)


def _make(path: Path, mode: int) -> None:
    """Create a directory with this mode, regardless of the umask; leave an existing one as it is."""
    try:
        path.mkdir(mode)
    except FileExistsError:
        return
    _set_mode(path, mode)


def _share(path: Path, mode: int, gid: int) -> None:
    """Create a directory of the exporter's that the group `gid` uses; correct an existing one."""
    _make(path, mode)
    if path.lstat().st_gid != gid:
        os.chown(path, -1, gid)
    _set_mode(path, mode)


def _set_mode(path: Path, mode: int) -> None:
    if stat.S_IMODE(path.lstat().st_mode) != mode:
        path.chmod(mode)


def _check_owner(path: Path, owners: set[int]) -> os.stat_result:
    """Refuse another user's directory, or a link of theirs to one."""
    for status in (path.lstat(), path.stat()):
        if status.st_uid not in owners:
            expected = " or ".join(str(uid) for uid in sorted(owners))
            raise ConfigError(
                f"root: got {path} of uid {status.st_uid}, expected uid {expected}: "
                "its owner could order captures and remove the runs of others; remove it, or change its owner"
            )
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"root: got {path}, {stat.filemode(status.st_mode)}, expected a directory")
    return status


def _make_sticky(root: Path, status: os.stat_result) -> None:
    """Make sure that users who may create entries in the root cannot rename or remove each other's."""
    if status.st_mode & stat.S_ISVTX or not status.st_mode & _OTHERS_WRITE:
        return
    try:
        root.chmod(stat.S_IMODE(status.st_mode) | stat.S_ISVTX)
    except PermissionError:
        _log.warning("%s is not sticky: its users can remove each other's runs; chmod +t %s", root, root)
