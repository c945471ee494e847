import os
import threading
from pathlib import Path

import pytest

from exporter.capturing.control import ControlWriter, OrderJob, write_control
from lockstep.contracts.blob import read_blob
from lockstep.contracts.control import (
    CONTROL_BYTES,
    ORDER_BYTES,
    ORDER_OFFSET,
    ProfileOrder,
    check_control_header,
    order_from_json,
)

ORDER = ProfileOrder(
    request_id=1, ranks=[0], first_step=-1, steps=2, stacks=True, shapes=True, memory=False, trace_max_bytes=1 << 20
)


def read(directory: Path) -> tuple[int, ProfileOrder] | None:
    data = (directory / "control").read_bytes()
    check_control_header(data, where="control")
    found = read_blob(memoryview(data), ORDER_OFFSET, ORDER_BYTES)
    return (found[0], order_from_json(found[1], where="control")) if found else None


def test_an_order_is_read_back_as_the_ranks_read_it(tmp_path: Path):
    """The block has its header, its size reserved, group access, and the order."""
    write_control(tmp_path, ORDER)
    assert read(tmp_path) == (1, ORDER)
    status = (tmp_path / "control").stat()
    assert (status.st_size, status.st_mode & 0o777) == (CONTROL_BYTES, 0o660)
    assert status.st_blocks * 512 >= CONTROL_BYTES
    assert [path.name for path in tmp_path.iterdir()] == ["control"]


def test_a_block_is_reused_and_its_generation_goes_on(tmp_path: Path):
    """Ranks have the file mapped: a later exporter writes into the same one."""
    write_control(tmp_path, None)
    inode = (tmp_path / "control").stat().st_ino
    assert read(tmp_path) is None
    write_control(tmp_path, ORDER)
    write_control(tmp_path, ORDER)
    assert read(tmp_path) == (2, ORDER)
    assert (tmp_path / "control").stat().st_ino == inode


def test_a_shorter_order_after_a_longer_one_is_whole(tmp_path: Path):
    """What an earlier order left behind does not show."""
    longer = ProfileOrder(**{**{f: getattr(ORDER, f) for f in ORDER.__slots__}, "ranks": list(range(64))})
    write_control(tmp_path, longer)
    write_control(tmp_path, ORDER)
    assert read(tmp_path) == (2, ORDER)


@pytest.mark.parametrize("foreign", ["text", "older", "cut", "pipe", "link"])
def test_a_foreign_block_is_replaced(tmp_path: Path, foreign: str):
    """Whatever has the name gives way, nothing outside is touched, and nothing hangs."""
    path = tmp_path / "control"
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    if foreign == "text":
        path.write_bytes(b"x" * CONTROL_BYTES)
    elif foreign == "older":
        write_control(tmp_path, ORDER)
        with path.open("r+b") as file:
            file.seek(8)
            file.write((9).to_bytes(4, "little"))
    elif foreign == "cut":
        write_control(tmp_path, ORDER)
        os.truncate(path, 100)
    elif foreign == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(outside)
    write_control(tmp_path, ORDER)
    assert read(tmp_path) == (1, ORDER)
    assert outside.read_bytes() == b"precious"


def test_the_thread_writes_and_reports_what_it_could_not(tmp_path: Path):
    """Orders are written in a thread of their own; a run that vanished is reported with its job."""
    failures: list[tuple[OrderJob, str, str]] = []
    writer = ControlWriter(lambda job, reason: failures.append((job, reason, threading.current_thread().name)))
    writer.start()
    gone = OrderJob("gone", tmp_path / "gone", ORDER)
    assert writer.submit(gone)
    assert writer.submit(OrderJob("here", tmp_path, ORDER))
    writer.stop()
    assert read(tmp_path) == (1, ORDER)
    assert [(job, name) for job, _, name in failures] == [(gone, "control")]
    assert not [thread for thread in threading.enumerate() if thread.name == "control"]


def test_jobs_are_bounded(tmp_path: Path):
    """A writer that does not come along refuses instead of gathering."""
    writer = ControlWriter(lambda *_: None)
    taken = [writer.submit(OrderJob("run", tmp_path)) for _ in range(100)]
    assert taken.count(True) == 64
