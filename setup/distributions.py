"""Builds the published wheels and source distributions of `lockstep-monitor` and `lockstep-monitor-agent`.

`python setup/distributions.py --output dist` builds both, with the agent's C extension for this machine; `--pure`
builds wheels without it, which install everywhere; `--stage-agent DIR` writes the agent's project, for `pip install
DIR`. Both are built from copies, so nothing is left in the checkout. Needs the version of setuptools in pyproject.toml.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
PACKAGES = ("lockstep", "exporter", "coordinator", "dashboards", "alerts")
AGENT_PROJECT = {
    "pyproject.toml": "setup/agent/pyproject.toml",
    "README.md": "setup/agent/README.md",
    "setup.py": "setup.py",
    "LICENSE": "LICENSE",
}
AGENT = (
    *("lockstep/__init__.py", "lockstep/py.typed", "lockstep/agent", "lockstep/contracts", "lockstep/doctor"),
    *("lockstep/cli/__init__.py", "lockstep/cli/main.py", "lockstep/cli/run_command.py"),
    *("lockstep/cli/doctor_command.py", "lockstep/cli/build_hooks_command.py", "lockstep/cli/native_hooks"),
)
"""The content of a training image's distribution: the agent, what it shares with the services, and three commands."""
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
_BUILD = """
import sys
from setuptools import build_meta
output = sys.argv[1]  # the build replaces sys.argv
build_meta.build_wheel(output)
build_meta.build_sdist(output)
"""


def stage(directory: Path, files: Iterable[tuple[str, str]]) -> None:
    """Copy files and folders of the repository, given as (to, from), into a directory."""
    for to, source in files:
        target = directory / to
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, ignore=_LEFT_OUT)
        else:
            shutil.copyfile(ROOT / source, target)


def stage_agent(directory: Path) -> None:
    """Write the project of the agent's distribution."""
    stage(directory, [*AGENT_PROJECT.items(), *((path, path) for path in AGENT)])


def stage_monitor(directory: Path) -> None:
    """Write the project of the whole distribution."""
    stage(directory, [(path, path) for path in (*PROJECT, *PACKAGES)])


def build(output: Path, *, is_pure: bool) -> list[Path]:
    """Build both distributions and return their files.

    Raises
    ------
    subprocess.CalledProcessError
        A build failed; its output is on standard error.
    """
    output.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"LOCKSTEP_PURE": "1" if is_pure else "0"}
    files: list[Path] = []
    for write_project in (stage_monitor, stage_agent):
        with TemporaryDirectory() as project, TemporaryDirectory(dir=output) as built:
            write_project(Path(project))
            command = [sys.executable, "-c", _BUILD, str(Path(built).resolve())]
            subprocess.run(command, cwd=project, env=environment, check=True, stdout=sys.stderr)  # noqa: S603
            files += [path.replace(output / path.name) for path in sorted(Path(built).iterdir())]
    return files


def main(arguments: Sequence[str] | None = None) -> int:
    """Build or stage; returns the exit status."""
    parser = argparse.ArgumentParser(prog="setup/distributions.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", metavar="DIR", help="where files go")
    parser.add_argument("--pure", action="store_true", help="wheels without the agent's C extension, for any platform")
    parser.add_argument("--stage-agent", type=Path, metavar="DIR", help="write the agent's project there and end")
    given = parser.parse_args(arguments)
    if given.stage_agent is not None:
        stage_agent(given.stage_agent)
        return 0
    for path in build(given.output, is_pure=given.pure):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
