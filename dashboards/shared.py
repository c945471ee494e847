"""Panels and annotations that are the same on several dashboards."""

from dashboards.builders import annotation, bars, coloured, query, table, timeseries
from dashboards.panels import Column, grid, to_board, to_coordinator
from dashboards.postprocess import COUNT
from dashboards.queries import CAUSE_COLOURS, RUN, TOP, ratio_by_kind

MARKS = (
    annotation(
        "Incidents",
        f"max by (incident, rank, cause) (lockstep_incident_info{{{RUN}}})",
        "Incident {{incident}}",
        "rank {{rank}}: {{cause}}",
        "red",
    ),
    annotation(
        "Alerts",
        f'max by (alertname, severity) (ALERTS{{alertstate="firing",severity!="none",{RUN}}})',
        "{{alertname}}",
        "{{severity}}",
        "orange",
    ),
    annotation(
        "Starts and restarts",
        f'max by (run) (lockstep_run_state{{{RUN},state="warming"}} == 1)',
        "Start or restart",
        "{{run}} warms up: its noise is learnt, no rank is evaluated",
        "blue",
    ),
)
"""On every dashboard of one run: when it restarted, what was found, who was notified."""

TO_INCIDENT = (to_coordinator("Report of the incident", "/incidents/${__value.text}"),)
"""The link of a cell that names an incident."""

SUSPECTS = grid(
    "Suspects",
    "Ranks whose own work takes longer than that of their peers, the worst first, 32 at "
    "most. The rank links to its dashboard, the incident to its report, the host to its "
    "ranks and to its history. Domains are named by the layout of the run; the waits in a "
    "group without a name, such as the default one of DDP, count as world.",
    ("rank", "hostname", "incident", "cause", "domain_kind"),
    (
        Column(
            heading="slowdown",
            unit="percentunit",
            expr=f"max by (rank, hostname, domain_kind, cause) (lockstep_suspect_slowdown_ratio{{{RUN}}})",
        ),
    ),
    names=(
        f"max by (rank, incident) (lockstep_incident_info{{{RUN}}} "
        f"and on (run, rank) lockstep_suspect_slowdown_ratio{{{RUN}}})"
    ),
    links={
        "rank": (to_board("lockstep-rank", "The rank", rank="rank"),),
        "incident": TO_INCIDENT,
        "hostname": (
            to_board("lockstep-run", "The host's ranks", hostname="hostname"),
            to_coordinator("What incidents named before", "/fleet"),
        ),
    },
)

CLOSED_INCIDENTS = grid(
    "Closed incidents",
    "Incidents that were open in the selected time and are closed now. The incident links "
    "to its report, which has function, evidence and cost.",
    ("incident", "rank", "cause"),
    (
        Column(
            heading="closed",
            unit="none",
            expr=(
                f"max by (incident, rank, cause) (last_over_time(lockstep_incident_info{{{RUN}}}[$__range])) "
                f"unless on (incident) max by (incident) (lockstep_incident_info{{{RUN}}})"
            ),
        ),
    ),
    links={"incident": TO_INCIDENT},
)

NOT_ARRIVED = table(
    "Ranks not arrived",
    "Ranks that others wait for in a run that hangs, and for how long. No rank if none is known.",
    "s",
    query(
        f"max by (incident, rank, domain_kind) (lockstep_incident_silence_seconds{{{RUN}}})",
        table=True,
    ),
    columns=("incident", "rank", "domain_kind"),
    value="silence",
)

OPEN_BY_CAUSE = timeseries(
    "Open incidents by cause",
    "How many are open at a time.",
    COUNT,
    query(f"sum by (cause) (max by (run, cause) (lockstep_run_incidents_open{{{RUN}}}))", "{{cause}}"),
    overrides=[coloured(cause, colour) for cause, colour in CAUSE_COLOURS.items()],
)

MACHINE_EVIDENCE = table(
    "Machine evidence",
    "Causes that other exporters' series (DCGM, node_exporter, ...) show for the machines of an open incident, and not "
    "for their peers. No data without a Prometheus that the coordinator may ask.",
    "none",
    query(f"max by (incident, machine_cause) (lockstep_incident_evidence_info{{{RUN}}})", table=True),
    columns=("incident", "machine_cause"),
    value="shown",
)

PREDICTED_GAIN = bars(
    "Predicted gain",
    "Share of a step that the best advice for an open incident would give back, as far as its capture shows.",
    "percentunit",
    query(
        f"topk({TOP}, max by (incident) (lockstep_incident_predicted_gain_ratio{{{RUN}}}))",
        "{{incident}}",
        instant=True,
    ),
)

PROFILES = timeseries(
    "Profiles",
    "Capture requests of this run by outcome, per rank.",
    COUNT,
    query(
        f"round(max by (state) (increase(lockstep_run_profiles_total{{{RUN}}}[$__rate_interval])))",
        "{{state}}",
    ),
)

OWN_WORK_BY_HOST = timeseries(
    "Own work by host",
    f"Seconds of a step that the ranks of a host work on average; the {TOP} longest at each moment.",
    "s",
    query(
        f"topk({TOP}, sum by (hostname) (run_hostname_phase:lockstep_phase_time_seconds_per_step:"
        f'ratio_rate1m{{{RUN},hostname=~"$hostname"}}))',
        "{{hostname}}",
    ),
)

IMBALANCE = timeseries(
    "Imbalance",
    "Share of a step in which all ranks wait for the longest stage, the replica with the "
    "longest batch, or the rank with the most work. It results from how training is laid "
    "out and is not a fault. No data if no such imbalance is known.",
    "percentunit",
    query(f"max by (imbalance) (lockstep_run_imbalance_ratio{{{RUN}}})", "{{imbalance}}"),
)

INSPECTED_BANDWIDTH = timeseries(
    "Bus bandwidth by communicator",
    f"By the device's clock, of each communicator and operation that the NCCL Inspector times; the {TOP} lowest at "
    "each moment. It falls when a link is slow, and when ranks wait for a late one within the kernel. No data "
    "without the Inspector.",
    "Bps",
    query(
        f"bottomk({TOP}, max by (communicator, operation) (run_communicator_operation:"
        f"lockstep_nccl_operation_bus_bytes_per_operation_time:ratio_rate1m{{{RUN}}}))",
        "{{communicator}} {{operation}}",
    ),
)

BUS_BANDWIDTH = timeseries(
    "Bus bandwidth",
    "What a ring algorithm moves over the slowest link per second with a collective in flight: "
    "compare it with the link's own. It falls when ranks wait for a late one as well as when a link "
    "is slow.",
    "Bps",
    query(ratio_by_kind("lockstep_collective_bus_bytes_per_collective_time"), "{{domain_kind}}"),
)
