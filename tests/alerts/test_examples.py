"""The example configurations: accepted by their servers, and routing as they describe."""

import json
import re
import subprocess
import urllib.request

import pytest
import yaml

from alerts import rules
from alerts.policy import Site
from lockstep.contracts import limits
from lockstep.contracts.inspector_metrics import PLACES_MAX
from lockstep.contracts.metrics import CATALOGUE, STEP_BUCKETS_SECONDS
from tests.support import servers
from tests.support.routes import to_webhook
from tests.support.servers import WAIT_S, wait_until

HERE = rules.RENDERED.parent.parent
PROMETHEUS = HERE / "prometheus.example.yml"
ALERTMANAGER = HERE / "alertmanager.example.yml"
RECEIVERS = {"critical": "pager", "warning": "chat", "info": "updates", "none": "null"}
DEADLINE_S = WAIT_S


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_prometheus_accepts_its_example():
    """Promtool finds the configuration and the rule file it names valid."""
    done = run("promtool", "check", "config", PROMETHEUS)
    assert done.returncode == 0, done.stderr
    assert "1 rule files found" in done.stdout


def test_the_jobs_are_those_of_the_rules():
    """The rules select the jobs that the example scrapes."""
    jobs = {job["job_name"] for job in yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]}
    assert jobs == {Site().exporter_job, Site().coordinator_job}


def test_the_sample_limit_lets_a_full_node_through():
    """The limit is above what the catalogue allows a node with all its ranks."""
    per_rank = per_node = 0
    for metric in CATALOGUE:
        if metric.source != "coordinator":
            if metric.type == "histogram":
                per_node += (len(STEP_BUCKETS_SECONDS) + 3) * limits.RUNS_PER_NODE_MAX
            elif "rank" in metric.labels:
                per_rank += PLACES_MAX if "operation" in metric.labels else len(metric.values) or 1
            else:
                per_node += len(metric.values) or 1
    jobs = {job["job_name"]: job for job in yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]}
    worst = per_rank * limits.RANKS_PER_NODE_MAX + per_node
    assert worst < jobs[Site().exporter_job]["sample_limit"] < 2 * worst


def test_alertmanager_accepts_its_example():
    """Amtool finds the configuration valid."""
    done = run("amtool", "check-config", ALERTMANAGER)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("alert", rules.alerts(), ids=lambda alert: alert.name)
def test_each_alert_reaches_its_receiver(alert):
    """The route of every alert's labels ends at the receiver of its severity, and at no other."""
    labels = [f"alertname={alert.name}", f"severity={alert.severity}", "run=a"]
    command = ("amtool", "config", "routes", "test", f"--config.file={ALERTMANAGER}")
    right, wrong = RECEIVERS[alert.severity], "chat" if alert.severity == "critical" else "pager"
    assert run(*command, f"--verify.receivers={right}", *labels).returncode == 0
    assert run(*command, f"--verify.receivers={wrong}", *labels).returncode == 1


def test_the_slow_ranks_of_a_run_are_one_notification():
    """No route groups by anything that differs between the ranks of one run; runs of one name in two clusters are two."""
    document = yaml.safe_load(ALERTMANAGER.read_text())
    assert document["route"]["group_by"] == ["alertname", "cluster", "run"]
    assert all("group_by" not in route for route in document["route"]["routes"])


def test_inhibition_names_alerts_that_exist():
    """A misspelt name in an inhibition would inhibit nothing, without an error."""
    names = {alert.name for alert in rules.alerts()}
    document = yaml.safe_load(ALERTMANAGER.read_text())
    named = set(re.findall(r"Lockstep[A-Za-z]+", json.dumps(document["inhibit_rules"])))
    assert named
    assert named <= names


@pytest.fixture
def pager():
    """Receive what Alertmanager delivers."""
    with servers.webhook() as receiver:
        yield receiver


@pytest.fixture
def alertmanager(tmp_path, pager):
    """Start Alertmanager with the example, its receivers on loopback and its waits short; yield its API."""
    text = to_webhook(ALERTMANAGER.read_text(), pager.url)
    with servers.alertmanager(tmp_path, text.replace("group_wait: 30s", "group_wait: 1s")) as address:
        yield f"{address}/api/v2/alerts"


def get(url):
    with urllib.request.urlopen(url, timeout=WAIT_S) as reply:
        return json.load(reply)


def post(url, labels):
    severities = {alert.name: alert.severity for alert in rules.alerts()}
    alerts = [{"labels": {**each, "severity": severities[each["alertname"]]}} for each in labels]
    request = urllib.request.Request(url, json.dumps(alerts).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=WAIT_S) as reply:
        assert reply.status == 200


@pytest.mark.servers
def test_a_stalled_run_is_one_page(alertmanager, pager):
    """A stall silences the verdicts on its own run only, and eight slow ranks of another run are one ticket."""
    post(
        alertmanager,
        [
            {"alertname": "LockstepRunStalled", "run": "a"},
            {"alertname": "LockstepRunSlow", "run": "a"},
            {"alertname": "LockstepDevicesLost", "run": "a"},
            {"alertname": "LockstepSlowDeviceFound", "run": "a", "rank": "1"},
            *({"alertname": "LockstepSlowDeviceFound", "run": "b", "rank": str(rank)} for rank in range(8)),
            {"alertname": "LockstepRunSlow", "run": "c"},
            {"alertname": "LockstepWatchdog"},
        ],
    )
    wait_until(lambda: len(pager.deliveries) >= 3, DEADLINE_S, "three notifications")
    silent = {(a["labels"]["alertname"], a["labels"]["run"]) for a in get(alertmanager) if a["status"]["inhibitedBy"]}
    assert silent == {(f"Lockstep{name}", "a") for name in ("RunSlow", "SlowDeviceFound", "DevicesLost")}
    notified = sorted(
        (path, body["groupLabels"]["alertname"], body["groupLabels"]["run"], len(body["alerts"]))
        for _, path, body in pager.deliveries
    )
    assert notified == [
        ("/chat", "LockstepRunSlow", "c", 1),
        ("/chat", "LockstepSlowDeviceFound", "b", 8),
        ("/pager", "LockstepRunStalled", "a", 1),
    ]


@pytest.mark.servers
def test_without_a_coordinator_verdicts_are_silent(alertmanager, pager):
    """A coordinator that is down is one ticket; what it last reported of any run is silent, what nodes report is not."""
    post(
        alertmanager,
        [
            {"alertname": "LockstepCoordinatorDown"},
            {"alertname": "LockstepSlowDeviceFound", "run": "a", "rank": "1"},
            {"alertname": "LockstepRunRanksMissing", "run": "b"},
            {"alertname": "LockstepRunUnwatched", "run": "b"},
            {"alertname": "LockstepExporterDown"},
        ],
    )
    wait_until(lambda: len(pager.deliveries) >= 2, DEADLINE_S, "two notifications")
    notified = sorted((path, body["groupLabels"]["alertname"]) for _, path, body in pager.deliveries)
    assert notified == [("/chat", "LockstepCoordinatorDown"), ("/chat", "LockstepExporterDown")]
