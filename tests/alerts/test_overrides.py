"""A site's own thresholds, severities and waits: by file, by flag, by the chart, and refused by name where they are none."""

import json

import jsonschema
import pytest
import yaml

from alerts import rules
from alerts.overrides import FOR_SECONDS_MAX, Override, SitePolicy, read_policy_file
from alerts.policy import AlertPolicy
from lockstep.cli.main import main
from lockstep.contracts.errors import ConfigError
from tests.helm.charts import LINKS, pick, render

SITE = {
    "thresholds": {"slow_ratio": 0.25, "page_devices_lost": 64},
    "alerts": {
        "LockstepLinkSlow": {"enabled": False},
        "LockstepRunSlow": {"severity": "critical", "for": "1h30m"},
        "LockstepCoordinatorStaysDown": {"severity": "warning"},
        "LockstepRunStalled": {"for": "90s"},
    },
}


def by_name(groups):
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def written(folder, document, *flags):
    """Return the alerts of the rule file that `lockstep export` writes with this policy file."""
    (folder / "policy.yaml").write_text(yaml.safe_dump(document))
    command = ["export", "rules", str(folder / "site"), "--policy", str(folder / "policy.yaml"), "--force", *flags]
    assert main(command) == 0
    return by_name(yaml.safe_load((folder / "site" / "lockstep.rules.yaml").read_text())["groups"])


def test_the_file_changes_what_it_names_and_nothing_else(tmp_path, capsys):
    """Severity, wait and threshold of the alerts named; the disabled one is gone; all others are as before."""
    usual = by_name(yaml.safe_load(rules.render())["groups"])
    site = written(tmp_path, SITE)
    capsys.readouterr()
    assert usual.keys() - site.keys() == {"LockstepLinkSlow"}
    assert (site["LockstepRunSlow"]["for"], site["LockstepRunSlow"]["labels"]) == ("90m", {"severity": "critical"})
    assert site["LockstepCoordinatorStaysDown"]["labels"] == {"severity": "warning"}
    assert site["LockstepCoordinatorStaysDown"]["for"] == usual["LockstepCoordinatorStaysDown"]["for"]
    assert site["LockstepRunStalled"]["for"] == "90s"
    assert "> 0.25" in site["LockstepRunSlow"]["expr"]
    assert "> 64" in site["LockstepDevicesLost"]["expr"]
    assert ">= 64" in site["LockstepRunCrashed"]["expr"]
    stops = {f"Lockstep{size}Run{how}" for size in ("", "Small") for how in ("Crashed", "Hung", "Stalled")}
    by_devices = {"LockstepDevicesLost", *stops}
    untouched = site.keys() - SITE["alerts"].keys() - by_devices
    assert {name: site[name] for name in untouched} == {name: usual[name] for name in untouched}


def test_a_flag_goes_before_the_file(tmp_path, capsys):
    """And names the alert, a dot and the setting; the rest of the file stays."""
    flags = ("--set", "LockstepRunSlow.for=0s", "--set", "slow_ratio=0.5", "--set", "LockstepWatchdog.enabled=false")
    site = written(tmp_path, SITE, *flags)
    capsys.readouterr()
    assert (site["LockstepRunSlow"]["for"], site["LockstepRunSlow"]["labels"]["severity"]) == ("0s", "critical")
    assert "> 0.5" in site["LockstepRunSlow"]["expr"]
    assert "LockstepWatchdog" not in site


def test_the_chart_makes_the_same_of_the_same_values(tmp_path, capsys):
    """`prometheusRule.alerts` and `.thresholds` of the chart are the keys of the policy file."""
    values = {"enabled": True, **LINKS, **SITE}
    chart = by_name(pick(render({"prometheusRule": values}), "PrometheusRule")["spec"]["groups"])
    site = written(tmp_path, SITE)
    capsys.readouterr()
    assert chart.keys() == site.keys()
    assert chart.pop("LockstepRunSlow") | {"for": "90m"} == site.pop("LockstepRunSlow")
    assert chart == site


def test_the_schema_takes_the_file_and_is_the_committed_one():
    """An editor checks the file against what the reader takes."""
    schema = json.loads(rules.SCHEMA.read_text())
    assert rules.SCHEMA.read_text() == rules.render_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(SITE, schema)
    for wrong in ({"alert": {}}, {"alerts": {"LockstepRunSlow": {"for": "soon"}}}, {"thresholds": {"slow_ratio": 11}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("alert: {}", "got 'alert', expected one of thresholds, alerts; did you mean alerts?"),
        ("[1]", "expected keys with values"),
        ("alerts: [1]", "alerts: got [1], expected keys with values"),
        ("alerts: {LockstepRunSlwo: {for: 1m}}", "did you mean LockstepRunSlow?"),
        ("alerts: {LockstepRunSlow: 5}", "alerts.LockstepRunSlow: got 5, expected keys with values"),
        ("alerts: {LockstepRunSlow: {severty: none}}", "got 'severty', expected one of enabled, severity, for"),
        (
            "alerts: {LockstepRunSlow: {severity: page}}",
            "severity: got 'page', expected one of critical, warning, info, none",
        ),
        ("alerts: {LockstepRunSlow: {enabled: 1}}", "enabled: got 1, expected true or false"),
        ("alerts: {LockstepRunSlow: {for: 5}}", "for: got 5, expected a duration like 90s, 15m or 1h30m"),
        ("alerts: {LockstepRunSlow: {for: ''}}", "for: got '', expected a duration"),
        ("alerts: {LockstepRunSlow: {for: 25h}}", "for: got 25h, expected at most 24h"),
        ("thresholds: {slow_ration: 1}", "did you mean slow_ratio?"),
        ("thresholds: {slow_ratio: 10.5}", "slow_ratio: got 10.5, expected 0 to 10"),
        ("thresholds: {slow_ratio: .nan}", "slow_ratio: got nan, expected 0 to 10"),
        ("thresholds: {slow_ratio: true}", "slow_ratio: got True, expected a number"),
        ("thresholds: {verdicts_max: 1.5}", "verdicts_max: got 1.5, expected an integer"),
        ("thresholds: {stalled_age_seconds: 604801}", "expected 0 to 604800"),
    ],
)
def test_what_is_no_policy_is_refused_by_name(tmp_path, text, reason):
    """The error names the file, the place, what stands there and what may."""
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_policy_file(path, rules.alert_names())
    assert reason in str(refused.value)
    assert str(path) in str(refused.value)


def test_an_empty_file_changes_nothing(tmp_path):
    """And a wait of a whole day is the longest."""
    path = tmp_path / "policy.yaml"
    path.write_text("")
    assert read_policy_file(path, rules.alert_names()) == SitePolicy() == SitePolicy(thresholds=AlertPolicy())
    path.write_text("alerts: {LockstepRunSlow: {for: 24h}}")
    read = read_policy_file(path, rules.alert_names())
    assert read.alerts == {"LockstepRunSlow": Override(for_seconds=FOR_SECONDS_MAX)}
