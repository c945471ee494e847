"""Interpreters started in every way, and torch imported in every way, with the agent's loader in place."""

import sys
import textwrap
from pathlib import Path

import pytest

from lockstep.agent.bootstrap import SITE_DIRECTORY
from tests.agent.rings import read_ring
from tests.agent.safety.processes import environment, run, watched_environment

ROOT = Path(__file__).parents[3]
LOADED = "import sys\nprint(any(name.startswith('lockstep') for name in sys.modules))"
LATE = """
    import importlib.util, sys, threading

    def train():
        import torch
        torch.set_num_threads(1)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=4):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()

    alive = threading.Event()
    threading.Thread(target=alive.wait, daemon=True).start()
    found = [importlib.util.find_spec("torch").name for _ in range(3)]
    print(found, "torch" in sys.modules)
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    alive.set()
    loader = sys.modules["torch"].__spec__.loader
    print("exec_module" in vars(loader), [f for f in sys.meta_path if "lockstep" in type(f).__module__])
"""
HALF = """
    import sys
    try:
        import torch
    except ImportError as error:
        print(error)
    import torch
    print(torch.ARRIVED)
"""
FAKE = """
    import builtins
    builtins.tries = getattr(builtins, "tries", 0) + 1
    if builtins.tries == 1:
        raise ImportError("libcudart is missing")
    ARRIVED = True
"""


def code(text):
    return ["-c", textwrap.dedent(text)]


@pytest.mark.parametrize("flag", ["-S", "-I", "-E"])
def test_isolated_interpreters_are_left_alone(tmp_path, flag):
    """Nothing of ours is loaded where Python is set to load nothing from outside, and nothing is reported."""
    done = run([flag, *code(LOADED)], watched_environment(tmp_path))
    assert (done.stdout, done.stderr, done.returncode) == ("False\n", "", 0)


def test_isolated_interpreters_can_install_by_hand(tmp_path):
    """`lockstep.install()` works in each of them that can import lockstep."""
    by_hand = f"import sys\nsys.path.append({str(ROOT)!r})\nimport lockstep\nprint(lockstep.install())"
    for flag in ("-S", "-I", "-E"):
        done = run([flag, *code(by_hand)], environment(tmp_path))
        assert (done.stdout, done.stderr) == ("True\n", "")


def test_strict_interpreter_starts_without_a_warning(tmp_path):
    """With every warning an error and the development mode on, loading and installing show nothing."""
    done = run(["-X", "dev", "-W", "error", *code(LOADED)], watched_environment(tmp_path))
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_usercustomize_runs_as_well_as_ours(tmp_path):
    """The user's own start-up module is imported after ours, once."""
    (tmp_path / "usercustomize.py").write_text("import sys\nsys.seen = getattr(sys, 'seen', 0) + 1\n")
    environ = watched_environment(tmp_path, PYTHONPATH=str(tmp_path))
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = "import site, sys\nprint(getattr(sys, 'seen', 0) == int(bool(site.ENABLE_USER_SITE)))"
    starts = f"import subprocess, sys\nprint(subprocess.check_output([{str(base)!r}, '-c', {own!r}], text=True))"
    done = run(code(starts), environ)
    assert (done.stdout.strip(), done.stderr) == ("True", "")
    assert environ["PYTHONPATH"].startswith(SITE_DIRECTORY)


@pytest.mark.torch
def test_torch_imported_late_in_a_thread_is_watched(tmp_path):
    """Asking for torch's spec imports nothing; an import inside a function of a thread is watched, and no trace is left of us."""
    done = run(["-W", "ignore", *code(LATE)], watched_environment(tmp_path))
    assert done.stdout == "['torch', 'torch', 'torch'] False\nFalse []\n", done.stderr
    assert done.stderr == ""
    found = read_ring(tmp_path / "job" / "0.ring")
    assert (found.step_count, found.failures) == (3, 0)


def test_import_that_fails_half_way_is_the_users_and_may_be_tried_again(tmp_path):
    """The error is the one that torch raised; a second import runs as the first did."""
    package = tmp_path / "fake" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(textwrap.dedent(FAKE))
    done = run(code(HALF), watched_environment(tmp_path, PYTHONPATH=str(package.parent)))
    assert (done.stdout, done.returncode) == ("libcudart is missing\nTrue\n", 0)
    (line,) = done.stderr.splitlines()  # the fake has nothing to hook
    assert line.startswith("lockstep: agent not installed: ")
