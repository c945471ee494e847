"""The only page for slowness: the devices that a run loses, whatever the cause.

A run has one such alert, whatever its ranks, links or causes, so that a fault pages once from onset to resolution. Its
texts look up who and why. While it fires, the tickets on causes and symptoms of that run are inhibited.
"""

from alerts import links
from alerts.expressions import by_run, fires, lasting, slower_than_history, unfinished
from alerts.policy import AlertPolicy, Site
from alerts.rule import Alert

NAME = "LockstepDevicesLost"
_WORST = (
    'printf `topk(1, max by (rank, hostname, cause) (lockstep_suspect_slowdown_ratio{run="%s",'
    'cause!~"link|imbalance"}))` $labels.run | query | sortByLabel "rank"'
)
_FUNCTION = (
    '{{ with printf `lockstep_incident_info{run="%s",rank="%s",function!=""}` $labels.run .Labels.rank | query '
    '| sortByLabel "incident" }}'
)

_INCIDENTS = (
    'printf `lockstep_incident_info{run="%s",cause!="imbalance"} and on (run, rank) topk(1, max by (run, rank) '
    '(lockstep_suspect_slowdown_ratio{run="%s",cause!~"link|imbalance"})) or lockstep_incident_info{run="%s",rank=""}` '
    "$labels.run $labels.run $labels.run"
)


def alert(site: Site, policy: AlertPolicy) -> Alert:
    """Return the page.

    A link has no part of its own, because the ratio of a suspect link is that of its transfers, not of a step. A run
    that a link slows pages as a run that is slower than its history.
    """
    ranks = f"* on ({site.run_labels}) {by_run('max', 'lockstep_run_ranks', site)}"
    suspects = by_run("max", 'lockstep_suspect_slowdown_ratio{cause!~"link|imbalance"} > 0', site)
    # That ticket already waits until a slowdown is worth a person's attention.
    slower = f"(\n{slower_than_history(site, policy)}\n) and on ({site.run_labels}) {fires('LockstepRunSlow')}"
    by_suspects, by_history = f"{suspects} {ranks}", f"({slower}) {ranks}"
    limit = policy.page_devices_lost
    # Once it has paged, it lasts as long as a rank is slow: a loss around the limit is a single page.
    still = f"({by_suspects}) and on ({site.run_labels}) {fires(NAME)}"
    lost = unfinished(
        f"{by_suspects} > {limit}\nor on ({site.run_labels})\n{by_history} > {limit}\n"
        f"or on ({site.run_labels})\n{still}",
        site,
    )
    return Alert(
        name=NAME,
        severity="critical",
        expr=lasting(lost, f"{limit} * {by_run('count', fires(NAME), site)}", site),
        for_seconds=policy.devices_lost_for_seconds,
        incidents=_INCIDENTS,
        dashboard=f"{{{{ with {_WORST} }}}}{{{{ with . | first }}}}{links.rank_dashboard(site, '.Labels.rank')}"
        f"{{{{ end }}}}{{{{ else }}}}{links.run_dashboard(site)}{{{{ end }}}}",
        resolves="a coordinator knows that no rank is slow and steps are as before, or that the run is over",
        summary="A training run loses many devices to slowness.",
        headline="Run {{ $labels.run }} loses as much as {{ $value | humanize }} devices to slowness"
        f"{{{{ with {_WORST} }}}}{{{{ with . | first }}}}: rank {{{{ .Labels.rank }}}} on {{{{ .Labels.hostname }}}}, "
        f"{{{{ .Labels.cause }}}}{_FUNCTION}, {{{{ . | first | label `function` }}}}{{{{ end }}}}"
        "{{ end }}{{ end }}.",
        description="Steps of run {{ $labels.run }} cost as much as {{ $value | humanize }} devices more than they "
        f"should.{{{{ with {_WORST} }}}}{{{{ with . | first }}}} The slowest is rank {{{{ .Labels.rank }}}} on "
        "{{ .Labels.hostname }}: its own work takes {{ .Value | humanizePercentage }} longer than that of its peers. "
        f"Cause: {{{{ .Labels.cause }}}}.{_FUNCTION} Function: {{{{ . | first | label `function` }}}}.{{{{ end }}}}"
        "{{ end }}{{ else }} No rank is named: all are slow alike.{{ end }}"
        '{{ with printf `lockstep_run_slow_ranks{run="%s"} > 1` $labels.run | query }}'
        " Slow ranks: {{ . | first | value }}.{{ end }}",
    )
