"""Other processes on the trainer's cores (Hermes 4.2.2), from counters of the node, never from a trace."""

from lockstep.contracts.finding import CPU, HIGH, LOW, MEDIUM, Finding, NotEvaluated
from lockstep.contracts.messages import HostSpan
from lockstep.diagnosis.host_causes import thresholds as limits

CONTENTION = "cpu_contention"


def evaluate_contention(
    host: HostSpan | None, *, window_ns: tuple[int, int], ranks: tuple[int, ...]
) -> list[Finding] | NotEvaluated:
    """Return whether other jobs' processes, or a limit of its control group, keep a rank off the CPU.

    Ranks of one job that wait for each other's cores are no fault of any of them; `cpu_share` compares them.
    """
    if host is None or host.span_ns <= 0:
        return NotEvaluated(
            rule=CONTENTION, reason="no exporter sampled the node during the capture; a trace does not show it"
        )
    if host.run_queue_wait_ns is None and host.throttled_ns is None and host.others_cores is None:
        return NotEvaluated(
            rule=CONTENTION, reason="neither run-queue waits nor throttling nor other processes are known"
        )
    is_throttled = (host.throttled_ns or 0) >= limits.THROTTLED_RATIO.value * host.span_ns
    if not is_throttled and not _is_crowded(host):
        return []
    found = find_contention(host, window_ns=window_ns, ranks=ranks)
    return [] if found is None else [found]


def find_contention(host: HostSpan, *, window_ns: tuple[int, int], ranks: tuple[int, ...]) -> Finding | None:
    """Return how long a rank was kept off the CPU, and by which processes if known; None if it was not."""
    waited_ratio = (host.run_queue_wait_ns or 0) / host.span_ns
    throttled_ratio = (host.throttled_ns or 0) / host.span_ns
    crowded = _is_crowded(host)
    reported = []
    if throttled_ratio >= limits.THROTTLED_RATIO.value:
        reported.append(
            f"its control group was throttled {100 * throttled_ratio:.1f} % of the time: raise the CPU limit"
        )
    if waited_ratio >= limits.RUN_QUEUE_RATIO.value:
        reported.append(f"the training thread waited {100 * waited_ratio:.1f} % of the time for a CPU")
    if not reported and (not crowded or host.run_queue_wait_ns is not None):
        return None  # others are busy, but the trainer was measured not to wait for them
    if crowded:
        reported.append(f"other processes keep {host.others_cores:.1f} of its {host.cores} cores busy")
    reported += [f"{command} uses {cores:.1f} cores" for command, cores in host.busiest[:3]]
    # While a group is throttled its threads are in the run queue, so the two are not added.
    share = max(waited_ratio, throttled_ratio)
    measured = share > 0
    return Finding(
        bottleneck=CPU,
        cause=CONTENTION,
        ranks=ranks,
        evidence=tuple(reported),
        subject=host.busiest[0][0] if host.busiest else "",
        lost_ns=int(min(share, 1.0) * (window_ns[1] - window_ns[0])) if measured else None,
        confidence=(HIGH if host.busiest or throttled_ratio else MEDIUM) if measured else LOW,
    )


def _is_crowded(host: HostSpan) -> bool:
    return bool(host.cores) and (host.others_cores or 0.0) >= limits.OTHERS_RATIO.value * (host.cores or 1)
