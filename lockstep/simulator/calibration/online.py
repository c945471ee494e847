# ruff: noqa: N806  (names of arrays end in their shape: W steps)
"""The model of one run, fitted to a healthy window of its own steps.

Few numbers: the share of the specification that the device reaches (or for its arithmetic and its memory each, where a
capture has shown how operators divide), that of its optimizer, which does not grow with the batch, what each level of
links gives, the floor of data and host, the spread between ranks, which a step waits for, and the rest that none of it
explains. The first half of the window is fitted, the second held out: the error band is the ninth decile of its steps'
errors. The rest makes the expected step that of the fitted half by construction, so it is the measure of how well the
model explains the run, and a model that leaves too much unexplained is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.calibration.calibrate import BANDWIDTH, LATENCY, MOST
from lockstep.simulator.calibration.document import calibration_document
from lockstep.simulator.calibration.measured import RATIO_MAX, OperatorTimes, Window
from lockstep.simulator.calibration.operator_split import operator_split
from lockstep.simulator.forecast import Forecast
from lockstep.simulator.hardware.cluster import Cluster
from lockstep.simulator.lowering.graph import GRADIENT
from lockstep.simulator.simulate import Options, compile_job, simulate
from lockstep.simulator.strategy.tree import StrategyTree

if TYPE_CHECKING:
    from lockstep.simulator.spec import JobSpec

UNEXPLAINED_MAX_RATIO = 0.4
"""Share of a step beyond which the rest is more than the host's overhead: the specification is of another job."""
OVERRUN_MAX_RATIO = 0.15
"""Share of a step by which the fitted model may be too slow: its bubbles and its order are not the run's."""
PEAK_MAX_RATIO = 1.25
"""A device that computes faster than this share of its peak is not the one of the specification."""
_HIDDEN_RATIO = 0.005  # of a step: transfers that wait no longer than this are hidden, and show no bandwidth
_BAND_QUANTILE = 0.9
_BAND_MIN_RATIO = 0.01  # a window without noise still is one window
_FREE_RATIO = 1e9  # of the speed of what costs nothing
_RATIO_SPAN = 100.0  # a link may give a hundredth or a hundred times what is declared
_NEAR_RATIO = 0.01  # of what a level costs
_TRIES = 20
_SIZES_APART = 2.0
"""The mean collective over the smallest, in bytes, from which on their times separate latency from bandwidth."""
_SPLITS = 12
_SPLIT_NEAR_RATIO = 0.005
_PLAUSIBLE_RATIO = 2.0
"""By how much operator times and records may differ: profiling makes small operators longer, and summaries leave the
smallest out."""


class LinkRatios(NamedTuple):
    """Real over declared bandwidth and latency of a level's links."""

    bandwidth: float = 1.0
    latency: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A job as the simulator takes it. `degrees` by domain kind are checked against the run's where they are known.

    `calibrated` are the parameters that the cluster already has.
    """

    tree: StrategyTree
    cluster: Cluster
    batch: int
    options: Options = field(default_factory=Options)
    degrees: Mapping[str, int] = field(default_factory=dict)
    calibrated: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: "JobSpec") -> "Setup":
        """Return the job of a specification.

        Raises
        ------
        LockstepError
            The model cannot be spread as specified.
        """
        degrees = {kind: getattr(spec.degrees, kind) for kind in ("tp", "cp", "ep", "dp", "pp")}
        return cls(
            tree=spec.tree(),
            cluster=spec.cluster,
            batch=spec.batch,
            options=spec.options,
            degrees=degrees,
            calibrated=spec.calibration.parameters if spec.calibration else {},
        )

    @property
    def ranks(self) -> int:
        """The number of ranks of the job."""
        leaves = self.tree.root.find("*")
        meshes = {next((node.mesh for node in leaf.above() if node.mesh is not None), None) for leaf in leaves}
        return sum(len(mesh) for mesh in meshes if mesh is not None)

    def forecast(self, cluster: Cluster | None = None) -> Forecast:
        """Return the forecast of a step on `cluster`, the job's own if None."""
        return simulate(self.tree, cluster or self.cluster, batch=self.batch, options=self.options)


@dataclass(frozen=True, kw_only=True)
class OnlineModel:
    """A job fitted to its run; `setup.cluster` is as calibrated. Seconds are of a step.

    `parameters` are the numbers found, named as `with_parameters` takes them. `error_band_ratio`: nine of ten held-out
    steps are nearer than this to `expected_step_seconds`, relative to it. `unexplained_ratio` is the share of a step
    that the model adds as a rest. `captured_ranks` are those whose operator times were fitted; without any, arithmetic
    and memory are not distinguished.
    """

    setup: Setup
    parameters: Mapping[str, float]
    floor_seconds: float
    spread_seconds: float
    rest_seconds: float
    error_band_ratio: float
    steps: int
    captured_ranks: tuple[int, ...] = ()

    @property
    def calibration(self) -> dict[str, Any]:
        """The numbers found, as the section `calibration` of a specification; overhead is that of whole cores."""
        overhead_s = self.floor_seconds + self.spread_seconds + self.rest_seconds
        return calibration_document(
            self.parameters,
            error_band_ratio=self.error_band_ratio,
            overhead_seconds=overhead_s * self.setup.cluster.core_share(self.setup.ranks),
            source=f"{self.steps} healthy steps",
        )

    @cached_property
    def forecast(self) -> Forecast:
        """The timeline of a healthy step, without floor, spread and rest."""
        return self.setup.forecast()

    @property
    def compute_seconds(self) -> float:
        """What the mean rank computes."""
        return computing(self.forecast)

    @property
    def operator_seconds(self) -> OperatorTimes:
        """How the computing of the mean rank divides."""
        return operator_split(self.setup.tree, self.setup.cluster.device, batch=self.setup.batch)

    @property
    def expected_step_seconds(self) -> float:
        """What a healthy step takes."""
        return self.step_seconds()

    @property
    def unexplained_ratio(self) -> float:
        """Share of the expected step that is the rest; negative where the timeline alone is too long."""
        return self.rest_seconds / self.expected_step_seconds

    def step_seconds(self, cluster: Cluster | None = None) -> float:
        """Return what a step takes on `cluster`, which is the run's own in another state of health."""
        healthy_s = self.forecast.step_seconds
        timeline_s = healthy_s if cluster is None else self.setup.forecast(cluster).step_seconds
        # Who is slow for a reason hides who is slow by chance.
        spread_s = max(0.0, self.spread_seconds - max(0.0, timeline_s - healthy_s))
        return timeline_s + self.floor_seconds + spread_s + self.rest_seconds


def fit(setup: Setup, window: Window, *, operators: OperatorTimes | None = None) -> OnlineModel:
    """Return the model of `setup` fitted to the first half of `window`.

    Raises
    ------
    ConfigError
        The window is too short, too noisy or drifts; the job is not the run's (ranks, degrees, a device beyond its
        peak); the operator times are not of this job; or the model leaves too much of a step unexplained. The message
        is meant for the author of the specification.
    """
    window.check()
    _check_shape(setup, window)
    n = window.fitted
    step_s = float(np.median(window.step_W[:n]))
    compute_s = float(np.median(window.compute_SW[:, :n], axis=1).mean())
    if not compute_s > 0:
        raise ConfigError("healthy window: got no time of computing, expected some")
    parameters, cluster = _fit_device(setup, compute_s, operators, _optimizer_seconds(window))
    setup = replace(setup, cluster=cluster)
    ratios = _fit_links(setup, window, step_s)
    setup = replace(setup, cluster=with_links(cluster, ratios))
    floor_s = float(np.median(window.floor_W[:n]))
    spread_s = float(np.median(window.spread_W[:n]))
    rest_s = step_s - floor_s - spread_s - setup.forecast().step_seconds
    _check_rest(rest_s, step_s)
    errors_W = np.abs(window.step_W[n:] / step_s - 1)
    return OnlineModel(
        setup=setup,
        parameters=parameters | _link_parameters(setup, ratios),
        floor_seconds=floor_s,
        spread_seconds=spread_s,
        rest_seconds=rest_s,
        error_band_ratio=max(_BAND_MIN_RATIO, float(np.quantile(errors_W, _BAND_QUANTILE))),
        steps=len(window.step_W),
        captured_ranks=operators.ranks if operators is not None else (),
    )


def _link_parameters(setup: Setup, ratios: Mapping[int, LinkRatios]) -> dict[str, float]:
    """Return the ratios of levels against what is declared, those that the specification had before included."""
    found = {name: value for name, value in setup.calibrated.items() if name.startswith("link_") or "/" in name}
    for level, ratio in ratios.items():
        name = setup.cluster.levels[level].name
        found[f"{name}/{BANDWIDTH}"] = found.get(f"{name}/{BANDWIDTH}", 1.0) * ratio.bandwidth
        found[f"{name}/{LATENCY}"] = found.get(f"{name}/{LATENCY}", 1.0) * ratio.latency
    return found


def computing(forecast: Forecast) -> float:
    """Return the seconds that the mean rank computes."""
    return forecast.step_seconds - forecast.bubble_seconds - forecast.communication_seconds.exposed


def with_links(cluster: Cluster, ratios: Mapping[int, LinkRatios]) -> Cluster:
    """Return `cluster` with the bandwidth and latency of levels times these ratios."""
    ratio = [ratios.get(index, LinkRatios()) for index in range(len(cluster.levels))]
    levels = (level.scaled(**each._asdict()) for level, each in zip(cluster.levels, ratio, strict=True))
    return replace(cluster, levels=tuple(levels))


def level_of(cluster: Cluster, ranks: tuple[int, ...]) -> int | None:
    """Return the level whose links a group's slowest transfers pass: the highest one that parts it; None for none."""
    if len(set(ranks)) <= 1 or max(ranks) >= cluster.size:
        return None
    for level in range(len(cluster.levels)):
        size = cluster.child_size(level) * cluster.levels[level].fanout
        if len({rank // size for rank in ranks}) == 1:
            return level
    return None


def _check_shape(setup: Setup, window: Window) -> None:
    if setup.ranks != window.world_size:
        raise ConfigError(f"ranks of the specification: got {setup.ranks}, expected the run's {window.world_size}")
    for kind, size in window.degrees.items():
        given = setup.degrees.get(kind, 1)
        if setup.degrees and given != size:
            raise ConfigError(f"degree {kind} of the specification: got {given}, expected the run's {size}")


def _optimizer_seconds(window: Window) -> float | None:
    """Return what the optimizer takes of a healthy step on the mean stage; None where that was not measured."""
    if window.optimizer_SW is None:
        return None
    known_SW = window.optimizer_SW[:, : window.fitted]
    if not np.isfinite(known_SW).any(axis=1).all():
        return None
    return float(np.nanmedian(known_SW, axis=1).mean())


def _fit_device(
    setup: Setup, compute_s: float, operators: OperatorTimes | None, optimizer_s: float | None
) -> tuple[dict[str, float], Cluster]:
    """Return the numbers of the device, and the cluster with them, so that the mean rank computes for `compute_s`.

    A known `optimizer_s` of it is fitted apart from the operators that grow with the batch.
    """
    if optimizer_s is None:
        return _fit_operators(setup, compute_s, operators)
    own = operators and replace(operators, other_seconds=operators.other_seconds - optimizer_s)
    if not 0 < optimizer_s < compute_s or (own is not None and own.other_seconds <= 0):
        return _fit_operators(setup, compute_s, operators)
    free = replace(setup, cluster=setup.cluster.with_device(optimizer_ratio=_FREE_RATIO))
    parameters, cluster = _fit_operators(free, compute_s - optimizer_s, own)
    plain = cluster.with_device(optimizer_ratio=1.0)
    ratio = (computing(setup.forecast(plain)) - computing(setup.forecast(cluster))) / optimizer_s
    if not 0 < ratio * cluster.device.memory_efficiency <= 1:  # beyond the memory's peak: not the device's time
        return _fit_operators(setup, compute_s, operators)
    return parameters | {"optimizer_ratio": ratio}, cluster.with_device(optimizer_ratio=ratio)


def _fit_operators(setup: Setup, compute_s: float, operators: OperatorTimes | None) -> tuple[dict[str, float], Cluster]:
    """Return the numbers of the device, and the cluster with them, so that the mean rank computes for `compute_s`."""
    device = setup.cluster.device
    arithmetic = 1.0 if operators is None else _split(setup, operators, compute_s)
    cluster = _with_device(setup.cluster, arithmetic, 1.0, 1.0)
    both = computing(setup.forecast(cluster)) / compute_s
    cluster = _with_device(setup.cluster, arithmetic * both, both, both)
    found = cluster.device
    beyond = found.matrix_efficiency / max(1.0, device.matrix_efficiency)
    if operators is not None:
        beyond = max(beyond, found.memory_efficiency / max(1.0, device.memory_efficiency))
    if beyond > PEAK_MAX_RATIO and device.flops_per_second > 1:
        raise ConfigError(
            f"computing of the specification: got {beyond:.3g} times the peak of {device.name} in"
            f" {compute_s:.3g} s, expected a model and a device that take so long"
        )
    parameters = {name: min(getattr(found, name), most) for name, most in MOST.items()}
    cluster = cluster.with_device(**parameters)  # what is beyond the peak is left to the rest
    return parameters | ({"launch_s": found.launch_s} if found.launch_s else {}), cluster


def _with_device(cluster: Cluster, arithmetic: float, memory: float, launch: float) -> Cluster:
    device = cluster.device
    return cluster.with_device(
        matrix_efficiency=device.matrix_efficiency * arithmetic,
        memory_efficiency=device.memory_efficiency * memory,
        launch_s=device.launch_s / launch,
    )


def _split(setup: Setup, operators: OperatorTimes, compute_s: float) -> float:
    """Return by how much arithmetic is faster than declared relative to memory, for the measured share to come out."""
    predicted_s = operators.matrix_seconds + operators.other_seconds
    if not 1 / _PLAUSIBLE_RATIO <= predicted_s / compute_s <= _PLAUSIBLE_RATIO:
        raise ConfigError(
            f"operator times of a capture: got {predicted_s:.3g} s a step,"
            f" expected about the {compute_s:.3g} s of the records"
        )
    measured, arithmetic = operators.matrix_seconds / operators.other_seconds, 1.0
    for _ in range(_SPLITS):
        tried = _with_device(setup.cluster, arithmetic, 1.0, 1.0).device
        own = operator_split(setup.tree, tried, batch=setup.batch, ranks=operators.ranks)
        if not (own.matrix_seconds and own.other_seconds):
            raise ConfigError("operators of the specification: got one sort, expected products of matrices and others")
        off = own.matrix_seconds / own.other_seconds / measured
        arithmetic = min(max(arithmetic * off, 1 / RATIO_MAX), RATIO_MAX)
        if abs(off - 1) <= _SPLIT_NEAR_RATIO:
            break
    return arithmetic


def _fit_links(setup: Setup, window: Window, step_s: float) -> dict[int, LinkRatios]:
    """Return the ratios of the levels whose cost to a step was measured."""
    wanted: dict[int, dict[str, float]] = {}
    for kind in window.exposed:
        level = level_of(setup.cluster, window.members.get(kind, ()))
        exposed_s = _known_median(window.exposed[kind][: window.fitted])
        if level is not None and exposed_s is not None:
            wanted.setdefault(level, {})[kind] = exposed_s
    ratios: dict[int, LinkRatios] = {}
    for level, by_kind in sorted(wanted.items()):
        exposed_s = sum(by_kind.values())
        smallest = _smallest_collective(setup, window, level, list(by_kind))
        found = _fit_level(setup, ratios, level, exposed_s, step_s, smallest=smallest) if smallest else None
        ratios[level] = found or _fit_level(setup, ratios, level, exposed_s, step_s, smallest=None) or LinkRatios()
    return ratios


def _known_median(seconds: NDArray[np.float64]) -> float | None:
    known = seconds[np.isfinite(seconds)]
    return float(np.median(known)) if len(known) else None


class _SmallestCollective(NamedTuple):
    """The smallest collective of a level: its measured time, and as declared its latency and transfer, seconds."""

    measured_s: float
    latency_s: float
    transfer_s: float

    def latency_ratio(self, bandwidth_ratio: float) -> float:
        """Return the ratio of the latency with which it takes as long as measured."""
        return (self.measured_s - self.transfer_s / bandwidth_ratio) / self.latency_s


def _smallest_collective(setup: Setup, window: Window, level: int, kinds: list[str]) -> _SmallestCollective | None:
    """Return the smallest collective of the gradient queue on a level; None if its time does not show the latency.

    That takes one kind of domain on the level, and collectives that differ in size.
    """
    shortest_s = _known_median(window.shortest.get(kinds[0], np.empty(0))[: window.fitted])
    if len(kinds) > 1 or shortest_s is None:
        return None
    slower = replace(setup, cluster=with_links(setup.cluster, {level: LinkRatios(latency=2.0)}))
    graph, other = (
        compile_job(each.tree, each.cluster, batch=each.batch, options=each.options).graph for each in (setup, slower)
    )
    own = np.array([0 in flow.members for flow in graph.flows] + [False])[graph.flow]  # of the first class of ranks
    found = np.flatnonzero(own & (graph.queue == GRADIENT) & (other.seconds > graph.seconds))
    if not len(found):
        return None
    speed = np.array([flow.alone for flow in graph.flows])[graph.flow[found]]
    transfer_s = graph.volume_bytes[found] / speed
    least = int(transfer_s.argmin())
    if transfer_s.mean() < _SIZES_APART * transfer_s[least]:
        return None
    return _SmallestCollective(shortest_s / len(found), float(graph.seconds[found[least]]), float(transfer_s[least]))


def _fit_level(
    setup: Setup,
    ratios: Mapping[int, LinkRatios],
    level: int,
    exposed_s: float,
    step_s: float,
    *,
    smallest: _SmallestCollective | None,
) -> LinkRatios | None:
    """Return the ratios at which a step would be `exposed_s` shorter if the level cost nothing; None if none are.

    With `smallest`, the latency is the one at which that collective takes as long as measured. Without it, one
    measurement scales bandwidth and latency alike.
    """

    def links_at(ratio: float) -> LinkRatios:
        return LinkRatios(ratio, 1 / ratio if smallest is None else max(0.0, smallest.latency_ratio(ratio)))

    def step_at(links: LinkRatios) -> float:
        return setup.forecast(with_links(setup.cluster, {**ratios, level: links})).step_seconds

    free_s = step_at(LinkRatios(_FREE_RATIO, 1 / _FREE_RATIO))
    hidden_s = _HIDDEN_RATIO * step_s
    if exposed_s <= hidden_s and step_at(LinkRatios()) - free_s <= hidden_s:
        return None  # hidden here and there: as declared, for all that is known
    if step_at(links_at(1 / _RATIO_SPAN)) - free_s <= hidden_s:
        return None  # the job sends nothing that would show it
    target_s = max(exposed_s, hidden_s)
    low, high, ratio = 1 / _RATIO_SPAN, _RATIO_SPAN, 1.0
    for _ in range(_TRIES):
        found_s = step_at(links_at(ratio)) - free_s
        if abs(found_s - target_s) <= _NEAR_RATIO * target_s:
            return links_at(ratio) if smallest is None or smallest.latency_ratio(ratio) >= 0 else None
        low, high = (ratio, high) if found_s > target_s else (low, ratio)
        ratio *= found_s / target_s  # exact where nothing hides
        if not low < ratio < high:
            ratio = (low * high) ** 0.5
    return links_at(ratio) if smallest is None else None


def _check_rest(rest_s: float, step_s: float) -> None:
    if rest_s > UNEXPLAINED_MAX_RATIO * step_s:
        raise ConfigError(
            f"specification: got {rest_s / step_s:.0%} of a step that it does not explain,"
            f" expected at most {UNEXPLAINED_MAX_RATIO:.0%}: the run does more than the job that is written down"
        )
    if rest_s < -OVERRUN_MAX_RATIO * step_s:
        raise ConfigError(
            f"specification: got steps {-rest_s / step_s:.0%} longer than the run's,"
            f" expected at most {OVERRUN_MAX_RATIO:.0%}: the run does less than the job that is written down,"
            f" or its devices exceed the peaks of the specification"
        )
