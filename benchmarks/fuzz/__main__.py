"""Hostile input of every kind against the entry points of both services; fails on a surprise, a hang or memory growth.

    python -m benchmarks.fuzz --cases 1000000 --seed 1     # ten minutes on two cores
    python -m benchmarks.fuzz --areas rings,http --cases 20000
    python -m benchmarks.fuzz --replay messages:1:123456   # one case again, with its traceback

Every case is known by area, seed and number. Input that is refused with one of our own errors is as good as input that
is accepted; anything else that is raised, an answer of 500, more than 20 s of CPU for one case, and memory that grows
by more than the bound are failures.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks.fuzz import harness
from benchmarks.fuzz.harness import GROWTH_MAX_BYTES, Report
from benchmarks.fuzz.parts import AREAS, quieten, run_areas

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
    quieten()
    if given.replay:
        return _replay(parser, given.replay)
    names = given.areas.split(",")
    if unknown := [name for name in names if name not in AREAS]:
        parser.error(f"--areas: got {', '.join(unknown)}, expected some of {', '.join(AREAS)}")
    begin_s = time.monotonic()
    reports = run_areas(names, given.cases, given.seed, given.processes)
    _print(reports, given.seed, time.monotonic() - begin_s)
    return 0 if all(report.is_good() for report in reports) else 1


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
