"""What the receivers of the example send, by a real Alertmanager: texts, links, and one page from onset to resolve."""

import json
import re
import subprocess
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest

from tests.alerts.test_examples import ALERTMANAGER
from tests.support import servers
from tests.support.routes import with_addresses
from tests.support.servers import WAIT_S, wait_until

TEMPLATES = ALERTMANAGER.parent / "lockstep.tmpl"
BEGAN = datetime(2026, 1, 2, 3, tzinfo=UTC)
DEADLINE_S = WAIT_S
NOTES = {
    "summary": "Run a loses as much as 2k devices to slowness: rank 2 on node7, compute, model.py:spin.",
    "description": "Steps of run a cost more.",
    "incident_url": "https://pages.lan/incidents/a-1",
    "dashboard_url": "https://graphs.lan/d/lockstep-rank?var-run=a&var-rank=2&from=now-1h&to=now",
    "runbook_url": "https://wiki.lan/LockstepDevicesLost.md",
}
FROM = int((BEGAN - timedelta(hours=1)).timestamp()) * 1000


@pytest.fixture
def site(tmp_path):
    """Give Alertmanager's API and all that its receivers send, each second."""
    with servers.webhook() as receiver:
        text = with_addresses(ALERTMANAGER.read_text(), receiver.url, TEMPLATES)
        text = re.sub(r"(group_wait|group_interval): \w+", r"\1: 1s", text)
        with servers.alertmanager(tmp_path, text) as url:
            yield url, receiver


def post(url, name, severity, *, ended=None):
    alert = {
        "labels": {"alertname": name, "severity": severity, "run": "a"},
        "annotations": NOTES,
        "startsAt": BEGAN.isoformat(),
        "endsAt": (ended or datetime.now(UTC) + timedelta(hours=1)).isoformat(),
    }
    request = urllib.request.Request(
        f"{url}/api/v2/alerts", json.dumps([alert]).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as reply:
        assert reply.status == 200


def sent(receiver, path):
    return [delivery.body for delivery in receiver.deliveries if delivery.path == path]


@pytest.mark.servers
def test_a_fault_is_one_incident_of_pagerduty_from_onset_to_resolve(site):
    """Its key is the same at both ends, its links lead to incident, dashboard of that hour, runbook and silence."""
    url, receiver = site
    post(url, "LockstepDevicesLost", "critical")
    wait_until(lambda: sent(receiver, "/pagerduty"), DEADLINE_S, "the page")
    post(url, "LockstepDevicesLost", "critical", ended=datetime.now(UTC))
    wait_until(lambda: len(sent(receiver, "/pagerduty")) > 1, DEADLINE_S, "its end")
    page, end = sent(receiver, "/pagerduty")
    assert (page["event_action"], end["event_action"]) == ("trigger", "resolve")
    assert page["dedup_key"] == end["dedup_key"]
    assert page["payload"]["summary"] == NOTES["summary"]
    assert page["payload"]["custom_details"]["text"].strip() == NOTES["description"]
    links = {link["text"]: link["href"] for link in page["links"]}
    assert links["Incident"] == page["client_url"] == NOTES["incident_url"]
    assert links["Runbook"] == NOTES["runbook_url"]
    assert links["Dashboard"] == NOTES["dashboard_url"].replace("now-1h", str(FROM))
    silence = "#/silences/new?filter=%7Brun%3D%22a%22%2C%20alertname%3D%22LockstepDevicesLost%22%7D"
    assert links["Silence"].endswith(silence)
    assert sent(receiver, "/slack") == []


@pytest.mark.servers
def test_a_ticket_is_a_message_in_slack_with_the_same_links(site):
    """Title, text, a colour, four buttons; nothing goes to the pager."""
    url, receiver = site
    post(url, "LockstepSlowDeviceFound", "warning")
    wait_until(lambda: sent(receiver, "/slack"), DEADLINE_S, "the message")
    (message,) = sent(receiver, "/slack")[0]["attachments"]
    assert (message["title"], message["title_link"]) == (NOTES["summary"], NOTES["incident_url"])
    assert (message["text"].strip(), message["color"]) == (NOTES["description"], "warning")
    assert [action["text"] for action in message["actions"]] == ["Incident", "Dashboard", "Runbook", "Silence"]
    assert f"from={FROM}&to=now" in message["actions"][1]["url"]
    assert sent(receiver, "/pagerduty") == []


def rendered(text, *options):
    """Return what amtool makes of a template, with its own example of an alert unless `options` name another."""
    command = ["amtool", "template", "render", f"--template.glob={TEMPLATES}", f"--template.text={text}", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", re.findall(r'define "(lockstep\.\w+)"', TEMPLATES.read_text()))
def test_each_template_can_be_rendered(name):
    """Alertmanager finds a mistake in a template when it notifies, and then sends no notification."""
    assert rendered(f'{{{{ template "{name}" . }}}}') is not None


def test_what_the_example_uses_is_defined():
    """Of the parts in comments too, which no server checks."""
    defined = set(re.findall(r'define "(lockstep\.\w+)"', TEMPLATES.read_text()))
    assert set(re.findall(r'template "(lockstep\.\w+)"', ALERTMANAGER.read_text())) == defined
    teams = ALERTMANAGER.read_text().split("# msteamsv2_configs", 1)[1].split("- name:", 1)[0]
    for link in ("incident", "dashboard", "runbook", "silence"):
        assert f"lockstep.{link}" in teams


def test_mail_has_every_link():
    """As HTML, four links."""
    assert rendered('{{ template "lockstep.html" . }}').count("<a href=") == 4


@pytest.mark.parametrize("link", ["runbook", "dashboard"])
def test_an_alert_without_an_address_links_to_its_incident(link, tmp_path):
    """A site that has set none gets a button that leads somewhere, not an empty one."""
    alert = {"status": "firing", "labels": {}, "startsAt": BEGAN.isoformat()}
    for notes, expected in (
        (NOTES, NOTES[f"{link}_url"]),
        ({"incident_url": "https://pages.lan/"}, "https://pages.lan/"),
    ):
        (tmp_path / "data.json").write_text(json.dumps({"alerts": [alert | {"annotations": notes}]}))
        text = rendered(f'{{{{ template "lockstep.{link}" . }}}}', f"--template.data={tmp_path}/data.json")
        assert text.partition("from=")[0] == expected.partition("from=")[0]
