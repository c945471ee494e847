"""What a run's owner feels: no steps, missing ranks, slow steps. Slow steps are a ticket; `losses.py` pages."""

from alerts import links
from alerts.expressions import by_run, is_in_state, last_step_age, rank_step_age, slower_than_history, unfinished
from alerts.policy import AlertPolicy, Site
from alerts.rule import Alert


def alerts(site: Site, policy: AlertPolicy) -> tuple[Alert, ...]:
    """Return the alerts on symptoms."""
    return (
        _run_crashed(site, policy),
        _small_run_crashed(site, policy),
        _run_stalled(site, policy),
        _ranks_missing(site, policy),
        _run_slow(site, policy),
        _run_slower_than_expected(site, policy),
    )


def _run_crashed(site: Site, policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepRunCrashed",
        severity="critical",
        expr=f"{_crashed(site)}\nand on ({site.run_labels})\n{_many_ranks(site, policy)}",
        for_seconds=policy.crashed_for_seconds,
        incidents=links.by_cause("process"),
        dashboard=links.dashboard_of(site, links.by_cause("process")),
        resolves=_NEXT_ATTEMPT,
        summary="A training run on many devices ended because a rank ended before the others.",
        headline=_CRASH_HEADLINE,
        description=_CRASHED,
    )


def _small_run_crashed(site: Site, policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepSmallRunCrashed",
        severity="warning",
        # Of a run whose size is not known, too: a ticket may be wrong about that, a page may not.
        expr=f"{_crashed(site)}\nunless on ({site.run_labels})\n{_many_ranks(site, policy)}",
        for_seconds=policy.crashed_for_seconds,
        incidents=links.by_cause("process"),
        dashboard=links.dashboard_of(site, links.by_cause("process")),
        resolves=_NEXT_ATTEMPT,
        summary="A training run on few devices ended because a rank ended before the others.",
        headline=_CRASH_HEADLINE,
        description=_CRASHED,
    )


def _crashed(site: Site) -> str:
    return by_run("max", 'lockstep_run_incidents_open{cause="process"} > 0', site)


def _many_ranks(site: Site, policy: AlertPolicy) -> str:
    """Return the runs all of whose devices, idle now, are worth a page."""
    return f"{by_run('max', 'lockstep_run_ranks', site)} >= {policy.page_devices_lost}"


_NEXT_ATTEMPT = "the run makes steps under the same name again, at the latest an hour after the crash"
_FIRST_RANK = (
    '{{ with printf `lockstep_incident_info{run="%s",cause="process"}` $labels.run | query | sortByLabel "rank" }}'
    "{{ with . | first }}"
)
# The incident's own label: a rank that ended before its first scrape has no series of its own.
_ON_HOST = "{{ with .Labels.hostname }} on {{ . }}{{ end }}"
_HOW = " {{ .Labels.root_cause }}{{ with .Labels.function }} in {{ . }}{{ end }}"
_CRASHED = (
    f"Run {{{{ $labels.run }}}} has crashed.{_FIRST_RANK} Rank {{{{ .Labels.rank }}}}{_ON_HOST} ended first:{_HOW}."
    "{{ end }}{{ end }}"
)
_CRASH_HEADLINE = (
    f"Run {{{{ $labels.run }}}} has crashed{_FIRST_RANK}: rank {{{{ .Labels.rank }}}}{_ON_HOST},{_HOW}"
    "{{ end }}{{ end }}."
)


def _run_stalled(site: Site, policy: AlertPolicy) -> Alert:
    age_s, run = policy.stalled_age_seconds, site.run_labels
    baseline = by_run("max", "lockstep_run_baseline_step_duration_seconds > 0", site)
    # A run without a baseline yet has only the age to be measured by.
    limit = (
        f"(\n  clamp_min({policy.stalled_steps} * {baseline}, {age_s})\n"
        f"  or on ({run})\n  0 * {by_run('max', 'lockstep_run_last_step_timestamp_seconds', site)} + {age_s}\n)"
    )
    # The coordinator may be the one that hears nothing: ranks that step by their exporters are not stalled.
    stalled = f"({last_step_age(site)}) > on ({run}) {limit}\nunless on ({run})\n({rank_step_age(site)}) < {age_s}"
    return Alert(
        name="LockstepRunStalled",
        severity="critical",
        expr=unfinished(stalled, site),
        for_seconds=policy.stalled_for_seconds,
        incidents=links.OF_HANG,
        resolves="a step is completed, or the run is over",
        summary="A training run has stopped making steps.",
        description="Run {{ $labels.run }} has completed no step for {{ $value | humanizeDuration }}; it is not "
        "finished."
        '{{ with printf `lockstep_run_ranks{run="%s"} - lockstep_run_ranks_reporting > 0` $labels.run | query }}'
        " Ranks that do not report: {{ . | first | value }}.{{ end }}",
    )


def _ranks_missing(site: Site, policy: AlertPolicy) -> Alert:
    missing = (
        f"{by_run('max', 'lockstep_run_ranks', site)}\n- on ({site.run_labels})\n"
        f"{by_run('max', 'lockstep_run_ranks_reporting', site)}\n> 0\n"
        # Ranks of a run that begins appear one after the other, for minutes in a large one.
        f"unless on ({site.run_labels})\n{is_in_state('warming', site)}"
    )
    return Alert(
        name="LockstepRunRanksMissing",
        severity="critical",
        expr=unfinished(missing, site),
        for_seconds=policy.ranks_missing_for_seconds,
        incidents=links.OF_HANG,
        resolves="every rank reports steps, or the run is over",
        summary="Ranks of a training run no longer report steps.",
        description="Ranks of run {{ $labels.run }} that report no steps: {{ $value }}."
        f'{{{{ with query `up{{job="{site.exporter_job}"}} == 0` | sortByLabel `instance` }}}}'
        " Exporters that cannot be scraped: {{ len . }}, the first is {{ . | first | label `instance` }}.{{ end }}",
    )


def _run_slow(site: Site, policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepRunSlow",
        severity="warning",
        expr=unfinished(slower_than_history(site, policy), site),
        for_seconds=policy.slow_for_seconds,
        keep_seconds=policy.slow_keep_seconds,
        incidents=links.BY_RUN,
        resolves="steps are as before, or the run is over",
        summary="Steps of a training run take longer than its own history explains.",
        description="Steps of run {{ $labels.run }} take {{ $value | humanizePercentage }} longer than when it was "
        "healthy. If a rank holds the run back, LockstepSlowDeviceFound names it; if none fires, all ranks are slow "
        "alike.",
    )


def _run_slower_than_expected(site: Site, policy: AlertPolicy) -> Alert:
    run = site.run_labels
    # Only a run whose model is known has these series: without one nothing is expected, and nothing alerts.
    excess = (
        f"{by_run('max', 'lockstep_run_recent_step_duration_seconds', site)}\n/ on ({run})\n"
        f"{by_run('max', 'lockstep_run_expected_step_seconds > 0', site)}\n- 1"
    )
    band = f"clamp_min({by_run('max', 'lockstep_run_expected_step_error_ratio', site)}, {policy.expected_ratio:g})"
    return Alert(
        name="LockstepRunSlowerThanExpected",
        severity="warning",
        expr=unfinished(f"({excess}) > on ({run}) {band}", site),
        for_seconds=policy.expected_for_seconds,
        keep_seconds=policy.expected_keep_seconds,
        incidents=links.BY_RUN,
        resolves="steps are within the model's band, or the run is over",
        summary="Steps of a training run take longer than the model of its job expects.",
        description="Steps of run {{ $labels.run }} take {{ $value | humanizePercentage }} longer than its model "
        "expects."
        '{{ with printf `lockstep_run_expected_step_error_ratio{run="%s"}` $labels.run | query }}'
        " Healthy steps lie within {{ . | first | value | humanizePercentage }} of it.{{ end }}"
        '{{ with printf `sort_desc(lockstep_incident_predicted_gain_ratio{run="%s"})` $labels.run | query }}'
        " Mending {{ . | first | label `incident` }} would give back {{ . | first | value | humanizePercentage }} of "
        "the step.{{ end }}",
    )
