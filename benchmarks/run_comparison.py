"""How often `lockstep analyze --against` is right on made runs: equal pairs, and pairs with one injected regression.

Prints how many of the equal pairs it calls a regression and, by steps recorded and noise, how many of each fault it
finds in steps of 11 ms: a kernel 1.4 times as long, three launches more, a collective half as long again, a loader 2 ms
slower. Exit status 1: an equal pair with a regression, or a fault missed in eight steps or more with 3 % of noise.

    python -m benchmarks.run_comparison
"""

import sys
from collections import Counter
from itertools import product

from lockstep.analysis.comparison.compare import ObservedRun, compare, regressions
from lockstep.analysis.comparison.observe import observe
from tests.analysis.comparison.made_run import Job

RANKS, STEPS, NOISES = (1, 2, 4), (3, 8, 20), (0.03, 0.15)
EQUAL_SEEDS, FAULT_SEEDS = 8, 3
FAULTS = {
    "kernel": {"operator_factor": 1.4},
    "launches": {"extra_launches": 3},
    "collective": {"transfer_ns": 4_500_000},
    "loader": {"loader_extra_ns": 2_000_000},
}
_ENOUGH_STEPS = 8


def run_of(job: Job) -> ObservedRun:
    """Return what all ranks of a made job measure."""
    return ObservedRun(ranks=tuple(observe(columns, rank) for rank, columns in enumerate(job.columns())))


def main() -> int:
    """Print the counts; return the exit status."""
    equal, wrong, missed = 0, 0, 0
    found: Counter[tuple[int, float, str]] = Counter()
    for ranks, steps, noise, seed in product(RANKS, STEPS, NOISES, range(EQUAL_SEEDS)):
        shape = {"ranks": ranks, "steps": steps, "noise": noise}
        before = run_of(Job(seed=seed, **shape))
        equal += 1
        wrong += bool(regressions(compare(before, run_of(Job(seed=1000 + seed, **shape)))))
        for name, fault in FAULTS.items() if seed < FAULT_SEEDS else ():
            is_found = bool(regressions(compare(before, run_of(Job(seed=2000 + seed, **shape, **fault)))))
            found[steps, noise, name] += is_found
            missed += not is_found and steps >= _ENOUGH_STEPS and noise == NOISES[0]
    print(f"{equal} equal pairs, {wrong} with a regression")
    print(f"{'steps':>5} {'noise':>6} " + " ".join(f"{name:>10}" for name in FAULTS))
    count = FAULT_SEEDS * len(RANKS)
    for steps, noise in product(STEPS, NOISES):
        cells = " ".join(f"{found[steps, noise, name]:>6} / {count}" for name in FAULTS)
        print(f"{steps:>5} {noise:>6.0%} {cells}")
    return 1 if wrong or missed else 0


if __name__ == "__main__":
    sys.exit(main())
