"""The Run dashboard: whether a run is well, who holds it back, and where its time goes.

From top to bottom as one asks. Queries read judged and recorded series, whose number does not grow with the ranks; the
few that look at single ranks are bounded by topk.
"""

from dashboards.house import (
    Board,
    Line,
    Row,
    alerts,
    annotation,
    bars,
    coloured,
    datasource_variable,
    query,
    stat,
    states,
    table,
    timeseries,
    variable,
)
from lockstep.contracts.metrics import RUN_STATES

TOP = 8
"""Single ranks or hosts shown at once: what a person can compare."""

_RUN = 'run="$run"'
_COLOURS = {
    "warming": "blue",
    "healthy": "green",
    "suspect": "yellow",
    "profiling": "purple",
    "diagnosed": "red",
    "recovering": "light-green",
    "lost": "dark-red",
    "finished": "text",
}
_STATE_COLOURS = tuple(coloured(state, _COLOURS[state]) for state in RUN_STATES)
_GOOD_BAD = ((None, "green"), (1, "red"))


def _rate(metric: str, by: str = "", matchers: str = _RUN) -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{{{matchers}}}[$__rate_interval]))"


def _per_step(metric: str) -> str:
    """Seconds per step of single ranks with their hosts, for topk to choose from."""
    hosts = f'max by (rank, hostname) (lockstep_rank_info{{{_RUN},hostname=~"$hostname"}})'
    return (
        f"{_rate(metric, 'rank')} / {_rate('lockstep_steps_total', 'rank')} * on (rank) group_left (hostname) {hosts}"
    )


def _of_kind(metric: str) -> str:
    """Return the query of a recorded ratio by kind of domain."""
    return f"max by (domain_kind) (run_domain_kind:{metric}:ratio_rate5m{{{_RUN}}})"


_STATE = f"max by (state) (lockstep_run_state{{{_RUN}}} == 1)"
_RECENT = f"max(lockstep_run_recent_step_duration_seconds{{{_RUN}}})"
_BASELINE = f"max(lockstep_run_baseline_step_duration_seconds{{{_RUN}}})"

_OVERVIEW = Row(
    title="Is the run well?",
    lines=(
        Line(
            height=4,
            panels=(
                stat(
                    "State",
                    "What the coordinator makes of the run. Diagnosed: somebody holds it back and the cause is known.",
                    "none",
                    query(_STATE, "{{state}}", instant=True),
                    overrides=_STATE_COLOURS,
                    name=True,
                ),
                stat(
                    "Since the last step",
                    "Time since a step that all ranks completed. It grows while the run stands still or has ended.",
                    "s",
                    query(f"time() - max(lockstep_run_last_step_timestamp_seconds{{{_RUN}}} > 0)", instant=True),
                ),
                stat(
                    "Step time",
                    "Median of the last steps; checkpoints and profiled steps are left out.",
                    "s",
                    query(_RECENT, instant=True),
                ),
                stat(
                    "Slower than healthy",
                    "Recent step time over that of the healthy run, minus 1. No data until the run has a baseline.",
                    "percentunit",
                    query(f"{_RECENT} / ({_BASELINE} > 0) - 1", instant=True),
                    steps=((None, "green"), (0.05, "yellow"), (0.1, "red")),
                ),
                stat(
                    "Ranks not reporting",
                    "World size minus the ranks that reported one of the last steps.",
                    "short",
                    query(
                        f"max(lockstep_run_ranks{{{_RUN}}}) - max(lockstep_run_ranks_reporting{{{_RUN}}})", instant=True
                    ),
                    steps=_GOOD_BAD,
                ),
                stat(
                    "Slow ranks",
                    "Ranks that hold their communication domains back.",
                    "short",
                    query(f"max(lockstep_run_slow_ranks{{{_RUN}}})", instant=True),
                    steps=_GOOD_BAD,
                ),
            ),
        ),
        Line(
            panels=(
                timeseries(
                    "Step time",
                    "Recent median against the healthy run's; mean and 99th percentile include every step. The gap "
                    "between recent and baseline is what a slow rank costs.",
                    "s",
                    query(_RECENT, "recent median"),
                    query(_BASELINE, "healthy"),
                    query(f"max(run:lockstep_step_time_seconds_per_step:ratio_rate5m{{{_RUN}}})", "mean, by the ranks"),
                    query(
                        f"histogram_quantile(0.99, {_rate('lockstep_run_step_duration_seconds_bucket', 'le')})",
                        "99th percentile",
                    ),
                ),
                states(
                    "State over time",
                    "One band per state, drawn while the run is in it. A gap is time in which nobody judged the run.",
                    query(_STATE, "{{state}}"),
                    overrides=_STATE_COLOURS,
                ),
            ),
        ),
        Line(
            panels=(
                timeseries(
                    "Steps",
                    "Steps per second of the run.",
                    "suffix: steps/s",
                    query(f"max(rate(lockstep_steps_total{{{_RUN}}}[$__rate_interval]))", "steps"),
                ),
                timeseries(
                    "Samples",
                    "Samples per second fetched by all ranks; ranks that share a batch each count it.",
                    "suffix: samples/s",
                    query(f"max(run:lockstep_samples:rate5m{{{_RUN}}})", "samples"),
                ),
                timeseries(
                    "Tokens",
                    "Tokens per second fetched by all ranks; ranks that share a batch each count it. No data where "
                    "batches carry no tokens.",
                    "suffix: tokens/s",
                    query(f"max(run:lockstep_tokens:rate5m{{{_RUN}}})", "tokens"),
                ),
                timeseries(
                    "MFU",
                    "Model FLOPs utilisation: FLOPs the model needs over what the devices could do in the same time. "
                    "No data where the FLOPs of a step or the peak of the device are not known.",
                    "percentunit",
                    query(f"max(run:lockstep_model_flops_per_peak_flops:ratio_rate5m{{{_RUN}}})", "MFU"),
                ),
            ),
        ),
    ),
)

_CULPRITS = Row(
    title="Who holds us back?",
    lines=(
        Line(
            panels=(
                table(
                    "Suspects",
                    "Ranks whose own work takes longer than that of their peers, the worst first, 32 at most.",
                    "percentunit",
                    query(
                        f"max by (rank, hostname, domain_kind, cause) (lockstep_suspect_slowdown_ratio{{{_RUN}}})",
                        table=True,
                    ),
                    columns=("rank", "hostname", "cause", "domain_kind"),
                    value="slowdown",
                ),
                table(
                    "Open incidents",
                    "What is known of each. The function is empty until a profile has named it.",
                    "none",
                    query(
                        f"max by (incident, rank, cause, function) (lockstep_incident_info{{{_RUN}}})",
                        table=True,
                    ),
                    columns=("incident", "rank", "cause", "function"),
                ),
            ),
        ),
        Line(
            panels=(
                timeseries(
                    "Slowdown of suspects",
                    "Own work over that of the peers, minus 1, while a rank is a suspect.",
                    "percentunit",
                    query(
                        f"topk({TOP}, max by (rank, hostname, cause) (lockstep_suspect_slowdown_ratio{{{_RUN}}}))",
                        "rank {{rank}} on {{hostname}}: {{cause}}",
                    ),
                ),
                bars(
                    "Longest own work",
                    "Seconds of a step that a rank works instead of waiting. In a synchronous job the longest one sets "
                    "the pace.",
                    "s",
                    query(
                        f"topk({TOP}, {_per_step('lockstep_phase_time_seconds_total')})",
                        "rank {{rank}} on {{hostname}}",
                        instant=True,
                    ),
                ),
                bars(
                    "Shortest waits",
                    "Seconds of a step that a rank is blocked in collectives. All wait for the one that waits least.",
                    "s",
                    query(
                        f"bottomk({TOP}, {_per_step('lockstep_collective_wait_seconds_total')})",
                        "rank {{rank}} on {{hostname}}",
                        instant=True,
                    ),
                ),
            ),
        ),
        Line(
            panels=(
                timeseries(
                    "Open incidents by cause",
                    "How many are open at a time.",
                    "short",
                    query(f"sum by (cause) (lockstep_run_incidents_open{{{_RUN}}})", "{{cause}}"),
                ),
                timeseries(
                    "Devices lost",
                    "Device seconds lost per second: how many devices the run might as well not have.",
                    "short",
                    query(f"max(run:lockstep_run_lost_device_seconds:rate5m{{{_RUN}}})", "devices"),
                ),
                alerts("Alerts", "Alerts on this run that fire or are about to."),
            ),
        ),
    ),
)

_TIME = Row(
    title="Where does the time go?",
    lines=(
        Line(
            panels=(
                timeseries(
                    "Own work by phase",
                    "Seconds of a step that the average rank spends in each phase of its own work.",
                    "s",
                    query(
                        f"max by (phase) (run_phase:lockstep_phase_time_seconds_per_step:ratio_rate5m{{{_RUN}}})",
                        "{{phase}}",
                    ),
                ),
                timeseries(
                    "Waits by kind of domain",
                    "Seconds of a step in which the average rank is blocked in collectives of each kind.",
                    "s",
                    query(
                        "max by (domain_kind) "
                        f"(run_domain_kind:lockstep_collective_wait_seconds_per_step:ratio_rate5m{{{_RUN}}})",
                        "{{domain_kind}}",
                    ),
                ),
            ),
        ),
        Line(
            panels=(
                timeseries(
                    "Own work by host",
                    f"Seconds of a step that the ranks of a host work on average; the {TOP} longest at each moment.",
                    "s",
                    query(
                        f"topk({TOP}, sum by (hostname) (run_hostname_phase:lockstep_phase_time_seconds_per_step:"
                        f'ratio_rate5m{{{_RUN},hostname=~"$hostname"}}))',
                        "{{hostname}}",
                    ),
                ),
                timeseries(
                    "Exposed communication",
                    "Share of the time with a collective in flight in which the training thread is blocked; the rest "
                    "hides behind work.",
                    "percentunit",
                    query(_of_kind("lockstep_collective_wait_seconds_per_collective_time"), "{{domain_kind}}"),
                    query(f"1 - max(run:lockstep_collective_overlap:ratio_rate5m{{{_RUN}}})", "all"),
                ),
            ),
        ),
        Line(
            panels=(
                timeseries(
                    "Bus bandwidth",
                    "What a ring algorithm moves over the slowest link per second with a collective in flight: "
                    "compare it with the link's own. It falls when ranks wait for a late one as well as when a link "
                    "is slow.",
                    "Bps",
                    query(_of_kind("lockstep_collective_bus_bytes_per_collective_time"), "{{domain_kind}}"),
                ),
                timeseries(
                    "Algorithm bandwidth",
                    "Bytes that the training gives to collectives per second with one in flight.",
                    "Bps",
                    query(_of_kind("lockstep_collective_bytes_per_collective_time"), "{{domain_kind}}"),
                ),
            ),
        ),
        Line(
            panels=(
                timeseries(
                    "Host lead",
                    "Least time by which the host is ahead of the device in the average step: at 0 the device waits "
                    "for the host to launch its work. No data without a device.",
                    "s",
                    query(f"max(run:lockstep_host_lead_seconds_per_step:ratio_rate5m{{{_RUN}}})", "host lead"),
                ),
                timeseries(
                    "Communication on the device",
                    "Share of a step in which the device has a collective in flight, by its own clock. No data without "
                    "a device.",
                    "percentunit",
                    query(
                        f"max(run:lockstep_device_collective_time_per_device_step_time:ratio_rate5m{{{_RUN}}})",
                        "in flight",
                    ),
                ),
                timeseries(
                    "Not only training",
                    "Share of steps that warmed up, saved a checkpoint, evaluated, were profiled or skipped "
                    "their optimizer, and recompilations per step.",
                    "percentunit",
                    query(
                        f"max by (flag) (run_flag:lockstep_steps_flagged_per_step:ratio_rate5m{{{_RUN}}})", "{{flag}}"
                    ),
                    query(f"max(run:lockstep_recompilations_per_step:ratio_rate5m{{{_RUN}}})", "recompilations"),
                ),
            ),
        ),
    ),
)

_COST = Row(
    title="What does the watching cost, and does it work?",
    lines=(
        Line(
            panels=(
                timeseries(
                    "Agent's share of the step",
                    "Time that Lockstep took from the training threads over the step time.",
                    "percentunit",
                    query(f"max(run:lockstep_agent_time_per_step_time:ratio_rate5m{{{_RUN}}})", "agent"),
                ),
                timeseries(
                    "Profiles",
                    "Profile requests of this run by what became of them, per rank.",
                    "short",
                    query(
                        f"sum by (state) (increase(lockstep_run_profiles_total{{{_RUN}}}[$__rate_interval]))",
                        "{{state}}",
                    ),
                ),
                timeseries(
                    "Ranks measured",
                    "Ranks with a working agent, ranks that reported a step to the coordinator, those of them whose "
                    "waits are measured so that they can be judged, and the world size. All lines should lie on each "
                    "other.",
                    "short",
                    query(f"sum(lockstep_agent_up{{{_RUN}}})", "agents up"),
                    query(f"max(lockstep_run_ranks_reporting{{{_RUN}}})", "reporting"),
                    query(
                        f"max(lockstep_run_ranks_reporting{{{_RUN}}}) - max(lockstep_run_ranks_blind{{{_RUN}}})",
                        "judged",
                    ),
                    query(f"max(lockstep_run_ranks{{{_RUN}}})", "world size"),
                ),
                timeseries(
                    "Records lost",
                    "Step records per second that nobody will read, over all runs of all nodes.",
                    "suffix: records/s",
                    query(_rate("lockstep_exporter_records_lost_total", "reason", ""), "{{reason}}"),
                ),
            ),
        ),
    ),
)

BOARD = Board(
    uid="lockstep-run",
    title="Lockstep / Run",
    description="One synchronous training run: is it well, who holds it back, where does its time go.",
    variables=(
        datasource_variable(),
        variable("run", "Run", "label_values(lockstep_run_ranks, run)"),
        variable("hostname", "Host", f"label_values(lockstep_rank_info{{{_RUN}}}, hostname)", multi=True),
    ),
    annotations=(
        annotation(
            "Incidents",
            f"max by (incident, rank, cause) (lockstep_incident_info{{{_RUN}}})",
            "Incident {{incident}}",
            "rank {{rank}}: {{cause}}",
            "red",
        ),
        annotation(
            "Alerts",
            f'max by (alertname, severity) (ALERTS{{alertstate="firing",{_RUN}}})',
            "{{alertname}}",
            "{{severity}}",
            "orange",
        ),
    ),
    rows=(_OVERVIEW, _CULPRITS, _TIME, _COST),
)
