import os
import stat
import threading
from pathlib import Path

import pytest

from exporter.capturing.control import ControlJob, ControlWriter, write_control
from lockstep.contracts.blob import read_blob
from lockstep.contracts.capture import CaptureRequest, request_from_json
from lockstep.contracts.control_block import CONTROL_BYTES, ORDER_BYTES, ORDER_OFFSET, check_control_header
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.paths import control_path, incoming_directory

ORDER = CaptureRequest(
    request_id=1, ranks=[0], first_step=-1, steps=2, stacks=True, shapes=True, memory=False, trace_max_bytes=1 << 20
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


def read(directory: Path) -> tuple[int, CaptureRequest] | None:
    data = control_path(directory).read_bytes()
    check_control_header(data, where="control")
    found = read_blob(memoryview(data), ORDER_OFFSET, ORDER_BYTES)
    return (found[0], request_from_json(found[1], where="control")) if found else None


def test_an_order_is_read_back_as_the_ranks_read_it(run: Path):
    """The block has its header, its size reserved, and the order; the exporter alone writes it, the run's group reads."""
    os.umask(old := os.umask(0o077))
    write_control(run, ORDER)
    os.umask(old)
    assert read(run) == (1, ORDER)
    status = control_path(run).stat()
    assert (status.st_size, stat.S_IMODE(status.st_mode)) == (CONTROL_BYTES, 0o640)
    assert (status.st_uid, status.st_gid) == (os.geteuid(), run.stat().st_gid)
    assert status.st_blocks * 512 >= CONTROL_BYTES
    assert list(run.iterdir()) == []
    assert sorted(path.name for path in control_path(run).parent.iterdir()) == [
        "control",
        "incoming",
        "stacks",
        "traces",
    ]


def test_a_block_is_reused_and_its_generation_goes_on(run: Path):
    """Ranks have the file open: a later exporter writes into the same one."""
    write_control(run, None)
    inode = control_path(run).stat().st_ino
    assert read(run) is None
    write_control(run, ORDER)
    write_control(run, ORDER)
    assert read(run) == (2, ORDER)
    assert control_path(run).stat().st_ino == inode


def test_a_shorter_order_after_a_longer_one_is_whole(run: Path):
    """What an earlier order left behind does not show."""
    longer = CaptureRequest(**{**{f: getattr(ORDER, f) for f in ORDER.__slots__}, "ranks": list(range(64))})
    write_control(run, longer)
    write_control(run, ORDER)
    assert read(run) == (2, ORDER)


@pytest.mark.parametrize("foreign", ["text", "older", "cut", "open", "pipe", "link"])
def test_a_foreign_block_is_replaced(run: Path, foreign: str):
    """Whatever has the name gives way, nothing outside is touched, and nothing hangs."""
    path = control_path(run)
    write_control(run, None)
    outside = run.parent / "outside"
    outside.write_bytes(b"precious")
    if foreign == "text":
        path.write_bytes(b"x" * CONTROL_BYTES)
    elif foreign == "older":
        with path.open("r+b") as file:
            file.seek(8)
            file.write((9).to_bytes(4, "little"))
    elif foreign == "cut":
        os.truncate(path, 100)
    elif foreign == "open":
        path.chmod(0o660)
    elif foreign == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        path.unlink()
        path.symlink_to(outside)
    inode = path.lstat().st_ino
    write_control(run, ORDER)
    assert read(run) == (1, ORDER)
    assert path.lstat().st_ino != inode
    assert stat.S_IMODE(path.lstat().st_mode) == 0o640
    assert outside.read_bytes() == b"precious"


def test_a_run_that_is_a_link_gets_no_order(run: Path):
    """The directory that it leads to is left as it is."""
    linked = run.with_name("linked")
    linked.symlink_to(run)
    with pytest.raises(MalformedError, match=r"run directory in .*linked.*expected a directory, no link"):
        write_control(linked, ORDER)
    assert not control_path(linked).exists()


def test_what_a_gone_run_left_is_removed(run: Path):
    """Without an order a run that is there gets its block, and what is left of one that is not goes."""
    writer = ControlWriter(lambda *_: None)
    writer.start()
    write_control(run, ORDER)
    (incoming_directory(run) / "1-0.json").touch()
    gone = run.with_name("gone")
    write_control(run.rename(gone), ORDER)
    gone.rmdir()
    run.mkdir()
    for directory in (run, gone):
        assert writer.submit(ControlJob(directory.name, directory))
    writer.stop()
    assert control_path(run).exists()
    assert not control_path(gone).parent.exists()


def test_the_thread_writes_and_reports_what_it_could_not(run: Path):
    """Orders are written in a thread of their own; a run that vanished is reported with its job."""
    failures: list[tuple[ControlJob, str, str]] = []
    writer = ControlWriter(lambda job, reason: failures.append((job, reason, threading.current_thread().name)))
    writer.start()
    gone = ControlJob("gone", run.with_name("gone"), ORDER)
    assert writer.submit(gone)
    assert writer.submit(ControlJob("here", run, ORDER))
    writer.stop()
    assert read(run) == (1, ORDER)
    assert [(job, name) for job, _, name in failures] == [(gone, "control")]
    assert not [thread for thread in threading.enumerate() if thread.name == "control"]


def test_jobs_are_bounded(tmp_path: Path):
    """A writer that does not come along refuses instead of gathering."""
    writer = ControlWriter(lambda *_: None)
    taken = [writer.submit(ControlJob("run", tmp_path)) for _ in range(100)]
    assert taken.count(True) == 64
