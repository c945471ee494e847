"""Recorded series: what dashboards read instead of the series of every rank.

Names are level:metric:operations, the `_total` of a counter under a rate stripped; `X_per_Y` with `ratio_rate5m` is the
rate of X over the rate of Y, both summed first. Alerts never read these: a page must not wait for another group.
"""

from alerts.expressions import by_run
from alerts.policy import Site
from alerts.rule import Group, Recording

WINDOW = "5m"
"""Holds three of the slowest published steps (85 s) and twenty scrapes at 15 s; it is part of the names."""


def group(site: Site) -> Group:
    """Return the recorded series of all runs."""
    return Group(name="lockstep.recording", rules=(*_progress(site), *_waits(site), *_own_work(site), *_costs(site)))


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}[{WINDOW}]))"


def _per_step(metric: str, by: str, site: Site) -> str:
    """Rate of `metric` per step of a rank: seconds, bytes or events in one step of the average rank."""
    return f"{_rate(metric, by)}\n/ on ({site.run_labels}) group_left\n{_rate('lockstep_steps_total', site.run_labels)}"


def _progress(site: Site) -> tuple[Recording, ...]:
    run = site.run_labels
    return (
        Recording(
            record="run:lockstep_steps:max_rate5m",
            expr=by_run("max", f"rate(lockstep_steps_total[{WINDOW}])", site),
            help="Steps per second of a run: every rank counts the same ones, so the fastest count stands.",
        ),
        Recording(
            record="run:lockstep_step_time_seconds_per_step:ratio_rate5m",
            expr=f"{_rate('lockstep_step_time_seconds_total', run)}\n/\n{_rate('lockstep_steps_total', run)}",
            help="Mean step time of a run, as its ranks measured it.",
        ),
        Recording(
            record="run:lockstep_run_step_duration_slowdown:ratio",
            expr=(
                f"{by_run('max', 'lockstep_run_recent_step_duration_seconds', site)}\n/\n"
                f"{by_run('max', 'lockstep_run_baseline_step_duration_seconds > 0', site)}\n- 1"
            ),
            help="How much longer recent steps take than those of the healthy run.",
        ),
        Recording(
            record="run:lockstep_samples:rate5m",
            expr=_rate("lockstep_samples_total", run),
            help="Samples per second that the ranks fetched; ranks that share a batch each count it.",
        ),
        Recording(
            record="run:lockstep_tokens:rate5m",
            expr=_rate("lockstep_tokens_total", run),
            help="Tokens per second that the ranks fetched; ranks that share a batch each count it.",
        ),
    )


def _waits(site: Site) -> tuple[Recording, ...]:
    by = f"{site.run_labels}, domain_kind"
    wait = "lockstep_collective_wait_seconds_total"
    return (
        Recording(
            record="run_domain_kind:lockstep_collective_wait_seconds_per_step:ratio_rate5m",
            expr=_per_step(wait, by, site),
            help="Seconds of a step in which the average rank was blocked in collectives of this kind.",
        ),
        Recording(
            record="run_domain_kind:lockstep_collective_bytes:rate5m",
            expr=_rate("lockstep_collective_bytes_total", by),
            help="Bytes per second given to collectives of this kind.",
        ),
        Recording(
            record="run_domain_kind:lockstep_collective_bytes_per_wait_seconds:ratio_rate5m",
            # Without the comparison a kind that never waits would be an infinite bandwidth.
            expr=f"{_rate('lockstep_collective_bytes_total', by)}\n/\n({_rate(wait, by)} > 0)",
            help="Bytes per second of blocked time. Below the link's bandwidth when ranks wait for a late one, above "
            "it when transfers hide behind work: compare it with the same run's past.",
        ),
    )


def _own_work(site: Site) -> tuple[Recording, ...]:
    run = site.run_labels
    phase, steps = "lockstep_phase_time_seconds_total", "lockstep_steps_total"
    return (
        Recording(
            record="run_phase:lockstep_phase_time_seconds_per_step:ratio_rate5m",
            expr=_per_step(phase, f"{run}, phase", site),
            help="Seconds of a step that the average rank spent in this phase of its own work.",
        ),
        Recording(
            record="run_phase:lockstep_phase_time_per_step_time:ratio_rate5m",
            expr=(
                f"{_rate(phase, f'{run}, phase')}\n/ on ({run}) group_left\n"
                f"{_rate('lockstep_step_time_seconds_total', run)}"
            ),
            help="Share of the step time that went into this phase; the rest of 1 is waiting.",
        ),
        Recording(
            record="run_hostname_phase:lockstep_phase_time_seconds_per_step:ratio_rate5m",
            expr=(
                f"{_rate_by_host(phase, f'{run}, hostname, phase', site)}\n/ on ({run}, hostname) group_left\n"
                f"{_rate_by_host(steps, f'{run}, hostname', site)}"
            ),
            help="The same of the ranks of one host: the host whose own work is long holds the others back.",
        ),
    )


def _rate_by_host(metric: str, by: str, site: Site) -> str:
    # instance in the match: a rank that has moved is known to two exporters for as long as a series may be stale.
    return (
        f"sum by ({by}) (\n  rate({metric}[{WINDOW}])\n"
        f"  * on (job, instance, {site.run_labels}, rank) group_left (hostname)\n  lockstep_rank_info\n)"
    )


def _costs(site: Site) -> tuple[Recording, ...]:
    run = site.run_labels
    return (
        Recording(
            record="run:lockstep_run_lost_device_seconds:rate5m",
            expr=_rate("lockstep_run_lost_device_seconds_total", run),
            help="Device seconds lost per second: how many devices the run might as well not have.",
        ),
        Recording(
            record="run:lockstep_agent_time_per_step_time:ratio_rate5m",
            expr=(
                f"{_rate('lockstep_agent_time_seconds_total', run)}\n/\n"
                f"{_rate('lockstep_step_time_seconds_total', run)}"
            ),
            help="Share of the step time that Lockstep itself took from the training threads.",
        ),
        Recording(
            record="instance:lockstep_exporter_records_lost_per_step:ratio_rate5m",
            expr=(
                f"{_rate('lockstep_exporter_records_lost_total', 'job, instance')}\n/\n"
                f"{_rate('lockstep_steps_total', 'job, instance')}"
            ),
            help="Share of an exporter's step records that nobody will read.",
        ),
    )
