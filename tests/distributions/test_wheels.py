"""What a stranger installs: one import namespace, next to a project that has folders of our names."""

import ast
import json
import os
import re
import subprocess
import tarfile
import zipfile

import pytest

import lockstep
from tests.distributions.conftest import ROOT, bare_environment
from tests.support.servers import WAIT_S, free_port, get, running, wait_until

pytestmark = pytest.mark.torch  # a minute of builds and installs, once rather than in both parts of pure tests
FOLDERS = ("exporter", "coordinator", "dashboards", "alerts")
DEMO_LIMIT_S = 600
"""Longer than a demonstration on a busy machine, which ends by limits of its own."""
AGENT_PARTS = {"__init__.py", "py.typed", "agent", "contracts", "doctor", "cli"}


def names(wheel):
    """Return the files of a wheel without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def metadata(wheel, name):
    with zipfile.ZipFile(wheel) as archive:
        (found,) = (each for each in archive.namelist() if each.endswith(f".dist-info/{name}"))
        return archive.read(found).decode()


def imported(wheel):
    """Return each module of ours that a module in a wheel imports, by file."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            for node in ast.walk(ast.parse(archive.read(name))) if name.endswith(".py") else ():
                if isinstance(node, ast.ImportFrom | ast.Import):
                    module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                    yield name, module


def run(command, project, limit_s=170):
    """Run a program of an environment in the user's project, which is on the path."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP")}
    return subprocess.run(
        list(map(str, command)),
        cwd=project,
        env=environment | {"PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a user's project with packages of our folders' names, which end a program that imports them."""
    directory = tmp_path_factory.mktemp("project")
    for folder in FOLDERS:
        (directory / folder).mkdir()
        (directory / folder / "__init__.py").write_text(f"raise SystemExit('the project\\'s {folder} was imported')")
    return directory


@pytest.fixture(scope="module")
def programs(built, tmp_path_factory):
    return bare_environment(tmp_path_factory.mktemp("monitor") / "venv", built.monitor, has_dependencies=True)


def test_everything_is_in_one_namespace(built):
    """Every file of the repository's packages is there, below lockstep, and no import leads to the root."""
    for wheel in (built.monitor, built.agent):
        assert {name.split("/")[0] for name in names(wheel)} == {"lockstep"}
        assert metadata(wheel, "top_level.txt").split() == ["lockstep"]
        assert "lockstep/py.typed" in names(wheel)
        assert [found for found in imported(wheel) if (found[1] or "").split(".")[0] in FOLDERS] == []
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert f"lockstep/{path.relative_to(ROOT).as_posix()}" in names(built.monitor)


def test_the_agents_distribution_is_a_part_of_the_whole(built):
    """Agent, contracts and three commands, which import nothing that is not there; no third-party package is asked for."""
    assert names(built.agent) < names(built.monitor)
    assert {name.split("/")[1] for name in names(built.agent)} == AGENT_PARTS
    assert "Requires-Dist" not in metadata(built.agent, "METADATA")
    files = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names(built.agent)}
    for name, module in imported(built.agent):
        if module and module.startswith("lockstep.") and name != "lockstep/__init__.py":
            assert module in files or module in {file.rpartition(".")[0] for file in files}, name


def test_source_distributions_hold_what_their_wheels_are_built_from(built):
    """The extensions with their headers, the build, and every Python file; the agent's reads no traces."""
    for source, wheel in zip(built.sources, (built.monitor, built.agent), strict=True):
        with tarfile.open(source) as archive:
            inside = {name.partition("/")[2] for name in archive.getnames()}
        assert {"pyproject.toml", "setup.py", "LICENSE", "README.md", "lockstep/agent/_marks.c"} <= inside
        assert {f"lockstep/agent/{name}.h" for name in ("_mark_queue", "_channel", "_waiting")} <= inside
        wanted = {name for name in names(wheel) if name.endswith(".py")}
        assert {re.sub(rf"^lockstep/({'|'.join(FOLDERS)})/", r"\1/", name) for name in wanted} <= inside
        reading = {str(path.relative_to(ROOT)) for path in (ROOT / "lockstep/trace").rglob("*.[ch]")}
        assert inside & reading == (reading if wheel == built.monitor else set())
        built_extensions = {name for name in names(wheel) if name.endswith(".abi3.so")}
        for name in ("kineto/_scan", "_tree"):
            assert (f"lockstep/trace/{name}.abi3.so" in built_extensions) is (wheel == built.monitor)


def test_the_commands_work_next_to_a_users_own_folders(programs, project):
    """Doctor, export and services find their own packages, not the project's."""
    assert run([programs / "lockstep", "--version"], project).stdout == f"lockstep {lockstep.__version__}\n"
    ended = run([programs / "lockstep", "doctor", "--json"], project)
    assert json.loads(ended.stdout)["nodes"], ended.stderr
    ended = run([programs / "lockstep", "export", "all", project / "exported"], project)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert list((project / "exported" / "man" / "man1").glob("lockstep-run.1"))
    place = "import lockstep.coordinator as c, exporter"
    assert "the project's exporter was imported" in run([programs / "python", "-c", place], project).stderr


def test_services_start_next_to_a_users_own_folders(programs, project, tmp_path, monkeypatch):
    """`lockstep up` answers, from the wheel."""
    monkeypatch.chdir(project)
    ports = [free_port(), free_port()]
    command = [str(programs / "lockstep"), "up", "--root", str(tmp_path / "rings")]
    command += [f"--exporter-port={ports[0]}", f"--coordinator-port={ports[1]}"]
    log = tmp_path / "up.log"
    with running(command, log, os.environ | {"PYTHONPATH": "."}) as process:
        for port in ports:

            def healthy(port=port):
                assert process.poll() is None, log.read_text()[-3000:]
                return get(f"http://127.0.0.1:{port}/-/healthy")

            wait_until(healthy, WAIT_S, "lockstep up is healthy")
        assert "lockstep.coordinator." in log.read_text()


def test_a_training_image_needs_the_agents_distribution_alone(built, tmp_path, project):
    """In an environment without any other package: a training starts with the agent, and other commands are refused."""
    programs = bare_environment(tmp_path / "venv", built.agent, has_dependencies=False)
    python, command = programs / "python", programs / "lockstep"
    code = "import sys, lockstep; from lockstep.agent import bootstrap; print(lockstep.__file__, 'sitecustomize' in sys.modules)"
    ended = run([command, "run", "--run", "job", "--root", tmp_path / "rings", "--", python, "-c", code], project)
    assert ended.stdout.split() == [str(next((tmp_path / "venv").rglob("lockstep/__init__.py"))), "True"], ended.stderr
    assert run([command, "doctor", "--facts", "-"], project).returncode == 0
    ended = run([command, "coordinator"], project)
    assert ended.returncode == 2
    assert "choose from 'run', 'doctor', 'build-hooks'" in ended.stderr


@pytest.mark.alone  # next to other tests a second rank may really be slow
@pytest.mark.timeout(DEMO_LIMIT_S + 30)
def test_the_demonstration_is_right_next_to_a_users_own_folders(programs, project):
    """Ranks, capture, summary worker and diagnosis, all from the wheel: it ends with 0 and a right verdict on its last line."""
    command = [programs / "lockstep", "demo", "--fault", "data", "--rank", "1", "--json"]
    ended = run(command, project, DEMO_LIMIT_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    verdict = json.loads(ended.stdout.splitlines()[-1])
    assert (verdict["rank"], verdict["cause"], verdict["correct"]) == (1, "data", True)
    assert "read_document" in verdict["function"]
    assert abs(verdict["onset_step"] - verdict["fault_step"]) <= 3
