"""How well slow ranks, links and jobs are named: `python -m benchmarks.accuracy [--ranks 8 128] [--seeds 5]`.

Every scenario of `benchmarks/scenarios` is generated, laid out as a step log in memory and given to the live state
machine (`coordinator/record/backtest.py`), then to the rules of `baselines.py`. Columns: recall of the things at fault,
precision of what was named, pages per 10,000 steps without a fault, wrong ranks, rows from a fault's begin to its
naming (the first slow step is 1; for a rank that is slow from the start this holds the detector's warm-up), and how
often the cause was right. A dash: nothing to measure. Below, faults in noise, and how soon any test could find them
(`scenarios/bound.py`). Seeds begin at `--first-seed`: those that thresholds were tuned
on prove nothing.

`--check` compares with `scenarios/acceptance.py` and returns 1 where something misses. `--write FILE` writes the table
as Markdown. False alarms over many healthy steps are counted by `python -m benchmarks.marathon`.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.baselines import BASELINES
from benchmarks.scenarios.acceptance import DEMANDS, false_alarms, missed, undemanded
from benchmarks.scenarios.bound import least_delays
from benchmarks.scenarios.catalogue import DEGRADED, FAULTS, HEALTHY, SCENARIOS, names
from benchmarks.scenarios.model import generate
from benchmarks.scenarios.recipes import SIZES
from benchmarks.scenarios.report import report
from benchmarks.scenarios.score import Named, Score, named_by, score
from benchmarks.scenarios.table import HEADER, OURS, Table, line, rate_bound
from coordinator.record.backtest import backtest
from coordinator.settings.policy import Policy

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEEDS = {8: 10, 128: 10, 1024: 4, 10_240: 1}
"""Runs of each scenario: a default that one core does in minutes. Rates near zero need many more."""
Task = tuple[str, int, int, bool]
"""Scenario, ranks, seed, and whether the baselines run too."""


def measure(task: Task) -> tuple[Task, list[tuple[str, Score]], list[Named]]:
    """Generate one run and replay it; return every method's score, and what ours named."""
    name, ranks, seed, with_baselines = task
    scenario = SCENARIOS[name](ranks, seed)
    recording = generate(scenario)
    named = list(named_by(backtest(recording.log(), recording.topology, Policy()), scenario))
    scores = [(OURS, score(scenario, recording.topology, named))]
    for method, rule in BASELINES.items() if with_baselines else ():
        scores.append((method, score(scenario, recording.topology, rule(recording))))
    return task, scores, named


def measure_all(tasks: Iterable[Task], processes: int) -> Iterator[tuple[Task, list[tuple[str, Score]], list[Named]]]:
    """Yield the scores of every task, in order; with one process without starting any."""
    if processes == 1:
        yield from map(measure, tasks)
        return
    # Spawned: a fork would copy whatever the caller's threads hold.
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(measure, tasks)


def print_section(table: Table, ranks: int, methods: Sequence[str]) -> None:
    """Print what was measured at one number of ranks: our scenarios one by one, then every method over all of them."""
    chosen = table.names(ranks)
    faulty = [name for name in chosen if name in FAULTS]
    healthy = [name for name in chosen if name in HEALTHY and name not in DEGRADED]
    print(f"\n{f'{ranks:,} ranks':<30} {HEADER}")
    for name in chosen:
        print(f"  {name:<28} {line(table.total(OURS, ranks, [name]))}")
    for method in methods:
        print(f"{method + ', faults':<30} {line(table.total(method, ranks, faulty))}")
        print(f"{method + ', healthy':<30} {line(table.total(method, ranks, healthy))}", flush=True)
    print_bounds(table, ranks, faulty)


def print_bounds(table: Table, ranks: int, faulty: Sequence[str]) -> None:
    """Print how soon, and how often in time, any test could find a fault in noise, next to ours; a miss is never."""
    bounds = {name: least_delays(SCENARIOS[name](ranks, 1), Policy().budget.false_page_steps) for name in faulty}
    bounded = {name: delays for name, delays in bounds.items() if delays is not None}
    if bounded:
        print(f"{'steps to a fault in noise':<38} {'any test: p50  p95  in time':>28} {'ours: p50  p95  in time':>26}")
    for name, delays in bounded.items():
        total = table.total(OURS, ranks, [name])
        ours = np.array(total.latency_rows + [np.inf] * (total.wanted - total.found))
        within = DEMANDS[name].within or np.inf
        print(f"  {name:<36} {_delays_text(delays, within):>28} {_delays_text(ours, within):>26}", flush=True)


def _delays_text(delays: "NDArray[np.floating] | NDArray[np.int64]", within: float) -> str:
    p50, p95 = np.percentile(delays, (50, 95), method="higher") if len(delays) else (np.nan, np.nan)
    return f"{p50:.0f} {p95:4.0f} {np.mean(delays <= within):8.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 where `--check` finds something missing, else 0."""
    parser = argparse.ArgumentParser(description="Accuracy of detection on labelled scenarios.")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--seeds", type=int, help=f"runs of each scenario (default by ranks: {SEEDS})")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--scenario", nargs="+", default=list(SCENARIOS), choices=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--no-baselines", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="return 1 where the acceptance is missed")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table as Markdown")
    parser.add_argument("--show", action="store_true", help="print every wrong or missed thing with its seed")
    parsed = parser.parse_args(arguments)
    methods = [OURS] if parsed.no_baselines else [OURS, *BASELINES]
    table, runs = Table(), {ranks: parsed.seeds or SEEDS[ranks] for ranks in parsed.ranks}
    begin = time.monotonic()
    for ranks in parsed.ranks:
        seeds = range(parsed.first_seed, parsed.first_seed + runs[ranks])
        chosen = [name for name in names(ranks) if name in parsed.scenario]
        tasks = [(name, ranks, seed, not parsed.no_baselines) for name in chosen for seed in seeds]
        for (name, _, seed, _), scores, _ in measure_all(tasks, parsed.processes):
            for method, result in scores:
                table.add(method, name, ranks, result)
            for note in scores[0][1].notes if parsed.show else ():
                print(f"{name}, {ranks:,} ranks, seed {seed}: {note}", flush=True)
        print_section(table, ranks, methods)
        print(f"seeds {seeds.start} to {seeds.stop - 1} of {len(chosen)} scenarios, {time.monotonic() - begin:.0f} s")
    return _conclude(table, parsed, runs)


def _conclude(table: Table, parsed: argparse.Namespace, runs: dict[int, int]) -> int:
    alarms, steps = false_alarms(table)
    bound = rate_bound(alarms, steps)
    print(f"\n{alarms} pages in {steps:,} healthy steps; 95 % upper bound {bound * 500_000:.2f} in 500,000")
    lines = list(missed(table))
    if parsed.write is not None:
        before = parsed.write.read_text(encoding="utf-8") if parsed.write.exists() else ""
        page = report(table, runs=runs, first_seed=parsed.first_seed, before=before)
        parsed.write.write_text(page, encoding="utf-8")
    for each in undemanded(table):
        print(f"not demanded: {each}")
    for each in lines if parsed.check else ():
        print(f"MISSED {each}")
    return int(parsed.check and bool(lines))


if __name__ == "__main__":
    sys.exit(main())
