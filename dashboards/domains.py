"""The Domains dashboard: in which communication domains ranks wait, and for which ranks."""

from dashboards.builders import (
    DashboardRow,
    DashboardSpec,
    PanelLine,
    coloured_like,
    datasource_variable,
    query,
    run_variables,
    states,
    timeseries,
    variable,
)
from dashboards.panels import AT_RUN, Column, coordinator_variable, grid, heat, matrix, to_board
from dashboards.queries import (
    CAUSE_COLOURS,
    MANY,
    RUN,
    TOP,
    coordinator_rate,
    ratio_by_kind,
    seconds_per_step,
    wait_of_kind,
)
from dashboards.shared import BUS_BANDWIDTH, IMBALANCE, INSPECTED_BANDWIDTH, MARKS, OWN_WORK_BY_HOST
from lockstep.contracts.records import DOMAIN_KINDS

_RANK_LINKS = (to_board("lockstep-rank", "Rank", rank="rank"),)

_KINDS = DashboardRow(
    title="Which kind of domain slows the run?",
    lines=(
        PanelLine(
            panels=(
                timeseries(
                    "Waits by kind",
                    "Seconds of a step in which the average rank is blocked in collectives of each kind.",
                    "s",
                    query(
                        "max by (domain_kind) "
                        f"(run_domain_kind:lockstep_collective_wait_seconds_per_step:ratio_rate1m{{{RUN}}})",
                        "{{domain_kind}}",
                    ),
                ),
                timeseries(
                    "Exposed communication",
                    "Share of the time with a collective in flight in which the training thread is blocked.",
                    "percentunit",
                    query(ratio_by_kind("lockstep_collective_wait_seconds_per_collective_time"), "{{domain_kind}}"),
                ),
                BUS_BANDWIDTH,
                timeseries(
                    "Bytes a second",
                    "Bytes that all ranks pass to collectives of each kind.",
                    "Bps",
                    query(
                        f"max by (domain_kind) (run_domain_kind:lockstep_collective_bytes:rate1m{{{RUN}}})",
                        "{{domain_kind}}",
                    ),
                ),
            ),
        ),
    ),
)

_RANKS = DashboardRow(
    title="Which ranks wait, and for which?",
    lines=(
        PanelLine(
            height=12,
            panels=(
                grid(
                    "Wait matrix",
                    "Seconds of a step that a rank of the selected hosts is blocked in each kind of "
                    f"domain, and its own work; the {MANY} longest of each column. In a domain, all ranks "
                    "wait for the one that works longest and waits least. A group without a name, such as "
                    "the default one of DDP, counts as world.",
                    ("rank", "hostname"),
                    (
                        *(Column(heading=kind, unit="s", expr=wait_of_kind(kind)) for kind in DOMAIN_KINDS),
                        Column(
                            heading="own work",
                            unit="s",
                            expr=f"topk({MANY}, {seconds_per_step('lockstep_phase_time_seconds_total')})",
                        ),
                    ),
                    links={"rank": _RANK_LINKS},
                ),
                matrix(
                    "Own work by rank and time",
                    "Seconds of a step that a rank of the selected hosts works, from green to red; the "
                    f"{MANY} longest at each moment. The other ranks wait for a rank whose row stays red.",
                    "s",
                    query(f"topk({MANY}, {seconds_per_step('lockstep_phase_time_seconds_total')})", "{{rank}}"),
                ),
            ),
        ),
        PanelLine(
            height=10,
            panels=(
                matrix(
                    "Waiting by rank and time",
                    f"Seconds of a step that a rank of the selected hosts is blocked; the {MANY} shortest "
                    "at each moment. If other rows are red, they wait for a rank whose row stays green.",
                    "s",
                    query(f"bottomk({MANY}, {seconds_per_step('lockstep_collective_wait_seconds_total')})", "{{rank}}"),
                ),
                heat(
                    "Steps by duration",
                    "Distribution of the run's step durations over time, in steps per second. A second "
                    "band means that a part of the steps is slower.",
                    coordinator_rate("lockstep_run_step_duration_seconds_bucket", "le"),
                ),
            ),
        ),
    ),
)

_INSPECTED = DashboardRow(
    title="How long do collectives take by the device's clock?",
    folded=True,
    lines=(
        PanelLine(
            panels=(
                INSPECTED_BANDWIDTH,
                timeseries(
                    "Time of collectives by communicator",
                    "Seconds of a step in which the average rank's device runs each collective of a communicator; the "
                    f"{TOP} longest at each moment. A rank that arrives early waits within it. No data without the "
                    "NCCL Inspector.",
                    "s",
                    query(
                        f"topk({TOP}, max by (communicator, operation) (run_communicator_operation:"
                        f"lockstep_nccl_operation_time_seconds_per_step:ratio_rate1m{{{RUN}}}))",
                        "{{communicator}} {{operation}}",
                    ),
                ),
                timeseries(
                    "Ranks that the others waited for",
                    "Seconds of a step for which a node's other ranks waited for a rank, within the "
                    f"kernels of collectives; the {TOP} longest at each moment. No data without the NCCL "
                    "Inspector.",
                    "s",
                    query(
                        f"topk({TOP}, {seconds_per_step('lockstep_nccl_last_arrival_wait_seconds_total')})",
                        "rank {{rank}} on {{hostname}}",
                    ),
                ),
            ),
        ),
    ),
)

_FAULTS = DashboardRow(
    title="What was found in them?",
    lines=(
        PanelLine(
            panels=(
                states(
                    "Suspects",
                    "One band per suspect and kind of domain that it slows, while it is a suspect, 32 at "
                    "most. Domains are named by the layout of the run.",
                    query(
                        "max by (rank, hostname, domain_kind, cause) "
                        f"(lockstep_suspect_slowdown_ratio{{{RUN}}} > bool 0)",
                        "rank {{rank}} on {{hostname}}, {{domain_kind}}: {{cause}}",
                    ),
                    overrides=[coloured_like(f": {cause}$", colour) for cause, colour in CAUSE_COLOURS.items()],
                ),
                IMBALANCE,
                OWN_WORK_BY_HOST,
            ),
        ),
    ),
)

BOARD = DashboardSpec(
    uid="lockstep-domains",
    title="Lockstep / Domains",
    description="The communication domains of one run: where ranks wait, for how long, and for which ranks.",
    variables=(
        datasource_variable(),
        *run_variables(),
        variable("hostname", "Host", f"label_values(lockstep_rank_info{{{RUN}}}, hostname)", multi=True),
        coordinator_variable(),
    ),
    annotations=MARKS,
    at_coordinator=AT_RUN,
    rows=(_KINDS, _RANKS, _FAULTS, _INSPECTED),
)
