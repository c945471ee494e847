"""The rules that the chart renders are the generated ones, with a site's own numbers."""

import json
import random
import subprocess
from dataclasses import fields, replace

import pytest
import yaml

from alerts import rules
from alerts.policy import AlertPolicy, Site
from tests.helm.charts import CHART, CI, LINKS, ci_values, pick, render


def rendered(**settings) -> dict:
    return pick(render({"prometheusRule": {"enabled": True, **settings}}), "PrometheusRule")["spec"]


def generated(site: Site, policy: AlertPolicy) -> dict:
    return yaml.safe_load(rules.render(site, policy))


def without_zero(spec: dict) -> dict:
    """keep_firing_for of 0 states the same as none."""
    text = json.dumps(spec).replace(', "keep_firing_for": "0s"', "")
    return json.loads(text)


def test_they_are_the_generated_file():
    """Each group and rule, byte for byte in its expression and texts, with the same addresses."""
    assert rendered(**LINKS) == generated(Site(), AlertPolicy())


INSIDE = "http://demo-lockstep-coordinator.lockstep.svc:9856"
OUTSIDE = "https://page.example.org"


@pytest.mark.parametrize(
    ("coordinator", "address"),
    [
        ({}, INSIDE),
        ({"ingress": {"enabled": True}}, INSIDE),
        ({"ingress": {"enabled": True, "host": "page.example.org", "tlsSecret": "tls"}}, OUTSIDE),
        ({"ingress": {"enabled": True, "host": "page.example.org"}}, "http://page.example.org"),
        ({"httpRoute": {"enabled": True, "hostnames": ["page.example.org"], "parentRefs": [{"name": "a"}]}}, OUTSIDE),
        ({"gateway": {"enabled": True, "className": "c"}, "httpRoute": {"hostnames": ["p.org"]}}, "http://p.org"),
        ({"config": {"external_url": OUTSIDE}, "ingress": {"enabled": True, "host": "other.org"}}, OUTSIDE),
    ],
)
def test_alerts_link_to_where_the_pages_are(coordinator, address):
    """By the host of the Ingress or route, else inside the cluster; the coordinator's own links are the outside ones."""
    items = render({"coordinator": coordinator, "prometheusRule": {"enabled": True}})
    groups = pick(items, "PrometheusRule")["spec"]["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert all(f"{address}/" in rule["annotations"]["incident_url"] for rule in alerts if rule["labels"])
    assert "example.invalid" not in json.dumps(groups)
    config = yaml.safe_load(pick(items, "ConfigMap", "-coordinator")["data"]["coordinator.yaml"])
    assert config["external_url"] == ("" if address == INSIDE else address)


def test_links_that_lead_nowhere_are_left_out():
    """Without an address of runbooks or Grafana alerts have none; the coordinator's own addresses are theirs."""
    groups = pick(render({"prometheusRule": {"enabled": True}}), "PrometheusRule")["spec"]["groups"]
    names = {name for group in groups for rule in group["rules"] for name in rule.get("annotations", {})}
    assert "incident_url" in names
    assert not names & {"runbook_url", "dashboard_url"}
    own = {"runbook_base_url": f"{LINKS['runbooksUrl']}/", "dashboard_base_url": LINKS["grafanaUrl"]}
    values = {
        "coordinator": {"config": own},
        "prometheusRule": {"enabled": True, "coordinatorUrl": LINKS["coordinatorUrl"]},
    }
    assert pick(render(values), "PrometheusRule")["spec"] == generated(Site(), AlertPolicy())


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
    assert checked == 2


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
