"""The group of all alerts on runs, and two silent alerts that prevent old news from being sent.

When a coordinator disappears, so do its series: at the next evaluation every verdict has ended and inhibits nothing any
more, except for pages, which last by their own expressions. A ticket that is kept firing for a while outlives the page
that covers it, and would be sent as news once the page has ended. Both silent alerts are sources of inhibitions and
have no receiver.

There is one group, evaluated in order: a silent alert reaches Alertmanager before the alerts that end in the same
evaluation, and the tickets on a slow device end there before the page that inhibits them.
"""

from alerts import causes, follow_ups, losses, memory_alerts, stops, symptoms
from alerts.expressions import unreachable
from alerts.policy import AlertPolicy, Site
from alerts.rule import Alert, RuleGroup


def group(site: Site, policy: AlertPolicy) -> RuleGroup:
    """Return the group; its limit is one for each of its alerts."""
    return RuleGroup(
        name="lockstep.verdicts",
        limit=policy.verdicts_max,
        rules=(
            _coordinator_unreachable(site),
            _run_explained(site, policy),
            *stops.alerts(site, policy),
            *symptoms.alerts(site, policy),
            *causes.alerts(site, policy),
            losses.alert(site, policy),
            memory_alerts.alert(site, policy),
            follow_ups.function_found(site, policy),
        ),
    )


def _coordinator_unreachable(site: Site) -> Alert:
    return Alert(
        name="LockstepCoordinatorUnreachable",
        severity="none",
        expr=unreachable(site),
        for_seconds=0,
        resolves="a coordinator has been up for 30 s",
        summary="The verdicts on all runs are unknown now, or were half a minute ago.",
        description="No coordinator could be scraped, or it has only just come back. Its last verdicts on runs may be "
        "out of date, so tickets on them are inhibited and pages neither begin nor end. This alert has no receiver.",
        per_run=False,
    )


def _run_explained(site: Site, policy: AlertPolicy) -> Alert:
    answer = 'ALERTS{alertname=~"LockstepSlowDeviceFound|LockstepDevicesLost",alertstate="firing"}'
    return Alert(
        name="LockstepRunExplained",
        severity="none",
        expr=f"count by ({site.run_labels}) ({answer}) > 0",
        for_seconds=0,
        keep_seconds=policy.slow_keep_seconds,  # as long as those that it inhibits
        resolves="no slow device of the run is known",
        summary="The reason for a slow training run is known, or was recently.",
        description="A slow device of run {{ $labels.run }} is known, or was recently. It explains why the run is "
        "slow, so that alert is inhibited. This alert has no receiver.",
    )
