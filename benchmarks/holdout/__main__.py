"""Score incident lines on the hold-out cases: `python -m benchmarks.holdout [--ranks 8 128] [--seeds 3]`.

Columns as in `benchmarks.accuracy`; below a row every wrong or missing thing with its seed. `--write DIR` writes
the step logs and their truth for `lockstep replay` instead; `--recorded` scores real recordings with injected slowness.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.holdout import clockwork, recorded, work
from benchmarks.holdout.cases import CASES, FAULTS, KNOWN_LIMITS, SIZES, names
from benchmarks.holdout.job import RANKS_PER_NODE, Case, Layout
from benchmarks.holdout.score import Tally, tally
from benchmarks.holdout.step_log import log_of, save, steps_of
from coordinator.record.backtest import backtest, to_line
from coordinator.record.steplog import StepLog
from coordinator.settings.policy import Policy

_HEADER = f"{'recall':>7} {'wrong ranks':>11} {'wrong other':>11} {'false/10k':>9} {'p50':>5} {'p95':>5} {'cause':>6}"


def make_log(case: Case) -> tuple[Layout, StepLog]:
    """Return the layout of a case and the records that arrive."""
    rng = np.random.default_rng((case.seed, len(case.name), case.world_size))
    layout = Layout.of(case)
    drawn = work.draw(case, layout, rng)
    return layout, log_of(case, clockwork.run(case, layout, drawn, rng), drawn, rng)


def measure(name: str, ranks: int, seed: int) -> Tally:
    """Return the score of one run."""
    case = CASES[name](ranks, seed)
    layout, log = make_log(case)
    replayed = backtest(log, layout.topology, Policy(), ranks_per_node=RANKS_PER_NODE)
    lines = [to_line(incident, ranks_per_node=RANKS_PER_NODE) for incident in replayed.incidents.values()]
    return tally(case, layout, steps_of(case), lines)


def line(total: Tally) -> str:
    """Return a row of the table."""
    p50, p95 = np.percentile(total.latency_steps, (50, 95)) if total.latency_steps else (np.nan, np.nan)
    per_10k = 10_000 * total.false_in_health / total.healthy_steps if total.healthy_steps else np.nan
    recall = total.found / total.wanted if total.wanted else np.nan
    cause = total.causes_right / total.found if total.found else np.nan
    return (
        f"{recall:>7.3f} {total.wrong_ranks:>11} {total.wrong_others:>11} {per_10k:>9.1f} {p50:>5.0f} {p95:>5.0f} "
        f"{cause:>6.2f}"
    ).replace("nan", "  -")


def print_ranks(ranks: int, chosen: Sequence[str], seeds: range) -> None:
    """Measure and print one number of ranks."""
    print(f"\n{f'{ranks:,} ranks':<30} {_HEADER}")
    sums = {"faults": Tally(), "healthy": Tally(), "healthy, known limits": Tally()}
    for name in chosen:
        total = Tally()
        for seed in seeds:
            total.add(measure(name, ranks, seed))
        kind = "faults" if name in FAULTS else "healthy, known limits" if name in KNOWN_LIMITS else "healthy"
        sums[kind].add(total)
        print("\n      ".join([f"  {name:<28} {line(total)}", *total.notes]), flush=True)
    for kind, total in sums.items():
        print(f"{kind:<30} {line(total)}  of {total.healthy_steps:,} healthy steps")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 0."""
    parser = argparse.ArgumentParser(description="Accuracy of incident lines on hold-out runs.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 128], choices=SIZES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=list(CASES), metavar="NAME")
    parser.add_argument("--write", type=Path, metavar="DIR")
    parser.add_argument("--recorded", action="store_true")
    parsed = parser.parse_args(arguments)
    seeds = range(parsed.first_seed, parsed.first_seed + parsed.seeds)
    if parsed.recorded:
        recorded.print_all()
        return 0
    for ranks in parsed.ranks:
        chosen = [name for name in names(ranks) if name in parsed.case]
        if parsed.write is None:
            print_ranks(ranks, chosen, seeds)
            continue
        for name in chosen:
            for seed in seeds:
                case = CASES[name](ranks, seed)
                save(case, make_log(case)[1], parsed.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
