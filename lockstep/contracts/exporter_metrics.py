"""What an exporter measures of its node as a whole and of its own work."""

from lockstep.contracts.messages import LOSS_REASONS
from lockstep.contracts.metric import HTTP_REFUSALS, Metric, exporter_metric
from lockstep.contracts.neighbour_series import NEIGHBOUR_OUTCOMES
from lockstep.contracts.unwatched import UNWATCHED_REASONS

OWN: tuple[Metric, ...] = (
    exporter_metric(
        "lockstep_node_cpu_pressure_seconds_total",
        "counter",
        "Time in which some task of the node was ready to run and waited for a CPU.",
        level="default",
    ),
    exporter_metric(
        "lockstep_node_load", "gauge", "Tasks of the node that run or wait, averaged over a minute.", level="default"
    ),
    exporter_metric(
        "lockstep_exporter_host_watch_time_seconds_total",
        "counter",
        "CPU time that watching the host took.",
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_training_delay_seconds_total",
        "counter",
        "Time that a training thread may have waited for a CPU because the exporter or what it started had one: what "
        "they worked on its cores, at most as long as it waited, of the rank of the node for which that is most.",
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
        "Blocks of marks lost: overwritten in the ring before they were read (lapped), or damaged in it (torn). Steps "
        "that lie in them as a whole are records lost.",
        "reason",
        values=LOSS_REASONS,
        level="full",
    ),
    exporter_metric(
        "lockstep_exporter_steps_incomplete_total",
        "counter",
        "Steps of which only beginning and end are known, because some of their marks were lost or malformed.",
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_marks_malformed_total", "counter", "Marks in a ring that no agent writes.", level="default"
    ),
    exporter_metric(
        "lockstep_exporter_unnumbered_ranks",
        "gauge",
        "Ranks without records, because marks were lost and the number of their running step is not known.",
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_inputs_rejected_total",
        "counter",
        "Inputs refused because they were malformed, out of date, or another user's than they should be.",
        "input",
        values=("run", "ring", "mark", "message", "acknowledgement", "request", "answer", "trace", "inspector"),
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_inputs_dropped_total",
        "counter",
        "Inputs and changed files dropped at the failure boundary, so that nothing else was: refused for what they "
        "hold, failed by a bug of the exporter, or in quarantine after several failures in a row.",
        "outcome",
        values=("refused", "failed", "quarantined"),
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_rings_quarantined",
        "gauge",
        "Rings left alone until their file is replaced, because reading them failed again and again.",
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_ranks_omitted",
        "gauge",
        "Ranks found on this node beyond the limits, not exported.",
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_http_refusals_total",
        "counter",
        "HTTP requests refused for who asks, by status: a wrong password (401), a certificate of another name (403).",
        "code",
        values=HTTP_REFUSALS,
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_unwatched_processes",
        "gauge",
        "Processes of this node that train and are not watched: no usable rank or run name (identity), a shared "
        "directory of another user (refused), no space or rights for a ring (ring), a torch that the hooks do not fit "
        "(hooks: whatever imports it counts), a failure of the agent (failure), or backwards for five minutes that no "
        "optimizer's step follows (steps). Each prints why to its stderr.",
        "reason",
        values=UNWATCHED_REASONS,
        level="default",
    ),
    exporter_metric(
        "lockstep_exporter_root_on_disk",
        "gauge",
        "1 where the shared directory lies on the file system of a disk or network, 0 where in memory: what ranks mark "
        "is written back from there, and a rank waits for a slow disk. Missing where that cannot be read.",
        level="full",
    ),
    exporter_metric(
        "lockstep_exporter_neighbour_readings_total",
        "counter",
        "Readings of other exporters' pages on this node, for evidence: answered, or why a page could not be used, or "
        "not all of it; 0 where none is configured.",
        "outcome",
        values=NEIGHBOUR_OUTCOMES,
        level="default",
        is_optional=True,
    ),
    exporter_metric(
        "lockstep_exporter_neighbour_series",
        "gauge",
        "Series of other exporters that are kept for evidence.",
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
        "Those bytes as a share of spool_max_bytes; near 1 the oldest messages are dropped.",
    ),
    exporter_metric(
        "lockstep_exporter_coordinators",
        "gauge",
        "Coordinators for which the spool is kept: those that acknowledged within coordinator_forget_seconds.",
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
