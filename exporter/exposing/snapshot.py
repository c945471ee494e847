"""An immutable snapshot of the node. `/metrics` and the API show it, so a request reads nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from exporter.counts import DeliveryStatus, ExporterCounters
from exporter.host_watch import HostTotals, NodeLoad
from exporter.inspector import InspectorStatus, InspectorView, times_by_kind
from exporter.memory import RankMemoryView
from exporter.neighbours import NeighbourStatus
from exporter.reading.rings import Rings
from exporter.reading.run_state import RankState, RunState
from lockstep.contracts.facts import RankFacts
from lockstep.contracts.metric import HTTP_REFUSALS
from lockstep.contracts.records import RECORD_INDEX
from lockstep.contracts.unwatched import UNWATCHED_REASONS
from lockstep.serving.fault_isolation import OUTCOMES
from lockstep.serving.process import ProcessFamilies

_MODEL_FLOPS = RECORD_INDEX["model_flops"]
_UNKNOWN = NodeLoad()
_NONE_DROPPED: Mapping[str, int] = MappingProxyType(dict.fromkeys(OUTCOMES, 0))
_NONE_REFUSED: Mapping[str, int] = MappingProxyType(dict.fromkeys(HTTP_REFUSALS, 0))
_NONE_UNWATCHED: Mapping[str, int] = MappingProxyType(dict.fromkeys(UNWATCHED_REASONS, 0))
_NO_HOSTS: Mapping[tuple[str, int], HostTotals] = MappingProxyType({})
_NO_NEIGHBOURS = NeighbourStatus()
_NO_INSPECTOR = InspectorStatus()
_NO_MEMORY: Mapping[tuple[str, int], RankMemoryView] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank that is shown. `sums` (n_fields,) float64 in ns, bytes and counts; `measured` (n_fields,) bool.

    `inspected_time_ns` is the time of collectives by the device's clock, by kind of domain.
    """

    rank: int
    local_rank: int
    world_size: int
    hostname: str
    attempt: int
    state: str
    heartbeat_unix_ns: int
    facts: RankFacts | None
    failures: int
    steps: int
    step_time_ns: float
    peak_flops: float
    last_step: int | None
    last_step_unix_ns: int | None
    sums: NDArray[np.float64]
    measured: NDArray[np.bool_]
    host: HostTotals | None
    memory: RankMemoryView | None = None
    inspected: InspectorView = field(default_factory=dict)
    inspected_time_ns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRunView:
    """One run with at least one rank that is shown. `flagged` counts steps by flag, in the order of `records.Flag`.

    `sums` (n_fields,) float64, `measured` (n_fields,) bool and `peak_flops` cover all ranks that the run ever had here.
    `peak_flops` is 0 while the peak of any of them is unknown.
    """

    run: str
    ranks: tuple[RankView, ...]
    sums: NDArray[np.float64]
    measured: NDArray[np.bool_]
    peak_flops: float
    histogram_counts: tuple[int, ...]
    histogram_sum_ns: float
    flagged: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """All runs of the node, and the exporter's own state."""

    unix_ns: int
    runs: tuple[NodeRunView, ...]
    ranks_omitted: int
    lost: Mapping[str, int]
    lost_blocks: Mapping[str, int]
    incomplete_steps: int
    malformed_marks: int
    ranks_unnumbered: int
    rejected: Mapping[str, int]
    profiles: Mapping[str, int]
    profile_cost_ns: int
    delivery: DeliveryStatus
    tick_duration_ns: int
    load: NodeLoad
    rings_quarantined: int
    dropped: Mapping[str, int]
    http_refusals: Mapping[str, int]
    unwatched: Mapping[str, int]
    root_on_disk: bool | None
    inspector: InspectorStatus = _NO_INSPECTOR
    neighbours: NeighbourStatus = _NO_NEIGHBOURS
    process: ProcessFamilies = ()


def take_snapshot(
    rings: Rings,
    counts: ExporterCounters,
    *,
    now_ns: int,
    unix_ns: int,
    stale_ns: int,
    delivery: DeliveryStatus,
    tick_duration_ns: int,
    load: NodeLoad = _UNKNOWN,
    hosts: Mapping[tuple[str, int], HostTotals] = _NO_HOSTS,
    memory: Mapping[tuple[str, int], RankMemoryView] = _NO_MEMORY,
    inspector: InspectorStatus = _NO_INSPECTOR,
    neighbours: NeighbourStatus = _NO_NEIGHBOURS,
    process: ProcessFamilies = (),
    rings_quarantined: int = 0,
    dropped: Mapping[str, int] = _NONE_DROPPED,
    http_refusals: Mapping[str, int] = _NONE_REFUSED,
    unwatched: Mapping[str, int] = _NONE_UNWATCHED,
) -> NodeSnapshot:
    """Return the node's state at `now_ns` (CLOCK_MONOTONIC); `hosts` and `memory` are by run and rank."""
    runs = (_view_run(run, run.shown(now_ns, stale_ns), hosts, memory, inspector) for run in rings.runs.values())
    return NodeSnapshot(
        unix_ns=unix_ns,
        runs=tuple(view for view in runs if view.ranks),
        ranks_omitted=rings.omitted,
        lost=dict(counts.lost),
        lost_blocks=dict(counts.lost_blocks),
        incomplete_steps=counts.incomplete_steps,
        malformed_marks=counts.malformed_marks,
        ranks_unnumbered=rings.unnumbered(),
        rejected=dict(counts.rejected),
        profiles=dict(counts.profiles),
        profile_cost_ns=counts.profile_cost_ns,
        delivery=delivery,
        tick_duration_ns=tick_duration_ns,
        load=load,
        rings_quarantined=rings_quarantined,
        dropped=dropped,
        http_refusals=http_refusals,
        unwatched=unwatched,
        root_on_disk=rings.is_on_disk,
        inspector=inspector,
        neighbours=neighbours,
        process=process,
    )


def _view_run(
    run: RunState,
    shown: list[RankState],
    hosts: Mapping[tuple[str, int], HostTotals],
    memory: Mapping[tuple[str, int], RankMemoryView],
    inspector: InspectorStatus,
) -> NodeRunView:
    totals = run.totals()
    return NodeRunView(
        run=run.name,
        ranks=tuple(
            _view_rank(rank_state, hosts.get(key), memory.get(key), inspector, key)
            for rank_state in sorted(shown, key=lambda rank_state: rank_state.rank)
            for key in ((run.name, rank_state.rank),)
        ),
        sums=totals.sums,
        measured=totals.measured,
        peak_flops=0.0 if any(_lacks_peak(rank_state) for rank_state in shown) else totals.peak_flops,
        histogram_counts=tuple(run.histogram.counts.tolist()),
        histogram_sum_ns=run.histogram.sum_ns,
        flagged=tuple(run.flagged.counts.tolist()),
    )


def _lacks_peak(rank_state: RankState) -> bool:
    """Whether a rank reports model FLOPs but its device's peak is unknown."""
    has_peak = rank_state.facts is not None and rank_state.facts.peak_flops_per_second is not None
    return bool(rank_state.totals.measured[_MODEL_FLOPS]) and not has_peak


def _view_rank(
    rank_state: RankState,
    host: HostTotals | None,
    memory: RankMemoryView | None,
    inspector: InspectorStatus,
    key: tuple[str, int],
) -> RankView:
    header, totals = rank_state.header, rank_state.totals
    return RankView(
        rank=rank_state.rank,
        local_rank=header.local_rank,
        world_size=header.world_size,
        hostname=header.hostname,
        attempt=header.attempt,
        state=rank_state.state,
        heartbeat_unix_ns=rank_state.heartbeat_ns + header.clock_offset_ns,
        facts=rank_state.facts,
        failures=rank_state.failures,
        steps=totals.steps,
        step_time_ns=totals.step_time_ns,
        peak_flops=totals.peak_flops,
        last_step=totals.last_step,
        last_step_unix_ns=totals.last_end_ns,
        sums=totals.sums.copy(),
        measured=totals.measured.copy(),
        host=host,
        memory=memory,
        inspected=inspector.ranks.get(key, {}),
        inspected_time_ns=times_by_kind(inspector.times_ns.get(key, {}), rank_state.groups, rank_state.rank),
    )
