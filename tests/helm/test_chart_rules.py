"""The rules that the chart renders are the generated ones, with a site's own numbers."""

import json
import random
import subprocess
from dataclasses import fields, replace

import yaml

from alerts import rules
from alerts.policy import AlertPolicy, Site
from tests.helm.charts import CHART, CI, ci_values, pick, render


def rendered(**settings) -> dict:
    return pick(render({"prometheusRule": {"enabled": True, **settings}}), "PrometheusRule")["spec"]


def generated(site: Site, policy: AlertPolicy) -> dict:
    return yaml.safe_load(rules.render(site, policy))


def without_zero(spec: dict) -> dict:
    """keep_firing_for of 0 says the same as none."""
    text = json.dumps(spec).replace(', "keep_firing_for": "0s"', "")
    return json.loads(text)


def test_by_default_they_are_the_generated_file():
    """Each group and rule, byte for byte in its expression and texts."""
    assert rendered() == generated(Site(), AlertPolicy())


def test_any_threshold_ends_up_where_the_code_would_put_it():
    """Random thresholds through the chart and through alerts/ give the same rules; so do a site's names."""
    dice = random.Random(7)
    for _ in range(3):
        values = {
            field.name: round(dice.uniform(0.01, 3), 2) if isinstance(field.default, float) else dice.randrange(5000)
            for field in fields(AlertPolicy)
        }
        site = Site(
            run_labels="cluster, run",
            runbooks_url="https://r.example.org",
            grafana_url="https://g.example.org",
            coordinator_url="https://c.example.org",
        )
        spec = rendered(
            thresholds=values,
            runLabels=site.run_labels,
            runbooksUrl=site.runbooks_url,
            grafanaUrl=site.grafana_url,
            coordinatorUrl=site.coordinator_url,
        )
        assert without_zero(spec) == without_zero(generated(site, replace(AlertPolicy(), **values)))


def test_promtool_takes_what_every_file_of_ci_renders(tmp_path):
    """As a plain rule file, which is what the operator writes."""
    checked = 0
    for path in CI:
        for item in render(ci_values(path)):
            if item["kind"] == "PrometheusRule":
                file = tmp_path / f"{path.stem}.yaml"
                file.write_text(yaml.safe_dump(item["spec"]))
                done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stdout + done.stderr
                checked += 1
    assert checked == 1


def test_groups_and_alerts_can_be_left_out_and_labelled():
    """And nothing else goes with them; recorded series get no label, which would make others of them."""
    whole = {rule.get("alert", rule.get("record")) for group in rendered()["groups"] for rule in group["rules"]}
    spec = rendered(
        disabledGroups=["lockstep.monitor"],
        disabledAlerts=["LockstepRunSlow"],
        additionalRuleLabels={"team": "ml", "severity": "info"},
    )
    left = {rule.get("alert", rule.get("record")): rule for group in spec["groups"] for rule in group["rules"]}
    monitor = {rule.name for group in rules.groups() if group.name == "lockstep.monitor" for rule in group.rules}
    assert whole - left.keys() == monitor | {"LockstepRunSlow"}
    for rule in left.values():
        assert ("labels" in rule) == ("alert" in rule)
    assert left["LockstepDevicesLost"]["labels"] == {"severity": "critical", "team": "ml"}


def test_the_chart_has_no_stand_in_left():
    """Every name between at signs was replaced."""
    assert "@@" in (CHART / "files" / "lockstep.rules.yaml").read_text()
    assert "@@" not in json.dumps(rendered())
