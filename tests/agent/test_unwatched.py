"""The mark of a process that trains and is not watched, and the exporter that counts it."""

import os
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from exporter.counts import ExporterCounters
from exporter.reading.unwatched import UnwatchedProcesses
from exporter.shared_directory import prepare_root
from lockstep.agent import unwatched
from lockstep.agent.bootstrap import loader_environment
from lockstep.agent.lineage import OWNER_VARIABLE
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.paths import unwatched_directory
from lockstep.contracts.unwatched import MARK_MAX_BYTES, MARKS_MAX, UNWATCHED_REASONS, pack_mark, unpack_mark
from tests.support.users import EXPORTER, GROUP, OTHER, TRAINER, run_as

pytestmark = pytest.mark.timeout(600)

NONE = dict.fromkeys(UNWATCHED_REASONS, 0)
WAITING = """
    import sys
    import torch
    torch.nn.Linear(4, 1)(torch.ones(2, 4)).sum().backward()
    torch.nn.Linear(4, 1)(torch.ones(2, 4)).sum().backward()
    print("trained", flush=True)
    sys.stdin.read()
"""
STARTED = """
    import os, sys
    import torch
    import tests.support.loaded_torch
    if sys.argv[1] and (child := os.fork()):
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    print("ran backward", flush=True)
    sys.stdin.readline()
    optimizer.step()
    optimizer.step()
    print("trained", flush=True)
    sys.stdin.read()
"""
FORKED = """
    import os, sys
    import torch
    import tests.support.loaded_torch
    torch.set_num_threads(1)
    def train():
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    train()
    if child := os.fork():
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    train()
    print("trained", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path):
    """Return a root as an exporter prepares it."""
    prepare_root(tmp_path / "shm")
    return tmp_path / "shm"


@pytest.fixture
def processes(root):
    return UnwatchedProcesses(root, ExporterCounters())


@pytest.fixture
def marked(root, monkeypatch):
    """Leave a mark of this process as often as the test asks; on teardown its descriptors are closed."""
    opened = []
    monkeypatch.setattr(unwatched, "move_high", lambda file: opened.append(file) or file)

    def mark(reason="ring", text="no space"):
        unwatched._marked.clear()
        unwatched.mark(reason, text, {"LOCKSTEP_DIR": str(root)})

    yield mark
    unwatched._marked.clear()
    for file in opened:
        with suppress(OSError):  # withdrawn
            os.close(file)


def in_child(function):
    """Return what `function` returns in a forked child: to this process its own locks are no one's."""
    return run_as(os.getuid(), function, gid=os.getgid())


def scanned(processes):
    processes.scan()
    return processes.by_reason


def test_a_mark_counts_while_its_process_lives(marked, processes, root):
    """Another process counts it by its reason; once is enough for a process."""
    marked("identity")
    unwatched.mark("ring", "again", {"LOCKSTEP_DIR": str(root)})
    assert in_child(lambda: scanned(processes)) == {**NONE, "identity": 1}


def test_a_mark_that_is_withdrawn_counts_no_more(marked, processes, root):
    """Nor does it keep this process from another one."""
    environ = {"LOCKSTEP_DIR": str(root)}
    unwatched._marked.clear()
    unwatched.mark("steps", "none", environ)
    unwatched.withdraw()
    marked("ring")
    assert in_child(lambda: scanned(processes)) == {**NONE, "ring": 1}


def test_a_mark_of_a_process_that_ended_is_removed(marked, processes, root):
    """No one holds it at two scans: between making and locking it there is a moment."""
    in_child(marked)
    (path,) = unwatched_directory(root).iterdir()
    assert scanned(processes) == NONE
    assert path.exists()
    assert scanned(processes) == NONE
    assert not path.exists()


def test_no_directory_no_mark(tmp_path):
    """Without an exporter, or where its directories are another user's, nothing is written and nothing is raised."""
    unwatched._marked.clear()
    unwatched.mark("ring", "no space", {"LOCKSTEP_DIR": str(tmp_path / "absent")})
    assert list(tmp_path.iterdir()) == []
    unwatched._marked.clear()


def test_what_is_no_mark_is_refused_once_and_removed(processes, root):
    """Links, pipes, directories and files without a lock: counted, never followed, never waited for."""
    directory = unwatched_directory(root)
    (directory / "link").symlink_to("/etc/passwd")
    os.mkfifo(directory / "pipe")
    (directory / "directory").mkdir()
    (directory / "full").mkdir()
    (directory / "full" / "file").touch()
    for _ in range(3):
        assert scanned(processes) == NONE
    assert [path.name for path in directory.iterdir()] == ["full"]
    assert processes._counts.rejected["mark"] == 4


def test_an_unknown_reason_is_refused(marked, processes, root):
    """A held file that names no reason is counted as refused input, not as a process."""
    marked("no such reason")
    assert in_child(lambda: (scanned(processes), processes._counts.rejected["mark"])) == (NONE, 1)


def test_a_flood_is_bounded(processes, root):
    """A scan looks at so many entries and no more; the dead among them go, so that the living come up."""
    for number in range(MARKS_MAX + 10):
        (unwatched_directory(root) / str(number)).touch()
    processes.scan()
    processes.scan()
    assert len(list(unwatched_directory(root).iterdir())) == 10


def test_users_leave_marks_and_cannot_remove_those_of_others(shared_root: Path):
    """Trainers of the exporter's group may write, others may not; the exporter reads and removes."""
    run_as(EXPORTER, lambda: prepare_root(shared_root), gid=GROUP)
    environ = {"LOCKSTEP_DIR": str(shared_root), "LOCKSTEP_EXPORTER_UID": str(EXPORTER)}
    run_as(TRAINER, lambda: unwatched.mark("ring", "no space", environ), groups=(GROUP,))
    run_as(OTHER, lambda: unwatched.mark("ring", "no space", environ))
    (path,) = unwatched_directory(shared_root).iterdir()
    assert (path.stat().st_uid, path.stat().st_gid, path.stat().st_mode & 0o777) == (TRAINER, GROUP, 0o640)
    with pytest.raises(Exception, match="PermissionError"):
        run_as(OTHER, path.unlink, groups=(GROUP,))

    def scan_twice():
        processes = UnwatchedProcesses(shared_root, ExporterCounters())
        processes.scan()
        processes.scan()
        return sum(processes._counts.rejected.values())

    assert run_as(EXPORTER, scan_twice, gid=GROUP) == 0
    assert not path.exists()


def test_marks_outlive_a_restart_of_the_exporter(marked, root):
    """A process that is not watched stays counted by the next exporter."""
    marked()
    prepare_root(root)
    assert in_child(lambda: scanned(UnwatchedProcesses(root, ExporterCounters()))) == {**NONE, "ring": 1}


def test_content_of_a_mark():
    """Reason and text come back; what is too long is cut, what is unknown refused."""
    assert unpack_mark(pack_mark("hooks", "a\nb"), where="m") == ("hooks", "a b")
    assert len(pack_mark("hooks", "x" * 5000)) == MARK_MAX_BYTES
    assert unpack_mark(b"ring\n\x1b[2J\xff", where="m") == ("ring", " [2J�")
    with pytest.raises(MalformedError, match=r"reason in m: got , expected identity or "):
        unpack_mark(b"", where="m")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("variables", "reason", "line"),
    [
        ({"RANK": "zero"}, "identity", "ConfigError: RANK: got 'zero', expected a number"),
        (
            {"RANK": "9999999999"},
            "identity",
            "ConfigError: RANK: got '9999999999', expected a number from 0 to 1048576",
        ),
        ({"LOCKSTEP_RUN": "../x", "RANK": "0"}, "identity", "ConfigError: LOCKSTEP_RUN: got '../x'"),
        ({"LOCKSTEP_RUN": "taken", "RANK": "0"}, "refused", "MalformedError: run directory in "),
    ],
)
def test_training_that_cannot_be_watched_is_counted(root, processes, variables, reason, line):
    """It trains on, prints why once, and counts until it ends."""
    (root / "taken").touch()
    environ = loader_environment({"PATH": os.environ["PATH"], "LOCKSTEP_DIR": str(root), **variables})
    command = [sys.executable, "-c", textwrap.dedent(WAITING)]
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as training:
        assert training.stdout.readline() == "trained\n"
        assert scanned(processes) == {**NONE, reason: 1}
        _, errors = training.communicate()
    (printed,) = errors.splitlines()
    assert printed.startswith(f"lockstep: agent not installed: {line}")
    assert training.returncode == 0
    assert scanned(processes) == NONE


@pytest.mark.torch
@pytest.mark.parametrize("owner", ["1/1", "1/8"], ids=["of one", "of several"])
@pytest.mark.parametrize("forks", [False, True], ids=["itself", "forked"])
def test_training_that_a_rank_started_is_counted(root, processes, owner, forks):
    """It is no rank, and its second step prints nothing more; without a step it does not train, and does not count."""
    environ = loader_environment({"PATH": os.environ["PATH"], "LOCKSTEP_DIR": str(root), OWNER_VARIABLE: owner})
    command = [sys.executable, "-c", textwrap.dedent(STARTED), "fork" if forks else ""]
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as training:
        assert training.stdout.readline() == "ran backward\n"
        assert scanned(processes) == NONE
        training.stdin.write("\n")
        training.stdin.flush()
        assert training.stdout.readline() == "trained\n"
        assert scanned(processes) == {**NONE, "identity": 1}
        _, errors = training.communicate()
    assert errors == "lockstep: this process trains and is not monitored: a rank started it, process 1\n"
    assert training.returncode == 0
    assert scanned(processes) == NONE


@pytest.mark.torch
def test_a_fork_of_a_rank_that_trains_is_counted(root, processes):
    """Next to the rank, which is monitored."""
    environ = loader_environment({"PATH": os.environ["PATH"], "LOCKSTEP_DIR": str(root)})
    command = [sys.executable, "-c", textwrap.dedent(FORKED)]
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as training:
        assert training.stdout.readline() == "trained\n"
        assert scanned(processes) == {**NONE, "identity": 1}
        _, errors = training.communicate()
    assert errors == (
        f"lockstep: this process trains and is not monitored: a rank started it, process {training.pid}\n"
    )
    assert (training.returncode, sum(1 for _ in root.glob("*/0.ring"))) == (0, 1)


@pytest.mark.torch
def test_hooks_that_do_not_fit_are_counted(root, processes, tmp_path):
    """A torch that the hooks do not fit: whatever imports it counts, since no one can see whether it trains."""
    package = tmp_path / "fake" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    environ = loader_environment(
        {"PATH": os.environ["PATH"], "LOCKSTEP_DIR": str(root), "PYTHONPATH": str(package.parent)}
    )
    command = [sys.executable, "-c", "import sys, torch\nprint('imported', flush=True)\nsys.stdin.read()"]
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as importer:
        assert importer.stdout.readline() == "imported\n"
        assert scanned(processes) == {**NONE, "hooks": 1}
        importer.communicate()
