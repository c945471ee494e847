import os
from pathlib import Path

import pytest

from exporter.capturing.traces import take_over_trace, trim_traces, write_samples
from exporter.shared_directory import prepare_run
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import TRACE_MAX_BYTES
from lockstep.contracts.node_samples import NodeSamples, ResourceSeries, samples_path
from lockstep.contracts.paths import incoming_directory, trace_name, traces_directory
from tests.support.users import EXPORTER, GROUP, OTHER, TRAINER, OtherUserError, run_as


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    prepare_run(path)
    return path


def make_trace(directory: Path, request: int, rank: int = 0, size: int = 100) -> Path:
    path = directory / trace_name(request, rank)
    path.write_bytes(b"x" * size)
    os.utime(path, (request, request))
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_trace_is_moved_to_where_no_one_else_writes(run: Path):
    """By its two numbers; path and size of what is read from now on."""
    make_trace(incoming_directory(run), 1, 2)
    path = traces_directory(run) / "1-2.json"
    assert take_over_trace(run, 1, 2) == (path, 100)
    assert (path.read_bytes(), names(incoming_directory(run))) == (b"x" * 100, [])


@pytest.mark.parametrize("kind", ["missing", "link", "run link", "pipe", "directory", "huge"])
def test_what_is_no_trace_is_refused(run: Path, kind: str, tmp_path: Path):
    """Links are not followed, size is checked before anything is read, and what is left is no trace."""
    path = make_trace(incoming_directory(run), 1)
    if kind == "run link":
        run.rmdir()
        run.symlink_to(tmp_path)
    elif kind == "huge":
        os.truncate(path, TRACE_MAX_BYTES + 1)
    else:
        path.unlink()
        if kind == "link":
            path.symlink_to("/etc/hostname")
        if kind == "pipe":
            os.mkfifo(path)
        if kind == "directory":
            (path / "inside").mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(MalformedError, match=r"trace|run directory"):
            take_over_trace(run, 1, 0)
    assert not [path for path in traces_directory(run).iterdir() if path.is_file()]


def test_a_trace_of_another_user_is_refused(shared_root: Path):
    """A user of the group can put a file in, which is not taken for the run's, and cannot touch those that are there."""
    shared_root.mkdir()
    os.chown(shared_root, 0, GROUP)
    shared_root.chmod(0o3777)
    run = shared_root / "run"
    run_as(TRAINER, lambda: run.mkdir(0o1750), groups=(GROUP,))
    run_as(EXPORTER, lambda: prepare_run(run), gid=GROUP)
    incoming = incoming_directory(run)
    run_as(TRAINER, lambda: make_trace(incoming, 1).chmod(0o640), groups=(GROUP,))
    for attempt in (
        (incoming / "1-0.json").unlink,
        lambda: (incoming / "1-0.json").rename(incoming / "9-0.json"),
        lambda: os.truncate(incoming / "1-0.json", 0),
        lambda: make_trace(traces_directory(run), 3),
    ):
        with pytest.raises(OtherUserError, match="PermissionError"):
            run_as(OTHER, attempt, groups=(GROUP,))
    run_as(OTHER, lambda: make_trace(incoming, 2), groups=(GROUP,))
    expected = f"owner of the trace in .*: got uid {OTHER}, expected uid {TRAINER}"
    with pytest.raises(OtherUserError, match=expected):
        run_as(EXPORTER, lambda: take_over_trace(run, 2, 0), gid=GROUP)
    assert run_as(EXPORTER, lambda: take_over_trace(run, 1, 0), gid=GROUP)[1] == 100
    assert run_as(EXPORTER, lambda: trim_traces(run, 0, set()), gid=GROUP) == 1


def test_the_oldest_traces_go_first(run: Path):
    """As many as needed are deleted, wherever they are; the newest stay."""
    for request in (3, 1, 2, 4):
        make_trace((traces_directory if request < 3 else incoming_directory)(run), request)
    assert trim_traces(run, 250, set()) == 2
    assert names(incoming_directory(run)) == ["3-0.json", "4-0.json"]


def test_traces_in_use_stay(run: Path):
    """What is being written or waits to be read is not deleted, however old."""
    for request in (1, 2, 3):
        make_trace(incoming_directory(run), request)
    trim_traces(run, 0, {1})
    assert names(incoming_directory(run)) == ["1-0.json"]


def test_only_traces_are_deleted(run: Path, tmp_path: Path):
    """Other files and links are left alone; a run without the directories has nothing to delete."""
    outside = tmp_path / "1-0.json"
    outside.write_text("precious")
    incoming = incoming_directory(run)
    make_trace(incoming, 1)
    (incoming / "notes.txt").write_text("mine")
    (incoming / "2-0.json").symlink_to(outside)
    trim_traces(run, 0, set())
    assert names(incoming) == ["2-0.json", "notes.txt"]
    assert outside.read_text() == "precious"
    assert trim_traces(tmp_path / "other", 0, set()) == 0


def test_samples_go_with_their_trace(run: Path):
    """They lie next to it; nothing is left of either when the trace has to go. A node that saw nothing leaves none."""
    older, newer = (make_trace(traces_directory(run), request) for request in (1, 2))
    series = ResourceSeries(start_ns=5, period_ns=2, ratios=[0.5, 1.0])
    for trace in (older, newer):
        write_samples(trace, NodeSamples(resources={"cpu": series}))
    assert names(traces_directory(run)) == ["1-0.json", "1-0.samples.json", "2-0.json", "2-0.samples.json"]
    assert trim_traces(run, 100, set()) == 1
    assert names(traces_directory(run)) == ["2-0.json", "2-0.samples.json"]
    write_samples(third := make_trace(traces_directory(run), 3), NodeSamples())
    assert not samples_path(third).exists()
