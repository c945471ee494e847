"""Symptoms that a run's owner notices: missing ranks, slow steps. All are tickets: `losses.py` and `stops.py` page."""

from alerts import links
from alerts.expressions import by_run, is_in_state, slower_than_history, unfinished
from alerts.policy import AlertPolicy, Site
from alerts.rule import Alert


def alerts(site: Site, policy: AlertPolicy) -> tuple[Alert, ...]:
    """Return the alerts on symptoms."""
    return (
        _ranks_missing(site, policy),
        _run_slow(site, policy),
        _run_slower_than_expected(site, policy),
    )


def _ranks_missing(site: Site, policy: AlertPolicy) -> Alert:
    missing = (
        f"{by_run('max', 'lockstep_run_ranks', site)}\n- on ({site.run_labels})\n"
        f"{by_run('max', 'lockstep_run_ranks_reporting', site)}\n> 0\n"
        # Ranks of a starting run appear one after the other, over minutes in a large one.
        f"unless on ({site.run_labels})\n{is_in_state('warming', site)}"
    )
    return Alert(
        name="LockstepRunRanksMissing",
        # A run that continues loses no device to this; one that does not continue pages as hung or stalled.
        severity="warning",
        expr=unfinished(missing, site),
        for_seconds=policy.ranks_missing_for_seconds,
        incidents=links.OF_HANG,
        resolves="every rank reports steps, or the run is over",
        summary="Ranks of a training run no longer report steps.",
        description="Ranks of run {{ $labels.run }} that report no steps: {{ $value }}."
        f"{links.exporters_out_of_reach(site)}",
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
    # Only a run with a known model has these series: otherwise nothing is expected, and nothing alerts.
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
        " Fixing {{ . | first | label `incident` }} would give back {{ . | first | value | humanizePercentage }} of "
        "the step.{{ end }}",
    )
