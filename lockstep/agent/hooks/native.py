"""Loads the C++ kernels if a build fits this process exactly.

Never builds; `lockstep build-hooks` does, ahead of training. A build that does not fit, or that another user could have
changed, is not loaded; the kernels in Python replace it (collectives.py), and the reason is stored in the ring's facts.
"""

import hashlib
import sysconfig
from collections.abc import Mapping
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from lockstep.agent.boundary import describe
from lockstep.agent.mark_writer import C_EXTENSION, mark_buffer_type
from lockstep.agent.shared_directory import check_owner, trusted_uids
from lockstep.contracts.errors import LockstepError, MalformedError
from lockstep.contracts.native_hooks import (
    LIBRARY_NAME,
    MANIFEST_NAME,
    NativeTarget,
    read_manifest,
    search_directories,
    source_sha256,
)

IN_CPP, IN_PYTHON = "C++", "Python"
"""The language of a process's kernels."""
_OTHERS_WRITE = 0o022
_MODULE_NAME = "_collectives"
_loaded: dict[Path, Any] = {}


class NoNativeKernelsError(LockstepError):
    """Why this process has no C++ kernels."""


def load(environ: Mapping[str, str]) -> Any:
    """Return the module of the C++ kernels.

    Raises
    ------
    NoNativeKernelsError
        There is none that this process may load; the message is the reason.
    """
    if mark_buffer_type()[1] != C_EXTENSION:
        raise NoNativeKernelsError("the C extension that they leave their marks in is not installed")
    try:
        target = target_of_process()
        directory = _find(target, environ)
        _check(directory, target, trusted_uids({}))  # root's and the own user's: the exporter gives orders, no code
        return import_library(directory / LIBRARY_NAME)
    except NoNativeKernelsError:
        raise
    except (OSError, LockstepError, ImportError) as error:
        raise NoNativeKernelsError(describe(error)) from error


def target_of_process() -> NativeTarget:
    """Return the properties that a build for this process must have.

    Raises
    ------
    OSError
        Files of torch, or the sources, are missing.
    """
    import torch  # noqa: PLC0415  (training imported it)

    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return NativeTarget(
        torch_version=str(torch.__version__),
        torch_git=str(torch.version.git_version),
        torch_bytes=library.stat().st_size,
        cxx11_abi=bool(torch.compiled_with_cxx11_abi()),
        python=str(sysconfig.get_config_var("SOABI")),
        source_sha256=source_sha256(),
    )


def import_library(path: Path) -> Any:
    """Import the kernels from a file, once per process: they register operators, which is possible only once.

    Raises
    ------
    ImportError
        It is for another torch or Python.
    """
    if path not in _loaded:
        spec = spec_from_file_location(_MODULE_NAME, path, loader=ExtensionFileLoader(_MODULE_NAME, str(path)))
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        _loaded[path] = module
    return _loaded[path]


def _find(target: NativeTarget, environ: Mapping[str, str]) -> Path:
    directories = search_directories(environ)
    for directory in directories:
        candidate = directory / target.directory_name
        if (candidate / MANIFEST_NAME).is_file():
            return candidate
    where = " and ".join(map(str, directories))
    raise NoNativeKernelsError(f"none is built for torch {target.torch_version} in {where}: lockstep build-hooks")


def _check(directory: Path, target: NativeTarget, trusted: frozenset[int]) -> None:
    """Refuse a build that is for another process, was changed, or could be by a user who is not trusted."""
    manifest_path, library_path = directory / MANIFEST_NAME, directory / LIBRARY_NAME
    for path in (directory.parent, directory, manifest_path, library_path):
        status = path.stat()
        check_owner(status, trusted, what="C++ kernels", where=path)
        if status.st_mode & _OTHERS_WRITE:
            raise MalformedError(
                "mode of the C++ kernels", where=str(path), got=oct(status.st_mode & 0o777), expected="no other writer"
            )
    manifest = read_manifest(manifest_path)
    if difference := target.difference(manifest.target):
        raise MalformedError("build of the C++ kernels", where=str(directory), got=difference, expected="no difference")
    found = hashlib.sha256(library_path.read_bytes()).hexdigest()
    if found != manifest.library_sha256:
        raise MalformedError("C++ kernels", where=str(library_path), got=found, expected=manifest.library_sha256)
