"""Other processes on the trainer's cores (Hermes 4.2.2): judged from what the node counted, never from a trace."""

from dataclasses import dataclass

from lockstep.diagnosis.finding import CPU, Finding, NotJudged
from lockstep.diagnosis.host_causes import thresholds as limits
from lockstep.diagnosis.verdict import HIGH, LOW, MEDIUM

CONTENTION = "cpu_contention"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSamples:
    """What a node counted over `span_ns` about one rank's process; None is not known, 0 a measured zero.

    `run_queue_wait_ns` is the training thread's (second number of /proc/PID/task/TID/schedstat), `throttled_ns` its
    control group's (cpu.stat). `cores` are those that the process may use; `others_cores` how many of them other
    processes than the job's kept busy on average. `busiest` are other processes as (command, cores), busiest first.
    """

    span_ns: int
    run_queue_wait_ns: int | None = None
    throttled_ns: int | None = None
    cores: int | None = None
    others_cores: float | None = None
    busiest: tuple[tuple[str, float], ...] = ()


def judge_contention(
    samples: HostSamples | None, *, window_ns: tuple[int, int], ranks: tuple[int, ...]
) -> list[Finding] | NotJudged:
    """Return whether the trainer had to wait for a CPU, and for whom."""
    if samples is None or samples.span_ns <= 0:
        return NotJudged(rule=CONTENTION, reason="the node's host watch sent no samples; a trace does not show it")
    known = (samples.run_queue_wait_ns, samples.throttled_ns, samples.others_cores)
    if all(each is None for each in known):
        return NotJudged(rule=CONTENTION, reason="neither run-queue waits nor throttling nor other processes are known")
    waited_ratio = (samples.run_queue_wait_ns or 0) / samples.span_ns
    throttled_ratio = (samples.throttled_ns or 0) / samples.span_ns
    others_ratio = (samples.others_cores or 0.0) / samples.cores if samples.cores else 0.0
    reported = []
    if throttled_ratio >= limits.THROTTLED_RATIO.value:
        reported.append(
            f"its control group was throttled {100 * throttled_ratio:.1f} % of the time: raise the CPU limit"
        )
    if waited_ratio >= limits.RUN_QUEUE_RATIO.value:
        reported.append(f"the training thread waited {100 * waited_ratio:.1f} % of the time for a CPU")
    crowded = others_ratio >= limits.OTHERS_RATIO.value
    if not reported and (not crowded or samples.run_queue_wait_ns is not None):
        return []  # others are busy, but the trainer was measured not to wait for them
    if crowded:
        reported.append(f"other processes keep {samples.others_cores:.1f} of its {samples.cores} cores busy")
    reported += [f"{command} uses {cores:.1f} cores" for command, cores in samples.busiest[:3]]
    # While a group is throttled its threads stand in the run queue: the two are not added up.
    share = max(waited_ratio, throttled_ratio)
    measured = share > 0
    return [
        Finding(
            bottleneck=CPU,
            cause=CONTENTION,
            ranks=ranks,
            evidence=tuple(reported),
            subject=samples.busiest[0][0] if samples.busiest else "",
            lost_ns=int(min(share, 1.0) * (window_ns[1] - window_ns[0])) if measured else None,
            confidence=(HIGH if samples.busiest or throttled_ratio else MEDIUM) if measured else LOW,
        )
    ]
