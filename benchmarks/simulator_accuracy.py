"""How well forecasts meet measured steps: `python -m benchmarks.simulator_accuracy PATH/ground_truth_single.csv`.

The file is vTrain's table of measured steps of one node of A100 (MIT licence; not part of this repository). A seeded
sample is shuffled, every second row of it fitted, the others held out (`lockstep.simulator.calibrate`); with `--all`
every row that was not fitted is predicted. Prints mean and median error of fitted and held-out rows and the latter's
Kendall tau. Exit status 1: a mean error of held-out rows above 6 %, or a tau below 0.7.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.calibrate import Calibration, Observation, calibrate
from lockstep.simulator.clusters import dgx_a100
from lockstep.simulator.model import HALF_GRADIENTS
from lockstep.simulator.preset import Degrees, preset
from lockstep.simulator.schedule import Schedule
from lockstep.simulator.simulate import Options, simulate
from lockstep.simulator.transformers import gpt

MEAN_ERROR_BUDGET_RATIO = 0.06
TAU_BUDGET = 0.7
SAMPLE = 400
SEED = 0
_OPTIONS = Options(bucket_bytes=None)
"""Megatron-DeepSpeed sums gradients after the last backward."""


def read_observations(path: Path) -> list[Observation]:
    """Return the measured jobs of the table: GPT under Megatron-DeepSpeed with ZeRO stage 1, as its users run it."""
    found = []
    for row in csv.DictReader(path.read_text().splitlines()):
        tp, dp, pp = (int(row[f"{name} parallelism"]) for name in ("tensor", "data", "pipeline"))
        batch = int(row["global batch"])
        model = gpt(
            layers=int(row["# layers"]),
            hidden=int(row["hidden size"]),
            heads=int(row["attention heads"]),
            sequence=int(row["sequence length"]),
            precision=HALF_GRADIENTS,
        )
        schedule = Schedule(micro_batches=batch // int(row["micro batch"]) // dp)
        tree = preset(model, Degrees(tp=tp, dp=dp, pp=pp, zero=1), schedule)
        seconds = float(row["iteration time (ms)"]) / 1e3
        found.append(Observation(tree=tree, batch=batch, seconds=seconds, options=_OPTIONS))
    return found


def kendall_tau(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return how many more pairs the two orders share than not, as a share of all pairs (tau-a)."""
    signs = [np.sign(values[:, None] - values[None, :]) for values in (first, second)]
    return float((signs[0] * signs[1]).sum() / (len(first) * (len(first) - 1)))


def predict(rows: list[Observation], calibration: Calibration) -> NDArray[np.float64]:
    """Return the predicted step of each row, in seconds."""
    cluster = calibration.cluster
    return np.array([simulate(r.tree, cluster, batch=r.batch, options=r.options).step_seconds for r in rows])


def main() -> int:
    """Fit, predict, print the table; return 1 where a budget is missed."""
    parser = argparse.ArgumentParser(description="Accuracy of the simulator on vTrain's measured steps.")
    parser.add_argument("table", type=Path)
    parser.add_argument("--all", action="store_true", help="predict every row that was not fitted")
    arguments = parser.parse_args()
    rows = read_observations(arguments.table)
    order = np.random.default_rng(SEED).permutation(len(rows))
    sample = [rows[index] for index in order[:SAMPLE]]
    calibration = calibrate(sample, dgx_a100())
    held_out = sample[1::2] + ([rows[index] for index in order[SAMPLE:]] if arguments.all else [])
    measured = np.array([row.seconds for row in held_out])
    predicted = predict(held_out, calibration)
    errors = np.abs(predicted / measured - 1)
    tau = kendall_tau(predicted, measured)
    for name, value in calibration.parameters.items():
        print(f"{name:<22} {value:.4g}")
    print(f"{'rows':<12} {'count':>6} {'mean error':>11} {'median':>8} {'tau':>6}")
    print(f"{'fitted':<12} {len(sample[::2]):>6} {calibration.fitted_error_ratio:>10.2%}")
    print(f"{'held out':<12} {len(held_out):>6} {errors.mean():>10.2%} {np.median(errors):>8.2%} {tau:>6.3f}")
    return int(errors.mean() > MEAN_ERROR_BUDGET_RATIO or tau < TAU_BUDGET)


if __name__ == "__main__":
    sys.exit(main())
