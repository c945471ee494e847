"""The directories that the exporter shares with the users of its node, as real users of one."""

import logging
import os
import shutil
import stat
from pathlib import Path

import pytest

from exporter.capturing.control import write_control
from exporter.shared_directory import prepare_root, prepare_run
from lockstep.agent.control import ControlReader
from lockstep.agent.ring import RingWriter
from lockstep.agent.shared_directory import check_root
from lockstep.contracts.capture import NEXT_STEP, CaptureRequest
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.paths import control_path, incoming_directory, traces_directory
from tests.agent.test_ring import make_header
from tests.support.users import EXPORTER, GROUP, OTHER, TRAINER, OtherUserError, run_as

ORDER = CaptureRequest(
    request_id=4, ranks=[3], first_step=NEXT_STEP, steps=2, stacks=True, shapes=True, memory=False, trace_max_bytes=1
)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("uid", "mode"), [(0, 0o1777), (EXPORTER, 0o3770)])
def test_a_missing_root_is_made(shared_root: Path, uid: int, mode: int):
    """Open to all where the exporter is root, to the exporter's group where it is not; always sticky."""
    run_as(uid, lambda: os.umask(0o077) and prepare_root(shared_root), gid=0 if uid == 0 else GROUP)
    assert (mode_of(shared_root), shared_root.stat().st_uid) == (mode, uid)
    own = shared_root / ".exporter"
    assert (mode_of(own), own.stat().st_uid) == (0o755, uid)


@pytest.mark.parametrize("kind", ["root", "link", "own"])
def test_directories_of_another_user_are_refused_by_name(shared_root: Path, kind: str):
    """Who came first and owns the root, or what is to be the exporter's in it, could order captures."""
    squatted = shared_root
    if kind == "own":
        shared_root.mkdir()
        shared_root.chmod(0o1777)
        squatted = shared_root / ".exporter"
    run_as(OTHER, lambda: squatted.symlink_to("/etc") if kind == "link" else squatted.mkdir())
    with pytest.raises(ConfigError, match=rf"root: got {squatted} of uid {OTHER}, expected uid 0:"):
        prepare_root(shared_root)


def test_a_root_that_is_no_directory_is_refused(tmp_path: Path):
    """Named as what it is."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"root: got .*file"):
        prepare_root(tmp_path / "file")


def test_a_root_that_others_write_is_made_sticky(shared_root: Path, caplog):
    """Where the exporter owns it; else a warning gives the command."""
    shared_root.mkdir()
    shared_root.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        prepare_root(shared_root)
    assert (mode_of(shared_root), caplog.records) == (0o1777, [])
    shared_root.chmod(0o777)
    shutil.rmtree(shared_root / ".exporter")
    with pytest.raises(OtherUserError, match="is not sticky: its users can remove each other's runs"):
        run_as(EXPORTER, lambda: _raise_warnings(lambda: prepare_root(shared_root)))


def _raise_warnings(action) -> None:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise AssertionError(record.getMessage())

    logging.getLogger("exporter.shared_directory").addHandler(Handler())
    action()


def test_what_gone_runs_left_is_removed_at_the_start(shared_root: Path):
    """Traces of a run whose directory was removed while no exporter ran would stay for ever."""
    prepare_root(shared_root)
    for name in ("here", "gone"):
        (shared_root / name).mkdir()
        prepare_run(shared_root / name)
    (traces_directory(shared_root / "gone") / "1-0.json").touch()
    (shared_root / "gone").rmdir()
    prepare_root(shared_root)
    assert {path.name for path in (shared_root / ".exporter").iterdir()} == {"here", ".unwatched", ".inspector"}


@pytest.mark.parametrize("exporter", [0, EXPORTER], ids=["root", "group"])
def test_users_and_exporter_meet(shared_root: Path, exporter: int):
    """Rings are read, orders arrive and traces are handed over, for both kinds of exporter; others see none of it."""
    member = {"groups": (GROUP,)} if exporter else {}
    run = shared_root / "job"
    trusted = frozenset({0, TRAINER, exporter})
    gid = GROUP if exporter else 0
    run_as(exporter, lambda: prepare_root(shared_root), gid=gid)
    run_as(TRAINER, lambda: (check_root(shared_root, trusted), RingWriter(run, make_header()))[0], **member)
    run_as(exporter, lambda: os.umask(0o007) and write_control(run, ORDER), gid=gid)
    control = control_path(run)
    assert (stat.S_IMODE(control.stat().st_mode), control.stat().st_uid) == (0o640, exporter)

    def take_part() -> int:
        value = ControlReader(control, trusted).poll(0)
        (incoming_directory(run) / "4-3.json").touch()
        return value["request_id"]

    assert run_as(TRAINER, take_part, **member) == 4
    assert run_as(exporter, lambda: len((run / "3.ring").read_bytes()), gid=gid) == make_header().file_bytes
    for attempt in (control.read_bytes, (run / "3.ring").read_bytes, (incoming_directory(run) / "x").touch):
        with pytest.raises(OtherUserError, match="PermissionError"):
            run_as(OTHER, attempt)


ATTEMPTS = {
    "write": lambda run: control_path(run).open("r+b"),
    "truncate": lambda run: os.truncate(control_path(run), 0),
    "remove": lambda run: control_path(run).unlink(),
    "replace": lambda run: (run.parent / "mine").touch() or (run.parent / "mine").rename(control_path(run)),
    "remove the run's directory": lambda run: control_path(run).parent.rename(run.parent / "mine"),
    "replace the exporter's": lambda run: (run.parent / ".exporter").rename(run.parent / ".mine"),
    "make one for another run": lambda run: (run.parent / ".exporter" / "job-2").mkdir(),
    "another way in": lambda run: (incoming_directory(run) / "..").joinpath("control").open("r+b"),
}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS.keys())
@pytest.mark.parametrize("exporter", [0, EXPORTER], ids=["root", "group"])
def test_no_other_user_writes_a_control_block(shared_root: Path, exporter: int, attempt):
    """Not even one of the group, nor the user who trains."""
    gid = GROUP if exporter else 0
    run_as(exporter, lambda: prepare_root(shared_root), gid=gid)
    run = shared_root / "job"
    run_as(TRAINER, lambda: RingWriter(run, make_header()) and None, groups=(GROUP,))
    run_as(exporter, lambda: write_control(run, None), gid=gid)
    for uid in (OTHER, TRAINER):
        with pytest.raises(OtherUserError, match="PermissionError"):
            run_as(uid, lambda: attempt(run), groups=(GROUP,))
