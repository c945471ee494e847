"""`lockstep report RUN`: summarises where a recorded run's device time went."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.contracts.domains import DEFAULT_ORDER, check_order
from lockstep.contracts.errors import FileAccessError
from lockstep.html.units import format_step

if TYPE_CHECKING:
    from coordinator.record.run_summary import RunSummary


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "report",
        help="summarise a recorded run: time by part, throughput, MFU, goodput, incidents and what they cost",
        description="Reads a recording (`record_directory` of the coordinator) or a step log (Parquet) and prints "
        "where the device time of one run went: by part of the step, by kind of loss, by day and by incident.",
    )
    parser.add_argument("path", metavar="RUN", type=Path, help="a recording, or the Parquet file of a step log")
    parser.add_argument("--run", default="", metavar="NAME", help="the run to read if RUN holds several")
    parser.add_argument(
        "--domains", default="", metavar="DEGREES", help="parallel degrees of a step log's job, e.g. tp=8,dp=16,pp=4"
    )
    parser.add_argument("--order", default=DEFAULT_ORDER, help="order of the degrees, fastest varying first")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the report as an HTML page")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Print the summary, and write the page if requested.

    Raises
    ------
    LockstepError
        The recording or step log cannot be used, or FILE cannot be written.
    """
    from coordinator.page.run_account import render_summary  # noqa: PLC0415  (needs the coordinator's packages)
    from coordinator.record.recorded_runs import read_recorded_run  # noqa: PLC0415
    from coordinator.record.run_summary import summarise_run, summary_to_json  # noqa: PLC0415

    check_order(arguments.order, where="--order")
    recorded = read_recorded_run(arguments.path, arguments.run, degrees=arguments.domains, order=arguments.order)
    summary = summarise_run(recorded.log, recorded.incidents, peak_flops_per_second=recorded.peak_flops_per_second)
    if arguments.html is not None:
        write_page(arguments.html, render_summary(summary))
    print(json.dumps(summary_to_json(summary)) if arguments.json else _text(summary))
    return 0


def write_page(file: Path, text: str) -> None:
    """Write a page.

    Raises
    ------
    ConfigError
        It cannot be written.
    """
    try:
        file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise FileAccessError(f"--html {file}", error, expected="a file that can be written") from None


def _text(summary: "RunSummary") -> str:
    from coordinator.page.layout import format_seconds  # noqa: PLC0415
    from coordinator.page.run_account import summary_facts  # noqa: PLC0415

    total = sum(summary.device_seconds.values())
    lines = [f"{summary.run}: {'; '.join(summary_facts(summary))}", "device time"]
    lines += [
        f"  {name:<12} {format_seconds(seconds):>10} {seconds / total:>7.1%}"
        for name, seconds in summary.device_seconds.items()
        if seconds
    ]
    lines.append("step")
    lines += [
        f"  {part.name:<12} {format_seconds(part.seconds):>10} {part.share_ratio:>7.1%}" for part in summary.parts
    ]
    lines += [f"{day.date}  {day.steps:,} steps, goodput {day.goodput_ratio:.1%}" for day in summary.days]
    lines += [
        f"incident {each['id']}: {each['kind']} by {each['cause']} from {format_step(each['onset_step'])}, "
        f"{each['lost_device_hours']:.2f} device hours"
        for each in summary.incidents
    ]
    return "\n".join(lines)
