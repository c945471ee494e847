"""Every alert as one row: docs/metrics.md lists them, and `lockstep export alerts` prints them for a site.

Rows repeat no definition: severities, waits and links are those of the rules, receivers those of the example for
Alertmanager. A threshold belongs to an alert if another value of it changes the alert's expression.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import yaml

from alerts.overrides import SitePolicy
from alerts.policy import AlertPolicy, Site, duration
from alerts.rule import Alert
from alerts.rules import alerts, groups

ALERTMANAGER = Path(__file__).parent / "alertmanager.example.yml"
COLUMNS = ("alert", "severity", "for", "thresholds", "receiver", "incident link", "dashboard", "resolves when")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRow:
    """One alert with a site's settings.

    `thresholds` are names and values of `policy.AlertPolicy` that its expression contains. `incident` is the path of
    its link to the coordinator, `dashboard` the name of the dashboard that it leads to, or of several.
    """

    name: str
    severity: str
    wait: str
    thresholds: Mapping[str, float]
    receiver: str
    incident: str
    dashboard: str
    resolves: str

    def cells(self) -> tuple[str, ...]:
        """Return the row as text, in the order of `COLUMNS`."""
        limits = ", ".join(f"`{name}` {value:g}" for name, value in self.thresholds.items())
        where = (f"`{self.incident}`", self.dashboard)
        return self.name, self.severity, self.wait, limits, self.receiver, *where, self.resolves


def rows(site: Site | None = None, policy: SitePolicy | None = None) -> list[AlertRow]:
    """Return the row of each of a site's alerts, in the order of their groups."""
    site, policy = site or Site(), policy or SitePolicy()
    thresholds, receivers = _thresholds(site, policy.thresholds), receivers_by_severity()
    kept = policy.apply(groups(site, policy.thresholds))
    return [
        _row(rule, site, thresholds[rule.name], receivers[rule.severity])
        for group in kept
        for rule in group.rules
        if isinstance(rule, Alert)
    ]


def receivers_by_severity() -> dict[str, str]:
    """Return the receiver of each severity in the example for Alertmanager; "null" notifies no one."""
    route = yaml.safe_load(ALERTMANAGER.read_text())["route"]
    found = {}
    for each in route["routes"]:
        for matcher in each["matchers"]:
            label, _, value = (part.strip() for part in matcher.partition("="))
            if label == "severity":
                found[value] = each["receiver"]
    return found


def _row(rule: Alert, site: Site, thresholds: Mapping[str, float], receiver: str) -> AlertRow:
    notes = rule.to_yaml(site)["annotations"]
    boards = list(dict.fromkeys(re.findall(r"/d/lockstep-(\w+)", notes["dashboard_url"])))
    kept = f", and {duration(rule.keep_seconds)} later" if rule.keep_seconds else ""
    incident = "/incidents/ID" if rule.incidents else "/runs/RUN" if rule.per_run else "/"
    return AlertRow(
        name=rule.name,
        severity=rule.severity,
        wait=duration(rule.for_seconds),
        thresholds=thresholds,
        receiver=receiver,
        incident=incident,
        dashboard=", else ".join(boards),
        resolves=rule.resolves + kept,
    )


def _thresholds(site: Site, policy: AlertPolicy) -> dict[str, dict[str, float]]:
    """Return the thresholds that each alert's expression depends on, found by changing one after the other."""
    own = {rule.name: rule.expr for rule in alerts(site, policy)}
    found: dict[str, dict[str, float]] = {name: {} for name in own}
    for each in fields(AlertPolicy):
        value = getattr(policy, each.name)
        changed = replace(policy, **{each.name: value + 1})
        for rule in alerts(site, changed):
            if rule.expr != own[rule.name]:
                found[rule.name][each.name] = value
    return found
