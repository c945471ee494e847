"""`lockstep run -- COMMAND`: loads the agent and replaces itself with a training command."""

import argparse
import os
import pwd
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lockstep.agent.bootstrap import loader_environment
from lockstep.agent.lineage import OWNER_VARIABLE
from lockstep.agent.throughput.options import check_option
from lockstep.contracts.domains import DEFAULT_ORDER, check_order, parse_degrees
from lockstep.contracts.errors import ConfigError, LocalError
from lockstep.contracts.launchers import gives_rank
from lockstep.contracts.ownership import EXPORTER_UID_VARIABLE
from lockstep.contracts.paths import (
    DEFAULT_ROOT,
    ROOT_VARIABLE,
    RUN_VARIABLE,
    check_name,
    inspector_directory,
    root_directory,
)

_EXPORTER_USER = "lockstep"
"""The exporter's user, which deploy/systemd creates."""
_OPTIONS = {
    "--tokens": ("LOCKSTEP_TOKENS", "auto, off, a number per step, or where in the batch, like attention_mask"),
    "--samples": ("LOCKSTEP_SAMPLES", "the same for samples"),
    "--model-flops": ("LOCKSTEP_MODEL_FLOPS", "auto (6 x parameters x tokens), measure, off, or FLOPs per token"),
    "--parameters": ("LOCKSTEP_PARAMETERS", "parameters that work on a token, on one rank"),
    "--peak-flops": ("LOCKSTEP_PEAK_FLOPS", "dense peak FLOP/s of one device"),
    "--dtype": ("LOCKSTEP_DTYPE", "number format of the matrix products, like bf16 or fp8"),
}


_LAYOUT = {
    "--degrees": ("LOCKSTEP_DEGREES", "parallel degrees, like tp=8,cp=1,ep=1,dp=16,pp=4"),
    "--order": ("LOCKSTEP_ORDER", f"order of ranks, fastest varying first (default: {DEFAULT_ORDER})"),
}
_INSPECTOR_INTERVAL_US = 1_000_000
"""Interval between two dumps of the Inspector: its thread sleeps meanwhile, and its own buffer holds 1,024 collectives.
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "run",
        help="start a training command with the agent loaded",
        description="Replaces itself with COMMAND. Its processes load the agent when they import torch. The agent "
        "monitors those that train, whatever launcher started them. Nothing else changes: if the agent fails, the "
        "training goes on without it.",
    )
    parser.add_argument(
        "--run", metavar="NAME", help=f"name of the run (default: ${RUN_VARIABLE}, or the launcher's name of the job)"
    )
    parser.add_argument("--root", metavar="DIR", help=f"directory shared with the exporter (default: {DEFAULT_ROOT})")
    parser.add_argument(
        "--nccl-inspector",
        metavar="PATH",
        help="load the profiler plugin NCCL Inspector or RCCL Inspector (.so), which times collectives on the device "
        "(docs/inspector.md); variables that are already set keep their values",
    )
    layout = parser.add_argument_group(
        "domains", "for process groups whose names do not show their kind (docs/domains.md)"
    )
    for flag, (variable, text) in _LAYOUT.items():
        layout.add_argument(flag, metavar="VALUE", dest=variable, help=text)
    throughput = parser.add_argument_group("throughput and MFU", "each also an environment variable; default: auto")
    for flag, (variable, text) in _OPTIONS.items():
        throughput.add_argument(flag, metavar="VALUE", dest=variable, help=text)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the training command")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Replace this process with the training command.

    Raises
    ------
    LocalError
        There is no command, or it cannot be started.
    ConfigError
        A setting is invalid.
    """
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise LocalError("command of lockstep run: got nothing, expected e.g. lockstep run -- torchrun train.py")
    environment = loader_environment(os.environ)
    if not gives_rank(
        environment
    ):  # started by a process that trained alone: a job of its own, and no helper of that one
        environment.pop(OWNER_VARIABLE, None)
    if arguments.run is not None:
        environment[RUN_VARIABLE] = check_name(arguments.run, "--run")
    if arguments.root is not None:
        environment[ROOT_VARIABLE] = os.path.abspath(arguments.root)  # noqa: PTH100  (must not resolve links)
    root_directory(environment)  # here once, not by each rank
    for flag, (variable, _) in _OPTIONS.items():
        value = getattr(arguments, variable)
        if value is not None:
            environment[variable] = check_option(variable, value, where=flag)
    environment |= _layout(arguments)
    if arguments.nccl_inspector is not None:
        environment = inspector_environment(environment, arguments.nccl_inspector) | environment
    if EXPORTER_UID_VARIABLE not in environment:
        with suppress(KeyError):  # no such user: the exporter runs as this one, or as root
            environment[EXPORTER_UID_VARIABLE] = str(pwd.getpwnam(_EXPORTER_USER).pw_uid)
    program = shutil.which(command[0])
    if program is None:
        raise LocalError(f"command of lockstep run: got {command[0]!r}, expected a program on PATH")
    os.execve(program, command, environment)  # noqa: S606  (the user's own command, no shell)


def inspector_environment(environ: Mapping[str, str], plugin: str) -> dict[str, str]:
    """Return the variables that make NCCL or RCCL load its Inspector, which writes where the node's exporter reads.

    Empty, with a line on standard error, if no exporter has created that directory, because nothing would empty it.

    Raises
    ------
    ConfigError
        The plugin is not a readable file.
    """
    path = os.path.abspath(plugin)  # noqa: PTH100  (must not resolve links)
    if not os.access(path, os.R_OK) or not Path(path).is_file():
        raise ConfigError(
            f"--nccl-inspector: got {plugin!r}, expected the plugin's file, libnccl-profiler-inspector.so"
        )
    directory = inspector_directory(root_directory(environ))
    if not os.access(directory, os.W_OK | os.X_OK):
        print(f"lockstep: --nccl-inspector ignored: got no {directory}, expected an exporter's", file=sys.stderr)
        return {}
    return {
        "NCCL_PROFILER_PLUGIN": path,
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_PROM_DUMP": "0",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": str(_INSPECTOR_INTERVAL_US),
        "NCCL_INSPECTOR_DUMP_DIR": str(directory),
    }


def _layout(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the given layout of the job, checked as far as possible before the world size is known."""
    given = {variable: getattr(arguments, variable) for variable, _ in _LAYOUT.values()}
    degrees, order = given["LOCKSTEP_DEGREES"], given["LOCKSTEP_ORDER"]
    if degrees is not None:
        parse_degrees(degrees, where="--degrees")
    if order is not None:
        check_order(order, where="--order")
    return {variable: value for variable, value in given.items() if value is not None}
