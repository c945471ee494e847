"""Exports the catalogue's coordinator metrics from one snapshot; the number of series is independent of the ranks.

Series for enumerated labels always exist; a value that is unknown is omitted rather than exported as 0. A dropped run
leaves no series behind, because families are rebuilt for each scrape.
"""

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from coordinator.detect.anomalies import HANG
from lockstep.contracts.limits import SUSPECTS_MAX
from lockstep.contracts.metrics import (
    BY_NAME,
    CAUSES,
    EXPECTED_STATES,
    PROFILE_STATES,
    RUN_STATES,
    STEP_BUCKETS_SECONDS,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric as Family

    from coordinator.decide.incidents import Incident
    from coordinator.snapshot import RunSnapshot, Snapshot

_LABEL_MAX = 128  # characters of a function's name: our PodMonitor rejects label values over 200
Row = tuple[tuple[str, ...], float]


class SnapshotCollector:
    """Builds the metric families of one snapshot; `collect` may run on any thread."""

    def __init__(self, snapshot: "Snapshot") -> None:
        self._snapshot = snapshot

    def collect(self) -> "Iterator[Family]":
        """Yield every family of the catalogue."""
        for name, rows in _service_rows(self._snapshot):
            yield _family(name, rows)
        for name, rows in _run_rows(self._snapshot.runs):
            yield _family(name, rows)
        yield _step_histogram(self._snapshot.runs)
        yield from self._snapshot.process


def _family(name: str, rows: list[Row]) -> "Family":
    metric = BY_NAME[name]
    form = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    family = form(name, metric.help, labels=metric.labels)
    for labels, value in rows:
        family.add_metric(list(labels), value)
    return family


def _service_rows(snapshot: "Snapshot") -> list[tuple[str, list[Row]]]:
    p = "lockstep_coordinator_"
    last = snapshot.last_detection_unix_s
    return [
        (f"{p}messages_received_total", [((k,), float(v)) for k, v in snapshot.messages_received.items()]),
        (f"{p}messages_rejected_total", [((k,), float(v)) for k, v in snapshot.messages_rejected.items()]),
        (f"{p}announcements_refused_total", [((k,), float(v)) for k, v in snapshot.announcements_refused.items()]),
        (f"{p}records_rejected_total", [((k,), float(v)) for k, v in snapshot.records_rejected.items()]),
        (f"{p}records_lost_total", [((k,), float(v)) for k, v in snapshot.records_lost.items()]),
        (f"{p}records_evaluated_total", [((), float(snapshot.records_evaluated))]),
        (f"{p}frames_total", [((k,), float(v)) for k, v in snapshot.frames.items()]),
        (f"{p}unsettled_frames", [((), float(snapshot.frames_unsettled))]),
        (f"{p}inputs_dropped_total", [((k,), float(v)) for k, v in snapshot.inputs_dropped.items()]),
        (f"{p}leader", [((), float(snapshot.leads))]),
        (f"{p}peers", [((), float(snapshot.peers))]),
        (f"{p}records_recorded_total", [((k,), float(v)) for k, v in snapshot.records_recorded.items()]),
        (f"{p}http_refusals_total", [((k,), float(v)) for k, v in snapshot.http_refusals.items()]),
        (
            "lockstep_fleet_recent_incidents",
            [((r.subject.kind, r.subject.name[:_LABEL_MAX]), float(r.recent)) for r in snapshot.fleet[:SUSPECTS_MAX]],
        ),
        (f"{p}evidence_queries_total", [((k,), float(v)) for k, v in snapshot.evidence_queries.items()]),
        (f"{p}evidence_series_refused_total", [((k,), float(v)) for k, v in snapshot.evidence_refusals.items()]),
        (f"{p}notifications_total", [(key, float(v)) for key, v in snapshot.notifications.items()]),
        (f"{p}node_patches_total", [((k,), float(v)) for k, v in snapshot.node_patches.items()]),
        (f"{p}mqtt_connected", [((), float(snapshot.is_connected))]),
        (f"{p}nodes_alive", [((), float(snapshot.nodes_alive))]),
        (f"{p}detections_total", [((), float(snapshot.detections))]),
        (f"{p}detection_time_seconds_total", [((), snapshot.detection_seconds)]),
        (f"{p}last_detection_timestamp_seconds", [] if last is None else [((), last)]),
        (f"{p}policy_changes_total", [((k,), float(v)) for k, v in snapshot.policy_changes.items()]),
        (f"{p}config_last_reload_successful", [((), float(snapshot.reload_ok))]),
        (f"{p}config_last_reload_success_timestamp_seconds", [((), snapshot.reload_unix_s)]),
        (f"{p}build_info", [((snapshot.version,), 1.0)]),
    ]


def _run_rows(runs: "tuple[RunSnapshot, ...]") -> list[tuple[str, list[Row]]]:
    p = "lockstep_run_"
    plain: dict[str, dict[str, float | None]] = {
        f"{p}ranks": {r.run: r.world_size for r in runs},
        f"{p}ranks_reporting": {r.run: r.ranks_reporting for r in runs},
        f"{p}ranks_blind": {r.run: r.ranks_blind for r in runs},
        f"{p}step": {r.run: r.step for r in runs},
        f"{p}last_step_timestamp_seconds": {r.run: r.last_step_unix_s for r in runs},
        f"{p}recent_step_duration_seconds": {r.run: r.recent_step_seconds for r in runs},
        f"{p}baseline_step_duration_seconds": {r.run: r.baseline_step_seconds for r in runs},
        f"{p}expected_step_seconds": {r.run: r.expected_step_seconds for r in runs},
        f"{p}expected_step_error_ratio": {r.run: r.expected_error_ratio for r in runs},
        f"{p}memory_remaining_seconds": {r.run: r.memory_remaining_seconds for r in runs},
        f"{p}fluctuating": {r.run: r.fluctuating for r in runs},
        f"{p}slow_ranks": {r.run: r.slow_ranks for r in runs},
        f"{p}suspects_omitted": {r.run: r.slow_ranks - len(r.suspects) for r in runs},
        f"{p}incidents_total": {r.run: r.incidents_total for r in runs},
        f"{p}lost_device_seconds_total": {r.run: r.lost_device_seconds for r in runs},
    }
    rows: list[tuple[str, list[Row]]] = [
        (name, [((run,), float(value)) for run, value in values.items() if value is not None])
        for name, values in plain.items()
    ]
    states: list[Row] = [((r.run, state), float(state == r.state)) for r in runs for state in RUN_STATES]
    models: list[Row] = [((r.run, state), float(state == r.expected_state)) for r in runs for state in EXPECTED_STATES]
    incidents: list[Row] = [
        ((r.run, cause), float(sum(i.cause == cause for i in r.incidents))) for r in runs for cause in CAUSES
    ]
    earlier: list[Row] = [((r.run, r.earlier.match), r.earlier.step_seconds) for r in runs if r.earlier]
    imbalances: list[Row] = [((r.run, name), ratio) for r in runs for name, ratio in r.imbalance_ratios.items()]
    mirrored: list[Row] = [((r.run, unit), float(count)) for r in runs for unit, count in r.mirrored_alarms.items()]
    profiles: list[Row] = [((r.run, state), float(r.profiles.get(state, 0))) for r in runs for state in PROFILE_STATES]
    suspects: list[Row] = [
        ((r.run, str(s.rank), s.hostname[:_LABEL_MAX], s.domain_kind, s.cause), s.excess_ratio)
        for r in runs
        for s in r.suspects
    ]
    infos: list[Row] = [row for r in runs for row in _incident_rows(r)]
    return [
        *rows,
        (f"{p}state", states),
        (f"{p}expected_state", models),
        (f"{p}incidents_open", incidents),
        (f"{p}earlier_step_duration_seconds", earlier),
        (f"{p}imbalance_ratio", imbalances),
        (f"{p}mirrored_alarms_total", mirrored),
        (f"{p}profiles_total", profiles),
        ("lockstep_suspect_slowdown_ratio", suspects),
        ("lockstep_incident_info", infos),
        ("lockstep_incident_predicted_gain_ratio", [row for r in runs for row in _gain_rows(r.run, r.incidents)]),
        ("lockstep_incident_evidence_info", [row for r in runs for row in _evidence_rows(r.run, r.incidents)]),
        ("lockstep_incident_silence_seconds", [row for r in runs for row in _hang_rows(r.run, r.incidents)]),
    ]


def _incident_rows(run: "RunSnapshot") -> list[Row]:
    """One series per incident and rank, at most `SUSPECTS_MAX` ranks per run; rank is empty if there is none."""
    rows: list[Row] = []
    hostnames = {"": ""} | {str(rank): name[:_LABEL_MAX] for rank, name in run.hostnames.items()}
    for incident in run.incidents[:SUSPECTS_MAX]:
        ranks = [str(rank) for rank in incident.ranks] if incident.scope in ("rank", "node") else [""]
        space = max(1, SUSPECTS_MAX - len(rows))
        known = incident.cause, incident.root_cause, incident.function[:_LABEL_MAX]
        rows += [((run.run, incident.id, rank, hostnames.get(rank, ""), *known), 1.0) for rank in ranks[:space]]
    return rows


def _gain_rows(run: str, incidents: "tuple[Incident, ...]") -> list[Row]:
    """One series per incident with a predicted gain, at most `SUSPECTS_MAX` per run."""
    gains = ((incident.id, incident.predicted_gain) for incident in incidents[:SUSPECTS_MAX])
    return [((run, incident_id), gain[0]) for incident_id, gain in gains if gain is not None]


def _evidence_rows(run: str, incidents: "tuple[Incident, ...]") -> list[Row]:
    """One series per cause found in other exporters' series, for at most `SUSPECTS_MAX` incidents.

    Sites define causes.
    """
    shown = ((incident.id, incident.machine) for incident in incidents[:SUSPECTS_MAX] if incident.machine)
    return [
        ((run, incident_id, cause[:_LABEL_MAX]), 1.0)
        for incident_id, machine in shown
        for cause in dict.fromkeys(deviation.cause for deviation in machine.deviations)
    ]


def _hang_rows(run: str, incidents: "tuple[Incident, ...]") -> list[Row]:
    """One series per rank that has not arrived, at most `SUSPECTS_MAX`; rank and kind are empty if unknown."""
    return [
        ((run, incident.id, rank, incident.domain[0] if incident.domain else ""), incident.excess_seconds)
        for incident in incidents
        if incident.kind == HANG
        for rank in ([str(rank) for rank in incident.ranks[:SUSPECTS_MAX]] if incident.scope == "rank" else [""])
    ]


def _step_histogram(runs: "tuple[RunSnapshot, ...]") -> "Family":
    metric = BY_NAME["lockstep_run_step_duration_seconds"]
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    bounds = [*(str(bound) for bound in STEP_BUCKETS_SECONDS), "+Inf"]
    for run in runs:
        cumulative, buckets = 0, []
        for bound, count in zip(bounds, run.step_counts, strict=True):
            cumulative += count
            buckets.append((bound, cumulative))
        family.add_metric([run.run], buckets=buckets, sum_value=run.step_sum_seconds)
    return family
