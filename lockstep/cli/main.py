"""The `lockstep` command: parse, dispatch, and turn our errors into one line and an exit status.

Sub-commands import what they need when they run: `lockstep run` works in an image that has nothing but the base
install.
"""

import argparse
import os
import sys
from collections.abc import Sequence

import lockstep
from lockstep.contracts.errors import LockstepError

EXIT_ERROR = 2
EXIT_PIPE = 141
"""What a shell says of a program that SIGPIPE ended."""
EXTRA_PACKAGES = frozenset(
    (
        *("aiohttp", "bcrypt", "distributed", "mqtt5", "msgspec", "numpy", "prometheus_client"),
        *("pyarrow", "rich", "torch", "yaml"),
    )
)
"""What only some commands need; the base install, made for training images, has none of it."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; each sub-command sets `act`, which takes the arguments."""
    from lockstep.cli import (  # noqa: PLC0415  (cheap, and no cycle)
        analyze_command,
        build_hooks_command,
        calibrate_command,
        compare_command,
        demo_command,
        doctor_command,
        export_command,
        fuse_command,
        injector_command,
        preview_command,
        profile_command,
        replay_command,
        report_command,
        run_command,
        services_command,
        simulate_command,
        specify_command,
        top_command,
        whatif_command,
    )

    parser = argparse.ArgumentParser(
        prog="lockstep", description="Finds who holds a synchronous training job back, and says so in Prometheus."
    )
    parser.add_argument("--version", action="version", version=f"lockstep {lockstep.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    run_command.add(commands)
    services_command.add(commands)
    injector_command.add(commands)
    replay_command.add(commands)
    report_command.add(commands)
    compare_command.add(commands)
    top_command.add(commands)
    profile_command.add(commands)
    analyze_command.add(commands)
    simulate_command.add(commands)
    whatif_command.add(commands)
    calibrate_command.add(commands)
    specify_command.add(commands)
    fuse_command.add(commands)
    doctor_command.add(commands)
    build_hooks_command.add(commands)
    export_command.add(commands)
    preview_command.add(commands)
    demo_command.add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 2 for a wrong input, named on stderr."""
    parsed = build_parser().parse_args(arguments)
    try:
        status = int(parsed.act(parsed))
        sys.stdout.flush()
    except BrokenPipeError:  # who reads our output has had enough: `lockstep ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
        return EXIT_PIPE
    except LockstepError as error:
        print(f"lockstep: {error}", file=sys.stderr)
        return EXIT_ERROR
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_PACKAGES:
            raise
        extra = {"distributed": "cluster", "torch": "demo"}.get(package, "all")
        needed = f"this command needs {package}: pip install '.[{extra}]' in a checkout of Lockstep"
        print(f"lockstep: {needed}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
