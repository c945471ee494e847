"""What judging one step costs, by number of ranks: `python -m benchmarks.detect_cost`.

Prints the median and the 95th percentile of judging a healthy step and one with 1 % of the ranks slow, beside the
budget (10,240 ranks: 2 ms on one core), and what taking a step's records into the timeline costs.
"""

import sys
import time

import numpy as np

from coordinator.judge import Judge
from coordinator.policy import Policy
from coordinator.timeline import Timeline
from tests.coordinator.scenarios import Scenario, generate

BUDGETS_MS = {8: None, 1024: None, 10_240: 2.0}
SHAPES = {8: "dp=8", 1024: "tp=8,pp=4,dp=32", 10_240: "tp=8,pp=8,dp=160"}
STEPS = 60
ROUNDS = 3
RANKS_PER_NODE = 8


def judge_ms(ranks: int, *, slow: int) -> np.ndarray:
    """Return the cost of each judged step after warm-up, in ms."""
    scenario = Scenario(degrees=SHAPES[ranks], steps=STEPS)
    if slow:
        scenario = scenario.with_fault("compute", *range(slow), seconds=0.08, begin=30)
    recording = generate(scenario)
    rows = list(recording.rows())
    spent = []
    for _ in range(ROUNDS):
        judge = Judge(np.arange(ranks), recording.topology, Policy())
        for row in rows:
            begin = time.perf_counter()
            judge.judge(row)
            if row.step >= STEPS // 2 + 5:
                spent.append((time.perf_counter() - begin) * 1e3)
    return np.array(spent)


def ingest_ms(ranks: int) -> float:
    """Return what taking one step of all ranks costs, in batches of one node each, in ms."""
    recording = generate(Scenario(degrees=SHAPES[ranks], steps=4))
    nodes = [range(first, first + RANKS_PER_NODE) for first in range(0, ranks, RANKS_PER_NODE)]
    steps = [[recording.batch(step, step + 1, ranks=node) for node in nodes] for step in range(4)]
    timeline = Timeline(Policy().timeline)
    timeline.know(list(range(ranks)))
    begin = time.perf_counter()
    for batches in steps:
        for batch in batches:
            timeline.ingest(batch, 0.0)
        assert len(timeline.ready(0.0)) == 1
    return (time.perf_counter() - begin) * 1e3 / len(steps)


def main() -> int:
    """Print the table; return 1 where a budget is exceeded by the median."""
    over = False
    print(f"{'ranks':>7} {'case':<12} {'p50 ms':>8} {'p95 ms':>8} {'budget':>8} {'ingest ms/step':>15}")
    for ranks, budget in BUDGETS_MS.items():
        taken = ingest_ms(ranks)
        for case, slow in (("healthy", 0), ("1 % slow", max(1, ranks // 100))):
            spent = judge_ms(ranks, slow=slow)
            p50, p95 = float(np.median(spent)), float(np.percentile(spent, 95))
            over |= budget is not None and slow == 0 and p50 > budget
            told = "-" if budget is None else f"{budget:.1f}"
            print(f"{ranks:>7} {case:<12} {p50:>8.2f} {p95:>8.2f} {told:>8} {taken:>15.2f}")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
