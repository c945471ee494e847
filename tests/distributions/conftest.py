"""Both distributions, built once for a file of tests, and bare environments to install them into."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the wheels and source distributions as `make dist` builds them."""
    output = tmp_path_factory.mktemp("dist")
    command = [sys.executable, str(ROOT / "setup" / "distributions.py"), "--output", str(output)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert sorted(printed) == sorted(map(str, output.iterdir()))

    def one(pattern):
        (found,) = output.glob(pattern)
        return found

    return SimpleNamespace(
        monitor=one("lockstep_monitor-*.whl"),
        agent=one("lockstep_monitor_agent-*.whl"),
        sources=(one("lockstep_monitor-*.tar.gz"), one("lockstep_monitor_agent-*.tar.gz")),
    )


def bare_environment(directory, wheel, *, has_dependencies):
    """Return the folder of programs of a new environment that holds a wheel.

    Its dependencies are those of this environment, by one line in a .pth file, so that nothing is fetched; the checkout
    is not on its path. It has no pip of its own, whose installation takes longer than the wheel's.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    if has_dependencies:
        (site,) = (directory / "lib").glob("python3*/site-packages")
        paths = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        (site / "dependencies.pth").write_text("\n".join(paths))
    programs = directory / "bin"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        programs / "python",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--ignore-installed",
        wheel,
    ]
    subprocess.run(install, check=True, capture_output=True, text=True)
    return programs
