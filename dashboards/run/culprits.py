"""Who holds us back? Slow ranks, open incidents, ranks that have not arrived, and what they cost."""

from dashboards.builders import DashboardRow, PanelLine, alerts, bars, query, table, timeseries
from dashboards.queries import RUN, TOP, seconds_per_step
from dashboards.shared import NOT_ARRIVED, OPEN_BY_CAUSE, PREDICTED_GAIN, SUSPECTS

CULPRITS = DashboardRow(
    title="Who holds us back?",
    lines=(
        PanelLine(
            widths=(8, 10, 6),
            panels=(
                SUSPECTS,
                table(
                    "Open incidents",
                    "What is known of each. Root cause and function are empty until a profile has named them.",
                    "none",
                    query(
                        f"max by (incident, rank, cause, root_cause, function) (lockstep_incident_info{{{RUN}}})",
                        table=True,
                    ),
                    columns=("incident", "rank", "cause", "root_cause", "function"),
                ),
                NOT_ARRIVED,
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
                    "Seconds of a step that a rank works instead of waiting. In a synchronous job the longest one sets "
                    "the pace.",
                    "s",
                    query(
                        f"topk({TOP}, {seconds_per_step('lockstep_phase_time_seconds_total')})",
                        "rank {{rank}} on {{hostname}}",
                        instant=True,
                    ),
                ),
                bars(
                    "Shortest waits",
                    "Seconds of a step that a rank is blocked in collectives. All wait for the one that waits least.",
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
            widths=(5, 5, 6, 8),
            panels=(
                OPEN_BY_CAUSE,
                timeseries(
                    "Devices lost",
                    "Device seconds lost per second: how many devices the run might as well not have. Mean of the "
                    "last five minutes.",
                    "short",
                    query(f"max(run:lockstep_run_lost_device_seconds:rate5m{{{RUN}}})", "devices"),
                ),
                PREDICTED_GAIN,
                alerts("Alerts", "Alerts on this run that fire or are about to."),
            ),
        ),
    ),
)
