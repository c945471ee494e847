"""Where does the time go? Own work, waits, communication, and steps that are not plain training steps."""

from dashboards.builders import DashboardRow, PanelLine, query, timeseries
from dashboards.queries import RUN, ratio_by_kind
from dashboards.shared import BUS_BANDWIDTH, IMBALANCE, OWN_WORK_BY_HOST

BREAKDOWN = DashboardRow(
    title="Where does the time go?",
    lines=(
        PanelLine(
            panels=(
                timeseries(
                    "Own work by phase",
                    "Seconds of a step that the average rank spends in each phase of its own work.",
                    "s",
                    query(
                        f"max by (phase) (run_phase:lockstep_phase_time_seconds_per_step:ratio_rate1m{{{RUN}}})",
                        "{{phase}}",
                    ),
                ),
                timeseries(
                    "Waits by kind of domain",
                    "Seconds of a step in which the average rank is blocked in collectives of each kind.",
                    "s",
                    query(
                        "max by (domain_kind) "
                        f"(run_domain_kind:lockstep_collective_wait_seconds_per_step:ratio_rate1m{{{RUN}}})",
                        "{{domain_kind}}",
                    ),
                ),
            ),
        ),
        PanelLine(
            panels=(
                OWN_WORK_BY_HOST,
                timeseries(
                    "Exposed communication",
                    "Share of the time with a collective in flight in which the training thread is blocked; the rest "
                    "hides behind work.",
                    "percentunit",
                    query(ratio_by_kind("lockstep_collective_wait_seconds_per_collective_time"), "{{domain_kind}}"),
                    query(f"1 - max(run:lockstep_collective_overlap:ratio_rate1m{{{RUN}}})", "all"),
                ),
                IMBALANCE,
            ),
        ),
    ),
)

BANDWIDTH_AND_DEVICE = DashboardRow(
    title="Bandwidth, the device, and other work",
    folded=True,
    lines=(
        PanelLine(
            panels=(
                BUS_BANDWIDTH,
                timeseries(
                    "Algorithm bandwidth",
                    "Bytes that training passes to collectives per second with one in flight.",
                    "Bps",
                    query(ratio_by_kind("lockstep_collective_bytes_per_collective_time"), "{{domain_kind}}"),
                ),
            ),
        ),
        PanelLine(
            panels=(
                timeseries(
                    "Host lead",
                    "Smallest lead of the host over the device in the average step: at 0 the device waits "
                    "for the host to launch its work. No data without a device.",
                    "s",
                    query(f"max(run:lockstep_host_lead_seconds_per_step:ratio_rate1m{{{RUN}}})", "host lead"),
                ),
                timeseries(
                    "Communication on the device",
                    "Share of a step in which the device has a collective in flight, by its own clock. No data without "
                    "a device.",
                    "percentunit",
                    query(
                        f"max(run:lockstep_device_collective_time_per_device_step_time:ratio_rate1m{{{RUN}}})",
                        "in flight",
                    ),
                ),
                timeseries(
                    "Other work",
                    "Share of steps that warmed up, saved a checkpoint, evaluated, were profiled or skipped "
                    "their optimizer, and recompilations per step.",
                    "percentunit",
                    query(
                        f"max by (flag) (run_flag:lockstep_steps_flagged_per_step:ratio_rate1m{{{RUN}}})", "{{flag}}"
                    ),
                    query(f"max(run:lockstep_recompilations_per_step:ratio_rate1m{{{RUN}}})", "recompilations"),
                ),
            ),
        ),
    ),
)
