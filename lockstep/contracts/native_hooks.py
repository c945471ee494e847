"""Builds of the C++ kernels in front of torch's collectives: where they are stored, and which process may load which.

A build fits one version each of torch, Python and Lockstep. Its directory is named after all three, below one of
`search_directories`. It contains the library and a manifest (JSON), which is written last, once the build has passed
its self-test. `lockstep build-hooks` writes both, and training processes read them (lockstep/agent/hooks/native.py).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lockstep.contracts.errors import MalformedError

HOOKS_VARIABLE = "LOCKSTEP_HOOKS_DIR"
"""Environment variable with the one directory to search, instead of the package's and the user's."""
LIBRARY_NAME = "_collectives.so"
MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 1
_MANIFEST_MAX_BYTES = 1 << 16
_PACKAGE = Path(__file__).resolve().parents[1]
SOURCES = tuple(_PACKAGE / "agent" / name for name in ("hooks/_collectives.cpp", "_channel.h"))
"""The sources of the kernels; the first one is compiled."""
_FOREIGN = re.compile(r"[^A-Za-z0-9._+-]+")


class NativeTarget(NamedTuple):
    """What a build is for; a process loads one whose target equals its own in every field.

    `torch_version` and `torch_git` are from `torch.version`. `torch_bytes` is the size of its libtorch_cpu.so, which
    differs between builds of one version; `cxx11_abi` is the ABI of its C++ library. `python` is the ABI tag of
    extension modules (`SOABI`), `source_sha256` the hash of SOURCES.
    """

    torch_version: str
    torch_git: str
    torch_bytes: int
    cxx11_abi: bool
    python: str
    source_sha256: str

    @property
    def directory_name(self) -> str:
        """Return the name of the build's directory."""
        return _FOREIGN.sub("_", f"torch-{self.torch_version}-{self.python}-{self.source_sha256[:12]}")

    def difference(self, other: "NativeTarget") -> str:
        """Return the first field in which `other` differs, with both values, or an empty text."""
        for name, own, others in zip(self._fields, self, other, strict=True):
            if own != others:
                return f"{name}: got {others}, expected {own}"
        return ""


class Manifest(NamedTuple):
    """A build of `lockstep build-hooks`: its target, its compiler, and the hash of the library."""

    target: NativeTarget
    compiler: str
    library_sha256: str


def source_sha256() -> str:
    """Return the hash of the sources in this installation.

    Raises
    ------
    OSError
        They are missing.
    """
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in SOURCES)).hexdigest()


def search_directories(environ: Mapping[str, str]) -> list[Path]:
    """Return where to search for builds: the configured directory alone, or the package's and then the user's."""
    configured = environ.get(HOOKS_VARIABLE)
    if configured:
        return [Path(configured)]
    return [package_directory(), user_directory(environ)]


def package_directory() -> Path:
    """Return the directory inside the installed package, which all users of an image share."""
    return _PACKAGE / "native_hooks"


def user_directory(environ: Mapping[str, str]) -> Path:
    """Return the user's own directory (XDG Base Directory specification)."""
    cache = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".cache")
    return Path(cache) / "lockstep" / "hooks"


def manifest_to_json(manifest: Manifest) -> str:
    """Return the text of a manifest file."""
    return (
        json.dumps({"version": MANIFEST_VERSION, **manifest._asdict(), "target": manifest.target._asdict()}, indent=1)
        + "\n"
    )


def read_manifest(path: Path) -> Manifest:
    """Return the content of a manifest file.

    Raises
    ------
    OSError
        It cannot be read.
    MalformedError
        It is not a manifest, or has another version.
    """
    with path.open("rb") as file:
        text = file.read(_MANIFEST_MAX_BYTES)
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError("manifest", where=str(path), got=error, expected="JSON") from None
    version = value.get("version") if isinstance(value, dict) else None
    if version != MANIFEST_VERSION:
        raise MalformedError("manifest version", where=str(path), got=version, expected=MANIFEST_VERSION)
    try:
        return Manifest(
            target=NativeTarget(**value["target"]), compiler=value["compiler"], library_sha256=value["library_sha256"]
        )
    except (KeyError, TypeError) as error:
        raise MalformedError("manifest", where=str(path), got=error, expected="the fields of a build") from None
