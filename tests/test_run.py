"""`make test` and `make test-all`: every part runs, every test belongs to one, and the summary states what failed."""

import itertools
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tests import run
from tests.conftest import pytest_collection_modifyitems

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("torch", "servers", "alone", "frameworks")


def playing(monkeypatch, **scripts: str):
    """Replace the parts of a tier by Python scripts that play pytest."""
    parts = tuple(run.Part(name=name, marked=script) for name, script in scripts.items())
    monkeypatch.setitem(run.TIERS, "quick", parts)
    monkeypatch.setattr(run, "command", lambda part: [sys.executable, "-c", part.marked])


def test_a_part_that_fails_keeps_no_other_from_running(monkeypatch, capsys):
    """All parts run to their end, the failure is named in the summary, and pytest's own lines are the last."""
    playing(
        monkeypatch,
        first="print('FAILED tests/a.py::test_b - boom'); print('=== 1 failed, 2 passed in 1s ==='); exit(1)",
        second="print('=== 3 passed in 1s ===')",
        third="exit(77)",
    )
    assert run.main(["quick"]) == 1
    _, _, summary = capsys.readouterr().out.partition("Summary\n")
    assert [" ".join(line.split()) for line in summary.splitlines()] == [
        "first FAILED",
        "FAILED tests/a.py::test_b - boom",
        "second passed",
        "third NOT RUN: no time namespace here",
        "=== 1 failed, 2 passed in 1s ===",
        "=== 3 passed in 1s ===",
    ]


def test_what_a_young_clock_is_refused_for_runs_all_the_same(monkeypatch, capsys):
    """Where the kernel makes no time namespace, the same tests run by the machine's own clock, and the summary names both."""
    assert (run.JUST_BOOTED.instead, run.JUST_BOOTED.marked) == (run.PURE, run.PURE.marked)
    playing(monkeypatch, young="exit(77)")
    (young,) = run.TIERS["quick"]
    plain = run.Part(name="plain", marked="print('=== 2 passed in 1s ===')")
    monkeypatch.setitem(run.TIERS, "quick", (replace(young, instead=plain),))
    assert run.main(["quick"]) == 0
    _, _, summary = capsys.readouterr().out.partition("Summary\n")
    lines = ["young NOT RUN: no time namespace here", "plain passed", "=== 2 passed in 1s ==="]
    assert [" ".join(line.split()) for line in summary.splitlines()] == lines


@pytest.mark.parametrize(("script", "status"), [("pass", 0), ("exit(5)", 1), ("import os; os.abort()", 1)])
def test_the_status_is_that_of_the_parts(monkeypatch, capsys, script, status):
    """No tests at all (pytest's 5) and a process that dies are failures."""
    playing(monkeypatch, only=script)
    assert run.main(["quick"]) == status
    capsys.readouterr()


@pytest.mark.parametrize("kinds", list(itertools.product((False, True), repeat=len(KINDS))))
def test_each_test_belongs_to_one_part(kinds):
    """Whatever its marks, and no test runs twice; only those of frameworks have their own tier."""
    marks = dict(zip(KINDS, kinds, strict=True))
    chosen = [part.name for tier in ("all", "frameworks") for part in run.TIERS[tier] if eval(part.marked, {}, marks)]
    if marks["frameworks"]:
        assert chosen == ["frameworks"]
    else:
        assert chosen in (["pure, just booted"], ["torch and servers"], ["alone"])


def test_what_a_part_runs_is_pytest():
    """Its marks reach pytest, its prefix comes first."""
    words = run.command(replace(run.JUST_BOOTED, prefix=("in", "there")))
    assert words[:5] == ["in", "there", sys.executable, "-m", "pytest"]
    assert words[words.index(run.PURE.marked) - 1] == "-m"


def test_the_live_tier_is_of_tests_that_are_there():
    """Each path is a file of tests, and none stands twice; the tables come last and are no tests."""
    *parts, endings, alerts = run.TIERS["live"]
    paths = [path for part in parts for path in part.paths]
    assert len(set(paths)) == len(paths)
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    words = run.command(parts[0])
    assert words[-len(parts[0].paths) :] == list(parts[0].paths)
    assert run.command(endings) == [sys.executable, "-m", "benchmarks.run_endings"]
    assert run.command(alerts)[1:] == ["-m", "lockstep.cli.main", "export", "alerts"]


def test_a_table_is_no_closing_line(monkeypatch, capsys):
    """The summary shows whether it was made; its rows stand above."""
    monkeypatch.setitem(run.TIERS, "quick", (run.Part(name="table", module=("this.is.none",)),))
    assert run.main(["quick"]) == 1
    _, _, summary = capsys.readouterr().out.partition("Summary\n")
    assert summary.split() == ["table", "FAILED"]


def test_a_young_clock_is_young_or_nothing_runs():
    """CLOCK_MONOTONIC begins at a minute, or the script states that the kernel refused and ran nothing."""
    code = "import time; print(time.monotonic() < 600)"
    done = subprocess.run(
        ["sh", ROOT / "setup/just_booted.sh", sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    if done.returncode == run.REFUSED:
        assert done.stdout == ""
        assert "did not run" in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "True\n")


def test_the_workflow_runs_what_ci_runs():
    """One script for both."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert workflow["jobs"]["run"]["steps"][-1] == {"run": ".ci/run"}
    script = (ROOT / ".ci/run").read_text()
    assert "make check" in script
    assert "make test-all" in script


SET_UP = (".venv/bin/python", ".venv/.dev system-packages --jobs=2")


@pytest.mark.parametrize("failing", ["", "check", "test-all", *SET_UP])
def test_ci_runs_both_and_fails_if_one_failed(tmp_path, failing):
    """Neither keeps the other from running, and what the check printed is whole and last."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    make = tmp_path / "make"
    make.write_text(
        f'#!/bin/sh\necho "begin $*"\n[ "$1" = test-all ] && sleep 0.5\necho "end $*"\n[ "$*" != "{failing}" ]\n'
    )
    make.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([tmp_path / ".ci/run"], env=environment, capture_output=True, text=True, check=False)
    steps = SET_UP[: SET_UP.index(failing) + 1] if failing in SET_UP else (*SET_UP, "test-all", "check")
    printed = [line for step in steps for line in (f"begin {step}", f"end {step}")]
    assert (done.returncode, done.stdout.splitlines()) == (int(bool(failing)), printed)


@pytest.mark.parametrize("part", [part for part in run.TIERS["all"] if part.marks], ids=lambda part: part.name)
def test_a_part_imports_only_files_that_name_its_marks(part):
    """All of them but those whose tests all belong to another part; the pure tests are in most files, and chosen from all."""
    words = run.command(part)
    listed = [path for path in words if path.startswith("tests/")]
    paths = set(listed)
    texts = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    naming = {path for path, text in texts.items() if any(f"pytest.mark.{mark}" in text for mark in part.marks)}
    needless = set(run.files_without_choice(part.marked))
    assert {str(path.relative_to(ROOT)) for path in naming} - needless <= paths
    assert not paths & needless
    assert len(paths) == len(listed) < 120
    assert not any(path.startswith("tests/") for path in run.command(run.PURE))


def test_the_files_of_two_marks_take_turns(monkeypatch, tmp_path):
    """While some tests wait for servers, others compute; a file with both marks comes once."""
    (tmp_path / "tests").mkdir()
    for name, mark in {"a": "torch", "b": "torch", "c": "torch", "d": "servers", "e": "servers"}.items():
        (tmp_path / "tests" / f"test_{name}.py").write_text(f"@pytest.mark.{mark}")
    (tmp_path / "tests" / "test_f.py").write_text("pytestmark = [pytest.mark.torch, pytest.mark.servers]")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    assert [path[len("tests/test_")] for path in run.files_with_marks(("torch", "servers"))] == list("adbecf")


def test_pure_tests_import_no_file_without_one_of_them(monkeypatch, tmp_path):
    """A file is left out if all of its tests have a mark that the part excludes, not if some have."""
    texts = {
        "whole": "pytestmark = pytest.mark.torch",
        "listed": "pytestmark = [\n    pytest.mark.timeout(5),\n    pytest.mark.servers,\n]",
        "partly": "pytestmark = pytest.mark.timeout(5)\n\n@pytest.mark.torch\ndef test_it():\n    pass",
        "alike": "pytestmark = pytest.mark.torchlight",
        "pure": "",
    }
    (tmp_path / "tests").mkdir()
    for name, text in texts.items():
        (tmp_path / "tests" / f"test_{name}.py").write_text(text)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    ignored = [word for word in run.command(run.PURE) if word.startswith("--ignore")]
    assert ignored == ["--ignore=tests/test_listed.py", "--ignore=tests/test_whole.py"]


def test_the_longest_files_of_a_part_begin_first():
    """Those with a limit of their own, whole and each in its order, and pytest-xdist hands files out as they come."""
    limits = {"a::one": False, "b::two": False, "b::three": True, "c::four": False, "d::five": True}
    items = [
        SimpleNamespace(
            path=Path(nodeid.partition("::")[0]),
            nodeid=nodeid,
            iter_markers=list,
            get_closest_marker=lambda name, has=has: has if name == "timeout" else None,
        )
        for nodeid, has in limits.items()
    ]
    pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == ["b::two", "b::three", "d::five", "a::one", "c::four"]
    assert all("--no-loadscope-reorder" in run.command(part) for part in (run.PURE, run.REAL))


def test_a_mark_that_its_file_does_not_name_is_refused(tmp_path):
    """Else the part of the mark would leave the test out; the conftest.py next to the file may name it as well."""
    for name, conftest in (("hidden", ""), ("named", "pytest.mark.servers")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "conftest.py").write_text(conftest)
        (tmp_path / name / "test_it.py").write_text("")
    hidden, named = (
        SimpleNamespace(
            path=tmp_path / name / "test_it.py",
            nodeid=f"{name}::test_it",
            iter_markers=lambda: [pytest.mark.servers.mark],
            get_closest_marker=lambda _: None,
        )
        for name in ("hidden", "named")
    )
    pytest_collection_modifyitems([named])
    with pytest.raises(pytest.UsageError, match=r"hidden::test_it is marked servers: .* must name mark\.servers"):
        pytest_collection_modifyitems([named, hidden])


def test_parts_write_bytecode(monkeypatch, capfd):
    """Also where the environment forbids it."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    playing(monkeypatch, only="import sys; print('bytecode', not sys.dont_write_bytecode)")
    run.main(["quick"])
    assert "bytecode True" in capfd.readouterr().out
