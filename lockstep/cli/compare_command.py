"""`lockstep compare RUN_A RUN_B`: which part of the step became slower, on which ranks; exit status for CI."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.record.run_comparison import PartChange, StepLogComparison

EXIT_SLOWER = 1


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "compare",
        help="compare two recorded runs: which part became slower, on which ranks, beyond noise",
        description="Compares the step records of two runs of the same ranks, part by part and rank by rank. The exit "
        "status is 1 if a part is slower by more than noise and by at least 1 % of a step, 0 if none is, and 2 for "
        "wrong input.",
    )
    for name, metavar in (("before", "RUN_A"), ("after", "RUN_B")):
        parser.add_argument(name, metavar=metavar, type=Path, help="a recording, or the Parquet file of a step log")
    parser.add_argument("--run-a", default="", metavar="NAME", help="the run to read if RUN_A holds several")
    parser.add_argument("--run-b", default="", metavar="NAME", help="the run to read if RUN_B holds several")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the comparison as an HTML page")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Print the comparison; return 1 if a part is slower.

    Raises
    ------
    LockstepError
        A recording or step log cannot be used, the runs' ranks differ, steps are too few, or FILE cannot be written.
    """
    from coordinator.page.run_account import render_comparison  # noqa: PLC0415  (needs the coordinator's packages)
    from coordinator.record.recorded_runs import read_run_log  # noqa: PLC0415
    from coordinator.record.run_comparison import compare_runs, comparison_to_json  # noqa: PLC0415
    from lockstep.cli.report_command import write_page  # noqa: PLC0415

    logs = [read_run_log(arguments.before, arguments.run_a), read_run_log(arguments.after, arguments.run_b)]
    comparison = compare_runs(*logs)
    if arguments.html is not None:
        write_page(arguments.html, render_comparison(comparison))
    print(json.dumps(comparison_to_json(comparison)) if arguments.json else _text(comparison))
    return EXIT_SLOWER if comparison.slower else 0


def _text(comparison: "StepLogComparison") -> str:
    from coordinator.page.run_account import comparison_headline  # noqa: PLC0415

    lines = [comparison_headline(comparison)]
    for name, changes in (("slower", comparison.slower), ("faster", comparison.faster)):
        lines += [f"  {name}: {_change_text(change)}" for change in changes]
    if comparison.missing_parts:
        lines.append(f"  measured by one run only: {', '.join(comparison.missing_parts)}")
    return "\n".join(lines)


def _change_text(change: "PartChange") -> str:
    from coordinator.page.layout import format_seconds  # noqa: PLC0415
    from coordinator.page.run_account import ranks_text  # noqa: PLC0415

    times = f"{format_seconds(change.before_seconds)} to {format_seconds(change.after_seconds)}"
    return f"{change.part}, {ranks_text(change)}: {times}, {change.step_ratio:+.1%} of a step"
