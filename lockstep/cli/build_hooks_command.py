"""`lockstep build-hooks`: builds the C++ kernels in front of torch's collectives, ahead of training."""

import argparse
import os
import time
from pathlib import Path

from lockstep.contracts.native_hooks import HOOKS_VARIABLE


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "build-hooks",
        help="build the agent's C++ kernels for the installed torch",
        description="Compiles the kernels that observe collectives for exactly the torch and Python that run this "
        "command, compares them with the kernels in Python in a separate process, and writes a manifest. A training "
        "process loads them if its torch and Python match the manifest; otherwise it observes collectives in Python.",
        epilog=f"It needs a C++ compiler (CXX, or c++ on PATH). If you give --output, set {HOOKS_VARIABLE} to the same "
        "directory for the training process.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="directory of the builds (default: inside the installed package if it is writable, else the user's "
        "~/.cache/lockstep/hooks; a training process looks in both)",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Build, and print the result.

    Raises
    ------
    LockstepError
        The build or its self-test failed.
    """
    from lockstep.cli.native_hooks.build import build  # noqa: PLC0415  (imports torch)

    began_s = time.monotonic()
    built = build(arguments.output, os.environ)
    target, manifest = built.manifest.target, built.manifest
    print(f"torch     {target.torch_version} ({target.torch_git[:12]}), C++11 ABI {int(target.cxx11_abi)}")
    print(f"python    {target.python}")
    print(f"compiler  {manifest.compiler}")
    print(f"library   {built.directory} (sha256 {manifest.library_sha256[:12]})")
    print(f"self-test passed, {time.monotonic() - began_s:.0f} s in all")
    return 0
