"""`lockstep analyze PATH...`: analyses captured traces, from one file to a cluster's folder, and prints findings."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.contracts.domains import DEFAULT_ORDER, check_order, parse_degrees
from lockstep.contracts.errors import ConfigError, FileAccessError

if TYPE_CHECKING:
    from lockstep.analysis.group_kinds import ParallelDegrees
    from lockstep.analysis.sources import Source
    from lockstep.analysis.workers import Runner

_PROCESSES_MAX = 1024
EXIT_REGRESSION = 3
"""Exit status with `--against`; 1 is Python's own, 2 that of wrong input."""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "analyze",
        help="analyze profiler traces of a job: where time goes, which rank and function are slow, what to do",
        description="Reads PyTorch (Kineto) traces, plain or gzipped, the output of Ascend's profilers, and columns "
        "that an earlier run stored, one trace per rank. The rank is the one that the trace names, or that of its file "
        "or folder (rank3.json, rank3_ascend_pt), or its position. Unusable traces are listed and skipped; the exit "
        "status is 2 if none is usable. With --against, compares the run with an earlier one; the exit status is then "
        f"{EXIT_REGRESSION} if anything became slower than noise explains, else 0.",
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", type=Path, help="a trace, or a folder of them")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="write summary.json, report.html and <rank>.parquet to DIR"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    parser.add_argument(
        "--perfetto",
        metavar="FILE",
        type=Path,
        help="write all ranks' traces and the findings as one trace for ui.perfetto.dev (.json or .json.gz)",
    )
    parser.add_argument(
        "--against",
        nargs="+",
        metavar="PATH",
        type=Path,
        help="traces of an earlier run: print what changed since then",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.05,
        metavar="RATIO",
        help="with --against: smallest change to report, as a share of each quantity (default: 0.05)",
    )
    parser.add_argument(
        "--domains", default="", metavar="DEGREES", help="the job's parallel degrees, e.g. tp=8,cp=1,ep=1,dp=16,pp=4"
    )
    parser.add_argument("--order", default=DEFAULT_ORDER, help="order of the domains, the fastest varying first")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="traces to read at once; of fewer, each is read on several cores (default: one per CPU)",
    )
    where.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="run on a Dask cluster, e.g. tcp://host:8786; its workers need the same files and the same version of "
        "Lockstep",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Analyse or compare, print, and write the requested files.

    Raises
    ------
    LockstepError
        An argument is wrong, no trace can be used, DIR cannot be written, or the cluster does not answer.
    """
    run = _runner(arguments)
    if arguments.scheduler is not None:  # workers run elsewhere
        arguments.paths = [each.absolute() for each in arguments.paths]
        arguments.against = arguments.against and [each.absolute() for each in arguments.against]
        arguments.out = arguments.out and arguments.out.absolute()
        arguments.perfetto = arguments.perfetto and arguments.perfetto.absolute()
    if arguments.out is not None:
        _make(arguments.out)
    return _analyse(arguments, run) if arguments.against is None else _compare(arguments, run)


def _compare(arguments: argparse.Namespace, run: "Runner") -> int:
    from lockstep.analysis.comparison.paths import compare_paths  # noqa: PLC0415  (services only)
    from lockstep.cli.comparison_text import comparison_text  # noqa: PLC0415

    if not 0 <= arguments.tolerance <= 1:
        raise ConfigError(f"--tolerance: got {arguments.tolerance}, expected 0 to 1")
    with _progress() as on_done:
        found = compare_paths(
            arguments.paths, arguments.against, run, tolerance=arguments.tolerance, on_done=on_done
        ).as_json()
    if arguments.out is not None:
        _write(arguments.out, {"comparison.json": _json(found)})
    _print(found, comparison_text(found), as_json=arguments.json)
    return EXIT_REGRESSION if found["regressions"] else 0


def _analyse(arguments: argparse.Namespace, run: "Runner") -> int:
    from lockstep.analysis.analyse import analyse_paths  # noqa: PLC0415  (services only)
    from lockstep.cli.analyze_text import text_of  # noqa: PLC0415

    degrees = _degrees(arguments)
    try:
        with _progress() as on_done:
            found = analyse_paths(arguments.paths, run, store=arguments.out, degrees=degrees, on_done=on_done)
    except OSError as error:
        raise FileAccessError(f"--out {arguments.out}", error, expected="a folder that can be written") from error
    summary = found.as_json()
    if arguments.out is not None:
        from lockstep.analysis.pictures import pictures_of  # noqa: PLC0415  (only where it is asked for)
        from lockstep.analysis.report import render  # noqa: PLC0415

        report = render(summary, pictures_of(found.sources, summary["findings"]))
        _write(arguments.out, {"summary.json": _json(summary), "report.html": report})
    if arguments.perfetto is not None:
        _write_perfetto(arguments.perfetto, found.sources, summary)
    _print(summary, text_of(summary), as_json=arguments.json)
    return 0


def _write_perfetto(path: Path, sources: "Mapping[int, Source]", summary: dict[str, Any]) -> None:
    from lockstep.analysis.merged_trace import write_merged  # noqa: PLC0415  (only where it is asked for)
    from lockstep.analysis.sources import load_source  # noqa: PLC0415

    try:
        write_merged(path, {rank: load_source(each).columns for rank, each in sources.items()}, summary["findings"])
    except OSError as error:
        raise FileAccessError(f"--perfetto {path}", error, expected="a file that can be written") from error


def _print(found: dict[str, Any], text: str, *, as_json: bool) -> None:
    for each in found["skipped"]:
        print(f"lockstep: skipped {each['path']}: {each['error']}", file=sys.stderr)
    print(json.dumps(found) if as_json else text)


def _degrees(arguments: argparse.Namespace) -> "ParallelDegrees | None":
    from lockstep.analysis.group_kinds import ParallelDegrees  # noqa: PLC0415  (services only)

    check_order(arguments.order, where="--order")
    by_kind = parse_degrees(arguments.domains, where="--domains")
    return ParallelDegrees(by_kind=by_kind, order=arguments.order) if by_kind else None


def _runner(arguments: argparse.Namespace) -> "Runner":
    from lockstep.analysis.workers import run_here, run_on_cluster  # noqa: PLC0415  (services only)

    if arguments.scheduler is not None:
        return partial(run_on_cluster, scheduler=arguments.scheduler)
    processes = len(os.sched_getaffinity(0)) if arguments.processes is None else arguments.processes
    if not 1 <= processes <= _PROCESSES_MAX:
        raise ConfigError(f"--processes: got {processes}, expected 1 to {_PROCESSES_MAX}")
    return partial(run_here, processes=processes)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Yield the receiver of progress reports: a bar on a terminal, otherwise a no-op."""
    if not sys.stderr.isatty():
        yield lambda _done, _all: None
        return
    from rich.console import Console  # noqa: PLC0415  (drawing only)
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("traces", total=None)
        yield lambda done, count: progress.update(task, completed=done, total=count)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileAccessError(f"--out {folder}", error, expected="a folder that can be written") from None


def _json(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=1) + "\n"


def _write(folder: Path, files: dict[str, str]) -> None:
    try:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileAccessError(f"--out {folder}", error, expected="a folder that can be written") from error
