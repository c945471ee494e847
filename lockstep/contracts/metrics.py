"""The metric catalogue: every name, type, label and help text that Lockstep exports, defined once.

The exporter measures `lockstep_*` with labels run and rank, and `lockstep_node_*`. The coordinator derives
`lockstep_run_*`, `lockstep_suspect_*` and `lockstep_incident_*`, whose number does not depend on the number of ranks.
`lockstep_exporter_*` and `lockstep_coordinator_*` describe Lockstep itself, `process_*` the scraped process. Counters
carry numerators and denominators; recording rules compute rates and ratios. Labels that a scrape configuration owns
(job, instance, node, pod, ...) are never used.
"""

from lockstep.contracts.exporter_metrics import OWN
from lockstep.contracts.inspector_metrics import INSPECTED
from lockstep.contracts.limits import SUSPECTS_MAX
from lockstep.contracts.memory_metrics import MEMORY
from lockstep.contracts.messages import LOSS_REASONS
from lockstep.contracts.metric import (
    CAUSES,
    EVIDENCE_OUTCOMES,
    EVIDENCE_REFUSALS,
    EXPECTED_STATES,
    FLAGS,
    HTTP_REFUSALS,
    IMBALANCES,
    LEVELS,
    MIRRORED_UNITS,
    NODE_PATCH_OUTCOMES,
    NOTIFICATION_OUTCOMES,
    NOTIFICATION_TARGETS,
    PHASES,
    POLICY_SOURCES,
    PROFILE_STATES,
    RECORDING_STATES,
    REFUSAL_REASONS,
    RUN_STATES,
    STEP_BUCKETS_SECONDS,
    Metric,
    Type,
)
from lockstep.contracts.node_metrics import MEASURED
from lockstep.contracts.process_metrics import PROCESS

__all__ = [
    "BY_NAME",
    "CATALOGUE",
    "CAUSES",
    "EARLIER_MATCHES",
    "EVIDENCE_OUTCOMES",
    "EVIDENCE_REFUSALS",
    "EXPECTED_STATES",
    "FLAGS",
    "FRAME_VERDICTS",
    "HTTP_REFUSALS",
    "IMBALANCES",
    "LEVELS",
    "LOST_REASONS",
    "MIRRORED_UNITS",
    "PHASES",
    "POLICY_SOURCES",
    "PROFILE_STATES",
    "RECORDING_STATES",
    "REFUSAL_REASONS",
    "REJECTED_REASONS",
    "RUN_STATES",
    "STEP_BUCKETS_SECONDS",
    "Metric",
]


LOST_REASONS = (*LOSS_REASONS, "spool", "malformed")
"""Why a step record never reached a detector; the first two happen in the ring, on the node."""
REJECTED_REASONS = ("rank", "late", "duplicate", "impossible", "foreign", "failed", "quarantined")
"""Why a step record that arrived was not evaluated; foreign: of a rank that another node announced; failed: a bug of
Lockstep; quarantined: of a run whose handling failed repeatedly."""
EARLIER_MATCHES = ("name", "workload")
"""What earlier attempts have in common with a run: its name, otherwise what its ranks announced of the job."""
FRAME_VERDICTS = ("taken", "duplicate", "gap", "ahead", "refused")


def _coordinator(
    name: str,
    type_: Type,
    help_: str,
    *labels: str,
    values: tuple[str, ...] = (),
    more_values: tuple[str, ...] = (),
) -> Metric:
    return Metric(
        name=name, type=type_, help=help_, source="coordinator", labels=labels, values=values, more_values=more_values
    )


_EVALUATED: tuple[Metric, ...] = (
    _coordinator("lockstep_run_ranks", "gauge", "World size of a run.", "run"),
    _coordinator(
        "lockstep_run_ranks_reporting", "gauge", "Ranks that reported one of the last completed steps.", "run"
    ),
    _coordinator(
        "lockstep_run_ranks_blind",
        "gauge",
        "Ranks whose waits are not measured, so that their own work is unknown; they are not evaluated.",
        "run",
    ),
    _coordinator(
        "lockstep_run_state",
        "gauge",
        "1 for the state a run is in, 0 for the others.",
        "run",
        "state",
        values=RUN_STATES,
    ),
    _coordinator("lockstep_run_step", "gauge", "Last step that every reporting rank has completed.", "run"),
    _coordinator("lockstep_run_last_step_timestamp_seconds", "gauge", "Unix time at which that step ended.", "run"),
    _coordinator("lockstep_run_step_duration_seconds", "histogram", "Duration of the steps of a run.", "run"),
    _coordinator(
        "lockstep_run_recent_step_duration_seconds",
        "gauge",
        "Median duration of the last steps, without checkpoints and profiled steps; the mean where single ones became "
        "long, here and there.",
        "run",
    ),
    _coordinator(
        "lockstep_run_baseline_step_duration_seconds",
        "gauge",
        "Step duration of the run when it was healthy.",
        "run",
    ),
    _coordinator(
        "lockstep_run_earlier_step_duration_seconds",
        "gauge",
        "Step duration of earlier attempts with the same work per step: those of the same name, else those of the "
        "same workload under another name; absent without any.",
        "run",
        "match",
        values=EARLIER_MATCHES,
    ),
    _coordinator(
        "lockstep_run_expected_step_seconds",
        "gauge",
        "Step duration that the model of the job expects of a healthy run; absent without a model.",
        "run",
    ),
    _coordinator(
        "lockstep_run_expected_step_error_ratio",
        "gauge",
        "Error band of that prediction: nine of ten healthy steps that were held out of the fit lie within it.",
        "run",
    ),
    _coordinator(
        "lockstep_run_expected_state",
        "gauge",
        "1 for the state of a run's model, 0 for the others; only a known model predicts a step.",
        "run",
        "state",
        values=EXPECTED_STATES,
    ),
    _coordinator(
        "lockstep_run_fluctuating",
        "gauge",
        "1 while steps take longer than the run's own history explains.",
        "run",
    ),
    _coordinator("lockstep_run_slow_ranks", "gauge", "Ranks that hold their communication domains back.", "run"),
    _coordinator(
        "lockstep_run_suspects_omitted",
        "gauge",
        f"Slow ranks beyond the {SUSPECTS_MAX} that are exported one by one.",
        "run",
    ),
    _coordinator(
        "lockstep_run_imbalance_ratio",
        "gauge",
        "Share of a step that legitimate differences between ranks cost; informational, not a fault.",
        "run",
        "imbalance",
        values=IMBALANCES,
    ),
    _coordinator(
        "lockstep_run_mirrored_alarms_total",
        "counter",
        "Alarms of the same test for units that are unusually fast: an estimate of the false alarms that noise causes.",
        "run",
        "unit",
        values=MIRRORED_UNITS,
    ),
    _coordinator("lockstep_run_incidents_open", "gauge", "Open incidents by cause.", "run", "cause", values=CAUSES),
    _coordinator("lockstep_run_incidents_total", "counter", "Incidents opened.", "run"),
    _coordinator(
        "lockstep_run_lost_device_seconds_total",
        "counter",
        "Device time lost to slow ranks: excess time of the slowest rank times the ranks that waited.",
        "run",
    ),
    _coordinator(
        "lockstep_run_profiles_total",
        "counter",
        "Profile requests by outcome, per rank.",
        "run",
        "state",
        values=PROFILE_STATES,
    ),
    _coordinator(
        "lockstep_suspect_slowdown_ratio",
        "gauge",
        "Own work of a rank of an open incident over that of its peers, minus 1; while it recovers, the last "
        "measured value.",
        "run",
        "rank",
        "hostname",
        "domain_kind",
        "cause",
    ),
    _coordinator(
        "lockstep_incident_info",
        "gauge",
        "Facts about an open incident; always 1. Root cause and function are empty until a capture or stacks name "
        "them.",
        "run",
        "incident",
        "rank",
        "hostname",
        "cause",
        "root_cause",
        "function",
    ),
    _coordinator(
        "lockstep_incident_predicted_gain_ratio",
        "gauge",
        "Share of the step that repairing an open incident would give back: by the run's model if there is one, "
        "else by the step records or the best advice.",
        "run",
        "incident",
    ),
    _coordinator(
        "lockstep_incident_silence_seconds",
        "gauge",
        "Time since the last step of a run that hangs, by rank that has not arrived; the rank is empty if none is "
        "known.",
        "run",
        "incident",
        "rank",
        "domain_kind",
    ),
    _coordinator(
        "lockstep_incident_evidence_info",
        "gauge",
        "A cause that the series of other exporters show for the machines of an open incident but not for their "
        "peers; always 1.",
        "run",
        "incident",
        "machine_cause",
    ),
    _coordinator(
        "lockstep_run_memory_remaining_seconds",
        "gauge",
        "Forecast time until steadily growing memory reaches its limit, of the rank that reaches it first; absent "
        "without such growth.",
        "run",
    ),
    _coordinator(
        "lockstep_fleet_recent_incidents",
        "gauge",
        "Incidents of the last 14 days, over all runs, that named a node, a device (by UUID) or a link (by its two "
        f"nodes); of the {SUSPECTS_MAX} that were named most, at least twice.",
        "subject_kind",
        "subject",
    ),
    _coordinator(
        "lockstep_coordinator_messages_received_total",
        "counter",
        "Messages received from the bus.",
        "channel",
        values=("steps", "answer", "summary", "stacks", "lost", "announce", "alive", "coordinator"),
    ),
    _coordinator(
        "lockstep_coordinator_messages_rejected_total",
        "counter",
        "Messages refused because they were malformed.",
        "reason",
        values=("topic", "version", "malformed"),
    ),
    _coordinator(
        "lockstep_coordinator_announcements_refused_total",
        "counter",
        "Announcements of nodes that were refused: a rank that another node owns, or a group, run or node too many.",
        "reason",
        values=REFUSAL_REASONS,
    ),
    _coordinator(
        "lockstep_coordinator_records_rejected_total",
        "counter",
        "Step records refused one by one.",
        "reason",
        values=REJECTED_REASONS,
    ),
    _coordinator(
        "lockstep_coordinator_records_lost_total",
        "counter",
        "Step records that never reached a detector: overwritten in a ring before they were read (lapped), damaged "
        "there (torn), dropped from a full spool (spool), or in a message that could not be decoded (malformed).",
        "reason",
        values=LOST_REASONS,
    ),
    _coordinator("lockstep_coordinator_records_evaluated_total", "counter", "Step records that reached the detectors."),
    _coordinator(
        "lockstep_coordinator_frames_total",
        "counter",
        "Messages of nodes' streams: taken, delivered twice, behind a gap or ahead of what the run can hold (both "
        "are sent again), or of no known stream.",
        "verdict",
        values=FRAME_VERDICTS,
    ),
    _coordinator(
        "lockstep_coordinator_unsettled_frames",
        "gauge",
        "Messages taken whose records wait for other ranks; nodes keep them until their records are evaluated.",
    ),
    _coordinator(
        "lockstep_coordinator_inputs_dropped_total",
        "counter",
        "Messages, steps, diagnoses, models, events of the page and changed files dropped one by one, so that no "
        "other run is affected: refused for their content, failed by a bug of the coordinator, or in quarantine "
        "after several failures in a row.",
        "outcome",
        values=("refused", "failed", "quarantined"),
    ),
    _coordinator("lockstep_coordinator_leader", "gauge", "1 while this coordinator requests the captures of its pair."),
    _coordinator("lockstep_coordinator_peers", "gauge", "Other coordinators that are alive on the same broker."),
    _coordinator(
        "lockstep_coordinator_records_recorded_total",
        "counter",
        "Step records written to the recording, or dropped because its disk was too slow or full.",
        "state",
        values=RECORDING_STATES,
    ),
    _coordinator(
        "lockstep_coordinator_http_refusals_total",
        "counter",
        "HTTP requests refused for missing rights, by status: a wrong password or token (401), a certificate of "
        "another name, or a change without a configured token (403).",
        "code",
        values=HTTP_REFUSALS,
    ),
    _coordinator(
        "lockstep_coordinator_evidence_queries_total",
        "counter",
        "Queries for evidence by outcome: answered with series or without (empty), or why there was no usable "
        "answer; 0 without a configured source.",
        "outcome",
        values=EVIDENCE_OUTCOMES,
    ),
    _coordinator(
        "lockstep_coordinator_evidence_series_refused_total",
        "counter",
        "Series of other exporters that match no machine: contradicted by another series (ambiguous), of a machine "
        "that the query did not ask for (foreign), or without a finite number (invalid).",
        "reason",
        values=EVIDENCE_REFUSALS,
    ),
    _coordinator(
        "lockstep_coordinator_notifications_total",
        "counter",
        "Notifications of incidents by outcome: accepted by the receiver (sent), refused by it or given up "
        "(failed), dropped from a full queue (dropped); 0 without a configured receiver.",
        "target",
        "outcome",
        values=NOTIFICATION_OUTCOMES,
        more_values=NOTIFICATION_TARGETS,
    ),
    _coordinator(
        "lockstep_coordinator_node_patches_total",
        "counter",
        "Attempts to set the condition LockstepSlowDevice of a Kubernetes node: applied or refused by the API server, "
        "or failed on the way and repeated (retried); 0 without a configured API server.",
        "outcome",
        values=NODE_PATCH_OUTCOMES,
    ),
    _coordinator("lockstep_coordinator_mqtt_connected", "gauge", "1 while connected to the broker."),
    _coordinator("lockstep_coordinator_nodes_alive", "gauge", "Exporters with a live heartbeat."),
    _coordinator("lockstep_coordinator_detections_total", "counter", "Steps evaluated."),
    _coordinator("lockstep_coordinator_detection_time_seconds_total", "counter", "Time spent on evaluating steps."),
    _coordinator(
        "lockstep_coordinator_last_detection_timestamp_seconds", "gauge", "Unix time of the last evaluated step."
    ),
    _coordinator(
        "lockstep_coordinator_policy_changes_total",
        "counter",
        "Thresholds, detectors and scopes changed while running, by where the change came from.",
        "source",
        values=POLICY_SOURCES,
    ),
    _coordinator(
        "lockstep_coordinator_config_last_reload_successful",
        "gauge",
        "1 if the last reload of the configuration succeeded, 0 if the previous one is still in force.",
    ),
    _coordinator(
        "lockstep_coordinator_config_last_reload_success_timestamp_seconds",
        "gauge",
        "Unix time at which the configuration in force was read.",
    ),
    _coordinator("lockstep_coordinator_build_info", "gauge", "Version of the coordinator; always 1.", "version"),
)


CATALOGUE: tuple[Metric, ...] = (*MEASURED, *OWN, *MEMORY, *INSPECTED, *_EVALUATED, *PROCESS)
BY_NAME = {metric.name: metric for metric in CATALOGUE}
