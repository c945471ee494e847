"""What an exporter measures on its node, and what it says of itself."""

from lockstep.contracts.messages import LOSS_REASONS
from lockstep.contracts.metric import FLAGS, HTTP_REFUSALS, PHASES, Metric, Type
from lockstep.contracts.neighbour_series import NEIGHBOUR_OUTCOMES
from lockstep.contracts.records import COMPUTE_PHASES, DOMAIN_KINDS
from lockstep.contracts.unwatched import UNWATCHED_REASONS


def _exporter(
    name: str, type_: Type, help_: str, *labels: str, values: tuple[str, ...] = (), detail: bool = False
) -> Metric:
    return Metric(name=name, type=type_, help=help_, source="exporter", labels=labels, values=values, detail=detail)


MEASURED: tuple[Metric, ...] = (
    _exporter("lockstep_steps_total", "counter", "Training steps completed.", "run", "rank"),
    _exporter("lockstep_step_time_seconds_total", "counter", "Time of completed training steps.", "run", "rank"),
    _exporter(
        "lockstep_step_duration_seconds",
        "histogram",
        "Duration of training steps of this node's ranks.",
        "run",
        detail=True,
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
        "lockstep_compute_time_seconds_total",
        "counter",
        "What compute consists of, without waits and collections: forward, backward and optimizer sum to it.",
        "run",
        "rank",
        "phase",
        values=COMPUTE_PHASES,
        detail=True,
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
        detail=True,
    ),
    _exporter(
        "lockstep_gc_collections_total",
        "counter",
        "Garbage collections of the training process.",
        "run",
        "rank",
        detail=True,
    ),
    _exporter(
        "lockstep_gc_full_collections_total",
        "counter",
        "Garbage collections of the oldest generation, the long ones.",
        "run",
        "rank",
        detail=True,
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
        "What a rank computes on; always 1. The number format is empty until a matrix product was seen. The UUID is "
        "the one that DCGM exporter has as UUID; without the label it is not known.",
        "run",
        "rank",
        "device",
        "dtype",
        "device_uuid",
        detail=True,
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
    _exporter(
        "lockstep_cpu_time_seconds_total",
        "counter",
        "CPU time of the training thread, waits included.",
        "run",
        "rank",
        detail=True,
    ),
    _exporter(
        "lockstep_agent_time_seconds_total",
        "counter",
        "Time the agent took from the training thread: CPU time at step ends, wall time at collectives and batches.",
        "run",
        "rank",
    ),
    _exporter(
        "lockstep_step", "gauge", "Index of the last completed step of this attempt.", "run", "rank", detail=True
    ),
    _exporter(
        "lockstep_last_step_timestamp_seconds",
        "gauge",
        "Unix time at which the last completed step ended.",
        "run",
        "rank",
    ),
    _exporter("lockstep_rank_info", "gauge", "Where a rank runs; always 1.", "run", "rank", "local_rank", "hostname"),
    _exporter(
        "lockstep_rank_agent_info",
        "gauge",
        "What the agent of a rank writes its marks with, and observes collectives with: C or C++, or Python; always 1.",
        "run",
        "rank",
        "mark_writer",
        "collective_kernels",
        detail=True,
    ),
    _exporter(
        "lockstep_agent_up",
        "gauge",
        "1 while the agent of a rank works, 0 after it took itself out.",
        "run",
        "rank",
    ),
    _exporter(
        "lockstep_agent_failures_total",
        "counter",
        "Failures of a rank's agent: of its hooks, the first of which ends it, and of its ring, which it writes again.",
        "run",
        "rank",
        detail=True,
    ),
    # The host watch: what of the node stands in a rank's way. Absent where the node does not let it be read.
    _exporter(
        "lockstep_cpu_wait_time_seconds_total",
        "counter",
        "Time the training thread was ready to run and waited for a CPU.",
        "run",
        "rank",
        detail=True,
    ),
    _exporter(
        "lockstep_cpu_throttled_time_seconds_total",
        "counter",
        "Time for which a control group of the rank's process was throttled.",
        "run",
        "rank",
        detail=True,
    ),
    _exporter(
        "lockstep_process_cpu_time_seconds_total",
        "counter",
        "CPU time of the rank's process and the processes it started.",
        "run",
        "rank",
        detail=True,
    ),
    _exporter(
        "lockstep_other_cpu_time_seconds_total",
        "counter",
        "CPU time on the rank's cores that is none of its run's.",
        "run",
        "rank",
        detail=True,
    ),
    _exporter("lockstep_rank_cores", "gauge", "Cores that the rank's process may use.", "run", "rank", detail=True),
    _exporter(
        "lockstep_node_cpu_pressure_seconds_total",
        "counter",
        "Time in which some task of the node was ready to run and waited for a CPU.",
    ),
    _exporter("lockstep_node_load", "gauge", "Tasks of the node that run or wait, averaged over a minute."),
    _exporter(
        "lockstep_exporter_host_watch_time_seconds_total",
        "counter",
        "CPU time that watching the host took.",
    ),
    _exporter(
        "lockstep_exporter_training_delay_seconds_total",
        "counter",
        "Time that a training thread may have waited for a CPU because the exporter or what it started had one: what "
        "they worked on its cores, at most as long as it waited, of the rank of the node for which that is most.",
    ),
    _exporter(
        "lockstep_exporter_records_lost_total",
        "counter",
        "Step records lost: overwritten in the ring before they were read (lapped), damaged in it (torn), dropped by "
        "the spool, or refused by the broker.",
        "reason",
        values=("lapped", "torn", "spool", "refused"),
    ),
    _exporter(
        "lockstep_exporter_blocks_lost_total",
        "counter",
        "Blocks of marks lost: overwritten in the ring before they were read (lapped), or damaged in it (torn). Steps "
        "that lie in them as a whole are records lost.",
        "reason",
        values=LOSS_REASONS,
    ),
    _exporter(
        "lockstep_exporter_steps_incomplete_total",
        "counter",
        "Steps of which only beginning and end are known, because some of their marks were lost or malformed.",
    ),
    _exporter(
        "lockstep_exporter_marks_malformed_total",
        "counter",
        "Marks in a ring that no agent writes.",
    ),
    _exporter(
        "lockstep_exporter_unnumbered_ranks",
        "gauge",
        "Ranks without records, because marks were lost and the number of their running step is not known.",
    ),
    _exporter(
        "lockstep_exporter_inputs_rejected_total",
        "counter",
        "Inputs refused because they were malformed, out of date, or another user's than they should be.",
        "input",
        values=("run", "ring", "mark", "message", "acknowledgement", "request", "answer", "trace", "inspector"),
    ),
    _exporter(
        "lockstep_exporter_inputs_dropped_total",
        "counter",
        "Inputs dropped at the failure boundary, so that nothing else was: refused for what they hold, failed by a bug "
        "of the exporter, or in quarantine after several failures in a row.",
        "outcome",
        values=("refused", "failed", "quarantined"),
    ),
    _exporter(
        "lockstep_exporter_rings_quarantined",
        "gauge",
        "Rings left alone until their file is replaced, because reading them failed again and again.",
    ),
    _exporter(
        "lockstep_exporter_ranks_omitted",
        "gauge",
        "Ranks found on this node beyond the limits, not exported.",
    ),
    _exporter(
        "lockstep_exporter_http_refusals_total",
        "counter",
        "HTTP requests refused for who asks, by status: a wrong password (401), a certificate of another name (403).",
        "code",
        values=HTTP_REFUSALS,
    ),
    _exporter(
        "lockstep_exporter_unwatched_processes",
        "gauge",
        "Processes of this node that train and are not watched: no usable rank or run name (identity), a shared "
        "directory of another user (refused), no space or rights for a ring (ring), a torch that the hooks do not fit "
        "(hooks: whatever imports it counts), or a failure of the agent (failure). Each prints why to its stderr.",
        "reason",
        values=UNWATCHED_REASONS,
    ),
    _exporter(
        "lockstep_exporter_neighbour_readings_total",
        "counter",
        "Readings of other exporters' pages on this node, for evidence: answered, or why a page could not be used, or "
        "not all of it; 0 where none is configured.",
        "outcome",
        values=NEIGHBOUR_OUTCOMES,
    ),
    _exporter("lockstep_exporter_neighbour_series", "gauge", "Series of other exporters that are kept for evidence."),
    _exporter("lockstep_exporter_mqtt_connected", "gauge", "1 while connected to the broker."),
    _exporter("lockstep_exporter_messages_published_total", "counter", "Messages the broker has acknowledged."),
    _exporter(
        "lockstep_exporter_messages_resent_total",
        "counter",
        "Messages sent again because a coordinator had not received them.",
    ),
    _exporter("lockstep_exporter_spool_bytes", "gauge", "Bytes on disk that not every coordinator has committed."),
    _exporter(
        "lockstep_exporter_spool_messages", "gauge", "Messages on disk that not every coordinator has committed."
    ),
    _exporter(
        "lockstep_exporter_spool_fill_ratio",
        "gauge",
        "Those bytes as a share of spool_max_bytes; near 1 the oldest messages are dropped.",
    ),
    _exporter(
        "lockstep_exporter_coordinators",
        "gauge",
        "Coordinators for which the spool is kept: those that acknowledged within coordinator_forget_seconds.",
    ),
    _exporter(
        "lockstep_exporter_last_acknowledgement_timestamp_seconds",
        "gauge",
        "Unix time of the last acknowledgement by any coordinator.",
    ),
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
)
