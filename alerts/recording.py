"""Recorded series, which dashboards read instead of the series of every rank.

Names are level:metric:operations, without the `_total` of a counter under a rate; `X_per_Y` with `ratio_rate1m` is the
rate of X over the rate of Y, both summed first. Alerts never read these: a page must not wait for another group.

All cover the last minute, like the dashboards' own queries at common zoom levels, so that a slowdown reads the same on
every panel. A ratio whose divisor did not grow in that minute, and a rate of a run with too few steps in it, covers
five minutes: a step may take 85 s (the slowest published one), and a site may scrape once a minute.
"""

from collections.abc import Callable

from alerts.expressions import by_run
from alerts.policy import Site
from alerts.rule import RecordingRule, RuleGroup

WINDOW = "1m"
"""Part of the names; contains four scrapes at 15 s."""
LONG_WINDOW = "5m"
"""Used if `WINDOW` contains too little: three of the slowest published steps, twenty scrapes at 15 s."""
_STEPS_MIN = 3
"""Steps in `WINDOW`: with fewer, a rate jumps by a third or more as a step enters it."""


def group(site: Site) -> RuleGroup:
    """Return the recorded series of all runs."""
    parts = (_progress, _model, _collectives, _inspected, _own_work, _device, _costs)
    return RuleGroup(name="lockstep.recording", rules=tuple(rule for part in parts for rule in part(site)))


def _rate(metric: str, by: str, window: str) -> str:
    return f"sum by ({by}) (rate({metric}[{window}]))"


def _ratio(of_window: Callable[[str], str]) -> str:
    """Return a ratio over the last minute, or over five if it has none; a divisor of 0 must make `of_window` empty."""
    return f"{of_window(WINDOW)}\nor\n{of_window(LONG_WINDOW)}"


def _quotient(metric: str, divisor: str, by: str, divisor_by: str = "") -> str:
    """Return the rate of `metric` over that of `divisor`, which may be summed over more series."""
    matching = f" on ({divisor_by}) group_left ()" if divisor_by else ""
    return _ratio(
        lambda window: f"{_rate(metric, by, window)}\n/{matching}\n({_rate(divisor, divisor_by or by, window)} > 0)"
    )


def _per_step(metric: str, by: str, site: Site) -> str:
    """Rate of `metric` per step of a rank: seconds, bytes or events in one step of the average rank."""
    return _quotient(metric, "lockstep_steps_total", by, site.run_labels)


def _of_steps(of_window: Callable[[str], str], site: Site) -> str:
    """Return a rate over the last minute if that contains enough steps, otherwise over five."""
    steps = by_run("max", f"increase(lockstep_steps_total[{WINDOW}])", site)
    return f"{of_window(WINDOW)}\nand on ({site.run_labels})\n{steps} >= {_STEPS_MIN}\nor\n{of_window(LONG_WINDOW)}"


def _progress(site: Site) -> tuple[RecordingRule, ...]:
    run = site.run_labels
    return (
        RecordingRule(
            record="run:lockstep_steps:max_rate1m",
            expr=_of_steps(lambda window: by_run("max", f"rate(lockstep_steps_total[{window}])", site), site),
            help="Steps per second of a run: every rank counts the same ones, so the fastest count stands.",
        ),
        RecordingRule(
            record="run:lockstep_step_time_seconds_per_step:ratio_rate1m",
            expr=_quotient("lockstep_step_time_seconds_total", "lockstep_steps_total", run),
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
            record="run:lockstep_samples:rate1m",
            expr=_of_steps(lambda window: _rate("lockstep_samples_total", run, window), site),
            help="Samples per second that the ranks fetched; ranks that share a batch each count it.",
        ),
        RecordingRule(
            record="run:lockstep_tokens:rate1m",
            expr=_of_steps(lambda window: _rate("lockstep_tokens_total", run, window), site),
            help="Tokens per second that the ranks fetched; ranks that share a batch each count it.",
        ),
    )


def _model(site: Site) -> tuple[RecordingRule, ...]:
    run = site.run_labels

    def utilisation(window: str) -> str:
        """Of the ranks or nodes for which both are known: an exporter below level full has one series for its ranks."""
        peak = f"rate(lockstep_peak_flops_total[{window}])"
        flops = f"rate(lockstep_model_flops_total[{window}]) and on (job, instance, {run}, rank) {peak}"
        return f"sum by ({run}) ({flops})\n/\n(sum by ({run}) ({peak}) > 0)"

    return (
        RecordingRule(
            record="run:lockstep_model_flops:rate1m",
            expr=_of_steps(lambda window: _rate("lockstep_model_flops_total", run, window), site),
            help="Model FLOP/s of a run; ranks whose FLOPs are not known are left out.",
        ),
        RecordingRule(
            record="run:lockstep_model_flops_per_peak_flops:ratio_rate1m",
            expr=_ratio(utilisation),
            help="Model FLOPs utilisation (MFU): model FLOPs over what the devices could have done in the same steps.",
        ),
    )


def _collectives(site: Site) -> tuple[RecordingRule, ...]:
    run, by = site.run_labels, f"{site.run_labels}, domain_kind"
    wait, flight = "lockstep_collective_wait_seconds_total", "lockstep_collective_time_seconds_total"
    return (
        RecordingRule(
            record="run_domain_kind:lockstep_collective_wait_seconds_per_step:ratio_rate1m",
            expr=_per_step(wait, by, site),
            help="Seconds of a step in which the average rank was blocked in collectives of this kind.",
        ),
        RecordingRule(
            record="run_domain_kind:lockstep_collective_bytes:rate1m",
            expr=_of_steps(lambda window: _rate("lockstep_collective_bytes_total", by, window), site),
            help="Bytes per second given to collectives of this kind.",
        ),
        RecordingRule(
            record="run_domain_kind:lockstep_collective_bytes_per_collective_time:ratio_rate1m",
            expr=_quotient("lockstep_collective_bytes_total", flight, by),
            help="Algorithm bandwidth: bytes given to collectives of this kind per second in which one is in flight.",
        ),
        RecordingRule(
            record="run_domain_kind:lockstep_collective_bus_bytes_per_collective_time:ratio_rate1m",
            expr=_quotient("lockstep_collective_bus_bytes_total", flight, by),
            help="Bus bandwidth: what a ring algorithm moves over the slowest link in that time, comparable with the "
            "link's own. Time in which a collective waits for a late rank counts, so it is a lower bound.",
        ),
        RecordingRule(
            record="run_domain_kind:lockstep_collective_wait_seconds_per_collective_time:ratio_rate1m",
            expr=_quotient(wait, flight, by),
            help="Exposed share of communication: time blocked over time in flight; the rest of 1 hid behind work.",
        ),
        RecordingRule(
            record="run:lockstep_collective_overlap:ratio_rate1m",
            expr=f"1 - (\n{_quotient(wait, flight, run)}\n)",
            help="Share of all communication that hid behind work.",
        ),
    )


def _inspected(site: Site) -> tuple[RecordingRule, ...]:
    run, by = site.run_labels, f"{site.run_labels}, communicator, operation"
    time = "lockstep_nccl_operation_time_seconds_total"
    of_rank = f"{run}, rank, hostname"
    return (
        RecordingRule(
            record="run_communicator_operation:lockstep_nccl_operation_bus_bytes_per_operation_time:ratio_rate1m",
            expr=_quotient("lockstep_nccl_operation_bus_bytes_total", time, by),
            help="Bus bandwidth of a communicator's collectives by the device's clock, timed by the NCCL Inspector.",
        ),
        RecordingRule(
            record="run_communicator_operation:lockstep_nccl_operation_time_seconds_per_step:ratio_rate1m",
            expr=_per_step(time, by, site),
            help="Seconds of a step in which the average rank's device ran this collective of the communicator, "
            "waiting for the last rank included.",
        ),
        RecordingRule(
            record="run_rank_hostname:lockstep_nccl_last_arrival_wait_seconds_per_step:ratio_rate1m",
            expr=_per_step_by_host("lockstep_nccl_last_arrival_wait_seconds_total", of_rank, of_rank, site),
            help="Seconds of a step for which the other ranks of a node waited for this one in collectives, by the "
            "device's clock.",
        ),
    )


def _own_work(site: Site) -> tuple[RecordingRule, ...]:
    run = site.run_labels
    phase = "lockstep_phase_time_seconds_total"
    return (
        RecordingRule(
            record="run_phase:lockstep_phase_time_seconds_per_step:ratio_rate1m",
            expr=_per_step(phase, f"{run}, phase", site),
            help="Seconds of a step that the average rank spent in this phase of its own work.",
        ),
        RecordingRule(
            record="run_phase:lockstep_phase_time_per_step_time:ratio_rate1m",
            expr=_quotient(phase, "lockstep_step_time_seconds_total", f"{run}, phase", run),
            help="Share of the step time that went into this phase; the rest of 1 is waiting.",
        ),
        RecordingRule(
            record="run_hostname_phase:lockstep_phase_time_seconds_per_step:ratio_rate1m",
            expr=_per_step_by_host(phase, f"{run}, hostname, phase", f"{run}, hostname", site),
            help="The same of the ranks of one host: the host whose own work is long holds the others back.",
        ),
        *(
            RecordingRule(
                record=f"run_rank_hostname:{metric.removesuffix('_total')}_per_step:ratio_rate1m",
                expr=_per_step_by_host(metric, f"{run}, rank, hostname", f"{run}, rank, hostname", site),
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
            record="run:lockstep_device_collective_time_per_device_step_time:ratio_rate1m",
            expr=_quotient(
                "lockstep_device_collective_time_seconds_total", "lockstep_device_step_time_seconds_total", run
            ),
            help="Share of a step in which the device had a collective in flight, by its own clock.",
        ),
        RecordingRule(
            record="run:lockstep_host_lead_seconds_per_step:ratio_rate1m",
            expr=_quotient("lockstep_host_lead_seconds_total", steps, run),
            help="Least lead of the host over the device in the average step: near 0, the device waits for launches.",
        ),
        RecordingRule(
            record="run:lockstep_recompilations_per_step:ratio_rate1m",
            expr=_quotient("lockstep_recompilations_total", steps, run),
            help="Graphs compiled in the average rank's step: above 0 long after the start, shapes or types vary.",
        ),
        RecordingRule(
            record="run_flag:lockstep_steps_flagged_per_step:ratio_rate1m",
            expr=_per_step("lockstep_steps_flagged_total", f"{run}, flag", site),
            help="Share of steps that were more than a training step.",
        ),
    )


def _per_step_by_host(metric: str, by: str, steps_by: str, site: Site) -> str:
    """Return the rate of `metric` per step of a host's ranks, or of one rank and its host."""
    matching = "" if by == steps_by else f" on ({steps_by}) group_left ()"
    return _ratio(
        lambda window: (
            f"{_rate_by_host(metric, by, site, window)}\n/{matching}\n"
            f"({_rate_by_host('lockstep_steps_total', steps_by, site, window)} > 0)"
        )
    )


def _rate_by_host(metric: str, by: str, site: Site, window: str) -> str:
    # instance in the match: after a rank has moved, two exporters know it until the old series is stale.
    return (
        f"sum by ({by}) (\n  rate({metric}[{window}])\n"
        f"  * on (job, instance, {site.run_labels}, rank) group_left (hostname)\n  lockstep_rank_info\n)"
    )


def _costs(site: Site) -> tuple[RecordingRule, ...]:
    run = site.run_labels
    return (
        RecordingRule(
            record="run:lockstep_run_lost_device_seconds:rate1m",
            # max: both coordinators of a pair count the same seconds
            expr=_of_steps(
                lambda window: by_run("max", f"rate(lockstep_run_lost_device_seconds_total[{window}])", site), site
            ),
            help="Device seconds lost per second, i.e. the number of devices that the run wastes.",
        ),
        RecordingRule(
            record="run:lockstep_agent_time_per_step_time:ratio_rate1m",
            expr=_quotient("lockstep_agent_time_seconds_total", "lockstep_step_time_seconds_total", run),
            help="Share of the step time that Lockstep itself took from the training threads.",
        ),
        RecordingRule(
            record="instance:lockstep_exporter_records_lost_per_step:ratio_rate1m",
            expr=_quotient("lockstep_exporter_records_lost_total", "lockstep_steps_total", "job, instance"),
            help="Share of an exporter's step records lost.",
        ),
    )
