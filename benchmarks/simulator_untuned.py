"""How well the simulator meets published runs as a user gets it: `python -m benchmarks.simulator_untuned [FOLDER]`.

FOLDER holds the tables of published runs (default: the whole ones next to the checkout, else those in the tests' data).
Each set is printed in its two halves (`simulator_published`). `shipped` is the forecast with the presets as they are;
`fitted` has one number, the matrix efficiency of the set's device, fitted to the half `open`; `formula` is FLOPs x
bubble / efficiency with its one efficiency fitted to the same half. Errors are means and medians of |predicted over
measured - 1|; tau is Kendall's over the pairs of runs of one model on as many GPUs. Runs of one configuration do not
take equally long, so the order is also printed for the pairs that differ by more than such repetitions, next to the
highest tau that a forecast can expect. `--half open` leaves the half that is never fitted unseen.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import erf, log, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulator_measured import COMMITTED, PUBLISHED, SHARED, VTRAIN, read_published, read_vtrain
from benchmarks.simulator_published import HELD, NODES, OPEN, RECIPES, RUNS, TABLES, Run, read_runs, run_of
from lockstep.contracts.errors import LockstepError
from lockstep.simulator.forecast import Forecast
from lockstep.simulator.simulate import simulate
from lockstep.simulator.strategy.tree import FULL

_Array = NDArray[np.float64]
_SCALES = np.linspace(0.4, 1.6, 13)
"""Tried first by the fit of one efficiency, as shares of the shipped one."""
_FIT_ROWS_MAX = 60
SHIPPED_TARGET_RATIO = 0.15
FITTED_TARGET_RATIO = 0.07
"""Mean errors of the half HELD that the simulator is meant to reach; what misses them is listed, no more."""
PAIRS_MIN = 10
"""Pairs of one model in a half from which on their order is printed."""
_GIB = 2**30
TITLE = (
    f"{'set':<40} {'half':<5} {'n':>4} | {'shipped':>8} {'median':>7} {'tau':>6} | {'fitted':>7} {'median':>7} |"
    f" {'formula':>7} {'median':>7} {'tau':>6}"
)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Forecasts of the runs of a set, with the steps by each way to predict them, in seconds."""

    runs: Sequence[Run]
    shipped: Sequence[Forecast]
    fitted_s: _Array
    formula_s: _Array


def forecasts(runs: Sequence[Run], *, efficiency_scale: float = 1.0) -> list[Forecast]:
    """Return the forecast of each run, the matrix efficiency of its device scaled, at most to 1."""
    return [
        simulate(
            run.tree,
            run.cluster.with_device(
                matrix_efficiency=min(1.0, run.cluster.device.matrix_efficiency * efficiency_scale)
            ),
            batch=run.batch,
            options=run.options,
        )
        for run in runs
    ]


def formula_seconds(run: Run) -> float:
    """Return the step by one line at an efficiency of 1: FLOPs with recomputation, over all peaks, times the bubble."""
    schedule = run.tree.root.order
    assert schedule is not None
    recomputed = 4 / 3 if run.tree.root.recomputation == FULL else 1.0
    flops = run.batch * run.tree.model.flops_per_sample * recomputed
    return flops / (run.gpus * run.peak_flops) * (1 + (run.stages - 1) / (run.chunks * schedule.micro_batches))


def errors(predicted_s: _Array, runs: Sequence[Run]) -> _Array:
    """Return |predicted over measured - 1| of runs that have a measured step."""
    return np.abs(predicted_s / measured_seconds(runs) - 1)


def measured_seconds(runs: Sequence[Run]) -> _Array:
    """Return the measured steps in seconds."""
    return np.array([run.seconds for run in runs], dtype=np.float64)


def pairs(runs: Sequence[Run], key: Callable[[Run], object]) -> Iterator[tuple[int, int]]:
    """Yield the places of every two runs with one key whose measured steps differ."""
    groups = defaultdict(list)
    for place, run in enumerate(runs):
        groups[key(run)].append(place)
    for group in groups.values():
        yield from ((i, j) for i, j in combinations(group, 2) if runs[i].seconds != runs[j].seconds)


def agreement(predicted_s: _Array, runs: Sequence[Run], chosen: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return how many of the chosen pairs the prediction orders as measured, and how many pairs there are."""
    measured = measured_seconds(runs)
    right = [(predicted_s[i] - predicted_s[j]) * (measured[i] - measured[j]) > 0 for i, j in chosen]
    return sum(right), len(right)


def tau(predicted_s: _Array, runs: Sequence[Run]) -> float:
    """Return Kendall's tau over the pairs of runs of one model; NaN without pairs."""
    right, count = agreement(predicted_s, runs, pairs(runs, lambda run: run.model_key))
    return 2 * right / count - 1 if count else float("nan")


def fit_scale(runs: Sequence[Run], steps: Callable[[float], _Array]) -> float:
    """Return the factor at which `steps` of the runs of the half OPEN have the least mean error."""

    def error(scale: float) -> float:
        return float(errors(steps(scale), runs).mean())

    coarse = min(_SCALES, key=error)
    return float(min(np.linspace(coarse - 0.1, coarse + 0.1, 9), key=error))


def evaluate(runs: Sequence[Run]) -> Evaluated:
    """Return the forecasts of one set's runs, which all have a measured step."""
    open_runs = [run for run in runs if run.half == OPEN]
    open_runs = open_runs[:: max(1, len(open_runs) // _FIT_ROWS_MAX)]
    shipped = forecasts(runs)
    formula_s = np.array([formula_seconds(run) for run in runs])
    if not open_runs:
        nothing = np.full(len(runs), np.nan)
        return Evaluated(runs, shipped, nothing, nothing)
    scale = fit_scale(open_runs, lambda scale: _steps(forecasts(open_runs, efficiency_scale=scale)))
    formula_open_s = np.array([formula_seconds(run) for run in open_runs])
    middle = float(np.median(measured_seconds(open_runs) / formula_open_s))
    formula_scale = middle * fit_scale(open_runs, lambda scale: formula_open_s * middle * scale)
    return Evaluated(runs, shipped, _steps(forecasts(runs, efficiency_scale=scale)), formula_s * formula_scale)


def _steps(found: Sequence[Forecast]) -> _Array:
    return np.array([each.step_seconds for each in found])


def lines(name: str, evaluated: Evaluated) -> Iterator[str]:
    """Yield the table's lines of one set."""
    shipped_s = _steps(evaluated.shipped)
    for half in (OPEN, HELD):
        places = [place for place, run in enumerate(evaluated.runs) if run.half == half]
        if not places:
            continue
        runs = [evaluated.runs[place] for place in places]
        columns = [steps[places] for steps in (shipped_s, evaluated.fitted_s, evaluated.formula_s)]
        mean = [f"{errors(steps, runs).mean():>7.1%} {np.median(errors(steps, runs)):>7.1%}" for steps in columns]
        order = [f"{tau(steps, runs):>6.2f}" for steps in columns]
        yield (f"{name:<40.40} {half:<5} {len(runs):>4} |  {mean[0]} {order[0]} | {mean[1]} | {mean[2]} {order[2]}")


def missed(named: Mapping[str, Evaluated]) -> Iterator[str]:
    """Yield for each target the sets whose half HELD misses it."""
    for what, target in (("shipped", SHIPPED_TARGET_RATIO), ("fitted", FITTED_TARGET_RATIO)):
        names = []
        for name, evaluated in named.items():
            places = [place for place, run in enumerate(evaluated.runs) if run.half == HELD]
            steps_s = _steps(evaluated.shipped) if what == "shipped" else evaluated.fitted_s
            if places and errors(steps_s[places], [evaluated.runs[place] for place in places]).mean() > target:
                names.append(name)
        yield f"{what}, target {target:.0%} of the half {HELD}: missed by {', '.join(names) or 'none'}"


def micro_batch_lines(evaluated: Iterable[Evaluated]) -> Iterator[str]:
    """Yield how many pairs that differ in the micro-batch only are ordered as measured, by half."""
    found: dict[str, list[int]] = {OPEN: [0, 0], HELD: [0, 0]}
    for each in evaluated:
        shipped_s = _steps(each.shipped)
        for half, total in found.items():
            places = [place for place, run in enumerate(each.runs) if run.half == half]
            runs = [each.runs[place] for place in places]
            for index, count in enumerate(agreement(shipped_s[places], runs, pairs(runs, lambda run: run.job_key))):
                total[index] += count
    for half, (right, count) in found.items():
        yield f"micro-batches alone, {half}: {right} of {count} pairs in the measured order"


def repetition_noise(evaluated: Iterable[Evaluated]) -> float | None:
    """Return the standard deviation of a step's logarithm between runs of one configuration; None without such runs.

    Equal steps of one configuration are one run that its source states twice.
    """
    groups = defaultdict(set)
    for each in evaluated:
        for run, key in zip(each.runs, _repetitions(each.runs, _steps(each.shipped)), strict=True):
            groups[key].add(log(run.seconds or 1.0))
    repeated = [np.array(sorted(group)) for group in groups.values() if len(group) > 1]
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in repeated)
    freedom = sum(len(group) - 1 for group in repeated)
    return sqrt(squares / freedom) if freedom else None


def tau_ceiling(steps_s: _Array, runs: Sequence[Run], chosen: Sequence[tuple[int, int]], noise: float) -> float:
    """Return the tau that a forecast can expect over the chosen pairs if it knows the mean step of each configuration.

    It orders two configurations as their means are. Measured steps that differ by d, each with `noise`, are in that
    order with a probability of (1 + erf(d / 2 noise)) / 2, if any difference of the means is as likely as any other.
    Runs of one configuration, whose forecasts `steps_s` are equal, are never in the measured order.
    """
    keys = _repetitions(runs, steps_s)
    expected = [-1.0 if keys[i] == keys[j] else erf(_distance(runs[i], runs[j]) / (2 * noise)) for i, j in chosen]
    return sum(expected) / len(expected)


def _repetitions(runs: Sequence[Run], steps_s: _Array) -> list[tuple[object, ...]]:
    """Return a key of each run, equal for runs of one configuration, which includes what only its forecast shows."""
    return [(run.job_key, run.micro_batch, step_s) for run, step_s in zip(runs, steps_s.tolist(), strict=True)]


def _distance(one: Run, other: Run) -> float:
    assert one.seconds
    assert other.seconds
    return abs(log(one.seconds / other.seconds))


def order_lines(named: Mapping[str, Evaluated]) -> Iterator[str]:
    """Yield for each set with pairs of runs of one model how many are ordered as measured, and how many can be.

    Pairs that are further apart than two runs of one configuration are counted by themselves: the order of the others
    is the machine's weather.
    """
    noise = repetition_noise(named.values())
    if noise is not None:
        yield f"repetitions of one configuration, all sets: a step's standard deviation is {noise:.1%}"
    for name, evaluated in named.items():
        shipped_s = _steps(evaluated.shipped)
        for half in (OPEN, HELD):
            places = [place for place, run in enumerate(evaluated.runs) if run.half == half]
            runs, steps_s = [evaluated.runs[place] for place in places], shipped_s[places]
            every = list(pairs(runs, lambda run: run.model_key))
            if len(every) < PAIRS_MIN:
                continue
            order = _order(steps_s, runs, every, noise)
            if noise is not None:
                apart_min = sqrt(2) * noise
                apart = [(i, j) for i, j in every if _distance(runs[i], runs[j]) > apart_min]
                order += f"; more than {apart_min:.1%} apart: {_order(steps_s, runs, apart, noise)}"
            yield f"order, {name:<40.40} {half:<5} {order}"


def _order(steps_s: _Array, runs: Sequence[Run], chosen: Sequence[tuple[int, int]], noise: float | None) -> str:
    right, count = agreement(steps_s, runs, chosen)
    if not count:
        return "no pairs"
    highest = "" if noise is None else f" of at most {tau_ceiling(steps_s, runs, chosen, noise):.2f}"
    return f"{right} of {count} pairs as measured, tau {2 * right / count - 1:.2f}{highest}"


def memory_lines(runs: Sequence[Run]) -> Iterator[str]:
    """Yield predicted over measured memory, and how many runs are forecast right to fit or not to fit."""
    for half in (OPEN, HELD):
        chosen = [run for run in runs if run.half == half]
        found = forecasts(chosen)
        ratios = [
            max(each.peak_memory_bytes) / run.memory_bytes
            for run, each in zip(chosen, found, strict=True)
            if run.memory_bytes
        ]
        caught = sum(each.out_of_memory for run, each in zip(chosen, found, strict=True) if run.out_of_memory)
        alarms = sum(each.out_of_memory for run, each in zip(chosen, found, strict=True) if not run.out_of_memory)
        failed = sum(run.out_of_memory for run in chosen)
        median = f"{np.median(ratios):.2f}" if ratios else "none"
        yield (
            f"memory, {half}: predicted / measured median {median} of {len(ratios)}; out of memory {caught} of {failed}"
            f" caught, {alarms} false alarms of {len(chosen) - failed}"
        )


def read_all(folder: Path) -> Mapping[str, Sequence[Run]]:
    """Return the runs of `folder` by set."""
    sets: dict[str, list[Run]] = defaultdict(list)
    for name in (RUNS, TABLES, RECIPES):
        for run in read_runs(folder / name if (folder / name).is_file() else COMMITTED / name):
            sets[run.set_name].append(run)
    for device, table in read_published(folder / PUBLISHED).items():
        cluster = NODES[device](384)
        sets[f"Megatron SC'21 table 1, 2022 table 5, {device}"] += [
            run_of(row, cluster, device, "published") for row in table.rows
        ]
    sets["vTrain, one A100 node"] += [
        run_of(row, NODES["A100"](1), "A100", "vtrain") for row in read_vtrain(folder / VTRAIN).rows
    ]
    return sets


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="The simulator on published runs, nothing fitted.")
    parser.add_argument("folder", type=Path, nargs="?", default=SHARED if SHARED.is_dir() else COMMITTED)
    parser.add_argument("--half", choices=(OPEN, HELD), help="this half of the runs only")
    parser.add_argument("--rows", action="store_true", help="print each run of the halves that are shown")
    parser.add_argument("--set", default="", help="sets whose name holds this text only")
    arguments = parser.parse_args()
    try:
        sets = read_all(arguments.folder)
    except (LockstepError, OSError) as error:
        print(f"simulator_untuned: {error}", file=sys.stderr)
        return 2
    print(TITLE)
    evaluated: dict[str, Evaluated] = {}
    every: list[Run] = []
    for name, runs in sets.items():
        chosen = [run for run in runs if arguments.half in (None, run.half)] if arguments.set in name else []
        if not chosen:
            continue
        evaluated[name] = evaluate([run for run in chosen if run.seconds is not None])
        every += chosen
        for line in lines(name, evaluated[name]):
            print(line, flush=True)
        if arguments.rows:
            _print_rows(evaluated[name])
    for line in (
        *missed(evaluated),
        *order_lines(evaluated),
        *micro_batch_lines(evaluated.values()),
        *memory_lines(every),
    ):
        print(line)
    return 0


def _print_rows(evaluated: Evaluated) -> None:
    for run, each, fitted_s, formula_s in zip(
        evaluated.runs, evaluated.shipped, evaluated.fitted_s, evaluated.formula_s, strict=True
    ):
        seconds = run.seconds or float("nan")
        memory = f"{max(each.peak_memory_bytes) / _GIB:6.1f} GiB of {(run.memory_bytes or 0) / _GIB:5.1f}"
        print(
            f"    {run.described:<60} {seconds:>9.3f} s {each.step_seconds / seconds - 1:>+7.1%}"
            f" {fitted_s / seconds - 1:>+7.1%} {formula_s / seconds - 1:>+7.1%}  {memory}"
        )


if __name__ == "__main__":
    sys.exit(main())
