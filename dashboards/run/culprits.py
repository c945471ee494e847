"""What slows the run? Slow ranks, open incidents, ranks that have not arrived, and what they cost."""

from dashboards.builders import DashboardRow, PanelLine, alerts, bars, query, timeseries
from dashboards.panels import Column, grid
from dashboards.queries import RUN, TOP, seconds_per_step
from dashboards.shared import CLOSED_INCIDENTS, NOT_ARRIVED, SUSPECTS, TO_INCIDENT

CULPRITS = DashboardRow(
    title="Which ranks slow the run?",
    lines=(
        PanelLine(
            widths=(12, 12),
            panels=(
                SUSPECTS,
                grid(
                    "Open incidents",
                    "One row per open incident, with the gain that its best advice predicts. Root cause "
                    "and function are empty until a capture has named them. The incident links to its "
                    "report.",
                    ("incident", "rank", "cause", "root_cause", "function"),
                    (
                        Column(
                            heading="predicted gain",
                            unit="percentunit",
                            expr=f"max by (incident) (lockstep_incident_predicted_gain_ratio{{{RUN}}})",
                        ),
                    ),
                    names=f"max by (incident, rank, cause, root_cause, function) (lockstep_incident_info{{{RUN}}})",
                    links={"incident": TO_INCIDENT},
                ),
            ),
        ),
        PanelLine(
            panels=(
                timeseries(
                    "Slowdown of suspects",
                    "Own work over that of the peers, minus 1, while a rank is a suspect.",
                    "percentunit",
                    query(
                        f"topk({TOP}, max by (rank, hostname, cause) (lockstep_suspect_slowdown_ratio{{{RUN}}}))",
                        "rank {{rank}} on {{hostname}}: {{cause}}",
                    ),
                ),
                bars(
                    "Longest own work",
                    "Seconds of a step that a rank works instead of waiting. In a synchronous job the "
                    "longest one sets the pace.",
                    "s",
                    query(
                        f"topk({TOP}, {seconds_per_step('lockstep_phase_time_seconds_total')})",
                        "rank {{rank}} on {{hostname}}",
                        instant=True,
                    ),
                ),
                bars(
                    "Shortest waits",
                    "Seconds of a step that a rank is blocked in collectives. All wait for the rank that waits least.",
                    "s",
                    query(
                        f"bottomk({TOP}, {seconds_per_step('lockstep_collective_wait_seconds_total')})",
                        "rank {{rank}} on {{hostname}}",
                        instant=True,
                    ),
                ),
            ),
        ),
        PanelLine(
            widths=(6, 6, 4, 8),
            panels=(
                CLOSED_INCIDENTS,
                NOT_ARRIVED,
                timeseries(
                    "Devices lost",
                    "Device seconds lost per second, i.e. the number of devices that the run wastes.",
                    "short",
                    query(f"max(rate(lockstep_run_lost_device_seconds_total{{{RUN}}}[$__rate_interval]))", "devices"),
                ),
                alerts("Alerts", "Firing and pending alerts on this run."),
            ),
        ),
    ),
)
