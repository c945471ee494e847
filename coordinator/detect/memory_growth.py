"""Finds ranks whose memory grows unlike that of their peers, and forecasts when they reach their limit.

Pure. Nodes report robust slopes over windows of several lengths, and which of them are steady growth
(`exporter/memory/series.py`); this module compares them over ranks. A rank is named if its memory grows and that of its
peers does not over a window of the same length. If the memory of most ranks grows, that is a fault only if the forecast
is that it ends the run: caches fill up on all ranks alike.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from coordinator.detect.anomalies import MEMORY_GROWTH, Anomaly
from lockstep.contracts.memory_report import DEVICE, HOST, MEMORY_LEVELS, MEMORY_PARTS, WORKERS, MemorySlope, RankMemory
from lockstep.contracts.metric import MEMORY_CAUSES

if TYPE_CHECKING:
    from coordinator.settings.run_policy import MemoryPolicy

_MIB = float(1 << 20)
_NAMES = {HOST: "host memory", WORKERS: "memory of the worker processes", DEVICE: "device memory"}
CAUSE_OF_PART = dict(zip(MEMORY_PARTS, MEMORY_CAUSES, strict=True))
_MAD_TO_SIGMA = 1.4826  # of a Gaussian

_Window = tuple[str, int]
"""Part and level."""
_WINDOWS = tuple((part, level) for part in MEMORY_PARTS for level in range(MEMORY_LEVELS))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForecast:
    """When the memory of one rank reaches its limit; seconds are None if no step has been timed."""

    rank: int
    steps: float
    seconds: float | None
    available_bytes: int
    limit_bytes: int


class MemoryGrowthTest:
    """The nodes' latest reports on a run's ranks. Memory: one report per rank, with a slope for each window."""

    def __init__(self) -> None:
        self.is_due = False
        """Whether anything was reported since the last call of `find` that could change its result."""
        self._reports: dict[int, RankMemory] = {}
        self._slopes: dict[_Window, dict[int, MemorySlope]] = {window: {} for window in _WINDOWS}
        self._growing: dict[_Window, set[int]] = {window: set() for window in _WINDOWS}
        self._had_anomalies = False

    def add(self, reports: Iterable[RankMemory]) -> None:
        """Store a node's reports on its ranks."""
        for report in reports:
            self._reports[report.rank] = report
            slopes = [MemorySlope(*row) for row in report.trends]
            trends = {(trend.part, trend.level): trend for trend in slopes}
            for window in _WINDOWS:
                self._note(window, report.rank, trends.get(window))
            self.is_due |= self._had_anomalies or any(trend.is_steady for trend in slopes)

    def _note(self, window: _Window, rank: int, trend: MemorySlope | None) -> None:
        if trend is None:
            self._slopes[window].pop(rank, None)
        else:
            self._slopes[window][rank] = trend
        if trend is not None and trend.is_steady:
            self._growing[window].add(rank)
        else:
            self._growing[window].discard(rank)

    def forget(self) -> None:
        """Reset at the start of a new attempt."""
        self._reports.clear()
        for window in _WINDOWS:
            self._slopes[window].clear()
            self._growing[window].clear()
        self.is_due = self._had_anomalies

    def find(self, nodes: Mapping[int, str], step_seconds: float | None, policy: "MemoryPolicy") -> tuple[Anomaly, ...]:
        """Return the parts of memory that grow; `nodes` by rank, since ranks on one node share its limit."""
        self.is_due = False
        found = [anomaly for part in MEMORY_PARTS for anomaly in self._find(part, nodes, step_seconds, policy)]
        self._had_anomalies = bool(found)
        return tuple(found)

    def _find(
        self, part: str, nodes: Mapping[int, str], step_seconds: float | None, policy: "MemoryPolicy"
    ) -> Iterable[Anomaly]:
        for level in range(MEMORY_LEVELS):
            slopes = self._slopes[part, level]
            growing = {rank: slopes[rank] for rank in self._growing[part, level]}
            if not growing or len(slopes) < policy.known_share * len(self._reports):
                continue
            if len(growing) > policy.common_share * len(slopes):
                forecast = self._forecast(part, growing, nodes, step_seconds)
                if forecast is not None and forecast.steps <= policy.forecast_windows * _span(growing[forecast.rank]):
                    yield self._anomaly(part, tuple(sorted(growing)), growing, 0.0, forecast, is_common=True)
                    return
                continue
            named, usual = self._unlike_peers(slopes, growing, policy)
            if named:
                forecast = self._forecast(part, {rank: growing[rank] for rank in named}, nodes, step_seconds)
                yield self._anomaly(part, named, growing, usual, forecast, is_common=False)
                return

    def _unlike_peers(
        self, slopes: Mapping[int, MemorySlope], growing: Mapping[int, MemorySlope], policy: "MemoryPolicy"
    ) -> tuple[tuple[int, ...], float]:
        """Return the ranks whose memory grows unlike that of the others, ascending, and the slope of the others."""
        others = [trend.bytes_per_step for rank, trend in slopes.items() if rank not in growing]
        if not others:
            return (), 0.0
        usual = median(others)
        sigma = _MAD_TO_SIGMA * median(abs(slope - usual) for slope in others)
        limit = max(policy.peers_factor * max(usual, 0.0), usual + policy.peers_sigmas * sigma)
        return tuple(sorted(rank for rank, trend in growing.items() if trend.bytes_per_step > limit)), usual

    def _forecast(
        self, part: str, growing: Mapping[int, MemorySlope], nodes: Mapping[int, str], step_seconds: float | None
    ) -> MemoryForecast | None:
        """Return the forecast of the rank that reaches its limit first, None if no limit is known."""
        of_node: defaultdict[str, float] = defaultdict(float)
        for rank, trend in growing.items():
            of_node[nodes.get(rank, "")] += trend.bytes_per_step
        found = []
        for rank, trend in growing.items():
            report = self._reports[rank]
            if part == DEVICE:
                limit, slope = report.device_limit_bytes, trend.bytes_per_step
                available = None if limit is None else max(limit - (report.device_bytes or 0), 0)
            else:
                limit, available = report.limit_bytes, report.available_bytes
                slope = of_node[nodes.get(rank, "")]
            if limit is not None and available is not None and slope > 0:
                steps = available / slope
                seconds = None if step_seconds is None else steps * step_seconds
                found.append(
                    MemoryForecast(
                        rank=rank, steps=steps, seconds=seconds, available_bytes=available, limit_bytes=limit
                    )
                )
        return min(found, key=lambda each: (each.steps, each.rank), default=None)

    def _anomaly(
        self,
        part: str,
        ranks: tuple[int, ...],
        growing: Mapping[int, MemorySlope],
        usual: float,
        forecast: MemoryForecast | None,
        *,
        is_common: bool,
    ) -> Anomaly:
        worst = max(ranks, key=lambda rank: (growing[rank].bytes_per_step, -rank))
        trend, report = growing[worst], self._reports[worst]
        size = {HOST: report.host_bytes, WORKERS: report.workers_bytes, DEVICE: report.device_bytes}[part] or 0
        grows = f"{_NAMES[part]} of rank {worst} grows by {trend.bytes_per_step / _MIB:.3g} MiB a step"
        peers = (
            f"so does that of {len(ranks) - 1} other ranks"
            if is_common
            else f"that of its peers by {usual / _MIB:.3g} MiB"
        )
        evidence = [
            f"{grows}, steadily since step {trend.first_step} at the latest; {peers}",
            f"it is {size / _MIB:,.0f} MiB at step {report.step}",
        ]
        numbers = {"bytes_per_step": trend.bytes_per_step, "peers_bytes_per_step": usual, "size_bytes": float(size)}
        if forecast is not None:
            numbers |= {
                "available_bytes": float(forecast.available_bytes),
                "limit_bytes": float(forecast.limit_bytes),
                "remaining_steps": forecast.steps,
                "limit_step": report.step + forecast.steps,
            }
            if forecast.seconds is not None:
                numbers["remaining_seconds"] = forecast.seconds
            evidence.append(_forecast_text(forecast, report.step))
        return Anomaly(
            kind=MEMORY_GROWTH,
            cause=CAUSE_OF_PART[part],
            scope="job" if is_common else "rank",
            ranks=() if is_common else ranks,
            domain=None,
            onset_step=trend.first_step,
            excess_ratio=0.0,
            excess_seconds=0.0,
            evidence=tuple(evidence),
            numbers=numbers,
        )


def _span(trend: MemorySlope) -> int:
    return trend.last_step - trend.first_step


def _forecast_text(forecast: MemoryForecast, step: int) -> str:
    when = "" if forecast.seconds is None else f", in {forecast.seconds:,.0f} s"
    free = f"{forecast.available_bytes / _MIB:,.0f} of {forecast.limit_bytes / _MIB:,.0f} MiB are left"
    return f"{free}: the limit is reached at about step {step + forecast.steps:,.0f}{when}"
