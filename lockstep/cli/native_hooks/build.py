"""Builds the C++ kernels for this interpreter's torch: compile, self-test, and only then the manifest."""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep.agent.bootstrap import SITE_DIRECTORY
from lockstep.agent.hooks import native
from lockstep.agent.mark_writer import C_EXTENSION, mark_buffer_type
from lockstep.contracts.errors import ConfigError, FileAccessError, LocalError
from lockstep.contracts.native_hooks import (
    HOOKS_VARIABLE,
    LIBRARY_NAME,
    MANIFEST_NAME,
    SOURCES,
    Manifest,
    NativeTarget,
    manifest_to_json,
    package_directory,
    user_directory,
)

COMPILER_VARIABLE = "CXX"
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-O2", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden")
_LIBRARIES = ("-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10")
_COMPILE_S = 900.0
_SELF_TEST_S = 180.0
_SHOWN_LINES = 20
_DIRECTORY_MODE, _FILE_MODE = 0o755, 0o644
"""Only the owner may write; otherwise a training process refuses the build."""


@dataclass(frozen=True, slots=True)
class Build:
    """A build that passed its self-test: its directory and its manifest."""

    directory: Path
    manifest: Manifest


def build(output: Path | None, environ: Mapping[str, str]) -> Build:
    """Build into `output`, by default into the package's directory if it is writable, otherwise into the user's own.

    Raises
    ------
    ConfigError
        A requirement is missing: a compiler, torch's headers, the C extension.
    LocalError
        The compiler or the self-test failed; the message ends with their output.
    """
    if mark_buffer_type()[1] != C_EXTENSION:
        raise ConfigError(
            "lockstep's C extension: got none, expected lockstep/agent/_marks: install lockstep again with a C compiler"
        )
    compiler = find_compiler(environ)
    parent = (output or default_directory(environ)).resolve()
    target = native.target_of_process()
    directory = parent / target.directory_name
    try:
        for path in (parent, directory):
            if not path.exists():  # leave existing directories as they are
                path.mkdir(parents=True)
                path.chmod(_DIRECTORY_MODE)
        with TemporaryDirectory(dir=directory) as work:
            library = Path(work) / LIBRARY_NAME
            compile_library(compiler, library, environ)
            self_test(library, environ)
            manifest = Manifest(target=target, compiler=version_of(compiler), library_sha256=_sha256(library))
            _put(directory, library, manifest)
    except OSError as error:
        what = f"directory {parent} of the C++ kernels"
        raise FileAccessError(what, error, expected="a directory that can be written") from None
    _check_loads(parent, target, environ)
    return Build(directory, manifest)


def default_directory(environ: Mapping[str, str]) -> Path:
    """Return the configured directory, the package's if this user may write there, otherwise the user's own."""
    if configured := environ.get(HOOKS_VARIABLE):
        return Path(configured)
    inside = package_directory()
    is_writable = os.access(inside if inside.exists() else inside.parent, os.W_OK)
    return inside if is_writable else user_directory(environ)


def find_compiler(environ: Mapping[str, str]) -> str:
    """Return the path of the C++ compiler.

    Raises
    ------
    ConfigError
        There is none.
    """
    configured = environ.get(COMPILER_VARIABLE)
    names = (configured,) if configured else _COMPILERS
    for name in names:
        if path := shutil.which(name, path=environ.get("PATH")):
            return path
    raise ConfigError(f"C++ compiler: got none of {', '.join(names)} on PATH, expected one (Debian: apt install g++)")


def version_of(compiler: str) -> str:
    """Return the first line of a compiler's version."""
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)  # noqa: S603  (found on PATH)
    return (done.stdout.splitlines() or [compiler])[0]


def compile_library(compiler: str, library: Path, environ: Mapping[str, str]) -> None:
    """Compile the kernels into a file.

    Raises
    ------
    LocalError
        The compiler failed.
    """
    import torch  # noqa: PLC0415  (a second to import)
    from torch.utils.cpp_extension import include_paths  # noqa: PLC0415

    libraries = Path(torch.__file__).parent / "lib"
    headers = [*include_paths(), sysconfig.get_paths()["include"]]
    command = [
        *(compiler, *_FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"),
        *(part for path in headers for part in ("-isystem", str(path))),
        *(str(SOURCES[0]), "-o", str(library), f"-L{libraries}", *_LIBRARIES),
    ]
    _run(command, environ, "compiler", _COMPILE_S)


def self_test(library: Path, environ: Mapping[str, str]) -> None:
    """Run the self-test in a separate process.

    Raises
    ------
    LocalError
        The kernels differ from those in Python, or crash.
    """
    _run(
        [sys.executable, "-m", "lockstep.cli.native_hooks.self_test", str(library)], environ, "self-test", _SELF_TEST_S
    )


def _run(command: list[str], environ: Mapping[str, str], what: str, limit_s: float) -> None:
    path = [str(Path(SITE_DIRECTORY).parents[2]), *environ.get("PYTHONPATH", "").split(os.pathsep)]
    own = {name: value for name, value in environ.items() if not name.startswith("LOCKSTEP_")}
    own["PYTHONPATH"] = os.pathsep.join(part for part in path if part and part != SITE_DIRECTORY)  # not monitored
    try:
        done = subprocess.run(  # noqa: S603  (our own arguments)
            command, env=own, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise LocalError(f"{what}: got no end in {limit_s:.0f} s: {' '.join(command[:3])} ...") from None
    if done.returncode != 0:
        shown = "\n".join((done.stderr + done.stdout).splitlines()[:_SHOWN_LINES])
        raise LocalError(f"{what}: got exit status {done.returncode}, expected 0\n{shown}")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _put(directory: Path, library: Path, manifest: Manifest) -> None:
    """Replace a former build. In between there is none, and a process that loads kernels then uses Python."""
    (directory / MANIFEST_NAME).unlink(missing_ok=True)
    library.chmod(_FILE_MODE)
    library.replace(directory / LIBRARY_NAME)
    text = library.with_name(MANIFEST_NAME)
    text.write_text(manifest_to_json(manifest), encoding="utf-8")
    text.chmod(_FILE_MODE)
    text.replace(directory / MANIFEST_NAME)


def _check_loads(parent: Path, target: NativeTarget, environ: Mapping[str, str]) -> None:
    try:
        native.load({**environ, HOOKS_VARIABLE: str(parent)})
    except native.NoNativeKernelsError as error:
        raise LocalError(
            f"build in {parent / target.directory_name}: got one that no training loads: {error}"
        ) from None
