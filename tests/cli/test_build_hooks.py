"""`lockstep build-hooks`: what it leaves behind, and what it states where it cannot build."""

import json
import os

import pytest

from lockstep.agent.hooks import native
from lockstep.cli import main
from lockstep.cli.native_hooks import build as building
from lockstep.contracts.native_hooks import HOOKS_VARIABLE, LIBRARY_NAME, MANIFEST_NAME
from tests.agent.hooks import native_builds

pytestmark = pytest.mark.torch


def compiler(directory, writes):
    """Return a compiler that copies the file `writes` to where its output is wanted, or fails without one."""
    path = directory / "c++"
    copy = f"cp {writes} $OUTPUT" if writes else "echo no such header >&2; exit 1"
    path.write_text(
        f"#!/bin/sh\n[ $1 = --version ] && echo fake 1.0 && exit\n"
        f"while [ $1 != -o ]; do shift; done; OUTPUT=$2; {copy}\n"
    )
    path.chmod(0o755)
    return path


def build_hooks(output, monkeypatch, compiler_path):
    monkeypatch.setenv(building.COMPILER_VARIABLE, str(compiler_path))
    return main.main(["build-hooks", "--output", str(output)])


def test_a_build_is_loaded_by_a_training(tmp_path, monkeypatch, capsys):
    """It prints what it built; the manifest has the compiler, and a second build takes the place of the first."""
    library = native_builds.library()
    for _ in range(2):
        assert build_hooks(tmp_path / "hooks", monkeypatch, compiler(tmp_path, library)) == 0
    printed = capsys.readouterr().out
    target = native.target_of_process()
    for part in (target.torch_version, target.python, "fake 1.0", "self-test passed", target.directory_name):
        assert part in printed
    directory = tmp_path / "hooks" / target.directory_name
    assert sorted(path.name for path in directory.iterdir()) == [LIBRARY_NAME, MANIFEST_NAME]
    assert json.loads((directory / MANIFEST_NAME).read_text())["compiler"] == "fake 1.0"
    assert native.load({HOOKS_VARIABLE: str(tmp_path / "hooks")})


def test_a_failed_compiler_is_shown(tmp_path, monkeypatch, capsys):
    """With what it printed; no build is left."""
    native_builds.directory()
    assert build_hooks(tmp_path / "hooks", monkeypatch, compiler(tmp_path, None)) == 2
    assert "no such header" in capsys.readouterr().err
    assert not list(tmp_path.glob("hooks/*/*"))


def test_a_library_that_fails_its_self_test_gets_no_manifest(tmp_path, monkeypatch, capsys):
    """One that does not even load is the simplest; the former build is still there."""
    native_builds.directory()
    junk = tmp_path / "junk"
    junk.write_bytes(b"\x7fELF junk")
    assert build_hooks(tmp_path / "hooks", monkeypatch, compiler(tmp_path, native_builds.library())) == 0
    assert build_hooks(tmp_path / "hooks", monkeypatch, compiler(tmp_path, junk)) == 2
    assert "self-test: got exit status 1" in capsys.readouterr().err
    assert native.load({HOOKS_VARIABLE: str(tmp_path / "hooks")})


def test_without_a_compiler_it_names_what_is_missing(tmp_path, monkeypatch, capsys):
    """And which Debian package has one."""
    native_builds.directory()
    monkeypatch.delenv(building.COMPILER_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main.main(["build-hooks", "--output", str(tmp_path / "hooks")]) == 2
    assert "apt install g++" in capsys.readouterr().err


def test_a_directory_that_others_may_write_is_refused(tmp_path, monkeypatch, capsys):
    """A training would load nothing from there; the directory stays as it is."""
    native_builds.directory()
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks").chmod(0o777)
    assert build_hooks(tmp_path / "hooks", monkeypatch, compiler(tmp_path, native_builds.library())) == 2
    assert "no other writer" in capsys.readouterr().err
    assert (tmp_path / "hooks").stat().st_mode & 0o777 == 0o777


def test_the_default_directory_is_the_packages_where_it_can_be_written(monkeypatch, tmp_path):
    """Else the user's own; a configured one first."""
    assert building.default_directory({HOOKS_VARIABLE: "/x"}).parts[1] == "x"
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert building.default_directory({"HOME": str(tmp_path)}) == tmp_path / ".cache" / "lockstep" / "hooks"
    monkeypatch.setattr(os, "access", lambda *_: True)
    assert building.default_directory({}).name == "native_hooks"


def test_the_self_test_is_not_monitored(monkeypatch):
    """Even where `lockstep run` started the build: its process gets no agent of its own."""
    seen = {}

    def run(command, *, env, **_named):
        seen.update(env)
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(building.subprocess, "run", run)
    building.self_test(os.devnull, {"PYTHONPATH": building.SITE_DIRECTORY, "LOCKSTEP_RUN": "x", "PATH": "/bin"})
    assert building.SITE_DIRECTORY not in seen["PYTHONPATH"].split(os.pathsep)
    assert set(seen) == {"PYTHONPATH", "PATH"}
