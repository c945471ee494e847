"""The metrics of an exporter about its node as a whole and about its own work."""

from lockstep.contracts.messages import LOSS_REASONS
from lockstep.contracts.metric import HTTP_REFUSALS, Metric, exporter_metric
from lockstep.contracts.neighbour_series import NEIGHBOUR_OUTCOMES
from lockstep.contracts.unwatched import UNWATCHED_REASONS

OWN: tuple[Metric, ...] = (
    exporter_metric(
        "lockstep_node_cpu_pressure_seconds_total",
        "counter",
        "Time during which some task of the node was ready to run and waited for a CPU.",
        level="default",
    ),
    exporter_metric(
        "lockstep_node_load", "gauge", "Tasks of the node that run or wait, averaged over a minute.", level="default"
    ),
    exporter_metric(
        "lockstep_exporter_host_watch_time_seconds_total",
        "counter",
        "CPU time that the exporter spent on watching the host.",
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_training_delay_seconds_total",
        "counter",
        "Time that a training thread may have waited for a CPU that the exporter or its child processes used: their "
        "CPU time on the rank's cores, at most the time the rank waited; of the node's rank with the largest value.",
    ),
    exporter_metric(
        "lockstep_exporter_records_lost_total",
        "counter",
        "Step records lost: overwritten in the ring before they were read (lapped), damaged in it (torn), dropped by "
        "the spool, or refused by the broker.",
        "reason",
        values=("lapped", "torn", "spool", "refused"),
    ),
    exporter_metric(
        "lockstep_exporter_blocks_lost_total",
        "counter",
        "Blocks of marks lost: overwritten in the ring before they were read (lapped), or damaged in it (torn). "
        "Steps that lie entirely in lost blocks also count as records lost.",
        "reason",
        values=LOSS_REASONS,
        level="full",
    ),
    exporter_metric(
        "lockstep_exporter_steps_incomplete_total",
        "counter",
        "Steps of which only the beginning and end are known, because some of their marks were lost or malformed.",
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_marks_malformed_total", "counter", "Marks in a ring that no agent writes.", level="default"
    ),
    exporter_metric(
        "lockstep_exporter_unnumbered_ranks",
        "gauge",
        "Ranks without records, because marks were lost and the number of their present step is unknown.",
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_inputs_rejected_total",
        "counter",
        "Inputs refused because they were malformed, out of date, or owned by the wrong user.",
        "input",
        values=("run", "ring", "mark", "message", "acknowledgement", "request", "answer", "trace", "inspector"),
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_inputs_dropped_total",
        "counter",
        "Inputs and changed files dropped one by one, so that nothing else is lost: refused for their content, "
        "failed by a bug of the exporter, or in quarantine after several failures in a row.",
        "outcome",
        values=("refused", "failed", "quarantined"),
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_rings_quarantined",
        "gauge",
        "Rings ignored until their file is replaced, because reading them failed repeatedly.",
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_ranks_omitted",
        "gauge",
        "Ranks of this node beyond the limits, which are not exported.",
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_http_refusals_total",
        "counter",
        "HTTP requests refused for missing rights, by status: a wrong password (401), a certificate of another name "
        "(403).",
        "code",
        values=HTTP_REFUSALS,
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_unwatched_processes",
        "gauge",
        "Processes of this node that train without being monitored: no usable rank or run name, or only that of the "
        "rank that started the process (identity), a shared directory of another user (refused), no space or rights "
        "for a ring (ring), a torch version that the hooks do not fit (hooks; every process that imports it counts), "
        "a failure of the agent (failure), or five minutes of backwards without an optimizer step (steps). Each prints "
        "why to its stderr.",
        "reason",
        values=UNWATCHED_REASONS,
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_root_on_disk",
        "gauge",
        "1 if the shared directory lies on a disk or network file system, 0 if it lies in memory. A rank can wait "
        "for a slow disk when the kernel writes its marks back. Absent if the exporter cannot read the kind of the "
        "file system.",
        level="full",
    ),
    exporter_metric(
        "lockstep_exporter_neighbour_readings_total",
        "counter",
        "Readings of other exporters' pages on this node, for evidence, by outcome: answered, or why all or part of "
        "a page could not be used; 0 if none is configured.",
        "outcome",
        values=NEIGHBOUR_OUTCOMES,
        level="default",
        is_optional=True,
    ),
    exporter_metric(
        "lockstep_exporter_neighbour_series",
        "gauge",
        "Series of other exporters that are stored for evidence.",
        level="default",
        is_optional=True,
    ),
    exporter_metric("lockstep_exporter_mqtt_connected", "gauge", "1 while connected to the broker."),
    exporter_metric(
        "lockstep_exporter_messages_published_total",
        "counter",
        "Messages the broker has acknowledged.",
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_messages_resent_total",
        "counter",
        "Messages sent again because a coordinator had not received them.",
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_spool_bytes",
        "gauge",
        "Bytes on disk that not every coordinator has committed.",
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_spool_messages",
        "gauge",
        "Messages on disk that not every coordinator has committed.",
        level="full",
    ),
    exporter_metric(
        "lockstep_exporter_spool_fill_ratio",
        "gauge",
        "These bytes as a share of spool_max_bytes; at 1 the exporter drops the oldest messages.",
    ),
    exporter_metric(
        "lockstep_exporter_coordinators",
        "gauge",
        "Coordinators for which the exporter keeps its spool: those that acknowledged within "
        "coordinator_forget_seconds.",
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_last_acknowledgement_timestamp_seconds",
        "gauge",
        "Unix time of the last acknowledgement by any coordinator.",
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_profiles_total",
        "counter",
        "Profile requests by outcome, per rank.",
        "state",
        values=("accepted", "done", "refused"),
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_profile_cost_seconds_total",
        "counter",
        "Training thread time spent on starting, stopping and writing profiles.",
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_tick_duration_seconds",
        "gauge",
        "Duration of the last round over all rings.",
        level="default",
    ),
    exporter_metric("lockstep_exporter_build_info", "gauge", "Version of the exporter; always 1.", "version"),
)
