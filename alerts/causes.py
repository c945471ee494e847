"""Tickets for the coordinator's findings: which rank, on which host, why. `losses.py` pages for what is lost.

A link has its own ticket. Imbalance results from how training is laid out and is not a fault: no alert reads it.
"""

from alerts import links
from alerts.expressions import by_run, unfinished
from alerts.policy import AlertPolicy, Site
from alerts.rule import Alert


def alerts(site: Site, policy: AlertPolicy) -> tuple[Alert, ...]:
    """Return the alerts on causes. The coordinator caps the series of suspects, and so does the limit of the group."""
    return (
        _slow_device_found(site, policy),
        _link_slow(site, policy),
        _agent_down(site, policy),
    )


def _slow_device_found(site: Site, policy: AlertPolicy) -> Alert:
    by_rank, by_host = f"{site.run_labels}, rank, hostname, cause", f"{site.run_labels}, hostname, cause"
    faults = 'cause!~"link|imbalance"'
    # A rank may be suspect in several kinds of domain at once; it is still one rank and one alert.
    ranks = f"max by ({by_rank}) (lockstep_suspect_slowdown_ratio{{{faults}}}) > 0"
    # Several ranks of one host with one cause point to the host: one alert, without a rank, however many they are.
    of_hosts = f'max by ({by_rank}) (lockstep_suspect_slowdown_ratio{{{faults},hostname!=""}}) > 0'
    shared = f"count by ({by_host}) ({of_hosts}) > 1"
    hosts = f"max by ({by_host}) ({of_hosts})"
    return Alert(
        name="LockstepSlowDeviceFound",
        severity="warning",
        expr=unfinished(
            f"{ranks}\nunless on ({by_host})\n{shared}\nor\n{hosts}\nand on ({by_host})\n{shared}",
            site,
        ),
        for_seconds=policy.slow_device_for_seconds,
        resolves="the rank is as fast as its peers, or the run is over",
        summary="One rank, or several of one host, hold a training run back.",
        # Ranks of a host and the function are looked up here rather than being labels. A profile names the function
        # half a minute later, and the last rank of a host may be found a step later; a label that changes would resolve
        # the alert and raise another one.
        headline="{{ if $labels.rank }}Rank {{ $labels.rank }} on {{ $labels.hostname }} holds{{ else }}Ranks on "
        "{{ $labels.hostname }} hold{{ end }} run {{ $labels.run }} back: {{ $labels.cause }}"
        f'{{{{ with {_of_suspects("function!=")} | query | sortByLabel "rank" }}}}'
        ", {{ . | first | label `function` }}{{ end }}.",
        incidents=_of_suspects("incident!="),
        dashboard=f"{{{{ if $labels.rank }}}}{links.rank_dashboard(site, '$labels.rank')}"
        f"{{{{ else }}}}{links.run_dashboard(site)}{{{{ end }}}}",
        description="{{ if $labels.rank }}Rank {{ $labels.rank }} on {{ $labels.hostname }} holds run "
        "{{ $labels.run }} back: its own work takes {{ $value | humanizePercentage }} longer than that of its peers."
        "{{ else }}Ranks on {{ $labels.hostname }} hold run {{ $labels.run }} back:"
        '{{ range printf `max by (rank) (lockstep_suspect_slowdown_ratio{run="%s",hostname="%s",cause="%s"})` '
        '$labels.run $labels.hostname $labels.cause | query | sortByLabel "rank" }} {{ .Labels.rank }}{{ end }}. '
        "Their own work takes up to {{ $value | humanizePercentage }} longer than that of their peers.{{ end }}"
        " Cause: {{ $labels.cause }}."
        f'{{{{ with {_of_suspects("function!=")} | query | sortByLabel "rank" }}}}'
        " Function: {{ . | first | label `function` }}.{{ end }}"
        '{{ with printf `lockstep_run_suspects_omitted{run="%s"} > 0` $labels.run | query }}'
        " Slow ranks that are not listed: {{ . | first | value }}.{{ end }}",
    )


def _of_suspects(matcher: str) -> str:
    """Return the query of the incidents of the ranks that the alert concerns, i.e. with a non-empty label."""
    return (
        f'printf `lockstep_incident_info{{run="%s",rank=~"%s",{matcher}""}} and on (run, rank) '
        'lockstep_suspect_slowdown_ratio{run="%s",hostname="%s",cause="%s"}` '
        '$labels.run (or $labels.rank ".+") $labels.run $labels.hostname $labels.cause'
    )


def _link_slow(site: Site, policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepLinkSlow",
        severity="warning",
        expr=unfinished(by_run("max", 'lockstep_run_incidents_open{cause="link"} > 0', site), site),
        for_seconds=policy.link_slow_for_seconds,
        keep_seconds=policy.link_slow_keep_seconds,
        incidents=links.by_cause("link"),
        dashboard=links.domains_dashboard(site),
        resolves="the link has recovered, or the run is over",
        summary="Communication holds a training run back.",
        description="Open incidents of run {{ $labels.run }} with a slow link as their cause: {{ $value }}. Ranks:"
        '{{ range printf `topk(5, max by (rank) (lockstep_incident_info{run="%s",cause="link"}))` $labels.run | query '
        '| sortByLabel "rank" }}'
        " {{ .Labels.rank }}{{ end }}.",
    )


def _agent_down(site: Site, policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepAgentDown",
        severity="warning",
        expr=unfinished(by_run("count", "lockstep_agent_up == 0", site), site),
        for_seconds=policy.agent_down_for_seconds,
        resolves="every agent works again, or the run is over",
        summary="Agents of a training run have disabled themselves; training continues unmonitored there.",
        description="Ranks of run {{ $labels.run }} that are no longer measured: {{ $value }}. The first of them:"
        '{{ range printf `topk(5, lockstep_agent_up{run="%s"} == 0)` $labels.run | query | sortByLabel "rank" }}'
        " {{ .Labels.rank }}{{ end }}.",
    )
