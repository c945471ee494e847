"""The Fleet dashboard: which run needs attention, and what slow runs cost."""

from dashboards.builders import (
    DashboardRow,
    DashboardSpec,
    PanelLine,
    alerts,
    coloured,
    coloured_like,
    datasource_variable,
    query,
    stat,
    states,
    timeseries,
)
from dashboards.panels import Column, coordinator_variable, grid, to_board
from dashboards.postprocess import COUNT
from dashboards.queries import CAUSE_COLOURS, STATE_COLOURS, TOP

_LIVE = 'lockstep_run_state{state!~"finished|lost"}'
_BAD = 'lockstep_run_state{state=~"suspect|profiling|diagnosed|hung|lost"}'
_LOST = "max by (run) (run:lockstep_run_lost_device_seconds:rate1m)"
_REPORTING = "max by (run) (lockstep_run_ranks_reporting)"
_GOOD_BAD = ((None, "green"), (1, "red"))
_SLOWER = ((None, "green"), (0.05, "yellow"), (0.1, "red"))
_LOST_SHARE = ((None, "green"), (0.01, "yellow"), (0.05, "red"))

_NOW = DashboardRow(
    title="Which run needs attention?",
    lines=(
        PanelLine(
            height=4,
            panels=(
                stat(
                    "Runs",
                    "Runs that have neither ended nor stopped reporting.",
                    COUNT,
                    query(f"sum(max by (run, state) ({_LIVE}))", instant=True),
                ),
                stat(
                    "Runs held back",
                    "Runs that have a suspect or an open diagnosis, hang, or stopped reporting.",
                    COUNT,
                    query(f"sum(max by (run, state) ({_BAD}))", instant=True),
                    steps=_GOOD_BAD,
                ),
                stat(
                    "Devices",
                    "Ranks that report steps, over all runs.",
                    COUNT,
                    query(f"sum({_REPORTING})", instant=True),
                ),
                stat(
                    "Share of devices lost",
                    "Device seconds lost per second, relative to the devices that report: the share of the"
                    " cluster that is wasted, over the last minute.",
                    "percentunit",
                    query(f"sum({_LOST}) / (sum({_REPORTING}) > 0)", instant=True),
                    steps=_LOST_SHARE,
                ),
                stat(
                    "Open incidents",
                    "Incidents open in all runs.",
                    COUNT,
                    query("sum(max by (run, cause) (lockstep_run_incidents_open))", instant=True),
                    steps=_GOOD_BAD,
                ),
            ),
        ),
        PanelLine(
            height=10,
            panels=(
                grid(
                    "Runs",
                    "One row per run, the costliest first. Slower is recent step time over that of the "
                    "healthy run, minus 1. Empty cells were not measured. The name links to the run.",
                    ("run", "state"),
                    (
                        Column(
                            heading="step time",
                            unit="s",
                            expr="max by (run) (lockstep_run_recent_step_duration_seconds)",
                        ),
                        Column(
                            heading="slower",
                            unit="percentunit",
                            expr="max by (run) (run:lockstep_run_step_duration_slowdown:ratio)",
                            steps=_SLOWER,
                        ),
                        Column(
                            heading="MFU",
                            unit="percentunit",
                            expr="max by (run) (run:lockstep_model_flops_per_peak_flops:ratio_rate1m)",
                        ),
                        Column(heading="ranks", unit=COUNT, expr="max by (run) (lockstep_run_ranks)"),
                        Column(
                            heading="slow ranks",
                            unit=COUNT,
                            expr="max by (run) (lockstep_run_slow_ranks)",
                            steps=_GOOD_BAD,
                        ),
                        Column(
                            heading="incidents",
                            unit=COUNT,
                            expr="sum by (run) (max by (run, cause) (lockstep_run_incidents_open))",
                            steps=_GOOD_BAD,
                        ),
                        Column(
                            heading="devices lost",
                            unit="short",
                            expr=_LOST,
                        ),
                    ),
                    names="max by (run, state) (lockstep_run_state == 1)",
                    links={
                        "run": (
                            to_board("lockstep-run", "Run", run="run"),
                            to_board("lockstep-diagnoses", "Diagnoses", run="run"),
                        )
                    },
                ),
            ),
        ),
        PanelLine(
            panels=(
                states(
                    "Runs held back over time",
                    "One band per run and unhealthy state, while it lasts.",
                    query(f"max by (run, state) ({_BAD} == 1)", "{{run}}: {{state}}"),
                    overrides=[coloured_like(f": {state}$", colour) for state, colour in STATE_COLOURS.items()],
                ),
                alerts(
                    "Alerts",
                    "Firing and pending alerts of Lockstep, over all runs.",
                    labels='{alertname=~"Lockstep.+",severity!="none"}',
                ),
            ),
        ),
    ),
)

_OVER_TIME = DashboardRow(
    title="What does it cost?",
    lines=(
        PanelLine(
            panels=(
                timeseries(
                    "Slower than healthy",
                    f"Recent step time over that of the healthy run, minus 1; the {TOP} slowest at each moment.",
                    "percentunit",
                    query(f"topk({TOP}, max by (run) (run:lockstep_run_step_duration_slowdown:ratio))", "{{run}}"),
                ),
                timeseries(
                    "Devices lost",
                    "Device seconds lost per second, i.e. the number of devices that a run wastes; the "
                    f"{TOP} largest at each moment.",
                    "short",
                    query(f"topk({TOP}, {_LOST})", "{{run}}"),
                ),
                timeseries(
                    "Open incidents by cause",
                    "Over all runs.",
                    COUNT,
                    query("sum by (cause) (max by (run, cause) (lockstep_run_incidents_open))", "{{cause}}"),
                    overrides=[coloured(cause, colour) for cause, colour in CAUSE_COLOURS.items()],
                ),
            ),
        ),
        PanelLine(
            panels=(
                timeseries(
                    "MFU",
                    f"Model FLOPs utilisation; the {TOP} lowest at each moment. No data for runs whose "
                    "FLOPs or device peak are unknown.",
                    "percentunit",
                    query(
                        f"bottomk({TOP}, max by (run) (run:lockstep_model_flops_per_peak_flops:ratio_rate1m))",
                        "{{run}}",
                    ),
                ),
                timeseries(
                    "Tokens",
                    f"Tokens per second fetched by all ranks of a run; the {TOP} largest.",
                    "suffix: tokens/s",
                    query(f"topk({TOP}, max by (run) (run:lockstep_tokens:rate1m))", "{{run}}"),
                ),
                timeseries(
                    "Exposed communication",
                    f"Share of communication in which training threads are blocked; the {TOP} largest.",
                    "percentunit",
                    query(f"topk({TOP}, 1 - max by (run) (run:lockstep_collective_overlap:ratio_rate1m))", "{{run}}"),
                ),
            ),
        ),
    ),
)

BOARD = DashboardSpec(
    uid="lockstep-fleet",
    title="Lockstep / Fleet",
    description="All training runs: which need attention, and what slow ones cost.",
    variables=(datasource_variable(), coordinator_variable()),
    rows=(_NOW, _OVER_TIME),
)
