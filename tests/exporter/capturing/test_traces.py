import os
from pathlib import Path

import pytest

from exporter.capturing.traces import check_trace, trim_traces
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import TRACE_MAX_BYTES


def make_trace(directory: Path, request: int, rank: int = 0, size: int = 100) -> Path:
    path = directory / "traces" / f"{request}-{rank}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (request, request))
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "traces").iterdir())


def test_a_trace_is_found_by_its_two_numbers(tmp_path: Path):
    """Path and size of an ordinary trace."""
    path = make_trace(tmp_path, 1, 2)
    assert check_trace(tmp_path, 1, 2) == (path, 100)


@pytest.mark.parametrize("kind", ["missing", "link", "folder link", "pipe", "huge"])
def test_what_is_no_trace_is_refused(tmp_path: Path, kind: str):
    """Links are not followed out of the run's folder, and size is checked before anything is read."""
    path = make_trace(tmp_path, 1)
    if kind == "folder link":
        (tmp_path / "traces").rename(tmp_path / "elsewhere")
        (tmp_path / "traces").symlink_to(tmp_path / "elsewhere")
    elif kind == "huge":
        os.truncate(path, TRACE_MAX_BYTES + 1)
    else:
        path.unlink()
        if kind == "link":
            path.symlink_to("/etc/hostname")
        if kind == "pipe":
            os.mkfifo(path)
    with pytest.raises(MalformedError, match="trace"):
        check_trace(tmp_path, 1, 0)


def test_the_oldest_traces_go_first(tmp_path: Path):
    """As many as needed are deleted, the newest stay."""
    for request in (3, 1, 2, 4):
        make_trace(tmp_path, request)
    assert trim_traces(tmp_path, 250, set()) == 2
    assert names(tmp_path) == ["3-0.json", "4-0.json"]


def test_traces_in_use_stay(tmp_path: Path):
    """What is being written or waits to be read is not deleted, however old."""
    for request in (1, 2, 3):
        make_trace(tmp_path, request)
    trim_traces(tmp_path, 0, {1})
    assert names(tmp_path) == ["1-0.json"]


def test_only_traces_of_this_run_are_deleted(tmp_path: Path):
    """Other files, links, and a folder that is a link are left alone."""
    run = tmp_path / "run"
    run.mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "1-0.json").write_text("precious")
    make_trace(run, 1)
    (run / "traces" / "notes.txt").write_text("mine")
    (run / "traces" / "2-0.json").symlink_to(outside / "1-0.json")
    trim_traces(run, 0, set())
    assert names(run) == ["2-0.json", "notes.txt"]
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "traces").symlink_to(outside)
    assert trim_traces(linked, 0, set()) == 0
    assert (outside / "1-0.json").read_text() == "precious"
