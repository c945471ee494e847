# ruff: noqa: N803, N806  (names of arrays end in their shape: F functions, D dimensions, W workers)
"""What localising costs: `python -m benchmarks.localisation_cost [--workers 10000 100000 1000000]`.

20 functions of every worker, each rule in a process of its own: CPU seconds of one core without making the patterns,
and the process's peak memory, of which the patterns are 12 bytes a function and worker. `jobs` draws patterns like a
job's, with a throttled tenth and spreads of 3 to 15 %; `uniform` spreads them evenly, which no job does. `loop` is what
equations 8 to 10 cost without leaving any pair out, measured on 1 % of the workers. Budgets: `BUDGET_S` and
`BUDGET_MB`. Returns 1 where one is missed at a million workers by `jobs`.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.localisation import Function, PatternMatrix, Rule, localise
from lockstep.diagnosis.localisation.paper_rule import normalised, sample_peers
from lockstep.trace.patterns import FunctionClass

FUNCTIONS = 20
BUDGET_S = {Rule.PRINTED: 4.0, Rule.ROBUST: 1.0}
BUDGET_MB = 1000.0
_BUDGET_WORKERS = 1_000_000
_KINDS = (*[FunctionClass.COMPUTE] * 10, *[FunctionClass.MEMORY] * 3, *[FunctionClass.COLLECTIVE] * 3)
_SPREADS = (0.03, 0.03, 0.03, 0.06, 0.10, 0.03, 0.03, 0.06, 0.03, 0.15)


def patterns(workers: int, kind: str) -> PatternMatrix:
    """Return made patterns; drawn function by function, so that the peak is that of localising."""
    random = np.random.default_rng(5)
    values_FDW = np.empty((FUNCTIONS, 3, workers), np.float32)
    slow = random.random(workers) < 0.1
    for at, values_DW in enumerate(values_FDW):
        if kind == "uniform":
            random.random(out=values_DW, dtype=np.float32)
            continue
        beta = 0.2 / (1 + at) if at < len(_KINDS) else 0.004
        random.standard_normal(out=values_DW, dtype=np.float32)
        for dimension, middle in enumerate((beta, 0.9, 0.1)):
            values_DW[dimension] *= np.float32(middle * _SPREADS[at % len(_SPREADS)])
            values_DW[dimension] += np.float32(middle)
        np.clip(values_DW, 0, 1, out=values_DW)
        values_DW[0, slow] *= np.float32(1.5 if at % 4 == 0 else 1.0)
    kinds = (*_KINDS, *[FunctionClass.HOST] * (FUNCTIONS - len(_KINDS)))
    functions = [Function(kind, (), f"f{at}") for at, kind in enumerate(kinds)]
    return PatternMatrix(functions, np.arange(workers), np.full(workers, 20_000_000_000), values_FDW)


def measure(workers: int, kind: str, method: str) -> dict[str, float]:
    """Localise in this process, which has done nothing before."""
    matrix = patterns(workers, kind)
    begin_s = time.process_time()
    if method == "loop":
        pairs_s = sum(_loop_s(values_DW) for values_DW in matrix.values_FDW)
        return {"cpu_s": pairs_s, "peak_mb": 0.0, "abnormal": 0}
    found = localise(matrix, rule=Rule(method))
    cpu_s = time.process_time() - begin_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"cpu_s": cpu_s, "peak_mb": peak_mb, "abnormal": sum(len(each.ranks) for each in found.abnormal)}


def _loop_s(values_DW: NDArray[np.float32]) -> float:
    """Return what all pairs of one function would cost by blocks that stay in cache, from 1 % of them."""
    points_DW = normalised(values_DW)
    peers_DN = points_DW[:, sample_peers(points_DW.shape[1])]
    some = max(4096, points_DW.shape[1] // 100)
    begin_s = time.process_time()
    for first in range(0, some, 4096):
        block_DK = points_DW[:, first : first + 4096]
        total_NK = np.zeros((peers_DN.shape[1], block_DK.shape[1]), np.float32)
        for peers_N, values_K in zip(peers_DN, block_DK, strict=True):
            total_NK += np.abs(peers_N[:, None] - values_K)
        np.count_nonzero(total_NK >= np.float32(0.4), axis=0)
    return float((time.process_time() - begin_s) * points_DW.shape[1] / some)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 where a budget is missed."""
    parser = argparse.ArgumentParser(description="Cost of localisation.")
    parser.add_argument("--workers", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--measure", nargs=2, metavar=("KIND", "METHOD"), help="one measurement, as JSON")
    parsed = parser.parse_args(arguments)
    if parsed.measure:
        print(json.dumps(measure(parsed.workers[0], *parsed.measure)))
        return 0
    print(
        f"{'workers':>9} {'patterns':<9}{'rule':<9}{'CPU s':>7}{'budget':>8}{'peak MB':>9}{'budget':>8}{'abnormal':>10}"
    )
    over = False
    for workers in parsed.workers:
        for kind in ("jobs", "uniform"):
            for method in (*Rule, "loop"):
                over |= _row(workers, kind, str(method))
    return int(over)


def _row(workers: int, kind: str, method: str) -> bool:
    command = [sys.executable, "-m", __spec__.name, "--workers", str(workers), "--measure", kind, method]
    got = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    has_budget = workers == _BUDGET_WORKERS and kind == "jobs" and method != "loop"
    budget_s, budget_mb = (f"{BUDGET_S[Rule(method)]:g}", f"{BUDGET_MB:g}") if has_budget else ("", "")
    print(
        f"{workers:>9} {kind:<9}{method:<9}{got['cpu_s']:>7.2f}{budget_s:>8}{got['peak_mb']:>9.0f}{budget_mb:>8}"
        f"{got['abnormal']:>10}",
        flush=True,
    )
    return has_budget and (got["cpu_s"] > BUDGET_S[Rule(method)] or got["peak_mb"] > BUDGET_MB)


if __name__ == "__main__":
    sys.exit(main())
