"""Turns a snapshot into Prometheus families, exactly those of the catalogue. Only this module converts ns to seconds.

Families are rebuilt for each snapshot, so the series of a rank that is gone disappear with it. A quantity that was
never measured has no series; a counter of Lockstep itself has all of its label values from the start.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from exporter.exposing.snapshot import NodeRunView, NodeSnapshot, RankView
from exporter.host_watch import HostTotals
from exporter.inspector import OPERATION_VALUES
from exporter.memory import MemoryHeadroom, RankMemoryView
from lockstep.contracts.messages import UNWATCHED
from lockstep.contracts.metric import Form, Level, Metric
from lockstep.contracts.metrics import BY_NAME, CATALOGUE, FLAGS, PHASES, STEP_BUCKETS_SECONDS
from lockstep.contracts.records import COMPUTE_PHASES, DOMAIN_KINDS, RECORD_INDEX
from lockstep.contracts.version import VERSION

_NS = 1e-9
_PREFIX = "lockstep_exporter_"

_TOTALS: dict[str, tuple[int, float]] = {
    "lockstep_gc_collections_total": (RECORD_INDEX["gc_count"], 1.0),
    "lockstep_gc_full_collections_total": (RECORD_INDEX["gc_full_count"], 1.0),
    "lockstep_recompilations_total": (RECORD_INDEX["recompilations"], 1.0),
    "lockstep_model_flops_total": (RECORD_INDEX["model_flops"], 1.0),
    "lockstep_device_step_time_seconds_total": (RECORD_INDEX["device_step_ns"], _NS),
    "lockstep_device_collective_time_seconds_total": (RECORD_INDEX["device_comm_ns"], _NS),
    "lockstep_host_lead_seconds_total": (RECORD_INDEX["host_lead_ns"], _NS),
    "lockstep_samples_total": (RECORD_INDEX["samples"], 1.0),
    "lockstep_tokens_total": (RECORD_INDEX["tokens"], 1.0),
    "lockstep_cpu_time_seconds_total": (RECORD_INDEX["cpu_ns"], _NS),
    "lockstep_agent_time_seconds_total": (RECORD_INDEX["agent_ns"], _NS),
}
_ENUMERATED: dict[str, dict[str, tuple[int, float]]] = {
    "lockstep_phase_time_seconds_total": {phase: (RECORD_INDEX[f"{phase}_ns"], _NS) for phase in PHASES},
    "lockstep_compute_time_seconds_total": {phase: (RECORD_INDEX[f"{phase}_ns"], _NS) for phase in COMPUTE_PHASES},
    "lockstep_collective_wait_seconds_total": {k: (RECORD_INDEX[f"{k}_wait_ns"], _NS) for k in DOMAIN_KINDS},
    "lockstep_collective_time_seconds_total": {k: (RECORD_INDEX[f"{k}_comm_ns"], _NS) for k in DOMAIN_KINDS},
    "lockstep_collective_bus_bytes_total": {k: (RECORD_INDEX[f"{k}_bus_bytes"], 1.0) for k in DOMAIN_KINDS},
    "lockstep_collective_bytes_total": {kind: (RECORD_INDEX[f"{kind}_bytes"], 1.0) for kind in DOMAIN_KINDS},
    "lockstep_collectives_total": {kind: (RECORD_INDEX[f"{kind}_count"], 1.0) for kind in DOMAIN_KINDS},
}
_PEAK = "lockstep_peak_flops_total"
_CLASSES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
_BOUNDS = [*(str(float(bound)) for bound in STEP_BUCKETS_SECONDS), "+Inf"]

_OF_RANK: dict[str, Callable[[RankView], float | None]] = {
    "lockstep_steps_total": lambda rank: rank.steps,
    "lockstep_step_time_seconds_total": lambda rank: rank.step_time_ns * _NS,
    "lockstep_step": lambda rank: rank.last_step,
    "lockstep_last_step_timestamp_seconds": lambda rank: (
        None if rank.last_step_unix_ns is None else rank.last_step_unix_ns * _NS
    ),
    "lockstep_agent_up": lambda rank: rank.state != UNWATCHED,
    "lockstep_agent_failures_total": lambda rank: rank.failures,
    "lockstep_rank_peak_flops_per_second": lambda rank: (
        None if rank.facts is None else rank.facts.peak_flops_per_second
    ),
}
_OF_HOST: dict[str, Callable[[HostTotals], float | None]] = {
    "lockstep_cpu_wait_time_seconds_total": lambda host: _seconds(host.run_queue_wait_ns),
    "lockstep_cpu_throttled_time_seconds_total": lambda host: _seconds(host.throttled_ns),
    "lockstep_process_cpu_time_seconds_total": lambda host: _seconds(host.cpu_ns),
    "lockstep_other_cpu_time_seconds_total": lambda host: _seconds(host.others_ns),
    "lockstep_rank_cores": lambda host: host.cores,
}
_OF_MEMORY: dict[str, Callable[[MemoryHeadroom], float]] = {
    "lockstep_memory_limit_bytes": lambda headroom: headroom.limit_bytes,
    "lockstep_memory_available_bytes": lambda headroom: headroom.available_bytes,
}
_MEMORY_BY_PART: dict[str, Callable[[RankMemoryView], Mapping[str, float]]] = {
    "lockstep_memory_bytes": lambda memory: memory.sizes,
    "lockstep_memory_growth_bytes_per_step": lambda memory: memory.growth,
}
_OF_NODE: dict[str, Callable[[NodeSnapshot], float | Mapping[str, int] | None]] = {
    _PREFIX + "records_lost_total": lambda node: node.lost,
    _PREFIX + "blocks_lost_total": lambda node: node.lost_blocks,
    _PREFIX + "steps_incomplete_total": lambda node: node.incomplete_steps,
    _PREFIX + "marks_malformed_total": lambda node: node.malformed_marks,
    _PREFIX + "unnumbered_ranks": lambda node: node.ranks_unnumbered,
    _PREFIX + "inputs_rejected_total": lambda node: node.rejected,
    _PREFIX + "inputs_dropped_total": lambda node: node.dropped,
    _PREFIX + "rings_quarantined": lambda node: node.rings_quarantined,
    _PREFIX + "ranks_omitted": lambda node: node.ranks_omitted,
    _PREFIX + "http_refusals_total": lambda node: node.http_refusals,
    _PREFIX + "unwatched_processes": lambda node: node.unwatched,
    _PREFIX + "root_on_disk": lambda node: node.root_on_disk,
    _PREFIX + "inspector_lines_total": lambda node: node.inspector.lines,
    _PREFIX + "inspector_dropped_bytes_total": lambda node: node.inspector.dropped_bytes,
    _PREFIX + "inspector_lost_operations_total": lambda node: node.inspector.lost_operations,
    _PREFIX + "neighbour_readings_total": lambda node: node.neighbours.readings,
    _PREFIX + "neighbour_series": lambda node: node.neighbours.series_count,
    _PREFIX + "mqtt_connected": lambda node: node.delivery.connected,
    _PREFIX + "messages_published_total": lambda node: node.delivery.published,
    _PREFIX + "messages_resent_total": lambda node: node.delivery.resent,
    _PREFIX + "spool_bytes": lambda node: node.delivery.spool_bytes,
    _PREFIX + "spool_messages": lambda node: node.delivery.spool_messages,
    _PREFIX + "spool_fill_ratio": lambda node: node.delivery.spool_bytes / node.delivery.spool_limit_bytes,
    _PREFIX + "coordinators": lambda node: node.delivery.coordinators,
    _PREFIX + "last_acknowledgement_timestamp_seconds": lambda node: _seconds(node.delivery.acknowledged_unix_ns),
    _PREFIX + "profiles_total": lambda node: node.profiles,
    _PREFIX + "profile_cost_seconds_total": lambda node: node.profile_cost_ns * _NS,
    _PREFIX + "tick_duration_seconds": lambda node: node.tick_duration_ns * _NS,
    _PREFIX + "host_watch_time_seconds_total": lambda node: node.load.cost_ns * _NS,
    _PREFIX + "training_delay_seconds_total": lambda node: node.load.delay_ns * _NS,
    "lockstep_node_cpu_pressure_seconds_total": lambda node: _seconds(node.load.pressure_ns),
    "lockstep_node_load": lambda node: node.load.load,
}


class NodeCollector:
    """A prometheus_client collector: `collect` renders one snapshot without reading anything; `level` as configured."""

    def __init__(self, snapshot: NodeSnapshot, *, level: Level = "full") -> None:
        self._snapshot = snapshot
        self._level = level

    def collect(self) -> Iterator[Family]:
        """Yield every family of the exporter that the level includes, in the catalogue's order."""
        for metric in CATALOGUE:
            form = metric.form(self._level)
            if metric.source == "exporter" and form != "absent":
                yield self._family(metric, form)
        yield from (family for family in self._snapshot.process if self._has(family))

    def _family(self, metric: Metric, form: Form) -> Family:
        labels = [label for label in metric.labels if form != "node" or label != "rank"]
        family: Family = _CLASSES[metric.type](metric.name, metric.help, labels=labels)
        if form == "node":
            _fill_of_ranks_together(family, metric, self._snapshot)
        else:
            _fill(family, metric.name, self._snapshot, _Choice(metric.values_at(self._level), form == "zeros"))
        return family

    def _has(self, family: Family) -> bool:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        return BY_NAME[name].form(self._level) != "absent"


class _Choice(NamedTuple):
    """Which series of a family are exported: the values of its enumerated label, and whether only those that are 0."""

    values: Sequence[str]
    only_zeros: bool


def _fill(family: Family, name: str, node: NodeSnapshot, choice: _Choice) -> None:
    if name in _OF_NODE:
        _fill_node(family, _OF_NODE[name](node))
    elif name == _PREFIX + "build_info":
        family.add_metric([VERSION], 1)
    elif name == "lockstep_step_duration_seconds":
        _fill_histogram(family, node)
    elif name == "lockstep_steps_flagged_total":
        _fill_flagged(family, node)
    else:
        for run in node.runs:
            for rank in run.ranks:
                labels = [run.run, str(rank.rank)]
                if name in _FILLS:
                    _FILLS[name](family, name, labels, rank)
                else:
                    _fill_rank(family, name, labels, rank, choice)


def _fill_of_ranks_together(family: Family, metric: Metric, node: NodeSnapshot) -> None:
    """Fill in one series for all ranks of a run: the total over all ranks it ever had here, or the current extreme."""
    for run in node.runs:
        if metric.below == "sum":
            _fill_totals(family, metric.name, [run.run], run)
        else:
            values = [value for rank in run.ranks if (value := _value_of(metric.name, rank)) is not None]
            if values:
                family.add_metric([run.run], min(values) if metric.below == "min" else max(values))


def _fill_node(family: Family, value: float | Mapping[str, int] | None) -> None:
    if isinstance(value, Mapping):
        for label, count in value.items():
            family.add_metric([label], count)
    elif value is not None:
        family.add_metric([], value)


def _fill_histogram(family: Family, node: NodeSnapshot) -> None:
    for run in node.runs:
        total = 0
        buckets: list[tuple[str, int]] = []
        for bound, count in zip(_BOUNDS, run.histogram_counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric([run.run], buckets, run.histogram_sum_ns * _NS)


def _fill_flagged(family: Family, node: NodeSnapshot) -> None:
    for run in node.runs:
        for flag, count in zip(FLAGS, run.flagged, strict=True):
            family.add_metric([run.run, flag], count)


def _fill_operations(family: Family, name: str, labels: list[str], rank: RankView) -> None:
    for place, totals in rank.inspected.items():
        family.add_metric([*labels, *place], OPERATION_VALUES[name](totals))


def _fill_rank(family: Family, name: str, labels: list[str], rank: RankView, choice: _Choice) -> None:
    if name in _INFO_OF_RANK:
        more = _INFO_OF_RANK[name](rank)
        if more is not None:
            family.add_metric([*labels, *more], 1)
    elif name in _MEMORY_BY_PART:
        parts = {} if rank.memory is None else _MEMORY_BY_PART[name](rank.memory)
        for part in choice.values:
            if part in parts:
                family.add_metric([*labels, part], parts[part])
    elif _is_total(name):
        _fill_totals(family, name, labels, rank)
    else:
        value = _value_of(name, rank)
        if value is not None and not (choice.only_zeros and value):
            family.add_metric(labels, value)


def _value_of(name: str, rank: RankView) -> float | None:
    """Return a rank's single value in a family, or None if it is unknown."""
    if name in _OF_HOST:
        return None if rank.host is None else _OF_HOST[name](rank.host)
    if name in _OF_MEMORY:
        headroom = None if rank.memory is None else rank.memory.headroom
        return None if headroom is None else _OF_MEMORY[name](headroom)
    return _OF_RANK[name](rank)


def _place(rank: RankView) -> list[str]:
    place = [str(rank.local_rank), rank.hostname]
    if rank.facts is None:
        return place
    # Last of the labels, so that it can be omitted when unknown.
    uuid = [rank.facts.device_uuid] if rank.facts.device_uuid else []
    return [*place, rank.facts.device, rank.facts.dtype, *uuid]


def _agent(rank: RankView) -> list[str] | None:
    facts = rank.facts
    if facts is None or not facts.mark_writer:
        return None
    # Last of the labels: a process without torch has no such kernels.
    kernels = [facts.collective_kernels] if facts.collective_kernels else []
    return [facts.mark_writer, *kernels]


_INFO_OF_RANK: dict[str, Callable[[RankView], list[str] | None]] = {
    "lockstep_rank_info": _place,
    "lockstep_rank_agent_info": _agent,
}
"""The labels after run and rank of info metrics, whose value is always 1; None if unknown."""


def _is_total(name: str) -> bool:
    return name in _TOTALS or name in _ENUMERATED or name == _PEAK


def _fill_totals(family: Family, name: str, labels: list[str], of: RankView | NodeRunView) -> None:
    """Fill in the sums over the records of a rank, or of all ranks of a run."""
    if name == _PEAK:
        if of.peak_flops:
            family.add_metric(labels, of.peak_flops)
    elif name in _TOTALS:
        _fill_total(family, labels, of, _TOTALS[name])
    else:
        for label, place in _ENUMERATED[name].items():
            _fill_total(family, [*labels, label], of, place)


def _fill_total(family: Family, labels: list[str], of: RankView | NodeRunView, place: tuple[int, float]) -> None:
    index, unit = place
    if of.measured[index]:
        family.add_metric(labels, float(of.sums[index]) * unit)


def _fill_collective_time(family: Family, name: str, labels: list[str], rank: RankView) -> None:
    """Add the collective time of the agent, or the Inspector's, which also covers asynchronous ones on a device.

    The longer of the two is used: the one that lacks some collectives is shorter, and the maximum of two monotonic
    counters is monotonic.
    """
    for kind, (index, unit) in _ENUMERATED[name].items():
        inspected_ns = rank.inspected_time_ns.get(kind)
        if rank.measured[index] or inspected_ns is not None:
            family.add_metric([*labels, kind], max(float(rank.sums[index]), inspected_ns or 0) * unit)


_FILLS: dict[str, Callable[[Family, str, list[str], RankView], None]] = {
    **dict.fromkeys(OPERATION_VALUES, _fill_operations),
    "lockstep_collective_time_seconds_total": _fill_collective_time,
}
"""Families of ranks that `_fill_rank` does not handle itself."""


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns * _NS
