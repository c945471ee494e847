"""The self-monitoring dashboard: whether agents, exporters and coordinator work, what they miss, what they cost."""

from dashboards.builders import (
    DashboardRow,
    DashboardSpec,
    PanelLine,
    alerts,
    datasource_variable,
    flag,
    query,
    stat,
    timeseries,
)
from dashboards.panels import Column, coordinator_variable, grid
from dashboards.postprocess import COUNT
from dashboards.queries import TOP, rate

_GOOD_BAD = ((None, "green"), (1, "red"))


def _worst(expr: str) -> str:
    return f"topk({TOP}, {expr})"


def _rate_by_instance(metric: str) -> str:
    return rate(metric, "instance", "").replace("{}", "")


def _of_processes(expr: str) -> list[object]:
    """Return lines of exporter and coordinator processes only: other programs have series of the same names."""
    exporters, coordinators = (
        f"max by (instance) ({expr} and on (job, instance) lockstep_{part}_build_info)"
        for part in ("exporter", "coordinator")
    )
    return [
        query(_worst(exporters), "exporter {{instance}}"),
        query(coordinators, "coordinator {{instance}}"),
    ]


def _rates(metric: str, label: str) -> object:
    return query(rate(metric, label, "").replace("{}", ""), f"{{{{{label}}}}}")


_WORKS = DashboardRow(
    title="Does it work?",
    lines=(
        PanelLine(
            height=4,
            panels=(
                stat(
                    "Exporters",
                    "Exporters with a heartbeat at the broker.",
                    COUNT,
                    query("max(lockstep_coordinator_nodes_alive)", instant=True),
                ),
                stat(
                    "Exporters without broker",
                    "Their batches wait on disk.",
                    COUNT,
                    query("sum(lockstep_exporter_mqtt_connected == bool 0)", instant=True),
                    steps=_GOOD_BAD,
                ),
                flag(
                    "Coordinator at the broker",
                    "Whether it is connected; without a broker no step reaches it.",
                    query("min(lockstep_coordinator_mqtt_connected)", instant=True),
                    well="connected",
                    ill="away",
                ),
                stat(
                    "Since the last verdict",
                    "Time since the coordinator evaluated a step. It grows while no run makes steps.",
                    "s",
                    query("time() - max(lockstep_coordinator_last_detection_timestamp_seconds > 0)", instant=True),
                ),
                stat(
                    "Agents down",
                    "Ranks whose agent has disabled itself; their training continues.",
                    COUNT,
                    query("sum(lockstep_agent_up == bool 0)", instant=True),
                    steps=_GOOD_BAD,
                ),
                flag(
                    "Configuration",
                    "Whether the coordinator could read its configuration at the last reload; if not, the "
                    "previous one is still in force.",
                    query("min(lockstep_coordinator_config_last_reload_successful)", instant=True),
                    well="loaded",
                    ill="refused",
                ),
            ),
        ),
        PanelLine(
            panels=(
                grid(
                    "Versions",
                    "How many exporters and coordinators run each version. During an upgrade there is more"
                    " than one row.",
                    ("version",),
                    tuple(
                        Column(heading=f"{part}s", unit=COUNT, expr=f"count by (version) (lockstep_{part}_build_info)")
                        for part in ("exporter", "coordinator")
                    ),
                ),
                alerts(
                    "Alerts about Lockstep",
                    "Alerts on the monitoring itself.",
                    labels='{alertname=~"Lockstep(Agent|Exporter|Coordinator|Broker|Spool|Records|SlowsTraining|Config|Recording|RunUnwatched).*"}',
                ),
                timeseries(
                    "Ranks left out",
                    "Ranks found on a node beyond the limits of an exporter.",
                    COUNT,
                    query(_worst("max by (instance) (lockstep_exporter_ranks_omitted)"), "{{instance}}"),
                ),
            ),
        ),
    ),
)

_COMPLETE = DashboardRow(
    title="Is its data complete?",
    lines=(
        PanelLine(
            panels=(
                timeseries(
                    "Records lost on nodes",
                    "Step records per second that were overwritten before they were read, were torn, or did not fit "
                    "the spool.",
                    "suffix: records/s",
                    _rates("lockstep_exporter_records_lost_total", "reason"),
                ),
                timeseries(
                    "Records refused",
                    "Step records per second that the coordinator refused one by one.",
                    "suffix: records/s",
                    _rates("lockstep_coordinator_records_rejected_total", "reason"),
                    _rates("lockstep_coordinator_records_lost_total", "reason"),
                ),
                timeseries(
                    "Messages refused",
                    "Refused input per second: malformed messages, announcements that exceed limits or "
                    "name another node's ranks, and what exporters refuse on their nodes.",
                    "suffix: messages/s",
                    _rates("lockstep_coordinator_messages_rejected_total", "reason"),
                    _rates("lockstep_coordinator_announcements_refused_total", "reason"),
                    _rates("lockstep_exporter_inputs_rejected_total", "input"),
                ),
                timeseries(
                    "Spool",
                    f"Fill level of the spool with messages that a coordinator has not committed; the {TOP} fullest.",
                    "percentunit",
                    query(_worst("max by (instance) (lockstep_exporter_spool_fill_ratio)"), "{{instance}}"),
                ),
            ),
        ),
        PanelLine(
            panels=(
                timeseries(
                    "Messages",
                    "Messages per second that the coordinator took from the broker, by channel.",
                    "suffix: messages/s",
                    _rates("lockstep_coordinator_messages_received_total", "channel"),
                ),
                timeseries(
                    "Recording",
                    "Step records per second written to the recording, or dropped because its disk was slow or full.",
                    "suffix: records/s",
                    _rates("lockstep_coordinator_records_recorded_total", "state"),
                ),
                timeseries(
                    "Mirrored alarms",
                    "Alarms of the detection test for ranks, replicas, stages and groups that are too "
                    "fast, per 10,000 steps. No fault causes these: they estimate the false alarms that "
                    "noise causes. They open no incident.",
                    COUNT,
                    query(
                        "1e4 * sum by (unit) (rate(lockstep_run_mirrored_alarms_total[$__rate_interval])) / "
                        "ignoring (unit) group_left () "
                        "(sum(rate(lockstep_run_step_duration_seconds_count[$__rate_interval])) > 0)",
                        "{{unit}}",
                    ),
                ),
                timeseries(
                    "Published",
                    f"Messages per second that the broker acknowledged; the {TOP} busiest exporters. "
                    "Resent: over all exporters, those that a coordinator had not received.",
                    "suffix: messages/s",
                    query(_worst(_rate_by_instance("lockstep_exporter_messages_published_total")), "{{instance}}"),
                    query("sum(rate(lockstep_exporter_messages_resent_total[$__rate_interval]))", "resent"),
                ),
            ),
        ),
    ),
)

_COST = DashboardRow(
    title="What does it cost?",
    lines=(
        PanelLine(
            panels=(
                timeseries(
                    "Agent's share of the step",
                    f"Time that the agent took from training threads, relative to the step time; the {TOP} "
                    "largest runs.",
                    "percentunit",
                    query(_worst("max by (run) (run:lockstep_agent_time_per_step_time:ratio_rate1m)"), "{{run}}"),
                ),
                timeseries(
                    "CPU of the services",
                    f"CPU seconds per second of the coordinator and of the {TOP} busiest exporters; 100 % is one core. "
                    "The processes in which exporters summarise traces are not included.",
                    "percentunit",
                    *_of_processes("rate(process_cpu_seconds_total[$__rate_interval])"),
                ),
                timeseries(
                    "Memory of the services",
                    f"Resident memory of the coordinator and of the {TOP} largest exporters.",
                    "decbytes",
                    *_of_processes("process_resident_memory_bytes"),
                ),
                timeseries(
                    "Exporter loop time",
                    f"Duration of the last read of all rings; the {TOP} longest.",
                    "s",
                    query(_worst("max by (instance) (lockstep_exporter_tick_duration_seconds)"), "{{instance}}"),
                ),
            ),
        ),
        PanelLine(
            panels=(
                timeseries(
                    "Watching the host",
                    f"CPU seconds per second spent on watching the host; the {TOP} largest.",
                    "percentunit",
                    query(_worst(_rate_by_instance("lockstep_exporter_host_watch_time_seconds_total")), "{{instance}}"),
                ),
                timeseries(
                    "Evaluating a step",
                    "Mean time that the coordinator takes to evaluate one step of a run.",
                    "s",
                    query(
                        "sum(rate(lockstep_coordinator_detection_time_seconds_total[$__rate_interval])) / "
                        "(sum(rate(lockstep_coordinator_detections_total[$__rate_interval])) > 0)",
                        "a step",
                    ),
                ),
                timeseries(
                    "Changes while running",
                    "Thresholds, detectors and scopes changed, by where the change came from.",
                    COUNT,
                    query(
                        "round(sum by (source) "
                        "(increase(lockstep_coordinator_policy_changes_total[$__rate_interval])))",
                        "{{source}}",
                    ),
                ),
                timeseries(
                    "Profiles on nodes",
                    "Capture requests by outcome on the nodes, per rank.",
                    COUNT,
                    query(
                        "round(sum by (state) (increase(lockstep_exporter_profiles_total[$__rate_interval])))",
                        "{{state}}",
                    ),
                ),
            ),
        ),
    ),
)

BOARD = DashboardSpec(
    uid="lockstep-self-monitoring",
    title="Lockstep / Self-monitoring",
    description="Agents, exporters and coordinator: do they work, is their data complete, and what do they cost.",
    variables=(datasource_variable(), coordinator_variable()),
    rows=(_WORKS, _COMPLETE, _COST),
)
