"""The Diagnoses dashboard: what is wrong in a run, why, what its repair would gain, and what the diagnosis cost."""

from dashboards.builders import (
    DashboardRow,
    DashboardSpec,
    PanelLine,
    coloured,
    coloured_like,
    datasource_variable,
    query,
    run_variables,
    stat,
    states,
    timeseries,
)
from dashboards.panels import AT_RUN, Column, coordinator_variable, grid, to_coordinator
from dashboards.postprocess import COUNT
from dashboards.queries import CAUSE_COLOURS, RUN, TOP
from dashboards.shared import (
    CLOSED_INCIDENTS,
    MACHINE_EVIDENCE,
    MARKS,
    NOT_ARRIVED,
    OPEN_BY_CAUSE,
    PREDICTED_GAIN,
    PROFILES,
    SUSPECTS,
    TO_INCIDENT,
)

_LINKS = (*TO_INCIDENT, to_coordinator("Evidence, peers and thresholds", "/api/v1/incidents/${__value.text}"))

_WHAT = DashboardRow(
    title="What is wrong, and what would repairing it gain?",
    lines=(
        PanelLine(
            height=9,
            panels=(
                grid(
                    "Open incidents",
                    "One row per open incident, largest predicted gain first. Root cause and function are "
                    "empty until a capture has named them; a gain is empty if nothing predicts it. The "
                    "incident links to its evidence at the coordinator.",
                    ("incident", "rank", "cause", "root_cause", "function"),
                    (
                        Column(
                            heading="predicted gain",
                            unit="percentunit",
                            expr=f"max by (incident) (lockstep_incident_predicted_gain_ratio{{{RUN}}})",
                            steps=((None, "text"), (0.05, "yellow"), (0.2, "red")),
                        ),
                    ),
                    names=f"max by (incident, rank, cause, root_cause, function) (lockstep_incident_info{{{RUN}}})",
                    links={"incident": _LINKS},
                ),
            ),
        ),
        PanelLine(
            widths=(6, 12, 6),
            panels=(
                PREDICTED_GAIN,
                SUSPECTS,
                NOT_ARRIVED,
            ),
        ),
        PanelLine(
            height=6,
            widths=(16, 8),
            panels=(
                MACHINE_EVIDENCE,
                stat(
                    "Memory lasts",
                    "Forecast time until memory that grows with the steps reaches its limit. No data if none grows.",
                    "s",
                    query(f"min(lockstep_run_memory_remaining_seconds{{{RUN}}})", instant=True),
                ),
            ),
        ),
    ),
)

_EXPECTED = f"max(lockstep_run_expected_step_seconds{{{RUN}}})"
_BAND = f"max(lockstep_run_expected_step_error_ratio{{{RUN}}})"

_SHOULD = DashboardRow(
    title="What should a step take?",
    lines=(
        PanelLine(
            height=6,
            widths=(16, 8),
            panels=(
                timeseries(
                    "Expected and measured",
                    "Step time predicted by the model that was fitted to a healthy window of the run, the "
                    "upper end of its error band, and the recent median. No data for a run without a "
                    "specification.",
                    "s",
                    query(f"max(lockstep_run_recent_step_duration_seconds{{{RUN}}})", "measured"),
                    query(_EXPECTED, "expected"),
                    query(f"{_EXPECTED} * (1 + {_BAND})", "expected, upper end"),
                ),
                stat(
                    "Model",
                    "State of the run's model: known; fitting or waiting for a healthy window; refused, "
                    "with the reason at the coordinator; unspecified if the job is not described.",
                    "none",
                    query(f"max by (state) (lockstep_run_expected_state{{{RUN}}} == 1)", "{{state}}", instant=True),
                    overrides=[
                        coloured(state, colour)
                        for state, colour in (("known", "green"), ("refused", "red"), ("unspecified", "text"))
                    ],
                    name=True,
                ),
            ),
        ),
    ),
)

_WHEN = DashboardRow(
    title="When, how often, and at what cost?",
    lines=(
        PanelLine(
            panels=(
                states(
                    "Incidents",
                    "One band per incident while it is open, with its root cause once it is known.",
                    query(
                        f"max by (incident, cause, root_cause) (lockstep_incident_info{{{RUN}}})",
                        "{{incident}}: {{cause}} {{root_cause}}",
                    ),
                    overrides=[coloured_like(f": {cause} ", colour) for cause, colour in CAUSE_COLOURS.items()],
                ),
                OPEN_BY_CAUSE,
            ),
        ),
        PanelLine(panels=(CLOSED_INCIDENTS,)),
        PanelLine(
            height=5,
            panels=(
                stat(
                    "Incidents opened",
                    "In the chosen time.",
                    COUNT,
                    query(f"round(max(increase(lockstep_run_incidents_total{{{RUN}}}[$__range])))", instant=True),
                ),
                stat(
                    "Device time lost",
                    "Device seconds that slow ranks cost in the selected time: excess of the slowest rank "
                    "times the number of ranks that waited.",
                    "s",
                    query(f"max(increase(lockstep_run_lost_device_seconds_total{{{RUN}}}[$__range]))", instant=True),
                ),
                stat(
                    "Ranks profiled",
                    "Captures that ranks of this run delivered in the selected time.",
                    COUNT,
                    query(
                        f'round(max(increase(lockstep_run_profiles_total{{{RUN},state="done"}}[$__range])))',
                        instant=True,
                    ),
                ),
                stat(
                    "Profiles refused or late",
                    "Capture requests that a rank refused or did not answer in time.",
                    COUNT,
                    query(
                        "round(sum(max by (state) (increase(lockstep_run_profiles_total"
                        f'{{{RUN},state=~"refused|expired"}}[$__range]))))',
                        instant=True,
                    ),
                ),
            ),
        ),
        PanelLine(
            panels=(
                PROFILES,
                timeseries(
                    "Cost of captures to training",
                    "Share of a training thread's time that is spent on starting, stopping and writing "
                    f"captures, summed over all ranks of a node and all runs; the {TOP} largest.",
                    "percentunit",
                    query(
                        f"topk({TOP}, sum by (instance) "
                        "(rate(lockstep_exporter_profile_cost_seconds_total[$__rate_interval])))",
                        "{{instance}}",
                    ),
                ),
            ),
        ),
    ),
)

BOARD = DashboardSpec(
    uid="lockstep-diagnoses",
    title="Lockstep / Diagnoses",
    description="What is wrong in one run, why, what its repair would gain, and what the diagnosis cost.",
    variables=(
        datasource_variable(),
        *run_variables(),
        coordinator_variable(),
    ),
    annotations=MARKS,
    at_coordinator=AT_RUN,
    rows=(_WHAT, _SHOULD, _WHEN),
)
