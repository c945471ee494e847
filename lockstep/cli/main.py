"""The `lockstep` command: parses, dispatches, and turns our errors into one line and an exit status.

Sub-commands import their dependencies when they run: `lockstep run` works in an image that has only the agent's
distribution.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from lockstep.contracts.errors import LockstepError
from lockstep.contracts.version import VERSION

EXIT_ERROR = 2
EXIT_PIPE = 141
"""The status that a shell reports for a program that SIGPIPE ended."""
EXTRA_PACKAGES = frozenset(
    (
        *("aiohttp", "bcrypt", "distributed", "mqtt5", "msgspec", "numpy", "prometheus_client"),
        *("pyarrow", "rich", "torch", "yaml"),
    )
)
"""Packages that only some commands need; the base install, made for training images, has none of them."""


COMMANDS = (
    *("run", "services", "injector", "replay", "report", "compare", "top", "profile", "forward"),
    *("analyze", "simulate", "whatif", "calibrate", "specify", "fuse", "doctor", "build_hooks", "export"),
    *("preview", "completion", "demo"),
)
"""Modules lockstep/cli/NAME_command.py, in the order of the help; each adds one sub-command, `services` three."""


class CommandHelp(argparse.HelpFormatter):
    """The help of a sub-command. Lines that begin with two spaces are examples and are not wrapped."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n".join(line if line.startswith("  ") else fill(line, width, indent) for line in text.splitlines())


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the installed commands; each sub-command sets `execute`, which takes the arguments."""
    parser = argparse.ArgumentParser(
        prog="lockstep", description="Finds what holds a synchronous training job back and reports it in Prometheus."
    )
    parser.add_argument("--version", action="version", version=f"lockstep {VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = f"lockstep.cli.{name}_command"
        if find_spec(module) is not None:  # the agent's distribution has three of them
            import_module(module).add(commands)
    for command in commands.choices.values():
        command.formatter_class = CommandHelp
        command.set_defaults(command_parser=command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; 2 for wrong input, described on stderr."""
    parsed, unknown = build_parser().parse_known_args(arguments)
    if unknown:  # argparse would print the usage of `lockstep`, which lists none of the command's options
        command = parsed.command_parser
        command.error(f"unrecognized arguments: {' '.join(unknown)}; {command.prog} --help lists what it takes")
    try:
        status = int(parsed.execute(parsed))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has closed it: `lockstep ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at exit
        return EXIT_PIPE
    except LockstepError as error:
        print(f"lockstep: {error}", file=sys.stderr)
        return EXIT_ERROR
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_PACKAGES:
            raise
        extra = {"distributed": "cluster", "torch": "demo"}.get(package, "all")
        needed = f"this command needs {package}: pip install 'lockstep-monitor[{extra}]' ('.[{extra}]' in a checkout)"
        print(f"lockstep: {needed}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
