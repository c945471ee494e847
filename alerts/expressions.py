"""PromQL that several rules share. Each function returns an expression in which a run appears exactly once."""

from alerts.policy import AlertPolicy, Site

OVER = "finished|cancelled|crashed"
"""States of runs whose processes have ended, as a regular expression."""
GAP = "5m"
"""A coordinator that cannot be scraped for longer has its own alert, LockstepCoordinatorDown, which inhibits tickets
that end because its series are missing."""
_BACK = "30s"
"""A coordinator that is back has connected and knows its runs within seconds; the next scrape shows it."""


def by_run(operation: str, vector: str, site: Site) -> str:
    """Return one value per run: whatever target, replica or pod the series came from."""
    return f"{operation} by ({site.run_labels}) ({vector})"


def last_known(vector: str) -> str:
    """Return the latest samples of a selector's series: a failed scrape ends them for everything else."""
    return f"last_over_time({vector}[{GAP}])"


def held(vector: str, site: Site) -> str:
    """Return a coordinator's series by run; for runs that its page does not show now, the latest value of a moment ago.

    For series that end together with their subject, so that their last scrape proves nothing while the run is shown.
    """
    before, shown = by_run("max", last_known(vector), site), by_run("max", "lockstep_run_ranks", site)
    return (
        f"(\n  {by_run('max', vector, site)}\n  or on ({site.run_labels})\n"
        f"  ({before} unless on ({site.run_labels}) {shown})\n)"
    )


def is_in_state(states: str, site: Site) -> str:
    """Return the runs that are in one of `states` (a regular expression)."""
    return by_run("max", f'lockstep_run_state{{state=~"{states}"}} == 1', site)


def unfinished(vector: str, site: Site) -> str:
    """Return `vector` without the runs that are over: a crashed run has its own alert, others have none."""
    return f"(\n{_indent(vector)}\n)\nunless on ({site.run_labels})\n{is_in_state(OVER, site)}"


def has_many_ranks(site: Site, policy: AlertPolicy) -> str:
    """Return the runs whose devices in total are worth a page; excludes runs of unknown size."""
    return f"{by_run('max', last_known('lockstep_run_ranks'), site)} >= {policy.page_devices_lost}"


def slower_than_history(site: Site, policy: AlertPolicy) -> str:
    """Return how much longer steps are than those of the healthy run, for runs where that exceeds noise."""
    slowdown = (
        f"{by_run('max', 'lockstep_run_recent_step_duration_seconds', site)}\n/ on ({site.run_labels})\n"
        f"{by_run('max', 'lockstep_run_baseline_step_duration_seconds > 0', site)}\n- 1"
    )
    return (
        f"({slowdown}) > {policy.slow_ratio:g}\nor on ({site.run_labels})\n"
        f"({slowdown}) and on ({site.run_labels}) {by_run('max', 'lockstep_run_fluctuating == 1', site)}"
    )


def fires(name: str) -> str:
    """Return the series of a firing alert, as of the last evaluation."""
    return f'ALERTS{{alertname="{name}",alertstate="firing"}}'


def unreachable(site: Site) -> str:
    """Return 1 while no coordinator can be scraped or the only ones have just come back, else nothing.

    A target that discovery has removed has no series of value 0: it counts while it was known recently, until
    LockstepCoordinatorDown fires. A window without a scrape proves nothing against a coordinator that is up.
    """
    up = f'up{{job="{site.coordinator_job}"}}'
    return f"""\
count({last_known(up)}) > 0
unless on ()
(
  {up} == 1
  unless
  min_over_time({up}[{_BACK}]) == 0
)"""


def known(vector: str, site: Site) -> str:
    """Return `vector` while a coordinator can be asked, else nothing."""
    return f"(\n{_indent(vector)}\n)\nunless on ()\n(\n{_indent(unreachable(site))}\n)"


def lasting(expr: str, meanwhile: str, site: Site) -> str:
    """Return a page's expression that does not end while no coordinator can be asked.

    Alertmanager drops an end that is inhibited, and the pager's incident stays open for ever. `meanwhile` selects the
    page's own series of the last evaluation, one value per run.
    """
    return f"{expr}\nor on ({site.run_labels})\n({meanwhile})\nand on ()\n(\n{_indent(unreachable(site))}\n)"


def active_seconds(name: str, site: Site) -> str:
    """Return for how long an alert has been pending or firing by run, seconds, as of the last evaluation."""
    series = f'ALERTS_FOR_STATE{{alertname="{name}"}}'
    return f"time() - {by_run('max', series, site)}"


def last_step_age(site: Site) -> str:
    """Return seconds since the last step that all ranks of a run have completed, as observed by the coordinator.

    A run that has not completed a step has no age: the coordinator exports no timestamp, or 0.
    """
    return f"time() - {by_run('max', 'lockstep_run_last_step_timestamp_seconds > 0', site)}"


def rank_step_age(site: Site) -> str:
    """Return seconds since any rank of a run completed a step, as the exporters observed it: no broker is involved."""
    return f"time() - {by_run('max', 'lockstep_last_step_timestamp_seconds > 0', site)}"


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines())
