"""PromQL that several dashboards share.

Queries read the coordinator's and recorded series, whose number does not grow with the ranks. The few that read single
ranks are bounded by topk.
"""

TOP = 8
"""Single ranks or hosts shown at once: what a person can compare."""

MANY = 64
"""Ranks in one matrix: what fits on a screen, eight nodes of eight."""

RUN = 'cluster=~"$cluster",run="$run"'
"""The matchers of the selected run; all clusters are `.*`, which also matches series without that label."""

RANK = f'{RUN},rank="$rank"'
"""The matchers of the selected rank."""

STATE_COLOURS = {
    "warming": "blue",
    "healthy": "green",
    "suspect": "yellow",
    "profiling": "purple",
    "diagnosed": "red",
    "recovering": "light-green",
    "hung": "dark-orange",
    "lost": "dark-red",
    "crashed": "dark-red",
    "cancelled": "text",
    "finished": "text",
}
"""The colour of each state of a run."""

CAUSE_COLOURS = {
    "compute": "red",
    "off_cpu": "light-orange",
    "host": "orange",
    "data": "blue",
    "gc": "purple",
    "link": "yellow",
    "imbalance": "light-blue",
    "process": "dark-red",
    "host_memory": "green",
    "worker_memory": "light-green",
    "device_memory": "dark-green",
    "unknown": "text",
}
"""The colour of each cause of an incident, wherever one is drawn."""

_HOSTS = f'max by (rank, hostname) (lockstep_rank_info{{{RUN},hostname=~"$hostname"}})'


def rate(metric: str, by: str = "", matchers: str = RUN) -> str:
    """Return the rate of a counter, summed over all labels but `by`."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{{{matchers}}}[$__rate_interval]))"


def coordinator_rate(metric: str, by: str) -> str:
    """Return the rate of a coordinator's counter: both of a pair count the same, so the larger one."""
    return f"max by ({by}) (rate({metric}{{{RUN}}}[$__rate_interval]))"


def seconds_per_step(metric: str) -> str:
    """Return seconds per step of single ranks with their hosts, for use within topk."""
    recorded = f"run_rank_hostname:{metric.removesuffix('_total')}_per_step:ratio_rate1m"
    return f'max by (rank, hostname) ({recorded}{{{RUN},hostname=~"$hostname"}})'


def ratio_by_kind(metric: str) -> str:
    """Return a recorded ratio by kind of domain."""
    return f"max by (domain_kind) (run_domain_kind:{metric}:ratio_rate1m{{{RUN}}})"


def wait_of_kind(kind: str) -> str:
    """Return seconds per step that single ranks are blocked in one kind of domain, the longest ones."""
    matchers = f'{RUN},domain_kind="{kind}"'
    waits = f"sum by (rank) (rate(lockstep_collective_wait_seconds_total{{{matchers}}}[$__rate_interval]))"
    steps = rate("lockstep_steps_total", "rank")
    return f"topk({MANY}, {waits} / {steps} * on (rank) group_left (hostname) {_HOSTS})"
