"""What is sent: the CloudEvent and its signature, the Slack message, and when each stage is due."""

import json
from dataclasses import replace

import pytest

from coordinator.decide.incidents import CLOSED, to_brief_json
from coordinator.detect.anomalies import CRASH, HANG, SLOW_LINK
from coordinator.notify.cloud_event import cloud_event, parse_signing_key, signature_headers
from coordinator.notify.notification import (
    ENDED,
    OPENED,
    UPDATED,
    IncidentLinks,
    Notification,
    devices_lost,
    due_stage,
    links_of,
)
from coordinator.notify.slack import slack_message
from coordinator.settings.config import CoordinatorConfig
from lockstep.contracts.errors import ConfigError
from tests.coordinator.notify.receiver import SECRET
from tests.coordinator.test_store import incident

CONFIG = CoordinatorConfig(
    external_url="https://lockstep.example.org/", dashboard_base_url="https://g/", runbook_base_url="https://r"
)


def notification(stage=OPENED, **more):
    return Notification(incident=incident(**more), stage=stage, unix_s=1e9, host="host-1", devices_lost=2.5)


def test_the_event_is_a_cloud_event_with_the_incident_of_the_api():
    """Every required attribute, and as data what `/api/v1/incidents` lists, with host, loss and links."""
    made = notification()
    event = json.loads(cloud_event(made, links_of(made.incident, CONFIG), external_url=CONFIG.external_url))
    data = event.pop("data")
    one = made.incident
    assert event == {
        "specversion": "1.0",
        "id": f"{one.id}-opened",
        "source": f"https://lockstep.example.org/runs/{one.run}",
        "type": "lockstep.incident.opened",
        "subject": f"{one.run}/{one.id}",
        "time": event["time"],
        "datacontenttype": "application/json",
    }
    assert event["time"].endswith("Z")
    assert data["links"]["incident"] == f"https://lockstep.example.org/incidents/{one.id}"
    assert data["links"]["dashboard"].startswith("https://g/d/")
    assert data["links"]["runbook"].startswith("https://r/")
    assert (data["host"], data["devices_lost"]) == ("host-1", 2.5)
    assert data.items() >= json.loads(json.dumps(to_brief_json(one))).items()
    assert "explanation" not in data


def test_without_addresses_there_are_no_links():
    """A source is a URI reference all the same, which CloudEvents allows."""
    event = json.loads(cloud_event(notification(UPDATED), IncidentLinks()))
    assert event["data"]["links"] == {}
    assert event["source"].startswith("/runs/")
    assert event["time"] == "2001-09-09T01:46:40.000Z"


def test_the_time_of_a_closed_incident_is_that_of_its_end():
    """Not that of the notification, which may be late."""
    event = json.loads(cloud_event(notification(ENDED, state=CLOSED, closed_unix_ns=2 * 10**18), IncidentLinks()))
    assert event["time"] == "2033-05-18T03:33:20.000Z"


def test_the_signature_is_that_of_standard_webhooks():
    """The reference vector of the specification's libraries."""
    key = parse_signing_key(SECRET, "notify_webhook_secret_file")
    assert signature_headers(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}') == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize("secret", ["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_MfKQ9r8*KYqrTw", "whsec_c2hvcnQ="])
def test_a_secret_of_another_form_is_refused_and_not_shown(secret):
    """No prefix, no base64, too short."""
    with pytest.raises(ConfigError, match="notify_webhook_secret_file: got a secret") as error:
        parse_signing_key(secret, "notify_webhook_secret_file")
    assert secret.removeprefix("whsec_") not in str(error.value)


def test_the_message_has_who_where_why_cost_and_links():
    """As text for the pop-up, as fields for the channel."""
    made = notification(function="train.py(88): load")
    message = json.loads(slack_message(made, links_of(made.incident, CONFIG)))
    assert message["text"].startswith("Slow rank: rank ")
    text = json.dumps(message["blocks"])
    for expected in (made.incident.run, "host-1", "train.py(88): load", "2.5 devices lost", "/incidents/", "|runbook>"):
        assert expected in text
    closed = json.loads(slack_message(replace(made, stage=ENDED), IncidentLinks()))
    assert closed["blocks"][0]["text"]["text"].startswith("Closed: Slow rank")


def test_a_run_cannot_mention_a_channel_or_break_the_limits():
    """Names and functions come from trainings."""
    made = notification(function="<!channel> & " + "x" * 10_000, evidence=("<http://evil|x>" + "y" * 10_000,))
    message = slack_message(made, IncidentLinks()).decode()
    assert "<!channel>" not in message
    assert "<http" not in message
    assert "&lt;!channel&gt; &amp; x" in message
    assert len(message) < 10_000


def test_stages_are_due_once_each():
    """Opened, the function, closed; what opens with its function has no update, what was never opened does not close."""
    one = incident()
    assert due_stage(one, ()) == OPENED
    assert due_stage(one, {OPENED}) == ""
    known = replace(one, function="f")
    assert Notification(incident=known, stage=OPENED, unix_s=0.0).covers == (OPENED, UPDATED)
    assert due_stage(known, {OPENED}) == UPDATED
    closed = replace(known, state=CLOSED)
    assert due_stage(closed, {OPENED}) == ENDED
    assert due_stage(closed, Notification(incident=closed, stage=ENDED, unix_s=0.0).covers) == ""
    assert due_stage(closed, {OPENED, ENDED}) == UPDATED
    assert due_stage(closed, {OPENED, UPDATED, ENDED}) == ""


def test_a_loss_in_devices_is_that_of_the_alerts():
    """Slowdown times ranks; everything where no step ends; a link by what it adds to a step."""
    slow = incident(slowdown_ratio=0.2, excess_seconds=0.1)
    assert devices_lost(slow, 10, 1.0) == pytest.approx(2.0)
    assert devices_lost(replace(slow, slowdown_ratio=7.0), 10, 1.0) == 10.0
    assert devices_lost(replace(slow, kind=HANG), 10, None) == 10.0
    assert devices_lost(replace(slow, kind=CRASH), 10, None) == 10.0
    assert devices_lost(replace(slow, kind=SLOW_LINK, slowdown_ratio=3.0), 10, 1.0) == pytest.approx(1.0)
    assert devices_lost(replace(slow, kind=SLOW_LINK), 10, None) is None
    assert devices_lost(slow, 0, 1.0) is None
