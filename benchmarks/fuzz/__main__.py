"""Hostile input of every kind against the doors of both services; fails on any surprise, hang or growth of memory.

    python -m benchmarks.fuzz --cases 1000000 --seed 1     # twenty minutes on two cores
    python -m benchmarks.fuzz --areas rings,http --cases 20000
    python -m benchmarks.fuzz --replay messages:1:123456   # one case again, with its traceback

Every case is known by area, seed and number. Input that is refused with one of our own errors is as good as input that
is accepted; anything else that is raised, an answer of 500, more than 20 s of CPU for one case, and memory that grows
by more than the bound are failures.
"""

import argparse
import logging
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from benchmarks.fuzz import harness
from benchmarks.fuzz.areas.answers import Answers
from benchmarks.fuzz.areas.http import Http
from benchmarks.fuzz.areas.messages import Messages
from benchmarks.fuzz.areas.rings import RingFiles
from benchmarks.fuzz.areas.summaries import Summaries
from benchmarks.fuzz.areas.trace_files import TraceFiles
from benchmarks.fuzz.areas.yaml_files import YamlFiles
from benchmarks.fuzz.harness import GROWTH_MAX_BYTES, Area, Report

AREAS: dict[str, tuple[type[Area], float]] = {
    Messages.name: (Messages, 0.40),
    RingFiles.name: (RingFiles, 0.20),
    Answers.name: (Answers, 0.13),
    Summaries.name: (Summaries, 0.12),
    Http.name: (Http, 0.09),
    YamlFiles.name: (YamlFiles, 0.03),
    TraceFiles.name: (TraceFiles, 0.03),
}
"""Each area, and its share of all cases: by what a case costs, so that each gets minutes."""
_PROCESSES = 2
_REASONS_SHOWN = 4
_MB = 1 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases, or one again, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1_000_000, help="of all areas together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="cases of another seed are others (default: %(default)s)")
    parser.add_argument("--areas", default=",".join(AREAS), help="some of %(default)s")
    parser.add_argument("--processes", type=int, default=_PROCESSES, help="side by side (default: %(default)s)")
    parser.add_argument("--replay", metavar="AREA:SEED:N", help="run one case again, after those of its block")
    given = parser.parse_args(arguments)
    logging.disable(logging.NOTSET)
    _quieten()
    if given.replay:
        return _replay(parser, given.replay)
    names = given.areas.split(",")
    if unknown := [name for name in names if name not in AREAS]:
        parser.error(f"--areas: got {', '.join(unknown)}, expected some of {', '.join(AREAS)}")
    begin_s = time.monotonic()
    reports = run_areas(names, given.cases, given.seed, given.processes)
    _print(reports, given.seed, time.monotonic() - begin_s)
    return 0 if all(report.is_good() for report in reports) else 1


def run_areas(names: Sequence[str], cases: int, seed: int, processes: int) -> list[Report]:
    """Return what became of `cases`, shared out among areas and processes; with one process, in this one."""
    whole = sum(AREAS[name][1] for name in names)
    parts = []
    for name in names:
        blocks = max(1, round(cases * AREAS[name][1] / whole / harness.BLOCK))
        for part in range(min(processes, blocks)):
            first, last = blocks * part // processes, blocks * (part + 1) // processes
            parts.append((name, seed, first * harness.BLOCK, (last - first) * harness.BLOCK))
    if processes == 1:
        return _merged(names, [run_part(*part) for part in parts])
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _quieten, max_tasks_per_child=1) as pool:
        return _merged(names, [future.result() for future in [pool.submit(run_part, *part) for part in parts]])


def run_part(name: str, seed: int, first: int, count: int) -> Report:
    """Run some blocks of one area."""
    return harness.run_cases(AREAS[name][0](), seed, first, count)


def _merged(names: Sequence[str], parts: Sequence[Report]) -> list[Report]:
    reports = {name: Report(name) for name in names}
    for part in parts:
        reports[part.area].add(part)
    return list(reports.values())


def _quieten() -> None:
    """Keep the services' logs away from the terminal: a refusal is logged, as it should be."""
    logging.getLogger().handlers[:] = [logging.NullHandler()]


def _replay(parser: argparse.ArgumentParser, text: str) -> int:
    name, _, rest = text.partition(":")
    seed, _, number = rest.partition(":")
    if name not in AREAS or not seed.isdecimal() or not number.isdecimal():
        parser.error(f"--replay: got {text!r}, expected AREA:SEED:N with an area of {', '.join(AREAS)}")
    report = harness.replay(AREAS[name][0](), int(seed), int(number))
    for failure in report.failures:
        print(f"{failure.kind} in {failure.replay}\n{failure.text}\n")
    print(f"{report.cases} cases, {report.exceptions} unexpected exceptions, {report.hangs} hangs")
    return 0 if report.is_good() else 1


def _print(reports: Sequence[Report], seed: int, seconds: float) -> None:
    print(f"seed {seed}, {sum(report.cases for report in reports)} cases, {seconds:.0f} s\n")
    print("| area | cases | accepted | refused by reason | unexpected exceptions | hangs | RSS start -> end |")
    print("|---|---:|---:|---|---:|---:|---:|")
    for report in reports:
        shown = report.refused.most_common(_REASONS_SHOWN)
        reasons = [f"{reason} {count}" for reason, count in shown]
        if rest := sum(report.refused.values()) - sum(count for _, count in shown):
            reasons.append(f"others {rest}")
        memory = f"{report.start_bytes / _MB:.0f} -> {report.end_bytes / _MB:.0f} MB"
        print(
            f"| {report.area} | {report.cases} | {report.accepted} | {', '.join(reasons)} "
            f"| {report.exceptions} | {report.hangs} | {memory} |"
        )
    print(f"\nRSS: of the process in which it grew most, from its first {harness.BLOCK} cases on.")
    for report in reports:
        if report.growth_bytes > GROWTH_MAX_BYTES:
            print(f"{report.area}: memory grew by more than {GROWTH_MAX_BYTES / _MB:.0f} MB")
        for failure in report.failures:
            print(f"\n{failure.kind}: python -m benchmarks.fuzz --replay {failure.replay}\n{failure.text}")


if __name__ == "__main__":
    sys.exit(main())
