"""The rule file: its groups, their order, and its rendering.

A new alert is a function in the module of its kind, with its numbers in `policy.py`, a runbook in `runbooks/` and a
scenario in `tests/alerts/scenarios/`. A new group is a module with a `group` function, listed here.
"""

import json
from pathlib import Path

from alerts import monitor, recording, verdicts
from alerts.overrides import SitePolicy, schema
from alerts.policy import AlertPolicy, Site
from alerts.rule import Alert, RecordingRule, RuleGroup, dump

RENDERED = Path(__file__).parent / "rendered" / "lockstep.rules.yaml"
SCHEMA = Path(__file__).parent / "rendered" / "alert-policy.schema.json"
RUNBOOKS = Path(__file__).parent / "runbooks"

_HEADING = f"""\
Written by `make generate` from alerts/*.py; change it there. Replace these three by your own addresses:
{Site().runbooks_url}, {Site().grafana_url} and {Site().coordinator_url}."""
_HEADING_OF_SITE = "Written by `lockstep export rules`; write it again rather than change it here."
_OPERATOR_FRAME = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "PrometheusRule",
    "metadata": {"name": "lockstep", "labels": {"app.kubernetes.io/name": "lockstep"}},
}


def groups(site: Site | None = None, policy: AlertPolicy | None = None) -> tuple[RuleGroup, ...]:
    """Return all groups, recorded series first."""
    site, policy = site or Site(), policy or AlertPolicy()
    return (
        recording.group(site),
        verdicts.group(site, policy),
        monitor.group(site, policy),
    )


def alerts(site: Site | None = None, policy: AlertPolicy | None = None) -> list[Alert]:
    """Return all alerts."""
    return [rule for group in groups(site, policy) for rule in group.rules if isinstance(rule, Alert)]


def recordings(site: Site | None = None) -> list[RecordingRule]:
    """Return all recorded series."""
    return [rule for group in groups(site) for rule in group.rules if isinstance(rule, RecordingRule)]


def render(site: Site | None = None, policy: AlertPolicy | SitePolicy | None = None) -> str:
    """Return the text of the rule file."""
    heading = _HEADING if site is None and policy is None else _HEADING_OF_SITE
    return dump(_groups_of(site, policy), site or Site(), heading=heading)


def render_operator(site: Site, policy: AlertPolicy | SitePolicy) -> str:
    """Return the same rules as a PrometheusRule of prometheus-operator."""
    return dump(_groups_of(site, policy), site, heading=_HEADING_OF_SITE, frame=_OPERATOR_FRAME)


def render_schema() -> str:
    """Return the JSON schema of a policy file."""
    return json.dumps(schema(alert_names()), indent=2) + "\n"


def alert_names() -> tuple[str, ...]:
    """Return the names of all alerts, in the order of their groups."""
    return tuple(alert.name for alert in alerts())


def _groups_of(site: Site | None, policy: AlertPolicy | SitePolicy | None) -> tuple[RuleGroup, ...]:
    if isinstance(policy, SitePolicy):
        return policy.apply(groups(site, policy.thresholds))
    return groups(site, policy)
