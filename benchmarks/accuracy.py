"""How well slow ranks, links and jobs are named: `python -m benchmarks.accuracy [--ranks 8 128] [--seeds 5]`.

Every scenario of `benchmarks/scenarios` is generated, laid out as a step log in memory and given to the live state
machine (`coordinator/replay.py`), then to the rules of `baselines.py`. Columns: recall of the things at fault,
precision of what was named, false alarms per 10,000 steps without a fault, wrong ranks, rows from a fault's begin to
its naming (the first slow step is 1), and how often the cause was right. A dash: nothing to measure. Seeds begin at
`--first-seed`: those that thresholds were tuned on prove nothing.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.baselines import BASELINES
from benchmarks.scenarios.catalogue import FAULTS, SCENARIOS, SIZES, names
from benchmarks.scenarios.model import generate
from benchmarks.scenarios.score import Score, score, told_by
from coordinator.policy import Policy
from coordinator.replay import replay

OURS = "lockstep"
SEEDS = {8: 10, 128: 10, 1024: 4, 10_240: 1}
"""Runs of each scenario: a default that one core does in minutes. Rates near zero need many more."""
_HEADER = f"{'recall':>7} {'precision':>9} {'false/10k':>9} {'wrong':>7} {'p50':>5} {'p95':>5} {'cause':>6}"


@dataclass(slots=True)
class Table:
    """Scores by method, scenario and number of ranks."""

    scores: dict[tuple[str, str, int], Score] = field(default_factory=dict)

    def add(self, method: str, name: str, ranks: int, result: Score) -> None:
        """Add one run."""
        self.scores.setdefault((method, name, ranks), Score()).add(result)

    def total(self, method: str, ranks: int, names: Sequence[str]) -> Score:
        """Return the sum over scenarios."""
        total = Score()
        for name in names:
            total.add(self.scores.get((method, name, ranks), Score()))
        return total


def measure(name: str, ranks: int, seed: int, table: Table, *, baselines: bool) -> None:
    """Generate one run, replay it, and add every method's score."""
    scenario = SCENARIOS[name](ranks, seed)
    recording = generate(scenario)
    replayed = replay(recording.log(), recording.topology, Policy())
    table.add(OURS, name, ranks, score(scenario, recording.topology, told_by(replayed, scenario)))
    for method, rule in BASELINES.items() if baselines else ():
        table.add(method, name, ranks, score(scenario, recording.topology, rule(recording)))


def line(result: Score) -> str:
    """Return a row of the table."""
    named = result.found + result.wrong
    per_10k = 10_000 * result.alarms_in_health / result.healthy_rows if result.healthy_rows else None
    p50, p95 = np.percentile(result.latency_rows, (50, 95)) if result.latency_rows else (None, None)
    return " ".join(
        (
            _number(result.found / result.wanted if result.wanted else None, 7, 3),
            _number(result.found / named if named and result.wanted else None, 9, 3),
            _number(per_10k, 9, 1),
            f"{result.wrong_ranks:>7}",
            _number(p50, 5, 0),
            _number(p95, 5, 0),
            _number(result.causes_right / result.causes_told if result.causes_told else None, 6, 2),
        )
    )


def _number(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"


def print_section(table: Table, ranks: int, chosen: Sequence[str], methods: Sequence[str]) -> None:
    """Print what was measured at one number of ranks: our scenarios one by one, then every method over all of them."""
    faulty, healthy = [name for name in chosen if name in FAULTS], [name for name in chosen if name not in FAULTS]
    print(f"\n{f'{ranks:,} ranks':<30} {_HEADER}")
    for name in chosen:
        print(f"  {name:<28} {line(table.total(OURS, ranks, [name]))}")
    for method in methods:
        print(f"{method + ', faults':<30} {line(table.total(method, ranks, faulty))}")
        print(f"{method + ', healthy':<30} {line(table.total(method, ranks, healthy))}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 0."""
    parser = argparse.ArgumentParser(description="Accuracy of detection on labelled scenarios.")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--seeds", type=int, help=f"runs of each scenario (default by ranks: {SEEDS})")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--scenario", nargs="+", default=list(SCENARIOS), choices=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--no-baselines", action="store_true")
    parsed = parser.parse_args(arguments)
    methods = [OURS] if parsed.no_baselines else [OURS, *BASELINES]
    table = Table()
    begin = time.monotonic()
    for ranks in parsed.ranks:
        chosen = [name for name in names(ranks) if name in parsed.scenario]
        runs = parsed.seeds or SEEDS[ranks]
        for name in chosen:
            for seed in range(parsed.first_seed, parsed.first_seed + runs):
                measure(name, ranks, seed, table, baselines=not parsed.no_baselines)
        print_section(table, ranks, chosen, methods)
        print(f"{len(chosen)} scenarios, {runs} runs each, {time.monotonic() - begin:.0f} s so far", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
