"""`lockstep demo`: monitors a real job with a real fault, and prints a verdict; exit 0 only if that is right."""

import argparse
import importlib.util
import os
from pathlib import Path

from lockstep.contracts.errors import ConfigError

FAULTS = ("compute", "data", "gc", "hang", "crash", "cancel", "none")
RANKS = 4


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "demo",
        help="train a small GPT on 4 ranks, make one of them slow, stuck or crash, and find it",
        description="Trains a small GPT with DistributedDataParallel on 4 CPU ranks under `lockstep up`. It makes one "
        "rank slow (compute, data, gc), stuck (hang) or raise an exception (crash), or interrupts the job as Ctrl-C "
        "does (cancel). Then it prints which rank it is, why, and what to do. The exit status is 0 only if the verdict "
        "is right.",
    )
    parser.add_argument("--fault", choices=FAULTS, default="compute", help="the fault (default: compute)")
    parser.add_argument("--rank", type=int, default=2, help="the faulty rank (default: 2)")
    parser.add_argument("--json", action="store_true", help="print the verdict as one JSON object on the last line")
    parser.add_argument("--record", metavar="DIR", help="record the run, for `lockstep replay DIR`")
    parser.add_argument("--picture", metavar="FILE", help="also write the verdict as an SVG picture")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Run the demonstration.

    Raises
    ------
    ConfigError
        The rank is not one of the job's, or a file cannot be written.
    ModuleNotFoundError
        torch is missing; otherwise the ranks would fail one by one.
    """
    if not 0 <= arguments.rank < RANKS:
        raise ConfigError(f"--rank: got {arguments.rank}, expected 0 to {RANKS - 1}")
    if arguments.picture is not None:
        _check_picture(Path(arguments.picture))
    from lockstep.cli.demo.session import run_demo  # noqa: PLC0415  (needs the extras)

    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    return run_demo(
        fault=arguments.fault,
        rank=arguments.rank,
        ranks=RANKS,
        as_json=arguments.json,
        picture=arguments.picture,
        record=arguments.record,
    )


def _check_picture(file: Path) -> None:
    """Refuse a file that cannot be written, before spending a minute on its content."""
    if file.is_dir() or not os.access(file.absolute().parent, os.W_OK):
        raise ConfigError(f"--picture: got {str(file)!r:.200}, expected a file in a folder that can be written")
