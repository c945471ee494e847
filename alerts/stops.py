"""Runs that stopped: crashed, hung, or without a step.

All their devices are lost, so the severity depends on their size.

Each has two alerts with the same text: a page for runs of `page_devices_lost` ranks or more, and a ticket for the
others, including runs of unknown size: a ticket may be wrong about the size, a page may not.
"""

from dataclasses import replace

from alerts import links
from alerts.expressions import (
    active_seconds,
    by_run,
    has_many_ranks,
    held,
    known,
    last_known,
    last_step_age,
    lasting,
    rank_step_age,
    unfinished,
)
from alerts.policy import AlertPolicy, Site
from alerts.rule import Alert


def alerts(site: Site, policy: AlertPolicy) -> tuple[Alert, ...]:
    """Return the pages, each with its ticket."""
    return (
        _run_crashed(site, policy),
        _small_run_crashed(site, policy),
        _run_hung(site, policy),
        _small_run_hung(site, policy),
        _run_stalled(site, policy),
        _small_run_stalled(site, policy),
    )


def _of_many(vector: str, site: Site, policy: AlertPolicy) -> str:
    return f"{vector}\nand on ({site.run_labels})\n{has_many_ranks(site, policy)}"


def _of_few(vector: str, site: Site, policy: AlertPolicy) -> str:
    return f"{vector}\nunless on ({site.run_labels})\n{has_many_ranks(site, policy)}"


def _page(name: str, vector: str, site: Site, policy: AlertPolicy) -> str:
    """Return the expression of a page, which is frozen while no coordinator can be asked."""
    return lasting(known(_of_many(vector, site, policy), site), active_seconds(name, site), site)


def _run_crashed(site: Site, policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepRunCrashed",
        severity="critical",
        expr=_page("LockstepRunCrashed", _crashed(site), site, policy),
        for_seconds=policy.crashed_for_seconds,
        incidents=links.by_cause("process"),
        dashboard=links.dashboard_of(site, links.by_cause("process")),
        resolves=_NEXT_ATTEMPT,
        summary="A training run on many devices ended because a rank ended before the others.",
        headline=_CRASH_HEADLINE,
        description=_CRASH_TEXT,
    )


def _small_run_crashed(site: Site, policy: AlertPolicy) -> Alert:
    return replace(
        _run_crashed(site, policy),
        name="LockstepSmallRunCrashed",
        severity="warning",
        expr=_of_few(_crashed(site), site, policy),
        summary="A training run on few devices ended because a rank ended before the others.",
    )


def _crashed(site: Site) -> str:
    return by_run("max", last_known('lockstep_run_incidents_open{cause="process"}'), site) + " > 0"


_NEXT_ATTEMPT = "the run makes steps under the same name again, at the latest an hour after the crash"
_FIRST_RANK = (
    '{{ with printf `lockstep_incident_info{run="%s",cause="process"}` $labels.run | query | sortByLabel "rank" }}'
    "{{ with . | first }}"
)
# The incident's own label: a rank that ended before its first scrape has no series.
_CRASH_HOST = "{{ with .Labels.hostname }} on {{ . }}{{ end }}"
_HOW = " {{ .Labels.root_cause }}{{ with .Labels.function }} in {{ . }}{{ end }}"
_CRASH_TEXT = (
    f"Run {{{{ $labels.run }}}} has crashed.{_FIRST_RANK} Rank {{{{ .Labels.rank }}}}{_CRASH_HOST} ended first:{_HOW}."
    "{{ end }}{{ end }}"
)
_CRASH_HEADLINE = (
    f"Run {{{{ $labels.run }}}} has crashed{_FIRST_RANK}: rank {{{{ .Labels.rank }}}}{_CRASH_HOST},{_HOW}"
    "{{ end }}{{ end }}."
)


def _run_hung(site: Site, policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepRunHung",
        severity="critical",
        expr=_page("LockstepRunHung", unfinished(_hung(site, policy), site), site, policy),
        for_seconds=policy.hung_for_seconds,
        incidents=links.OF_HANG,
        dashboard=links.dashboard_of(site, links.OF_HANG),
        resolves="steps go on, or the run is over",
        summary="A training run on many devices hangs: ranks have not arrived where others wait for them.",
        headline=_HANG_HEADLINE,
        description=_HANG_TEXT,
    )


def _small_run_hung(site: Site, policy: AlertPolicy) -> Alert:
    return replace(
        _run_hung(site, policy),
        name="LockstepSmallRunHung",
        severity="warning",
        expr=unfinished(_of_few(_hung(site, policy), site, policy), site),
        for_seconds=policy.small_hung_for_seconds,
        summary="A training run on few devices hangs: ranks have not arrived where others wait for them.",
    )


def _hung(site: Site, policy: AlertPolicy) -> str:
    # Ranks are looked up rather than being labels: a node that reports its ranks' places late must not page again.
    return f"{held('lockstep_incident_silence_seconds', site)} > {policy.hung_silence_seconds}"


_WITH_FUNCTION = (
    'printf `lockstep_incident_info{run="%s",function!=""} and on (run, rank) '
    'lockstep_incident_silence_seconds{run="%s"}` $labels.run $labels.run'
)
"""The query of the late ranks whose stacks show the function."""
_HANG_HOST = (
    '{{ with printf `lockstep_incident_info{run="%s",rank="%s",hostname!=""}` .Labels.run .Labels.rank | query '
    '| sortByLabel "hostname" }}'
    " on {{ . | first | label `hostname` }}{{ end }}"
)
"""The host of a series' rank, as its incident states it."""
_HANG_HEADLINE = (
    "Run {{ $labels.run }} hangs"
    f'{{{{ with {links.OF_HANG} | query | sortByLabel "rank" }}}}{{{{ with . | first }}}}{{{{ if .Labels.rank }}}}'
    f": rank {{{{ .Labels.rank }}}}{_HANG_HOST} has not arrived{{{{ end }}}}{{{{ end }}}}{{{{ end }}}}"
    f'{{{{ with {_WITH_FUNCTION} | query | sortByLabel "rank" }}}}'
    ", {{ . | first | label `cause` }}, {{ . | first | label `function` }}{{ end }}."
)
_HANG_TEXT = (
    "Run {{ $labels.run }} has completed no step for {{ $value | humanizeDuration }}."
    "{{ with printf `topk(5, max by (run, rank, domain_kind) "
    '(lockstep_incident_silence_seconds{run="%s",rank!=""}))` $labels.run | query '
    '| sortByLabel "rank" }}'
    f" Not arrived:{{{{ range . }}}} rank {{{{ .Labels.rank }}}}{_HANG_HOST}"
    "{{ if .Labels.domain_kind }} ({{ .Labels.domain_kind }}){{ end }}{{ end }}.{{ end }}"
    f'{{{{ with {_WITH_FUNCTION} | query | sortByLabel "rank" }}}}'
    "{{ with . | first }} Rank {{ .Labels.rank }} stands in {{ .Labels.function }}, cause: {{ .Labels.cause }}"
    "{{ with .Labels.root_cause }} ({{ . }}){{ end }}.{{ end }}{{ end }}"
)


def _run_stalled(site: Site, policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepRunStalled",
        severity="critical",
        expr=_page("LockstepRunStalled", unfinished(f"({_stalled(site, policy)})", site), site, policy),
        for_seconds=policy.stalled_for_seconds,
        incidents=links.OF_HANG,
        resolves="a step is completed, or the run is over",
        summary="A training run on many devices has stopped making steps.",
        description=_stall_text(site),
    )


def _small_run_stalled(site: Site, policy: AlertPolicy) -> Alert:
    return replace(
        _run_stalled(site, policy),
        name="LockstepSmallRunStalled",
        severity="warning",
        expr=unfinished(_of_few(_stalled(site, policy), site, policy), site),
        summary="A training run on few devices has stopped making steps.",
    )


def _stalled(site: Site, policy: AlertPolicy) -> str:
    age_s, run = policy.stalled_age_seconds, site.run_labels
    baseline = by_run("max", "lockstep_run_baseline_step_duration_seconds > 0", site)
    # A run without a baseline can only be evaluated by its age.
    limit = (
        f"(\n  clamp_min({policy.stalled_steps} * {baseline}, {age_s})\n"
        f"  or on ({run})\n  0 * {by_run('max', 'lockstep_run_last_step_timestamp_seconds', site)} + {age_s}\n)"
    )
    # If only the coordinator misses steps, it is no stall: by their exporters' count, the ranks continue.
    return f"({last_step_age(site)}) > on ({run}) {limit}\nunless on ({run})\n({rank_step_age(site)}) < {age_s}"


def _stall_text(site: Site) -> str:
    return (
        "Run {{ $labels.run }} has completed no step for {{ $value | humanizeDuration }}; it is not finished."
        '{{ with printf `lockstep_run_ranks{run="%s"} - lockstep_run_ranks_reporting > 0` $labels.run | query '
        '| sortByLabel "run" }}'
        f" Ranks that do not report: {{{{ . | first | value }}}}.{links.exporters_out_of_reach(site)}{{{{ end }}}}"
    )
