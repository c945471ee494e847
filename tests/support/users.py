"""Several users on one node: functions in forked children with another uid and group, and a place to meet.

This takes root. Without it a test that acts as others fails with that reason.
"""

import os
import pickle
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TRAINER, OTHER, EXPORTER = 61001, 65534, 61003
GROUP = 61000
"""The group that trainers and an unprivileged exporter share; OTHER only where a test puts it there."""


class OtherUserError(Exception):
    """What a function raised as another user: its type's name and text, since errors do not all travel."""


def run_as(uid: int, function: Callable[[], Any], *, gid: int | None = None, groups: tuple[int, ...] = ()) -> Any:
    """Return what `function` returns as user `uid`, of group `gid` (its own number if None) and of `groups`.

    Raises
    ------
    OtherUserError
        The function raised, or ended its process.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        code = 1
        try:
            become(uid, gid=gid, groups=groups)
            with os.fdopen(write_end, "wb") as pipe:
                pickle.dump(_outcome(function), pipe)
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if not data:
        raise OtherUserError(f"the process ended with {os.waitstatus_to_exitcode(status)}")
    value, error = pickle.loads(data)
    if error is not None:
        raise OtherUserError(error)
    return value


def become(uid: int, *, gid: int | None = None, groups: tuple[int, ...] = ()) -> None:
    """Give this process another user for good."""
    os.setgroups(groups)
    os.setgid(uid if gid is None else gid)
    os.setuid(uid)


def _outcome(function: Callable[[], Any]) -> tuple[Any, str | None]:
    try:
        return function(), None
    except Exception as error:  # noqa: BLE001  (the parent raises it)
        return None, "".join(traceback.format_exception_only(error)).strip()


@pytest.fixture
def shared_root() -> Iterator[Path]:
    """Return a root directory that does not exist yet, in a place that every user of the node can reach."""
    if os.geteuid() != 0:
        pytest.fail("this test acts as several users of a node, which takes root: run it as root, as CI does")
    place = Path(tempfile.mkdtemp(prefix="lockstep-users-", dir="/dev/shm"))
    place.chmod(0o1777)
    yield place / "lockstep"
    shutil.rmtree(place)
