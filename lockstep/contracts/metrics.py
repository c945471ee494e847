"""The metric catalogue: every name, type, label and help text that Lockstep exports, written once.

`lockstep_*` with labels run and rank is measured by the exporter; `lockstep_run_*`, `lockstep_suspect_*` and
`lockstep_incident_*` are judged by the coordinator, independent of the number of ranks; `lockstep_exporter_*` and
`lockstep_coordinator_*` speak of Lockstep itself. Counters carry numerators and denominators; rates and ratios are
made in recording rules. Labels that a scrape configuration owns (job, instance, node, pod, ...) are never used.
"""

from dataclasses import dataclass
from typing import Literal

from lockstep.contracts.limits import SUSPECTS_MAX
from lockstep.contracts.records import DOMAIN_KINDS, Flag

PHASES = ("data", "compute", "host", "gc")
"""Own work of a training thread: with the waits, they sum to the step time."""

FLAGS = tuple(str(flag.name).lower() for flag in Flag)
"""What a step was besides a training step."""

IMBALANCES = ("stage", "replica", "work")
"""What legitimate differences between ranks come from: pipeline stages, batches of replicas, tokens and experts."""
CAUSES = ("compute", "host", "data", "gc", "link", "imbalance", "unknown")
RUN_STATES = ("warming", "healthy", "suspect", "profiling", "diagnosed", "recovering", "hung", "lost", "finished")
PROFILE_STATES = ("requested", "done", "refused", "expired")
RECORDING_STATES = ("written", "dropped")
POLICY_SOURCES = ("api", "file")
STEP_BUCKETS_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""From a toy job to the slowest published step (Hermes: 85 s falls into +Inf, which its sum still tells)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One family. `values` lists the values of an enumerated label; each is exported from the start."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    source: Literal["exporter", "coordinator"]
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


def _exporter(
    name: str,
    type_: Literal["counter", "gauge", "histogram"],
    help_: str,
    *labels: str,
    values: tuple[str, ...] = (),
) -> Metric:
    return Metric(name=name, type=type_, help=help_, source="exporter", labels=labels, values=values)


def _coordinator(
    name: str,
    type_: Literal["counter", "gauge", "histogram"],
    help_: str,
    *labels: str,
    values: tuple[str, ...] = (),
) -> Metric:
    return Metric(name=name, type=type_, help=help_, source="coordinator", labels=labels, values=values)


CATALOGUE: tuple[Metric, ...] = (
    # Measured on the node.
    _exporter("lockstep_steps_total", "counter", "Training steps completed.", "run", "rank"),
    _exporter("lockstep_step_time_seconds_total", "counter", "Time of completed training steps.", "run", "rank"),
    _exporter(
        "lockstep_step_duration_seconds",
        "histogram",
        "Duration of training steps of this node's ranks.",
        "run",
    ),
    _exporter(
        "lockstep_steps_flagged_total",
        "counter",
        "Steps of this node's ranks that were more than a training step.",
        "run",
        "flag",
        values=FLAGS,
    ),
    _exporter(
        "lockstep_phase_time_seconds_total",
        "counter",
        "Own work of the training thread by phase; with the collective waits it sums to the step time.",
        "run",
        "rank",
        "phase",
        values=PHASES,
    ),
    _exporter(
        "lockstep_collective_wait_seconds_total",
        "counter",
        "Time the training thread was blocked in collectives, by kind of communication domain.",
        "run",
        "rank",
        "domain_kind",
        values=DOMAIN_KINDS,
    ),
    _exporter(
        "lockstep_collective_time_seconds_total",
        "counter",
        "Time with a collective of this kind in flight; what of it is no wait was hidden behind work.",
        "run",
        "rank",
        "domain_kind",
        values=DOMAIN_KINDS,
    ),
    _exporter(
        "lockstep_collective_bytes_total",
        "counter",
        "Bytes given to collectives.",
        "run",
        "rank",
        "domain_kind",
        values=DOMAIN_KINDS,
    ),
    _exporter(
        "lockstep_collective_bus_bytes_total",
        "counter",
        "Bytes that a ring algorithm moves over the slowest link for them, whatever the group's size.",
        "run",
        "rank",
        "domain_kind",
        values=DOMAIN_KINDS,
    ),
    _exporter(
        "lockstep_collectives_total",
        "counter",
        "Collectives started.",
        "run",
        "rank",
        "domain_kind",
        values=DOMAIN_KINDS,
    ),
    _exporter(
        "lockstep_gc_collections_total",
        "counter",
        "Garbage collections of the training process.",
        "run",
        "rank",
    ),
    _exporter(
        "lockstep_gc_full_collections_total",
        "counter",
        "Garbage collections of the oldest generation, the long ones.",
        "run",
        "rank",
    ),
    _exporter(
        "lockstep_recompilations_total",
        "counter",
        "Graphs compiled by torch.compile, the first ones included.",
        "run",
        "rank",
    ),
    _exporter("lockstep_samples_total", "counter", "Samples fetched by this rank.", "run", "rank"),
    _exporter("lockstep_tokens_total", "counter", "Tokens fetched by this rank.", "run", "rank"),
    _exporter(
        "lockstep_model_flops_total",
        "counter",
        "Floating-point operations that the model needed for this rank's steps, without recomputation.",
        "run",
        "rank",
    ),
    _exporter(
        "lockstep_rank_peak_flops_per_second",
        "gauge",
        "Dense peak of the rank's device in the format it computes in; absent where it is not known.",
        "run",
        "rank",
    ),
    _exporter(
        "lockstep_rank_device_info",
        "gauge",
        "What a rank computes on; always 1. The number format is empty until a matrix product was seen.",
        "run",
        "rank",
        "device",
        "dtype",
    ),
    _exporter(
        "lockstep_device_step_time_seconds_total",
        "counter",
        "Time of completed steps by the device's own clock.",
        "run",
        "rank",
    ),
    _exporter(
        "lockstep_device_collective_time_seconds_total",
        "counter",
        "Time with any collective in flight on the device, by the device's own clock.",
        "run",
        "rank",
    ),
    _exporter(
        "lockstep_host_lead_seconds_total",
        "counter",
        "Least time by which the host was ahead of the device, summed over steps: near 0 a step, the device waits for "
        "launches.",
        "run",
        "rank",
    ),
    _exporter("lockstep_cpu_time_seconds_total", "counter", "CPU time of the training thread.", "run", "rank"),
    _exporter(
        "lockstep_agent_time_seconds_total",
        "counter",
        "Time the agent took from the training thread.",
        "run",
        "rank",
    ),
    _exporter("lockstep_step", "gauge", "Index of the last completed step of this attempt.", "run", "rank"),
    _exporter(
        "lockstep_last_step_timestamp_seconds",
        "gauge",
        "Unix time at which the last completed step ended.",
        "run",
        "rank",
    ),
    _exporter("lockstep_rank_info", "gauge", "Where a rank runs; always 1.", "run", "rank", "local_rank", "hostname"),
    _exporter(
        "lockstep_agent_up",
        "gauge",
        "1 while the agent of a rank works, 0 after it took itself out.",
        "run",
        "rank",
    ),
    _exporter(
        "lockstep_exporter_records_lost_total",
        "counter",
        "Step records that were overwritten before they were read, were torn, or did not fit the spool.",
        "reason",
        values=("lapped", "torn", "spool"),
    ),
    _exporter(
        "lockstep_exporter_inputs_rejected_total",
        "counter",
        "Inputs refused because they were malformed.",
        "input",
        values=("ring", "message", "answer", "trace"),
    ),
    _exporter(
        "lockstep_exporter_ranks_omitted",
        "gauge",
        "Ranks found on this node beyond the limits, not exported.",
    ),
    _exporter("lockstep_exporter_mqtt_connected", "gauge", "1 while connected to the broker."),
    _exporter("lockstep_exporter_messages_published_total", "counter", "Messages the broker has acknowledged."),
    _exporter("lockstep_exporter_spool_bytes", "gauge", "Bytes of messages waiting on disk for the broker."),
    _exporter(
        "lockstep_exporter_profiles_total",
        "counter",
        "Profile requests by what became of them, per rank.",
        "state",
        values=("accepted", "done", "refused"),
    ),
    _exporter(
        "lockstep_exporter_profile_cost_seconds_total",
        "counter",
        "Training thread time spent on starting, stopping and writing profiles.",
    ),
    _exporter("lockstep_exporter_tick_duration_seconds", "gauge", "Duration of the last round over all rings."),
    _exporter("lockstep_exporter_build_info", "gauge", "Version of the exporter; always 1.", "version"),
    # Judged over the cluster.
    _coordinator("lockstep_run_ranks", "gauge", "World size of a run.", "run"),
    _coordinator(
        "lockstep_run_ranks_reporting", "gauge", "Ranks that reported one of the last completed steps.", "run"
    ),
    _coordinator(
        "lockstep_run_ranks_blind",
        "gauge",
        "Ranks whose waits are not measured, so that their own work cannot be told: they are not judged.",
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
        "Median duration of the last steps, checkpoints and profiled steps left out.",
        "run",
    ),
    _coordinator(
        "lockstep_run_baseline_step_duration_seconds",
        "gauge",
        "Step duration of the run when it was healthy.",
        "run",
    ),
    _coordinator(
        "lockstep_run_fluctuating",
        "gauge",
        "1 while steps are longer than the run's own history explains.",
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
        "Share of a step that legitimate differences between ranks cost; information, no fault.",
        "run",
        "imbalance",
        values=IMBALANCES,
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
        "Profile requests by what became of them, per rank.",
        "run",
        "state",
        values=PROFILE_STATES,
    ),
    _coordinator(
        "lockstep_suspect_slowdown_ratio",
        "gauge",
        "Own work of a slow rank over that of its peers, minus 1.",
        "run",
        "rank",
        "hostname",
        "domain_kind",
        "cause",
    ),
    _coordinator(
        "lockstep_incident_info",
        "gauge",
        "What is known of an open incident; always 1. Root cause and function are empty until a profile named them.",
        "run",
        "incident",
        "rank",
        "cause",
        "root_cause",
        "function",
    ),
    _coordinator(
        "lockstep_incident_predicted_gain_ratio",
        "gauge",
        "Share of the step that the best advice for an open incident would give back, as far as that can be predicted.",
        "run",
        "incident",
    ),
    _coordinator(
        "lockstep_incident_silence_seconds",
        "gauge",
        "Time since the last step of a run that hangs, by rank that has not arrived; no rank where none is known.",
        "run",
        "incident",
        "rank",
        "domain_kind",
    ),
    _coordinator(
        "lockstep_coordinator_messages_received_total",
        "counter",
        "Messages taken from the bus.",
        "channel",
        values=("steps", "announce", "answer", "summary", "alive"),
    ),
    _coordinator(
        "lockstep_coordinator_messages_rejected_total",
        "counter",
        "Messages refused because they were malformed.",
        "reason",
        values=("topic", "version", "malformed"),
    ),
    _coordinator(
        "lockstep_coordinator_records_rejected_total",
        "counter",
        "Step records refused one by one.",
        "reason",
        values=("rank", "late", "duplicate", "impossible"),
    ),
    _coordinator(
        "lockstep_coordinator_records_lost_total",
        "counter",
        "Step records that exporters say they could not deliver.",
    ),
    _coordinator(
        "lockstep_coordinator_records_recorded_total",
        "counter",
        "Step records written to the recording, or dropped because its disk was too slow or full.",
        "state",
        values=RECORDING_STATES,
    ),
    _coordinator("lockstep_coordinator_mqtt_connected", "gauge", "1 while connected to the broker."),
    _coordinator("lockstep_coordinator_nodes_alive", "gauge", "Exporters with a live heartbeat."),
    _coordinator("lockstep_coordinator_detections_total", "counter", "Steps judged."),
    _coordinator("lockstep_coordinator_detection_time_seconds_total", "counter", "Time spent on judging them."),
    _coordinator(
        "lockstep_coordinator_last_detection_timestamp_seconds", "gauge", "Unix time of the last judged step."
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
        "1 if the configuration could be read the last time it was, 0 if the one from before is still in force.",
    ),
    _coordinator(
        "lockstep_coordinator_config_last_reload_success_timestamp_seconds",
        "gauge",
        "Unix time at which the configuration in force was read.",
    ),
    _coordinator("lockstep_coordinator_build_info", "gauge", "Version of the coordinator; always 1.", "version"),
)

BY_NAME = {metric.name: metric for metric in CATALOGUE}
