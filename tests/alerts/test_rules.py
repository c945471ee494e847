"""The rule file: what Prometheus makes of it, how things are called, and what every alert owes its reader."""

import re
import subprocess
from dataclasses import fields, replace

import pytest
import yaml

from alerts import rules
from alerts.policy import AlertPolicy, Site, duration
from alerts.rule import RecordingRule
from lockstep.contracts.settings import descriptions_of
from tests.alerts.promql import labels_of_recording, parse, problems

ALERTS = rules.alerts()
NAMES = [alert.name for alert in ALERTS]
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]
by_name = pytest.mark.parametrize("alert", ALERTS, ids=NAMES)


def check(path):
    return subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True, check=False)


def queries_of(alert):
    """Return the queries inside an alert's texts, their %s filled in."""
    return [
        text.replace("%s", "x")
        for text in re.findall(r"(?:printf|query) `([^`]*)`", alert.headline + alert.description)
    ]


def test_the_rendered_file_is_what_the_sources_render():
    """The committed file is the sources' own, and rendering twice gives the same bytes."""
    assert rules.RENDERED.read_text() == rules.render() == rules.render()


def test_tickets_end_before_the_page_that_keeps_them_back():
    """A slow device is a page and tickets of one series: in the evaluation in which all end, the page ends last."""
    (order,) = ([each.name for each in group.rules] for group in rules.groups() if group.name == "lockstep.verdicts")
    tickets = {"LockstepSlowDeviceFound", "LockstepRunSlow", "LockstepLinkSlow", "LockstepRunSlowerThanExpected"}
    assert max(order.index(name) for name in tickets) < order.index("LockstepDevicesLost")
    assert order.index("LockstepRunExplained") < min(order.index(name) for name in tickets)


def test_promtool_accepts_the_rules():
    """Prometheus' own checker finds every rule valid and no duplicate."""
    done = check(rules.RENDERED)
    assert done.returncode == 0, done.stderr
    assert f"{len(rules.recordings()) + len(ALERTS)} rules found" in done.stdout


def test_another_site_gets_its_own_names(tmp_path):
    """Job names, run labels and addresses of a site reach every place, and the file stays valid."""
    site = Site(
        exporter_job="gpu-exporter",
        coordinator_job="detector",
        run_labels="cluster, run",
        runbooks_url="https://wiki.example/run",
        grafana_url="https://graphs.example",
        coordinator_url="https://detector.example",
    )
    text = rules.render(site)
    (tmp_path / "rules.yaml").write_text(text)
    assert check(tmp_path / "rules.yaml").returncode == 0
    body = text.split("groups:", 1)[1]
    assert "lockstep-exporter" not in body
    assert "lockstep-coordinator" not in body
    assert "example.invalid" not in body
    assert 'absent(up{job="gpu-exporter"})' in body
    assert not re.search(r"(by|on) \(run\)", body)


def test_thresholds_come_from_the_policy():
    """Another threshold or waiting time changes the alert that it belongs to."""
    changed = {a.name: a for a in rules.alerts(policy=replace(AlertPolicy(), slow_ratio=0.25, slow_for_seconds=120))}
    slow = changed["LockstepRunSlow"]
    assert "> 0.25" in slow.expr
    assert slow.to_yaml(Site())["for"] == "2m"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (45, "45s"), (90, "90s"), (60, "1m"), (3600, "60m")])
def test_durations_are_written_as_prometheus_reads_them(seconds, text):
    """A duration is exact, in minutes where they hold it."""
    assert duration(seconds) == text


@pytest.mark.parametrize("rule", rules.recordings(), ids=lambda rule: rule.record)
def test_recorded_series_are_named_by_the_convention(rule: RecordingRule):
    """level:metric:operations, the level being the labels that are left, no `_total`, a sentence of help."""
    level, metric, operations = rule.record.split(":")
    labels = labels_of_recording(rule.expr)
    assert re.fullmatch(r"lockstep_[a-z0-9_]+", metric)
    assert re.fullmatch(r"((max|sum)_)?(ratio_)?rate1m|ratio", operations)
    assert "_total" not in rule.record
    assert level == "_".join(label for label in labels if label != "job")
    assert ("rate1m" in operations) == ("rate(" in rule.expr)
    assert rule.help.endswith(".")


@pytest.mark.parametrize("rule", rules.recordings(), ids=lambda rule: rule.record)
def test_recorded_series_use_the_catalogue(rule: RecordingRule):
    """Every metric, label and value exists, and rates are taken of counters only, before any sum."""
    assert problems(rule.expr) == []


@by_name
def test_alerts_use_the_catalogue(alert):
    """The same holds for an alert's expression and for the queries in its description."""
    for query in (alert.expr, *queries_of(alert)):
        assert problems(query) == [], query


@by_name
def test_alerts_read_no_recorded_series(alert):
    """A page must not wait for another group's evaluation."""
    assert not [s.metric for s in parse(alert.expr).selectors if ":" in s.metric]


@by_name
def test_a_runs_alert_names_the_run(alert):
    """And an alert that is of no run does not; whether the result has the label is for `test_lint.py`."""
    assert ("$labels.run" in alert.description) == alert.per_run


@by_name
def test_an_alert_states_what_to_do(alert):
    """Summary: a static sentence; description: a text; links to the incident, the dashboard and the runbook; a severity that is routed."""
    rule = alert.to_yaml(Site())
    notes = rule["annotations"]
    assert re.fullmatch(r"Lockstep([A-Z][a-z]+)+", alert.name)
    assert re.fullmatch(r"[A-Z][^{}]+\.", alert.summary)
    assert notes["summary"] == (alert.headline or alert.summary)
    assert notes["summary"].endswith(".")
    assert notes["description"].endswith(("}}", "."))
    assert len(notes["description"]) > len(alert.summary)
    assert notes["runbook_url"].endswith(f"/{alert.name}.md")
    boards = set(re.findall(r"/d/lockstep-([\w-]+)\?", notes["dashboard_url"]))
    assert boards <= ({"run", "rank", "domains"} if alert.per_run else {"self-monitoring"})
    assert boards & {"run", "domains", "self-monitoring"}
    assert notes["incident_url"].startswith((Site().coordinator_url, "{{ with "))
    assert rule["labels"] == {"severity": alert.severity}
    assert alert.severity in ("critical", "warning", "info", "none")


@by_name
def test_every_alert_has_a_runbook(alert):
    """The page bears the alert's name, holds the four headings in order, and something under each."""
    text = (rules.RUNBOOKS / f"{alert.name}.md").read_text()
    assert text.startswith(f"# {alert.name}\n")
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)[1:]
    assert parts[::2] == HEADINGS
    assert all(len(body.split()) >= 8 for body in parts[1::2])


def test_no_runbook_is_left_behind():
    """A runbook without an alert is one that no one is led to."""
    assert sorted(path.stem for path in rules.RUNBOOKS.glob("*.md")) == sorted(NAMES)


@pytest.mark.parametrize("path", sorted(rules.RUNBOOKS.glob("*.md")), ids=lambda path: path.stem)
def test_runbooks_name_metrics_that_exist(path):
    """Somebody at night copies these queries: every query is by the catalogue, every alert named exists."""
    text = path.read_text()
    for query in re.findall(r"`([^`]*lockstep_[^`]*)`", text):
        if re.match(r"[a-z_:]+", query):
            assert problems(re.sub(r"\s+", " ", query)) == [], query
    assert set(re.findall(r"\bLockstep[A-Z]\w+", text)) <= set(NAMES)


def test_few_alerts_page():
    """At most five alerts wake a person, or no one reads them.

    Crashed, hung, stalled and devices lost, of which a run is at most one (`test_inhibition.py`), and a coordinator
    that stays down.
    """
    assert 1 <= sum(alert.severity == "critical" for alert in ALERTS) <= 5


def test_every_threshold_has_a_reason_of_its_own():
    """In its annotation, from where values.yaml has it."""
    reasons = descriptions_of(AlertPolicy)
    assert list(reasons) == [field.name for field in fields(AlertPolicy)]
    assert len(set(reasons.values())) == len(reasons)


def test_verdicts_are_bounded():
    """The group whose series grow with slow ranks carries a limit above what a coordinator exports for 64 runs."""
    document = yaml.safe_load(rules.render())
    limits = {group["name"]: group.get("limit") for group in document["groups"]}
    assert limits["lockstep.verdicts"] == AlertPolicy().verdicts_max >= 32 * 64
