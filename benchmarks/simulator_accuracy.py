"""How well forecasts meet measured steps: `python -m benchmarks.simulator_accuracy [FOLDER]`.

FOLDER holds vTrain's measured steps of one A100 node and the published steps of Megatron (default: the tables next to
the checkout, else the sample in the tests' data). Of vTrain's rows, shuffled by a fixed seed, half are held out; of
the other half `--fit` are fitted. Of the published rows every second is fitted, by one number, and the others are held
out, for each type of GPU by itself. Prints mean, median and largest error of each set, Kendall's tau, and what rows
were dropped. Exit status 1: a mean error of held-out rows above 7 % (vTrain) or 10 % (published), or a tau below 0.7;
2: a table that cannot be used.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.simulator_measured import (
    COMMITTED,
    PUBLISHED,
    SHARED,
    VTRAIN,
    halves,
    in_turn,
    kendall_tau,
    predict,
    published_cluster,
    read_published,
    read_vtrain,
    seconds,
)
from lockstep.contracts.errors import LockstepError
from lockstep.simulator.calibration.calibrate import Observation, calibrate
from lockstep.simulator.hardware.cluster import Cluster
from lockstep.simulator.hardware.clusters import dgx_a100

VTRAIN_BUDGET_RATIO = 0.07
PUBLISHED_BUDGET_RATIO = 0.10
TAU_BUDGET = 0.7
FITTED = 400
SEED = 0
TITLE = f"{'rows':<22} {'count':>5} {'mean':>7} {'median':>7} {'largest':>7} {'tau':>6}"


def show(name: str, rows: Sequence[Observation], cluster: Cluster) -> tuple[float, float]:
    """Print one line of the table; return mean error and tau."""
    measured, predicted = seconds(rows), predict(rows, cluster)
    errors = np.abs(predicted / measured - 1)
    tau = kendall_tau(predicted, measured)
    print(
        f"{name:<22} {len(rows):>5} {errors.mean():>7.2%} {np.median(errors):>7.2%} {errors.max():>7.2%} {tau:>6.3f}",
        flush=True,
    )
    return float(errors.mean()), tau


def evaluate_vtrain(rows: Sequence[Observation], count: int) -> tuple[float, float]:
    """Fit `count` rows of one half, print the table; return mean error and tau of the other half."""
    fitted, held_out = halves(rows, SEED)
    found = calibrate(in_turn(fitted, held_out, count), dgx_a100())
    print("vTrain, one A100 node: " + ", ".join(f"{key} {value:.4g}" for key, value in found.parameters.items()))
    print(TITLE)
    show("fitted", fitted[:count], found.cluster)
    return show("held out", held_out, found.cluster)


def evaluate_published(rows: Sequence[Observation], device: str) -> tuple[float, float]:
    """Fit one number to every second row, print the table; return mean error and tau of the others."""
    found = calibrate(rows, published_cluster(device=device), names=("matrix_efficiency",))
    print(f"\npublished, {device}: matrix_efficiency {found.parameters['matrix_efficiency']:.4g}")
    for row, predicted in zip(rows, predict(rows, found.cluster), strict=True):
        error = predicted / row.seconds - 1
        print(f"  {row.tree.model.name:<28} {row.seconds:>8.2f} s {predicted:>8.2f} s {error:>+7.1%}")
    print(TITLE)
    show("fitted", rows[::2], found.cluster)
    return show("held out", rows[1::2], found.cluster)


def main() -> int:
    """Fit, predict, print the tables; return 1 where a budget is missed."""
    parser = argparse.ArgumentParser(description="Accuracy of the simulator on measured steps.")
    parser.add_argument("folder", type=Path, nargs="?", default=SHARED if SHARED.is_dir() else COMMITTED)
    parser.add_argument("--fit", type=int, default=FITTED, help="rows of vTrain's to fit, of the half that may be")
    arguments = parser.parse_args()
    try:
        return int(evaluate(arguments.folder, arguments.fit))
    except (LockstepError, OSError) as error:
        print(f"simulator_accuracy: {error}", file=sys.stderr)
        return 2


def evaluate(folder: Path, count: int) -> bool:
    """Evaluate both tables of `folder`; return whether a budget is missed."""
    measured, published = read_vtrain(folder / VTRAIN), read_published(folder / PUBLISHED)
    for dropped in dict.fromkeys(table.dropped for table in (measured, *published.values()) if table.dropped):
        print(dropped)
    error, tau = evaluate_vtrain(measured.rows, count)
    is_missed = error > VTRAIN_BUDGET_RATIO or tau < TAU_BUDGET
    for device, table in published.items():
        error, tau = evaluate_published(table.rows, device)
        is_missed |= error > PUBLISHED_BUDGET_RATIO or tau < TAU_BUDGET
    return is_missed


if __name__ == "__main__":
    sys.exit(main())
