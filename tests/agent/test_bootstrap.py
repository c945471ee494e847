"""How the agent gets into an interpreter, and that it never keeps one from starting or training."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import lockstep
from lockstep.agent.bootstrap import SITE_DIRECTORY, loader_environment
from lockstep.agent.lineage import OWNER_VARIABLE
from lockstep.contracts.ring import STATE_RAISED
from tests.agent.rings import read_ring

FAKE_TORCH = "import sys\nARRIVED = True\n"
TRAINING = """
    import sys
    import torch
    import tests.support.loaded_torch
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=4):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    print("trained")
"""


def run(code, tmp_path, *, path=(), executable=sys.executable, flags=(), **variables):
    """Run `code` as `lockstep run` would, in a clean environment."""
    environ = {"PATH": os.environ["PATH"], "LOCKSTEP_DIR": str(tmp_path / "shm"), **variables}
    if path:
        environ["PYTHONPATH"] = os.pathsep.join(map(str, path))
    return subprocess.run(
        [executable, *flags, "-c", textwrap.dedent(code)],
        env=loader_environment(environ),
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )


def fake_torch(tmp_path, source=FAKE_TORCH):
    """Make a package called torch that is none, for what happens around the import."""
    package = tmp_path / "fake" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(source)
    return package.parent


def test_loader_environment_puts_our_folder_first_once():
    """What was on PYTHONPATH stays behind ours, other variables stay as they are, and twice is as once."""
    once = loader_environment({"PYTHONPATH": "/a:/b", "X": "1"})
    assert once == {"PYTHONPATH": f"{SITE_DIRECTORY}:/a:/b", "X": "1"}
    assert loader_environment(once) == once
    assert loader_environment({}) == {"PYTHONPATH": SITE_DIRECTORY}
    assert (Path(SITE_DIRECTORY) / "sitecustomize.py").is_file()


@pytest.mark.torch
def test_training_with_a_late_import_is_watched(tmp_path):
    """With RANK set and no change to the script, its steps are in the ring and its end is reported."""
    done = run(TRAINING, tmp_path, RANK="0", LOCKSTEP_RUN="job")
    assert (done.stdout, done.stderr, done.returncode) == ("trained\n", "", 0)
    found = read_ring(tmp_path / "shm" / "job" / "0.ring")
    assert (found.step_count, found.state) == (3, 2)


@pytest.mark.torch
def test_training_that_dies_is_not_finished(tmp_path):
    """An exception that ends the script is what the ring shows, and so does its state."""
    done = run(textwrap.dedent(TRAINING) + "\nraise SystemError('x')", tmp_path, RANK="0", LOCKSTEP_RUN="job")
    assert done.returncode == 1
    assert read_ring(tmp_path / "shm" / "job" / "0.ring").state == STATE_RAISED


@pytest.mark.torch
def test_no_space_for_the_ring_leaves_training_alone(tmp_path):
    """A full file system is one line on stderr."""
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
    done = run(limit + textwrap.dedent(TRAINING), tmp_path, RANK="0", LOCKSTEP_RUN="job")
    assert (done.stdout, done.returncode) == ("trained\n", 0)
    (line,) = done.stderr.splitlines()
    assert line.startswith("lockstep: agent not installed: OSError:")
    assert list((tmp_path / "shm" / "job").iterdir()) == []


@pytest.mark.torch
def test_an_interpreter_without_its_lock_is_left_alone(tmp_path):
    """A free-threaded Python gets one line on stderr that names the way out, and trains."""
    unlocked = "import sys\nsys._is_gil_enabled = lambda: False\n"
    done = run(unlocked + textwrap.dedent(TRAINING), tmp_path, RANK="0", LOCKSTEP_RUN="job")
    assert (done.stdout, done.returncode) == ("trained\n", 0)
    (line,) = done.stderr.splitlines()
    assert line.endswith("interpreter: got one that runs without its lock, expected PYTHON_GIL=1")
    assert not (tmp_path / "shm" / "job").exists()


SUBINTERPRETER = """
    import importlib
    try:
        interpreters = importlib.import_module("_xxsubinterpreters")
    except ImportError:  # its name from Python 3.13 on
        interpreters = importlib.import_module("_interpreters")
    other = interpreters.create()
    interpreters.run_string(other, {code!r})
"""


@pytest.mark.torch
def test_a_subinterpreter_is_left_alone(tmp_path):
    """One that imports the agent and names its steps gets one line on stderr; the main one is recorded."""
    stepping = "import lockstep\nimport lockstep.agent.mark_writer\nlockstep.install()\nlockstep.step_end()\nlockstep.step_end()"
    code = textwrap.dedent(TRAINING) + textwrap.dedent(SUBINTERPRETER).format(code=stepping)  # torch fails behind one
    done = run(code, tmp_path, RANK="0", LOCKSTEP_RUN="job")
    assert (done.stdout, done.returncode) == ("trained\n", 0)
    (line,) = done.stderr.splitlines()
    assert line == "lockstep: agent not installed: interpreter: got a subinterpreter, expected the main one"
    found = read_ring(tmp_path / "shm" / "job" / "0.ring")
    assert (found.step_count, found.state) == (3, 2)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"RANK": "zero"}, "RANK: got 'zero', expected a number"),
        ({"RANK": "0", "LOCKSTEP_RUN": "../../etc"}, "LOCKSTEP_RUN: got '../../etc'"),
        ({"RANK": "0", "LOCKSTEP_DIR": "/proc/none"}, "FileNotFoundError"),
    ],
)
def test_bad_environment_leaves_training_alone(tmp_path, variables, reason):
    """What cannot be used is one line on stderr that names it."""
    done = run(TRAINING, tmp_path, **variables)
    assert (done.stdout, done.returncode) == ("trained\n", 0)
    (line,) = done.stderr.splitlines()
    assert line.startswith("lockstep: agent not installed: ")
    assert reason in line


@pytest.mark.torch
def test_installing_by_hand_works_before_and_after_torch(tmp_path):
    """`lockstep.install()` needs no loader, may come twice and at either side of the import."""
    code = """
        import lockstep, sys
        print(lockstep.install(), "torch" in sys.modules)
        import torch
        print(lockstep.install(), type(torch.autograd.Variable._execution_engine).__module__)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={"LOCKSTEP_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True False\nTrue lockstep.agent.hooks.backward\n"
    assert done.stderr == ""


@pytest.mark.torch
@pytest.mark.parametrize("variables", [{}, {"RANK": "0"}])
def test_process_that_never_trains_leaves_nothing(tmp_path, variables):
    """A process that imports torch, computes and loads data has no files, no mark in its environment, no output."""
    code = """
        import os, torch
        list(torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=4))
        torch.nn.Linear(4, 1)(torch.ones(2, 4))
        print([name for name in os.environ if name.startswith("LOCKSTEP_AGENT")])
    """
    done = run(code, tmp_path, **variables)
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)
    assert not (tmp_path / "shm").exists()


@pytest.mark.torch
def test_training_without_a_launcher_is_rank_0_of_1(tmp_path):
    """`lockstep run python train.py` alone: the process is the whole job."""
    done = run(TRAINING, tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("trained\n", "", 0)
    header = read_ring(tmp_path / "shm" / "default" / "0.ring").header
    assert (header.rank, header.world_size, header.local_rank) == (0, 1, 0)


@pytest.mark.torch
def test_rank_that_is_set_after_the_start_counts(tmp_path):
    """Launchers that start Python first (Ray's workers) set the variables later: they count when training begins."""
    late = 'import os, torch\nos.environ.update(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCKSTEP_RUN="late")\n'
    done = run(late + textwrap.dedent(TRAINING), tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("trained\n", "", 0)
    header = read_ring(tmp_path / "shm" / "late" / "1.ring").header
    assert (header.rank, header.world_size, header.local_rank) == (1, 2, 1)


@pytest.mark.torch
def test_child_of_a_rank_of_several_gets_no_hooks(tmp_path):
    """A loader or compile worker that a rank started imports torch as without us."""
    code = """
        import sys, torch
        print(sorted(name for name in sys.modules if name.startswith("lockstep.agent.")))
    """
    done = run(code, tmp_path, RANK="0", **{OWNER_VARIABLE: "1/2"})
    assert done.stdout == "['lockstep.agent.bootstrap', 'lockstep.agent.lineage']\n"


@pytest.mark.parametrize("variables", [{}, {"RANK": "0"}])
def test_loader_imports_no_torch_and_little_else(tmp_path, variables):
    """The loader waits for torch; what it imports is three modules of ours and none of anyone else's."""
    code = """
        import sys
        print(sorted(name for name in sys.modules if name.startswith("lockstep")))
        print([name for name in ("torch", "importlib.util", "typing", "pathlib", "json") if name in sys.modules])
    """
    bare = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env={}, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    loaded = run(code, tmp_path, **variables)
    assert loaded.stdout.splitlines()[0] == (
        "['lockstep', 'lockstep.agent', 'lockstep.agent.bootstrap', 'lockstep.contracts', 'lockstep.contracts.version']"
    )
    assert loaded.stdout.splitlines()[1] == bare.stdout.splitlines()[1]


def test_failing_installation_leaves_the_import_alone(tmp_path):
    """A torch that the hooks do not fit is imported as ever; one line states that the agent is not there."""
    code = "import sys, torch\nprint(torch.ARRIVED, [f for f in sys.meta_path if 'lockstep' in type(f).__module__])"
    done = run(code, tmp_path, path=[fake_torch(tmp_path)], RANK="0")
    assert (done.stdout, done.returncode) == ("True []\n", 0)
    (line,) = done.stderr.splitlines()
    assert line == "lockstep: agent not installed: No module named 'torch.utils'"


BROKEN_FILES = """
    import sys
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name in {names!r}:
                raise SyntaxError(name)
    sys.meta_path.insert(0, Broken())
"""
ODD_STDERR = """
    import sys
    class Odd:
        def write(self, text):
            raise RuntimeError(text)
        def flush(self):
            pass
    sys.stderr = Odd()
"""


@pytest.mark.parametrize(
    "before",
    [
        BROKEN_FILES.format(names=["lockstep.agent.lineage", "lockstep.agent.unwatched"]),
        BROKEN_FILES.format(names=["lockstep.agent.unwatched"]),
        ODD_STDERR,
    ],
    ids=["files half updated", "mark alone", "stderr of the training"],
)
def test_what_fails_while_a_failure_is_reported_leaves_the_import_alone(tmp_path, before):
    """Be it the line, or the mark for the exporter: whatever is raised, the training gets its torch."""
    code = textwrap.dedent(before) + "import torch\nprint(torch.ARRIVED)"
    done = run(code, tmp_path, path=[fake_torch(tmp_path)], RANK="0")
    assert (done.stdout, done.returncode) == ("True\n", 0)


@pytest.mark.torch
def test_child_of_a_rank_whose_files_are_gone_steps_on(tmp_path):
    """The report that it trains fails once, in one line, and its optimizer steps."""
    code = textwrap.dedent(BROKEN_FILES.format(names=["lockstep.agent.unwatched"])) + textwrap.dedent(TRAINING)
    done = run(code, tmp_path, RANK="0", **{OWNER_VARIABLE: "1/2"})
    assert (done.stdout, done.returncode) == ("trained\n", 0)
    assert done.stderr == "lockstep: agent not installed: lockstep.agent.unwatched\n"


def test_failing_import_of_torch_is_the_users(tmp_path):
    """An exception inside torch's own import arrives as it was."""
    broken = fake_torch(tmp_path, "raise ImportError('libcudart')\n")
    done = run("import torch", tmp_path, path=[broken], RANK="0")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ImportError: libcudart"


def test_absent_torch_is_absent(tmp_path):
    """Where there is no torch, the import fails as without us."""
    done = run("import torch", tmp_path, flags=["-S"], RANK="0")
    assert "No module named 'torch'" in done.stderr
    done = run(
        "import sys\nsys.path[:] = [p for p in sys.path if 'site-packages' not in p]\nimport torch", tmp_path, RANK="0"
    )
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'torch'"


def test_interpreter_without_lockstep_finds_it_last(tmp_path):
    """The loader works for an interpreter that has no lockstep, and puts nothing in front of its path."""
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    code = """
        import sys
        import lockstep.agent.bootstrap as bootstrap
        print(bootstrap.SITE_DIRECTORY in sys.path[:2], sys.path[-1], any("_TorchFinder" in str(f) for f in sys.meta_path))
    """
    done = run(code, tmp_path, executable=str(base), RANK="0")
    root = Path(lockstep.__file__).parent.parent
    assert (done.stdout, done.stderr) == (f"True {root} True\n", "")


def test_shadowed_sitecustomize_is_loaded(tmp_path):
    """The one that ours hides runs, under its own name, once; ours stays out of its way."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text(
        "import sys\nsys.seen = [*getattr(sys, 'seen', []), (__name__, __file__)]\n"
    )
    code = "import sys, sitecustomize\nprint(sys.seen, sitecustomize.__file__)"
    for variables in ({}, {"RANK": "0"}):
        done = run(code, tmp_path, path=[other], **variables)
        file = str(other / "sitecustomize.py")
        assert done.stdout == f"{[('sitecustomize', file)]} {file}\n"
        assert done.stderr == ""


def test_shadowed_sitecustomize_fails_as_ever(tmp_path):
    """Its exceptions are reported by Python as if ours were not there, and the program runs."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    done = run("print('ran')", tmp_path, path=[other], RANK="0")
    assert (done.stdout, done.returncode) == ("ran\n", 0)
    assert "ValueError: theirs" in done.stderr
