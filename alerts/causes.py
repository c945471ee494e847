"""What the coordinator found: which rank, on which host, why. The slow device pages, for it is the answer."""

from alerts.expressions import by_run, unfinished
from alerts.policy import AlertPolicy, Site
from alerts.rule import Alert, Group


def group(site: Site, policy: AlertPolicy) -> Group:
    """Return the alerts on causes. Series of suspects are capped by the coordinator, and by the group's limit."""
    return Group(
        name="lockstep.causes",
        limit=policy.verdicts_max,
        rules=(_slow_device_found(site, policy), _link_slow(site, policy), _agent_down(site, policy)),
    )


def _slow_device_found(site: Site, policy: AlertPolicy) -> Alert:
    # A rank may be suspect in several kinds of domain at once; it is still one rank, and one alert.
    suspects = (
        f'max by ({site.run_labels}, rank, hostname, cause) (lockstep_suspect_slowdown_ratio{{cause!="link"}})\n> 0'
    )
    return Alert(
        name="LockstepSlowDeviceFound",
        severity="critical",
        expr=unfinished(suspects, site),
        for_seconds=policy.slow_device_for_seconds,
        summary="One rank holds a training run back.",
        # The function is looked up here and is no label: a profile names it half a minute later, and a label that
        # changes would resolve the alert and raise another.
        description="Rank {{ $labels.rank }} on {{ $labels.hostname }} holds run {{ $labels.run }} back: its own work "
        "takes {{ $value | humanizePercentage }} longer than that of its peers. Cause: {{ $labels.cause }}."
        '{{ with printf `lockstep_incident_info{run="%s",rank="%s",function!=""}` $labels.run $labels.rank | query }}'
        " Function: {{ . | first | label `function` }}.{{ end }}"
        '{{ with printf `lockstep_run_suspects_omitted{run="%s"} > 0` $labels.run | query }}'
        " Slow ranks that are not listed: {{ . | first | value }}.{{ end }}",
    )


def _link_slow(site: Site, policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepLinkSlow",
        severity="warning",
        expr=unfinished(by_run("sum", 'lockstep_run_incidents_open{cause="link"} > 0', site), site),
        for_seconds=policy.link_slow_for_seconds,
        keep_seconds=policy.link_slow_keep_seconds,
        summary="Communication holds a training run back.",
        description="Open incidents of run {{ $labels.run }} with a slow link as their cause: {{ $value }}. Ranks:"
        '{{ range printf `topk(5, lockstep_incident_info{run="%s",cause="link"})` $labels.run | query }}'
        " {{ .Labels.rank }}{{ end }}.",
    )


def _agent_down(site: Site, policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepAgentDown",
        severity="warning",
        expr=unfinished(by_run("count", "lockstep_agent_up == 0", site), site),
        for_seconds=policy.agent_down_for_seconds,
        summary="Agents of a training run have taken themselves out; training goes on unwatched there.",
        description="Ranks of run {{ $labels.run }} that are no longer measured: {{ $value }}. The first of them:"
        '{{ range printf `topk(5, lockstep_agent_up{run="%s"} == 0)` $labels.run | query }}'
        " {{ .Labels.rank }}{{ end }}.",
    )
