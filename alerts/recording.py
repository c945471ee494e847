"""Recorded series: what dashboards read instead of the series of every rank.

Names are level:metric:operations, the `_total` of a counter under a rate stripped; `X_per_Y` with `ratio_rate5m` is the
rate of X over the rate of Y, both summed first. Alerts never read these: a page must not wait for another group.
"""

from alerts.expressions import by_run
from alerts.policy import Site
from alerts.rule import RecordingRule, RuleGroup

WINDOW = "5m"
"""Holds three of the slowest published steps (85 s) and twenty scrapes at 15 s; it is part of the names."""


def group(site: Site) -> RuleGroup:
    """Return the recorded series of all runs."""
    parts = (_progress, _model, _collectives, _own_work, _device, _costs)
    return RuleGroup(name="lockstep.recording", rules=tuple(rule for part in parts for rule in part(site)))


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}[{WINDOW}]))"


def _per_step(metric: str, by: str, site: Site) -> str:
    """Rate of `metric` per step of a rank: seconds, bytes or events in one step of the average rank."""
    return f"{_rate(metric, by)}\n/ on ({site.run_labels}) group_left\n{_rate('lockstep_steps_total', site.run_labels)}"


def _progress(site: Site) -> tuple[RecordingRule, ...]:
    run = site.run_labels
    return (
        RecordingRule(
            record="run:lockstep_steps:max_rate5m",
            expr=by_run("max", f"rate(lockstep_steps_total[{WINDOW}])", site),
            help="Steps per second of a run: every rank counts the same ones, so the fastest count stands.",
        ),
        RecordingRule(
            record="run:lockstep_step_time_seconds_per_step:ratio_rate5m",
            expr=f"{_rate('lockstep_step_time_seconds_total', run)}\n/\n{_rate('lockstep_steps_total', run)}",
            help="Mean step time of a run, as its ranks measured it.",
        ),
        RecordingRule(
            record="run:lockstep_run_step_duration_slowdown:ratio",
            expr=(
                f"{by_run('max', 'lockstep_run_recent_step_duration_seconds', site)}\n/\n"
                f"{by_run('max', 'lockstep_run_baseline_step_duration_seconds > 0', site)}\n- 1"
            ),
            help="How much longer recent steps take than those of the healthy run.",
        ),
        RecordingRule(
            record="run:lockstep_samples:rate5m",
            expr=_rate("lockstep_samples_total", run),
            help="Samples per second that the ranks fetched; ranks that share a batch each count it.",
        ),
        RecordingRule(
            record="run:lockstep_tokens:rate5m",
            expr=_rate("lockstep_tokens_total", run),
            help="Tokens per second that the ranks fetched; ranks that share a batch each count it.",
        ),
    )


def _model(site: Site) -> tuple[RecordingRule, ...]:
    run = site.run_labels
    # Of the ranks, or nodes, of which both are known; an exporter below level full has one series for its ranks.
    peak = f"rate(lockstep_peak_flops_total[{WINDOW}])"
    flops = f"rate(lockstep_model_flops_total[{WINDOW}]) and on (job, instance, {run}, rank) {peak}"
    return (
        RecordingRule(
            record="run:lockstep_model_flops:rate5m",
            expr=_rate("lockstep_model_flops_total", run),
            help="Model FLOP/s of a run; ranks whose FLOPs are not known are left out.",
        ),
        RecordingRule(
            record="run:lockstep_model_flops_per_peak_flops:ratio_rate5m",
            expr=f"sum by ({run}) ({flops})\n/\n({_rate('lockstep_peak_flops_total', run)} > 0)",
            help="Model FLOPs utilisation (MFU): model FLOPs over what the devices could have done in the same steps.",
        ),
    )


def _collectives(site: Site) -> tuple[RecordingRule, ...]:
    run, by = site.run_labels, f"{site.run_labels}, domain_kind"
    wait, flight = "lockstep_collective_wait_seconds_total", "lockstep_collective_time_seconds_total"
    # Without the comparison a kind that is never in flight would have an infinite bandwidth.
    in_flight = f"({_rate(flight, by)} > 0)"
    return (
        RecordingRule(
            record="run_domain_kind:lockstep_collective_wait_seconds_per_step:ratio_rate5m",
            expr=_per_step(wait, by, site),
            help="Seconds of a step in which the average rank was blocked in collectives of this kind.",
        ),
        RecordingRule(
            record="run_domain_kind:lockstep_collective_bytes:rate5m",
            expr=_rate("lockstep_collective_bytes_total", by),
            help="Bytes per second given to collectives of this kind.",
        ),
        RecordingRule(
            record="run_domain_kind:lockstep_collective_bytes_per_collective_time:ratio_rate5m",
            expr=f"{_rate('lockstep_collective_bytes_total', by)}\n/\n{in_flight}",
            help="Algorithm bandwidth: bytes given to collectives of this kind per second in which one is in flight.",
        ),
        RecordingRule(
            record="run_domain_kind:lockstep_collective_bus_bytes_per_collective_time:ratio_rate5m",
            expr=f"{_rate('lockstep_collective_bus_bytes_total', by)}\n/\n{in_flight}",
            help="Bus bandwidth: what a ring algorithm moves over the slowest link in that time, comparable with the "
            "link's own. Time in which a collective waits for a late rank counts, so it is a lower bound.",
        ),
        RecordingRule(
            record="run_domain_kind:lockstep_collective_wait_seconds_per_collective_time:ratio_rate5m",
            expr=f"{_rate(wait, by)}\n/\n{in_flight}",
            help="Exposed share of communication: time blocked over time in flight; the rest of 1 hid behind work.",
        ),
        RecordingRule(
            record="run:lockstep_collective_overlap:ratio_rate5m",
            expr=f"1 -\n{_rate(wait, run)}\n/\n({_rate(flight, run)} > 0)",
            help="Share of all communication that hid behind work.",
        ),
    )


def _own_work(site: Site) -> tuple[RecordingRule, ...]:
    run = site.run_labels
    phase, steps = "lockstep_phase_time_seconds_total", "lockstep_steps_total"
    return (
        RecordingRule(
            record="run_phase:lockstep_phase_time_seconds_per_step:ratio_rate5m",
            expr=_per_step(phase, f"{run}, phase", site),
            help="Seconds of a step that the average rank spent in this phase of its own work.",
        ),
        RecordingRule(
            record="run_phase:lockstep_phase_time_per_step_time:ratio_rate5m",
            expr=(
                f"{_rate(phase, f'{run}, phase')}\n/ on ({run}) group_left\n"
                f"{_rate('lockstep_step_time_seconds_total', run)}"
            ),
            help="Share of the step time that went into this phase; the rest of 1 is waiting.",
        ),
        RecordingRule(
            record="run_hostname_phase:lockstep_phase_time_seconds_per_step:ratio_rate5m",
            expr=(
                f"{_rate_by_host(phase, f'{run}, hostname, phase', site)}\n/ on ({run}, hostname) group_left\n"
                f"{_rate_by_host(steps, f'{run}, hostname', site)}"
            ),
            help="The same of the ranks of one host: the host whose own work is long holds the others back.",
        ),
        *(
            RecordingRule(
                record=f"run_rank_hostname:{metric.removesuffix('_total')}_per_step:ratio_rate5m",
                expr=(
                    f"{_rate_by_host(metric, f'{run}, rank, hostname', site)}\n/\n"
                    f"({_rate_by_host(steps, f'{run}, rank, hostname', site)} > 0)"
                ),
                help=f"Seconds of a step that one rank {what}, all kinds together. Recorded for each rank, so that a "
                "matrix of 10,240 ranks is drawn at once.",
            )
            for metric, what in ((phase, "works by itself"), ("lockstep_collective_wait_seconds_total", "is blocked"))
        ),
    )


def _device(site: Site) -> tuple[RecordingRule, ...]:
    run = site.run_labels
    steps = "lockstep_steps_total"
    return (
        RecordingRule(
            record="run:lockstep_device_collective_time_per_device_step_time:ratio_rate5m",
            expr=(
                f"{_rate('lockstep_device_collective_time_seconds_total', run)}\n/\n"
                f"({_rate('lockstep_device_step_time_seconds_total', run)} > 0)"
            ),
            help="Share of a step in which the device had a collective in flight, by its own clock.",
        ),
        RecordingRule(
            record="run:lockstep_host_lead_seconds_per_step:ratio_rate5m",
            expr=f"{_rate('lockstep_host_lead_seconds_total', run)}\n/\n({_rate(steps, run)} > 0)",
            help="Least lead of the host over the device in the average step: near 0, the device waits for launches.",
        ),
        RecordingRule(
            record="run:lockstep_recompilations_per_step:ratio_rate5m",
            expr=f"{_rate('lockstep_recompilations_total', run)}\n/\n({_rate(steps, run)} > 0)",
            help="Graphs compiled in the average rank's step: above 0 long after the start, shapes or types vary.",
        ),
        RecordingRule(
            record="run_flag:lockstep_steps_flagged_per_step:ratio_rate5m",
            expr=_per_step("lockstep_steps_flagged_total", f"{run}, flag", site),
            help="Share of steps that were more than a training step.",
        ),
    )


def _rate_by_host(metric: str, by: str, site: Site) -> str:
    # instance in the match: a rank that has moved is known to two exporters for as long as a series may be stale.
    return (
        f"sum by ({by}) (\n  rate({metric}[{WINDOW}])\n"
        f"  * on (job, instance, {site.run_labels}, rank) group_left (hostname)\n  lockstep_rank_info\n)"
    )


def _costs(site: Site) -> tuple[RecordingRule, ...]:
    run = site.run_labels
    return (
        RecordingRule(
            record="run:lockstep_run_lost_device_seconds:rate5m",
            # max: both coordinators of a pair count the same seconds.
            expr=f"max by ({run}) (rate(lockstep_run_lost_device_seconds_total[{WINDOW}]))",
            help="Device seconds lost per second: how many devices the run might as well not have.",
        ),
        RecordingRule(
            record="run:lockstep_agent_time_per_step_time:ratio_rate5m",
            expr=(
                f"{_rate('lockstep_agent_time_seconds_total', run)}\n/\n"
                f"{_rate('lockstep_step_time_seconds_total', run)}"
            ),
            help="Share of the step time that Lockstep itself took from the training threads.",
        ),
        RecordingRule(
            record="instance:lockstep_exporter_records_lost_per_step:ratio_rate5m",
            expr=(
                f"{_rate('lockstep_exporter_records_lost_total', 'job, instance')}\n/\n"
                f"{_rate('lockstep_steps_total', 'job, instance')}"
            ),
            help="Share of an exporter's step records lost.",
        ),
    )
