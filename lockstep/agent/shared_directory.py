"""The directories that this training process shares with the node: trusted owners, and its own directory.

    <root>/                     root's or the exporter's, sticky where users may create entries
    <root>/<run>/               the training user's; no other user writes there, the group reads
    <root>/.exporter/<run>/     the exporter's, see `exporter/shared_directory.py`

Every directory has one writer, as every file has. What the kernel already refuses is not checked again; the checks
cover what a user of the node can prepare beforehand: a root or a run directory of theirs, or a link in its place.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from lockstep.contracts.environment import whole_number
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.ownership import EXPORTER_UID_VARIABLE, ROOT_UID, UID_MAX, visible_uid

ROOT_MODE = 0o3770
"""Of a root directory that we have to create: it is of use to this user only, as other users' agents refuse it."""
RUN_MODE = 0o1750
"""The group of trainers and exporter reads. Sticky, should a site open it to its group: rings stay their owners'."""


def trusted_uids(environ: Mapping[str, str]) -> frozenset[int]:
    """Return whose directories and control blocks count: root's, this user's, and those of the configured exporter.

    Raises
    ------
    ConfigError
        The exporter's uid is not one.
    """
    trusted = {visible_uid(ROOT_UID), os.geteuid()}
    exporter = environ.get(EXPORTER_UID_VARIABLE)
    if exporter:
        trusted.add(visible_uid(whole_number(exporter, EXPORTER_UID_VARIABLE, most=UID_MAX)))
    return frozenset(trusted)


def check_owner(status: os.stat_result, trusted: frozenset[int], *, what: str, where: Path) -> None:
    """Refuse what belongs to a user who is not trusted.

    Raises
    ------
    MalformedError
        It does.
    """
    if status.st_uid not in trusted:
        expected = f"one of {sorted(trusted)} ({EXPORTER_UID_VARIABLE} names the exporter's)"
        raise MalformedError(f"owner of the {what}", where=str(where), got=f"uid {status.st_uid}", expected=expected)


def check_directory(path: Path, trusted: frozenset[int], *, what: str) -> None:
    """Refuse a directory that is none, or that an untrusted user owns; so for a link and its target.

    Raises
    ------
    OSError, MalformedError
        It is missing or cannot be read; it is refused.
    """
    check_owner(path.lstat(), trusted, what=what, where=path)
    status = path.stat()
    check_owner(status, trusted, what=what, where=path)
    if not stat.S_ISDIR(status.st_mode):
        raise MalformedError(what, where=str(path), got=stat.filemode(status.st_mode), expected="a directory")


def check_root(path: Path, trusted: frozenset[int]) -> None:
    """Refuse a root directory of an untrusted user, who could rename what others have in it; without one, make it.

    Raises
    ------
    OSError, MalformedError
        It is missing or cannot be read; it is refused.
    """
    _make(path, ROOT_MODE)
    check_directory(path, trusted, what="shared directory")


def make_run_directory(path: Path) -> None:
    """Make the directory of this user's run, and the root above it where there is none.

    Raises
    ------
    MalformedError
        The name is taken: by another user's run, by a link, by a file.
    OSError
        It cannot be made.
    """
    if not path.parent.is_dir():
        _make(path.parent, ROOT_MODE)
    status = _make(path, RUN_MODE)
    if not stat.S_ISDIR(status.st_mode):
        raise MalformedError(
            "run directory", where=str(path), got=stat.filemode(status.st_mode), expected="a directory, no link"
        )
    if status.st_uid != os.geteuid():
        raise MalformedError(
            "owner of the run directory",
            where=str(path),
            got=f"uid {status.st_uid}",
            expected=f"uid {os.geteuid()}: another user has a run of this name, choose another one",
        )
    _set_mode(path, status, RUN_MODE)


def _make(path: Path, mode: int) -> os.stat_result:
    """Return what has the name `path`, a new directory if nothing had."""
    try:
        path.mkdir(mode)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode)
    except FileExistsError:
        return path.lstat()
    _set_mode(path, path.lstat(), mode)
    return path.lstat()


def _set_mode(path: Path, status: os.stat_result, mode: int) -> None:
    """Give a directory its mode, whatever the umask took; where the parent hands its group on (setgid), so does it."""
    mode |= status.st_mode & stat.S_ISGID
    if stat.S_IMODE(status.st_mode) != mode:
        path.chmod(mode)
