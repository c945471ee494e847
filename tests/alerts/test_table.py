"""The table of all alerts: what it prints is what the tested rules, the example's routes and the scenarios do."""

import json
import re
import subprocess
from dataclasses import replace

import pytest
import yaml

from alerts import rules, table
from alerts.overrides import SitePolicy, with_override, with_threshold
from alerts.policy import AlertPolicy, Site
from lockstep.cli.main import main
from tests.alerts.test_scenarios import SCENARIOS

ROWS = {row.name: row for row in table.rows()}
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load(rules.RENDERED.read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
by_name = pytest.mark.parametrize("name", RULES)


def expected_alerts(name):
    """Return what promtool expects of an alert, over its scenarios, and whether it is seen to resolve in one."""
    document = yaml.safe_load((SCENARIOS[0].parent / f"{name}.yaml").read_text())
    found, resolves = [], False
    for case in document["tests"]:
        checks = [check for check in case["alert_rule_test"] if check["alertname"] == name]
        fires = [bool(check["exp_alerts"]) for check in sorted(checks, key=lambda check: seconds(check["eval_time"]))]
        resolves |= any(fires[index] and not fires[index + 1] for index in range(len(fires) - 1))
        found += [alert for check in checks for alert in check["exp_alerts"]]
    return found, resolves


def seconds(text):
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", str(text)))


@by_name
def test_a_row_is_of_the_rule_that_promtool_tests(name):
    """Severity and waiting time are the rendered rule's; what it states on resolving a scenario shows."""
    row, rule = ROWS[name], RULES[name]
    assert row.severity == rule["labels"]["severity"]
    assert row.wait == rule["for"]
    kept = rule.get("keep_firing_for")
    assert row.resolves.endswith(f", and {kept} later") if kept else "later" not in row.resolves
    resolves = expected_alerts(name)[1]
    assert resolves is (row.resolves != "never")


@by_name
def test_a_row_leads_where_its_scenarios_lead(name):
    """A link to incidents is one that promtool has seen lead to an incident; the dashboards are those of the annotation."""
    row, rule = ROWS[name], RULES[name]
    links = [alert["exp_annotations"].get("incident_url", "") for alert in expected_alerts(name)[0]]
    assert any("/incidents/" in link for link in links) is (row.incident == "/incidents/ID")
    assert set(row.dashboard.split(", else ")) == set(
        re.findall(r"/d/lockstep-(\w+)", rule["annotations"]["dashboard_url"])
    )


@by_name
def test_a_row_names_the_receiver_that_amtool_finds(name):
    """Routes are Alertmanager's own."""
    labels = [f"alertname={name}", f"severity={ROWS[name].severity}", "run=a"]
    command = ["amtool", "config", "routes", "test", f"--config.file={table.ALERTMANAGER}", *labels]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ROWS[name].receiver


def test_each_threshold_changes_an_alert():
    """No threshold of the policy is without effect, and each alert's row has the values that its expression holds."""
    named = {name for row in ROWS.values() for name in row.thresholds}
    rendered = rules.render()
    for field in AlertPolicy.__dataclass_fields__:
        changed = replace(AlertPolicy(), **{field: getattr(AlertPolicy(), field) + 1})
        assert rules.render(policy=changed).split("groups:")[1] != rendered.split("groups:")[1], field
        waits = field.endswith(("_for_seconds", "_keep_seconds", "_page_seconds"))
        assert field in named or waits or field == "verdicts_max", field
    for name, row in ROWS.items():
        for threshold, value in row.thresholds.items():
            assert value == getattr(AlertPolicy(), threshold)
            assert f"{value:g}" in RULES[name]["expr"], (name, threshold)


def test_a_site_sees_its_own_policy():
    """Overrides and thresholds are in the rows; an alert that is disabled has none."""
    names = rules.alert_names()
    policy = with_threshold(SitePolicy(), "page_devices_lost", 64, where="test")
    policy = with_override(policy, "LockstepRunSlow", "severity", "critical", names=names, where="test")
    policy = with_override(policy, "LockstepRunSlow", "for", "30m", names=names, where="test")
    policy = with_override(policy, "LockstepLinkSlow", "enabled", "false", names=names, where="test")
    own = {row.name: row for row in table.rows(Site(), policy)}
    assert own["LockstepDevicesLost"].thresholds["page_devices_lost"] == 64
    slow = own["LockstepRunSlow"]
    assert (slow.severity, slow.wait, slow.receiver) == ("critical", "30m", "pager")
    assert "LockstepLinkSlow" not in own


def test_the_command_prints_the_table(capsys):
    """One line for each alert, all columns, with what the command line sets; without a folder nothing is written."""
    assert main(["export", "alerts", "--set", "LockstepRunHung.severity=warning", "--set", "slow_ratio=0.3"]) == 0
    heads, _, *lines = [line.strip("| \n").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert tuple(heads) == table.COLUMNS
    assert [line[0] for line in lines] == list(RULES)
    printed = {line[0]: dict(zip(heads, line, strict=True)) for line in lines}
    assert (printed["LockstepRunHung"]["severity"], printed["LockstepRunHung"]["receiver"]) == ("warning", "chat")
    assert "`slow_ratio` 0.3" in printed["LockstepRunSlow"]["thresholds"]
    assert json.dumps(printed).count("/incidents/ID") == sum(row.incident == "/incidents/ID" for row in ROWS.values())


def test_other_exports_need_a_folder(capsys):
    """They are files."""
    assert main(["export", "rules"]) == 2
    assert "DIR: got none" in capsys.readouterr().err
