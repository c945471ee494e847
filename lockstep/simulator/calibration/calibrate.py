"""Fits a few parameters to measured steps: the achieved rates of a device and its links, and the forecast's error.

Every parameter is positive, within its physical bound, and fitted as a ratio, by least squares on the logarithms of
predicted over measured time, with rows weighted down as their errors grow (iteratively reweighted, so that the fit
minimises the mean absolute error). Every second observation is held out; the error band comes from those, never from
the fitted ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.hardware.cluster import Cluster
from lockstep.simulator.hardware.collectives import ALL_REDUCE, RING, Link, collective_cost
from lockstep.simulator.simulate import Options, simulate
from lockstep.simulator.strategy.tree import StrategyTree

START: Mapping[str, float] = {
    "matrix_efficiency": 0.6,
    "memory_efficiency": 0.7,
    "half_flops": 2e9,
    "launch_s": 5e-5,
    "link_latency_ratio": 1.0,
    "link_bandwidth_ratio": 1.0,
}
"""The parameters and their start values: usual figures of A100 under PyTorch, and links as declared."""

LATENCY, BANDWIDTH = "latency_ratio", "bandwidth_ratio"
_LATENCY_OF_ALL, _BANDWIDTH_OF_ALL = "link_latency_ratio", "link_bandwidth_ratio"
MOST: Mapping[str, float] = {"matrix_efficiency": 1.0, "memory_efficiency": 1.0}
"""Physical bounds of parameters, which no fit exceeds."""
_SELECTION_ROWS = 30  # fitted rows used to select the parameters
_GAIN_RATIO = 0.9
_ROUNDS = 8
_STEP = 0.05  # of the logarithm, for derivatives: well above rounding errors, well below the scale of nonlinearity
_LONGEST_STEP = 1.0
_SHARES = (1.0, 1 / 3, 1 / 9)  # of a step, tried in turn: where a transfer is hidden or not, slopes change at once
_ERROR_FLOOR = 0.02  # smaller errors are weighted equally; otherwise a perfect row would dominate the fit
_RIDGE = 0.02  # keeps parameters that no row determines at their start
_LEAST_NOISE = 1e-4  # of a measured step
_SPREAD = 2.0  # of the logarithm of a parameter about its start, before anything is measured
_SLOW_LINKS = (0.2, 0.05)  # of their bandwidth: where the search begins again
_WITHOUT_BEND_BYTES = 16e6  # below, collective times change with the protocol (vTrain's tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One measured job: its strategy, its batch, the options it ran with, and the time of a step."""

    tree: StrategyTree
    batch: int
    seconds: float
    options: Options = field(default_factory=Options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The calibrated cluster, the fitted parameters, and relative errors of the fitted rows and of the held-out rows.

    `error_band_ratio` is the median of the held-out errors, `held_out_errors` all of them, in the order of the rows.
    """

    cluster: Cluster
    parameters: Mapping[str, float]
    fitted_error_ratio: float
    error_band_ratio: float
    held_out_errors: tuple[float, ...]


def calibrate(
    observations: Sequence[Observation], cluster: Cluster, *, names: Sequence[str] = tuple(START)
) -> Calibration:
    """Return `cluster` with the parameters `names` fitted to every second observation, the others held out.

    Raises
    ------
    ConfigError
        An unknown parameter, a measured time that is not positive, or fewer fitted rows than parameters.
    """
    fitted, held_out = observations[::2], observations[1::2]
    _check(observations, names, cluster, len(fitted))
    parameters, residual, _ = _fit_rows(fitted, cluster, names)
    calibrated = with_parameters(cluster, parameters)
    kept = np.expm1(_errors(held_out, calibrated))
    return Calibration(
        cluster=calibrated,
        parameters=parameters,
        fitted_error_ratio=float(np.abs(np.expm1(residual)).mean()),
        error_band_ratio=float(np.median(np.abs(kept))),
        held_out_errors=tuple(kept.tolist()),
    )


def with_parameters(cluster: Cluster, parameters: Mapping[str, float]) -> Cluster:
    """Return `cluster` with parameters set: those of the device as they are, those of links as ratios.

    `link_latency_ratio` and `link_bandwidth_ratio` are of all levels, `LEVEL/latency_ratio` and `LEVEL/bandwidth_ratio`
    of one.
    """
    device = {name: value for name, value in parameters.items() if not name.startswith("link_") and "/" not in name}
    levels = tuple(
        level.scaled(
            bandwidth=parameters.get(_BANDWIDTH_OF_ALL, 1.0) * parameters.get(f"{level.name}/{BANDWIDTH}", 1.0),
            latency=parameters.get(_LATENCY_OF_ALL, 1.0) * parameters.get(f"{level.name}/{LATENCY}", 1.0),
        )
        for level in cluster.levels
    )
    return replace(cluster.with_device(**device), levels=levels)


def select_names(observations: Sequence[Observation], cluster: Cluster) -> tuple[str, ...]:
    """Return the parameters that the fitted observations distinguish: forward selection by leave-one-out errors.

    One for every two fitted observations at most; each but the first takes a tenth of the error away at least, on
    observations that are left out of its fit, so that no parameter serves one of them alone, and more than one standard
    error of what it takes away (Breiman et al. 1984, section 3.4.3). Levels of links count one by one.
    """
    fitted = observations[::2]
    fitted = fitted[:: -(-len(fitted) // _SELECTION_ROWS)]
    links = tuple(f"{level.name}/{BANDWIDTH}" for level in cluster.levels)
    chosen: tuple[str, ...] = ("matrix_efficiency",)
    best = _left_out_errors(fitted, cluster, chosen)
    while len(chosen) < (len(observations) + 1) // 2 // 2:
        left = [name for name in (*links, "launch_s", "memory_efficiency") if name not in chosen]
        tried = [(_left_out_errors(fitted, cluster, (*chosen, name)), name) for name in left]
        found, name = min(tried, key=lambda each: float(each[0].mean()), default=(best, ""))
        gained = best - found
        if gained.mean() <= max((1 - _GAIN_RATIO) * best.mean(), gained.std(ddof=1) / np.sqrt(len(gained))):
            break
        chosen, best = (*chosen, name), found
    return chosen


def _left_out_errors(rows: Sequence[Observation], cluster: Cluster, names: Sequence[str]) -> NDArray[np.float64]:
    """Return the absolute error of each row under the fit to the others."""
    return np.abs(_fit_rows(rows, cluster, names)[2])


def _fit_rows(
    rows: Sequence[Observation], cluster: Cluster, names: Sequence[str]
) -> tuple[dict[str, float], NDArray[np.float64], NDArray[np.float64]]:
    """Return the parameters `names` fitted to `rows`, and logarithms of predicted over measured steps.

    The last are those of each row by the fit to the others.
    """
    start = np.log([_start(name, cluster) for name in names])
    most = np.log([MOST.get(name, np.inf) for name in names])

    def parameters(point: NDArray[np.float64]) -> dict[str, float]:
        return dict(zip(names, np.exp(point).tolist(), strict=True))

    def errors(point: NDArray[np.float64]) -> NDArray[np.float64]:
        return _errors(rows, with_parameters(cluster, parameters(point)))

    found = [_fit(errors, place, most) for place in _starts(names, start)]
    best, residual, slopes = min(found, key=lambda fit: float(np.abs(fit[1]).mean()))
    return parameters(best), residual, _left_out(best - start, residual, slopes)


def _starts(names: Sequence[str], start: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return where the search begins: at `start`, and where links rule the step.

    A link that is hidden has no slope, so that no search from there finds that it is slow.
    """
    links = np.array([name.endswith(BANDWIDTH) for name in names])
    return [start, *(start + links * np.log(ratio) for ratio in _SLOW_LINKS if links.any())]


def _left_out(
    moved: NDArray[np.float64], residual: NDArray[np.float64], slopes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the error of each row by the fit to the others, which the slopes of errors give without another fit.

    `moved` is how far the fit has gone: a parameter that one row alone speaks of goes back without it. How far it goes
    back depends on the noise, which the residuals of the fit give: rows that agree with each other determine a
    parameter even if it changes them little.
    """
    rows, free = len(residual), max(len(residual) - len(moved), 1)
    noise = float(np.clip(np.abs(residual).mean() * rows / free, _LEAST_NOISE, _ERROR_FLOOR))
    pull = noise / _SPREAD**2
    found = np.empty(rows)
    for row in range(rows):
        others = np.arange(rows) != row
        weighted = slopes[others].T / np.maximum(np.abs(residual[others]), noise)
        normal = weighted @ slopes[others] + pull * np.eye(len(moved))
        found[row] = residual[row] - slopes[row] @ np.linalg.solve(normal, weighted @ residual[others] + pull * moved)
    return found


def _errors(rows: Sequence[Observation], cluster: Cluster) -> NDArray[np.float64]:
    return np.log([_step_seconds(row, cluster) / row.seconds for row in rows])


def fit_link(sizes_bytes: Sequence[float], seconds: Sequence[float], n: int) -> Link:
    """Return launch and bandwidth of measured all-reduces among `n` ranks, from messages of 16 MB and more.

    Relative errors count, so that small messages weigh as much as large ones.

    Raises
    ------
    ConfigError
        Fewer than two messages of 16 MB.
    """
    sizes, times = np.asarray(sizes_bytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    large = sizes >= _WITHOUT_BEND_BYTES
    if large.sum() < 2:  # noqa: PLR2004  # two unknowns
        raise ConfigError(f"messages to fit a link: got {int(large.sum())} of 16 MB and more, expected at least 2")
    sizes, times = sizes[large], times[large]
    design = np.stack([1 / times, sizes / times], axis=1)
    (launch_s, per_byte_s), *_ = np.linalg.lstsq(design, np.ones(len(times)), rcond=None)
    ratio = collective_cost(ALL_REDUCE, RING, n).ratio
    return Link(bytes_per_second=float(ratio / per_byte_s), launch_s=float(launch_s))


def _fit(
    errors: Callable[[NDArray[np.float64]], NDArray[np.float64]], start: NDArray[np.float64], most: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the point to which Gauss-Newton steps lead while mean absolute error falls, its errors and their slopes.

    No coordinate passes `most`.
    """
    point, found = start, errors(start)
    slopes = np.zeros((len(found), len(point)))
    for _ in range(_ROUNDS):
        moved = [errors(point - _STEP * unit) for unit in np.eye(len(point))]
        slopes = (found[:, None] - np.stack(moved, axis=1)) / _STEP
        weights = 1 / np.maximum(np.abs(found), _ERROR_FLOOR)
        normal = slopes.T @ (slopes * weights[:, None]) + _RIDGE * np.eye(len(point))
        way = np.clip(np.linalg.solve(normal, -slopes.T @ (found * weights)), -_LONGEST_STEP, _LONGEST_STEP)
        points = [np.minimum(point + share * way, most) for share in _SHARES]
        nearest, there = min(((errors(each), each) for each in points), key=lambda pair: float(np.abs(pair[0]).mean()))
        if np.abs(nearest).mean() >= np.abs(found).mean():
            break
        point, found = there, nearest
    return point, found, slopes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A row on a cluster; `row_id` and `text` stand for both, whose trees and mappings have no hash."""

    row_id: int
    text: str
    row: Observation = field(compare=False)
    cluster: Cluster = field(compare=False)


def _step_seconds(row: Observation, cluster: Cluster) -> float:
    return _simulated(_Trial(row_id=id(row), text=repr(cluster), row=row, cluster=cluster))


@lru_cache(maxsize=4096)
def _simulated(trial: _Trial) -> float:
    """Return the step; fits of different parameters begin at the same points, and the chosen ones are fitted again."""
    row = trial.row
    return simulate(row.tree, trial.cluster, batch=row.batch, options=row.options).step_seconds


def _start(name: str, cluster: Cluster) -> float:
    """Return where the search for a parameter begins: at the device's own where it is described by measurements."""
    own = getattr(cluster.device, name, 0.0)
    return float(own) if cluster.device.tiling is not None and own > 0 else START.get(name, 1.0)


def _check(observations: Sequence[Observation], names: Sequence[str], cluster: Cluster, n_fitted: int) -> None:
    of_levels = tuple(f"{level.name}/{ratio}" for level in cluster.levels for ratio in (BANDWIDTH, LATENCY))
    for name in names:
        if name not in START and name not in of_levels:
            raise ConfigError(f"parameter to calibrate: got {name!r}, expected one of {(*START, *of_levels)}")
    for index, row in enumerate(observations):
        if not row.seconds > 0:
            raise ConfigError(f"measured step of observation {index}: got {row.seconds}, expected above 0 s")
    if n_fitted < len(names) or len(observations) <= n_fitted:
        raise ConfigError(
            f"observations: got {len(observations)}, of which {n_fitted} are fitted, expected at least {2 * len(names)}"
            f" for {len(names)} parameters"
        )
