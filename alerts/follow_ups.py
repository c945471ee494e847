"""Alerts for news after a page was sent: Alertmanager notifies again for a new alert, but not for a changed text.

A function that is found within the wait of its page's group (`group_wait`) is in the page itself, and is not sent
again.
"""

from alerts import links
from alerts.expressions import by_run, unfinished
from alerts.policy import AlertPolicy, Site, duration
from alerts.rule import Alert

_FOUND = 'printf `lockstep_incident_info{run="%s",cause!="imbalance",function!=""}` $labels.run'
"""The query of a run's incidents whose function is known."""


def function_found(site: Site, policy: AlertPolicy) -> Alert:
    """Return an alert that ends by itself: it holds as long as the function is new.

    Both conditions on the past are needed: the page had been sent by then, and the incident existed without a function.
    When a coordinator restarts with its incidents, neither is new.
    """
    new, sent = duration(policy.function_new_seconds), duration(policy.page_sent_seconds)
    incident = f"{site.run_labels}, incident, rank"
    info = 'lockstep_incident_info{{cause!="imbalance",function{}""}}'
    found = f"{info.format('!=')}\nand on ({incident})\n({info.format('=')} offset {new})"
    page = f'ALERTS{{severity="critical",alertstate="firing",alertname=~"Lockstep.*"}} offset {sent}'
    vector = f"{by_run('count', found, site)} > 0\nand on ({site.run_labels})\n({page})"
    named = f'{{{{ with {_FOUND} | query | sortByLabel "rank" }}}}{{{{ with . | first }}}}'
    what = (
        "{{ if .Labels.rank }} rank {{ .Labels.rank }}{{ with .Labels.hostname }} on {{ . }}{{ end }},{{ end }}"
        " {{ .Labels.cause }}, {{ .Labels.function }}"
    )
    return Alert(
        name="LockstepFunctionFound",
        severity="info",
        expr=unfinished(vector, site),
        for_seconds=0,
        incidents=_FOUND,
        dashboard=links.dashboard_of(site, _FOUND),
        resolves=f"by itself, {new} after the function was found",
        summary="The function that holds a training run back became known after its page was sent.",
        headline=f"Run {{{{ $labels.run }}}}, function found:{named}{what}{{{{ end }}}}{{{{ end }}}}.",
        description=f"The function behind the page of run {{{{ $labels.run }}}} is known now:{named}{what}"
        "{{ end }}{{ end }}. The page itself stays open until its fault ends.",
    )
