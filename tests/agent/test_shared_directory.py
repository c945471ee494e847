"""Whom a training process trusts in the shared directory, and what it makes there: as real users of a node."""

import ctypes
import os
import stat
from pathlib import Path

import pytest

from lockstep.agent.ring import RingWriter
from lockstep.agent.shared_directory import check_root, make_run_directory, trusted_uids
from lockstep.contracts.errors import ConfigError, MalformedError
from lockstep.contracts.ownership import EXPORTER_UID_VARIABLE
from tests.agent.test_ring import make_header
from tests.support.users import GROUP, OTHER, TRAINER, OtherUserError, run_as

CLONE_NEWUSER, PR_SET_DUMPABLE = 0x10000000, 4


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_root_this_user_and_the_configured_exporter_are_trusted():
    """A number that is none is an error that names the variable."""
    assert trusted_uids({}) == {0, os.geteuid()}
    assert trusted_uids({EXPORTER_UID_VARIABLE: "998"}) == {0, os.geteuid(), 998}
    for text in ("lockstep", "-1", "4294967295", "9" * 5000):
        with pytest.raises(
            ConfigError, match=f"LOCKSTEP_EXPORTER_UID: got '{text[:9]}.*, expected a number from 0 to 4294967294"
        ):
            trusted_uids({EXPORTER_UID_VARIABLE: text})


@pytest.mark.parametrize("owner", [0, TRAINER, 998])
def test_root_directory_of_a_trusted_user_is_used(shared_root, owner):
    """Root's, the user's own, and the exporter's."""
    shared_root.mkdir(mode=0o755)
    os.chown(shared_root, owner, -1)
    shared_root.chmod(0o1777)
    trusted = frozenset({0, TRAINER, 998})
    assert run_as(TRAINER, lambda: check_root(shared_root, trusted)) is None


@pytest.mark.parametrize("kind", ["directory", "link", "file"])
def test_root_directory_of_another_user_is_refused(shared_root, kind):
    """Its owner could rename what others have in it, and order captures; a link of theirs could lead anywhere."""

    def squat():
        if kind == "directory":
            shared_root.mkdir()
        elif kind == "link":
            elsewhere = shared_root.with_name("elsewhere")
            shared_root.symlink_to(elsewhere)
        else:
            shared_root.touch()

    elsewhere = shared_root.with_name("elsewhere")
    run_as(TRAINER, elsewhere.mkdir)
    run_as(OTHER, squat)
    with pytest.raises(
        OtherUserError, match=f"owner of the shared directory in {shared_root}: got uid {OTHER}, expected one of"
    ):
        run_as(TRAINER, lambda: check_root(shared_root, trusted_uids({})))
    assert list(elsewhere.iterdir()) == []


def test_root_directory_that_is_missing_is_made_for_this_user(shared_root):
    """Sticky, and handing its group on."""
    run_as(TRAINER, lambda: check_root(shared_root, trusted_uids({})))
    assert (mode_of(shared_root), shared_root.stat().st_uid) == (0o3770, TRAINER)


@pytest.mark.parametrize("mode", [0o1777, 0o3777])
def test_run_directory_is_the_users_alone(shared_root, mode):
    """The group reads, other users cannot enter; where the root passes its group on, so does it."""
    shared_root.mkdir()
    os.chown(shared_root, 0, GROUP)
    shared_root.chmod(mode)
    run_as(TRAINER, lambda: make_run_directory(shared_root / "job"))
    status = (shared_root / "job").stat()
    assert status.st_uid == TRAINER
    assert status.st_gid == (GROUP if mode & stat.S_ISGID else TRAINER)
    assert mode_of(shared_root / "job") == 0o1750 | mode & stat.S_ISGID


def test_run_directory_of_this_user_gets_its_mode(shared_root):
    """One that was opened to the group is closed again."""
    shared_root.mkdir()
    shared_root.chmod(0o1777)
    run_as(TRAINER, lambda: (shared_root / "job").mkdir(0o770))
    run_as(TRAINER, lambda: make_run_directory(shared_root / "job"))
    assert mode_of(shared_root / "job") == 0o1750


@pytest.mark.parametrize("squatter", [OTHER, 0])
def test_run_name_of_another_user_is_refused(shared_root, squatter):
    """Nothing is written there: who owns the directory could remove and replace what is in it."""
    shared_root.mkdir()
    shared_root.chmod(0o1777)
    run_as(squatter, (shared_root / "job").mkdir)
    (shared_root / "job").chmod(0o777)
    expected = f"got uid {squatter}, expected uid {TRAINER}: another user has a run of this name"
    with pytest.raises(OtherUserError, match=expected):
        run_as(TRAINER, lambda: RingWriter(shared_root / "job", make_header()))
    assert list((shared_root / "job").iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "file", "pipe"])
def test_run_name_that_is_no_directory_is_refused(tmp_path, kind):
    """Named with what it is."""
    path = tmp_path / "job"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        path.touch()
    else:
        os.mkfifo(path)
    with pytest.raises(MalformedError, match="expected a directory, no link"):
        make_run_directory(path)


ATTEMPTS = {
    "truncate": lambda ring: os.truncate(ring, 0),
    "write": lambda ring: ring.open("r+b"),
    "remove": lambda ring: ring.unlink(),
    "rename": lambda ring: ring.rename(ring.with_name("4.ring")),
    "add": lambda ring: ring.with_name("7.ring").touch(),
    "add a trace": lambda ring: ring.with_name(".1-3.json.part").touch(),
    "remove the run": lambda ring: ring.parent.rmdir(),
    "rename the run": lambda ring: ring.parent.rename(ring.parent.with_name("mine")),
    "open the run": lambda ring: ring.parent.chmod(0o777),
}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS.keys())
@pytest.mark.parametrize("groups", [(GROUP,), ()], ids=["group", "stranger"])
def test_no_one_else_touches_a_run(shared_root, attempt, groups):
    """A user of the group reads a ring and does nothing else to it or to its directory; others do not even read."""
    shared_root.mkdir()
    os.chown(shared_root, 0, GROUP)
    shared_root.chmod(0o3770)
    run_as(TRAINER, lambda: RingWriter(shared_root / "job", make_header()) and None, groups=(GROUP,))
    ring = shared_root / "job" / "3.ring"
    with pytest.raises(OtherUserError, match="PermissionError"):
        run_as(OTHER, lambda: attempt(ring), groups=groups)
    if groups:
        assert run_as(OTHER, lambda: len(ring.read_bytes()), groups=groups) == make_header().file_bytes
    else:
        with pytest.raises(OtherUserError, match="PermissionError"):
            run_as(OTHER, ring.read_bytes)


def enter_user_namespace():
    """Become root of a user namespace that maps this user and no other, as a rootless container does."""
    uid, libc = os.geteuid(), ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_DUMPABLE, 1)  # a process that has changed its user does not own its files in /proc
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "this test takes a user namespace")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")


@pytest.mark.parametrize("owner", [0, TRAINER, OTHER])
def test_in_a_user_namespace_unmapped_users_look_alike(shared_root, owner):
    """Root's directory is used there, so that the training is monitored; another user's cannot be distinguished from it."""
    shared_root.mkdir()
    os.chown(shared_root, owner, -1)
    shared_root.chmod(0o1777)

    def train():
        enter_user_namespace()
        trusted = trusted_uids({EXPORTER_UID_VARIABLE: "998"})
        check_root(shared_root, trusted)
        RingWriter(shared_root / "job", make_header())
        return trusted, shared_root.stat().st_uid

    trusted, seen = run_as(TRAINER, train)
    assert trusted == {0, 65534}
    assert seen == (0 if owner == TRAINER else 65534)
    assert (shared_root / "job").stat().st_uid == TRAINER
