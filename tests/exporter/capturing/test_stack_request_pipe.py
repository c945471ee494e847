"""Stacks of processes that the exporter may not signal: another user's, and those of another PID namespace."""

import os
import stat

import pytest

from exporter.capturing.control import write_control
from exporter.capturing.stack_dumps import dump_stacks, open_target
from exporter.capturing.stack_request_pipe import RequestPipes
from exporter.capturing.stack_text import parse_stacks
from exporter.shared_directory import prepare_root
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.paths import run_directory, stack_request_path
from lockstep.contracts.stacks import stacks_path
from tests.exporter.capturing.stack_job import UID_VARIABLE
from tests.exporter.capturing.test_stack_dumps import job, no_request, ring_of
from tests.support.users import EXPORTER, GROUP, OTHER, TRAINER, OtherUserError, run_as

ASKED_S = 30.0


def make_run(root):
    """Make the run of an unprivileged exporter and a trainer who have a group in common; return its directory."""
    run_as(EXPORTER, lambda: prepare_root(root), gid=GROUP)
    directory = run_directory(root, "run")
    directory.mkdir()
    os.chown(directory, TRAINER, GROUP)
    directory.chmod(0o1750)
    run_as(EXPORTER, lambda: write_control(directory, None), gid=GROUP)
    return directory


def ask(directory, request):
    """Return what rank 0 writes, its threads' functions, and how the pidfd answered."""
    with ring_of(directory) as ring:
        target = open_target(stacks_path(directory, 0), 0, ring)
        try:
            return dump_stacks([target], request, limit_s=ASKED_S)[0]
        finally:
            target.close()


def ask_twice(directory):
    """Return the functions of both dumps, the second of which must be one dump and no more."""
    pipes = RequestPipes()
    try:
        dumps = [ask(directory, lambda: pipes.signal(directory)) for _ in range(2)]
    finally:
        pipes.close()
    return [[[name for *_, name in thread.frames] for thread in parse_stacks(dump, where="t")] for dump in dumps]


def trainer(directory, what="sleep", trusted=EXPORTER):
    return job(directory, what, **{UID_VARIABLE: str(TRAINER), "LOCKSTEP_EXPORTER_UID": str(trusted)})


@pytest.mark.parametrize(
    ("what", "function"),
    [("sleep", "stuck_in_download"), ("native", "stuck_in_native"), ("fork", "stuck_in_download")],
)
def test_another_users_process_writes_its_stacks_on_request(shared_root, what, function):
    """The kernel refuses the exporter's signal, and sends its own when the exporter writes into the run's pipe."""
    directory = make_run(shared_root)
    with trainer(directory, what) as process:
        refused = run_as(EXPORTER, lambda: ask(directory, _refuse), gid=GROUP)
        assert refused.startswith("the process cannot be sent SIGURG: Operation not permitted, nor be asked")
        first, second = run_as(EXPORTER, lambda: ask_twice(directory), gid=GROUP)
        assert process.poll() is None
    assert [threads[-1][0] for threads in (first, second)] == [function, function]
    assert [len(threads) for threads in (first, second)] == [2, 2]


def _refuse():
    raise FileNotFoundError("no pipe")


def test_only_the_exporter_can_ask(shared_root):
    """Trainers of the group read the pipe's state, and no one else writes into it."""
    directory = make_run(shared_root)
    path = stack_request_path(directory)
    status = path.stat()
    assert (stat.filemode(status.st_mode), status.st_uid, status.st_gid) == ("prw-r-----", EXPORTER, GROUP)
    for uid, gid in ((TRAINER, GROUP), (OTHER, GROUP), (OTHER, OTHER)):
        with pytest.raises(OtherUserError, match="PermissionError"):
            run_as(uid, lambda: os.open(path, os.O_WRONLY | os.O_NONBLOCK), gid=gid)


def test_a_pipe_of_a_user_who_is_not_trusted_is_not_followed(shared_root):
    """The agent trusts root, its own user and LOCKSTEP_EXPORTER_UID."""
    directory = make_run(shared_root)
    with trainer(directory, trusted=OTHER):
        text = run_as(EXPORTER, lambda: ask_briefly(directory), gid=GROUP)
    assert text == "the process wrote no stack: none of its threads took the signal"


def ask_briefly(directory):
    pipes = RequestPipes()
    with ring_of(directory) as ring:
        target = open_target(stacks_path(directory, 0), 0, ring)
        try:
            return dump_stacks([target], lambda: pipes.signal(directory), limit_s=0.5)[0]
        finally:
            target.close()
            pipes.close()


def test_a_process_of_another_pid_namespace_is_asked_too(tmp_path):
    """Its pid means nothing here: no signal can go to it."""

    class Hidden:
        """The ring as it is seen from another PID namespace."""

        def __init__(self, ring):
            self.owner_uid = ring.owner_uid
            self._ring = ring

        def holder(self):
            holder = self._ring.holder()
            return type(holder)(pid=None, is_gone=holder.is_gone, locks=holder.locks)

    prepare_root(tmp_path / "root")
    directory = run_directory(tmp_path / "root", "run")
    directory.mkdir()
    write_control(directory, None)
    pipes = RequestPipes()
    with job(directory, "sleep"), ring_of(directory) as ring:
        target = open_target(stacks_path(directory, 0), 0, Hidden(ring))
        try:
            assert (target.pid, target.pidfd) == (0, -1)
            written = dump_stacks([target], lambda: pipes.signal(directory), limit_s=ASKED_S)[0]
        finally:
            target.close()
            pipes.close()
    assert b"stuck_in_download" in written


def test_a_pipe_that_is_there_stays_and_anything_else_is_replaced(tmp_path):
    """Agents have it open; a file or a link in its place is none."""
    prepare_root(tmp_path / "root")
    directory = run_directory(tmp_path / "root", "run")
    directory.mkdir()
    write_control(directory, None)
    path = stack_request_path(directory)
    inode = path.stat().st_ino
    write_control(directory, None)
    assert path.stat().st_ino == inode
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    write_control(directory, None)
    assert stat.S_ISFIFO(path.lstat().st_mode)
    assert not (tmp_path / "elsewhere").exists()


def test_what_is_no_pipe_of_ours_is_not_written(tmp_path):
    """A file in its place stays empty."""
    prepare_root(tmp_path / "root")
    directory = run_directory(tmp_path / "root", "run")
    directory.mkdir()
    write_control(directory, None)
    path = stack_request_path(directory)
    path.unlink()
    path.write_bytes(b"")
    with pytest.raises(MalformedError, match="expected a pipe of uid"):
        RequestPipes().signal(directory)
    assert path.read_bytes() == b""


def test_a_process_that_can_be_signalled_is_not_asked_twice(tmp_path):
    """Two signals would make two dumps."""
    with job(tmp_path / "run", "sleep"):
        assert isinstance(ask(tmp_path / "run", no_request), bytes)
