"""Which builds of the C++ kernels a training process loads, and why not the others."""

import json
import os
import shutil
from pathlib import Path

import pytest

from lockstep.agent.hooks import native
from lockstep.contracts import native_hooks
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.native_hooks import HOOKS_VARIABLE, LIBRARY_NAME, MANIFEST_NAME
from tests.agent.hooks import native_builds

pytestmark = pytest.mark.torch


@pytest.fixture
def build(tmp_path):
    """Return the directory of a copy of the build, with nothing wrong."""
    name = native.target_of_process().directory_name
    shutil.copytree(native_builds.directory() / name, tmp_path / "hooks" / name)
    for path in (tmp_path / "hooks", tmp_path / "hooks" / name):
        path.chmod(0o755)
    return tmp_path / "hooks" / name


def refusal(build, **variables):
    with pytest.raises(native.NoNativeKernelsError) as caught:
        native.load({HOOKS_VARIABLE: str(build.parent), **variables})
    return str(caught.value)


def change(build, **values):
    manifest = json.loads((build / MANIFEST_NAME).read_text())
    manifest["target"] |= values
    (build / MANIFEST_NAME).write_text(json.dumps(manifest))


def test_a_build_for_this_process_is_loaded(build):
    """Torch, Python and sources are the ones of the manifest, and the file is this user's."""
    assert native.load({HOOKS_VARIABLE: str(build.parent)}).CHANNEL_VERSION == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("torch_version", "2.13.0+cu130"),
        ("torch_git", "0" * 40),
        ("torch_bytes", 1),
        ("cxx11_abi", False),
        ("python", "cpython-312-x86_64-linux-gnu"),
        ("source_sha256", "0" * 64),
    ],
)
def test_a_build_for_another_process_is_refused(build, field, value):
    """The reason names the first field that differs, with both values."""
    change(build, **{field: value})
    assert f"{field}: got {value}, expected " in refusal(build)


def test_a_changed_library_is_refused(build):
    """Its hash is in the manifest."""
    with (build / LIBRARY_NAME).open("ab") as file:
        file.write(b"\0")
    assert LIBRARY_NAME in refusal(build)


@pytest.mark.parametrize("name", ["", ".", LIBRARY_NAME, MANIFEST_NAME])
def test_what_others_may_write_is_refused(build, name):
    """A library runs inside the training: no one but its owner may have changed it, or the directories above."""
    path = build.parent if not name else build / name
    path.chmod(0o777)
    assert "no other writer" in refusal(build)


@pytest.mark.parametrize("name", ["", LIBRARY_NAME, MANIFEST_NAME])
def test_another_users_build_is_refused(build, name):
    """Root's builds and the training user's own count."""
    if os.geteuid() != 0:
        pytest.skip("only root gives a file to another user")
    os.chown(build / name, 12345, -1)
    assert "uid 12345" in refusal(build)


def test_the_exporters_build_is_refused(build):
    """It may order captures, and bring no code into a training."""
    if os.geteuid() != 0:
        pytest.skip("only root gives a file to another user")
    os.chown(build / LIBRARY_NAME, 12345, -1)
    assert "uid 12345" in refusal(build, LOCKSTEP_EXPORTER_UID="12345")


@pytest.mark.skipif(native.mark_buffer_type()[0] is None, reason="the C extension is not installed")
def test_without_a_build_the_reason_names_the_build_command(tmp_path):
    """It is for this torch that none is there."""
    assert "lockstep build-hooks" in refusal(tmp_path / "hooks" / "any")


def test_without_the_extension_nothing_is_loaded(build, monkeypatch):
    """The kernels leave their marks in it."""
    monkeypatch.setattr(native, "mark_buffer_type", lambda: (None, "pure Python"))
    assert "C extension" in refusal(build)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 2}', '{"version": 1}', '{"version": 1, "target": {}}'])
def test_a_manifest_that_is_none_is_refused(build, text):
    """Whatever the file holds, it is a reason."""
    (build / MANIFEST_NAME).write_text(text)
    assert MANIFEST_NAME in refusal(build)


def test_a_manifest_is_read_as_it_was_written(tmp_path):
    """Every field, and nothing else."""
    target = native.target_of_process()
    manifest = native_hooks.Manifest(target=target, compiler="c++ 12", library_sha256="ab")
    (tmp_path / "m").write_text(native_hooks.manifest_to_json(manifest))
    assert native_hooks.read_manifest(tmp_path / "m") == manifest
    with pytest.raises(MalformedError):
        native_hooks.read_manifest(Path(__file__))


def test_builds_are_looked_for_in_the_package_and_in_the_users_cache(tmp_path):
    """A configured directory stands alone."""
    places = native_hooks.search_directories({"HOME": str(tmp_path)})
    assert [place.name for place in places] == ["native_hooks", "hooks"]
    assert places[1] == tmp_path / ".cache" / "lockstep" / "hooks"
    assert native_hooks.search_directories({"XDG_CACHE_HOME": "/x", "HOME": "/y"})[1].parts[1] == "x"
    assert native_hooks.search_directories({HOOKS_VARIABLE: "/z"}) == [Path("/z")]
