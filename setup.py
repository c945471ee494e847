"""The build: one import namespace, and three C extensions; everything else is in pyproject.toml.

The folders exporter, coordinator, dashboards and alerts lie at the root of the repository, and a checkout imports them
by these names. A wheel installs them as lockstep.exporter and so on, because a user's project may have folders of the
same names on its path: the build copies each module and adds the namespace to its imports
(docs/decisions/packaging.md).

The extensions are optional: where they cannot be built, the agent writes its marks in Python
(lockstep/agent/mark_buffer.py), and Python alone reads traces (lockstep/trace/kineto/decode.py) and builds
call trees (lockstep/trace/tree.py). One build serves Python 3.11 and newer. LOCKSTEP_PURE=1 leaves them out, for a
wheel that installs everywhere.
"""

import ast
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from setuptools import Extension, find_namespace_packages, setup
from setuptools.command.build_py import build_py

NAMESPACE = "lockstep"
AT_THE_ROOT = ("exporter", "coordinator", "dashboards", "alerts")
IS_EDITABLE = "editable_wheel" in sys.argv  # one line in a .pth file: the checkout's own names
IS_PURE = os.environ.get("LOCKSTEP_PURE") == "1"


def packages_of(*folders: str) -> list[str]:
    """Return the packages in folders, those without code (scripts, styles, texts) included."""
    patterns = [pattern for folder in folders for pattern in (folder, f"{folder}.*")]
    return find_namespace_packages(include=patterns, exclude=["*__pycache__*"])


def with_namespace(text: str, where: str) -> str:
    """Return a module's text that imports our packages from the namespace.

    Raises
    ------
    ValueError
        An import binds the name of a package itself, which the namespace changes: `import exporter.reading`.
    """
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        ours = [name for name in names if name.partition(".")[0] in AT_THE_ROOT]
        if not ours:
            continue
        before, line = f"import {ours[0]}", lines[node.lineno - 1]
        after = f"from {NAMESPACE} import {ours[0]}"
        if isinstance(node, ast.ImportFrom):
            before, after = f"from {ours[0]} ", f"from {NAMESPACE}.{ours[0]} "
        elif line.strip().partition("  #")[0] != before or "." in ours[0]:
            raise ValueError(f"{where}:{node.lineno}: got {line.strip()!r}, expected `from PACKAGE import NAME`")
        at = node.col_offset
        assert line[at:].startswith(before), f"{where}:{node.lineno}"
        lines[node.lineno - 1] = line[:at] + after + line[at + len(before) :]
    return "\n".join(lines)


class BuildNamespace(build_py):
    """Copies modules into the namespace, into an empty folder: what an earlier build left there must not be packed."""

    def run(self) -> None:
        """Build all modules."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()

    def build_module(self, module: str, module_file: str, package: str) -> tuple[str, bool]:
        """Copy one module and change its imports."""
        built, is_copied = super().build_module(module, module_file, package)
        path = Path(built)
        path.write_text(with_namespace(path.read_text("utf-8"), module_file), "utf-8")
        return built, is_copied


def extension(folder: str, name: str, headers: Sequence[str]) -> Extension:
    """Return the optional extension of a C file."""
    return Extension(
        f"{folder.replace('/', '.')}.{name}",
        [f"{folder}/{name}.c"],
        depends=[f"{folder}/{header}" for header in headers],
        extra_compile_args=["-O3"],
        py_limited_api=True,
        optional=True,
    )


def main() -> None:
    """Run the build that setuptools was asked for."""
    own, others = packages_of(NAMESPACE), packages_of(*AT_THE_ROOT)
    headers = ("_mark_queue.h", "_channel.h", "_waiting.h", "_collective_kernel.h")
    extensions = [extension("lockstep/agent", "_marks", headers)]
    if Path("lockstep/trace").exists():  # the agent's own distribution reads no traces
        extensions.append(extension("lockstep/trace/kineto", "_scan", ("_json.h", "_codes.h", "_keys.h", "_lists.h")))
        extensions.append(extension("lockstep/trace", "_tree", ()))
    setup(
        packages=[*own, *(others if IS_EDITABLE else (f"{NAMESPACE}.{name}" for name in others))],
        package_dir={"": "."} if IS_EDITABLE else {f"{NAMESPACE}.{name}": name for name in AT_THE_ROOT},
        cmdclass={} if IS_EDITABLE else {"build_py": BuildNamespace},
        ext_modules=[] if IS_PURE else extensions,
        options={} if IS_PURE else {"bdist_wheel": {"py_limited_api": "cp311"}},
    )


if __name__ == "__main__":  # so does setuptools.build_meta run it
    main()
