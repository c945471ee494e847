"""One page for each fault from onset to resolve, as Alertmanager's webhook gets it: real ranks and all real servers."""

import re
import socket

import pytest

from alerts.policy import AlertPolicy, Site
from tests.support.servers import LIVE_LIMIT_S, PATIENCE_S, get, wait_until
from tests.support.stack import full_stack

pytestmark = [pytest.mark.torch, pytest.mark.servers, pytest.mark.timeout(LIVE_LIMIT_S)]

RUN, RANK = "gpt", 2
STRANGERS = {"LockstepDevicesLost", "LockstepSlowDeviceFound", "LockstepRunSlow"}
POLICY = AlertPolicy(
    hung_silence_seconds=20,  # longer than its stacks take, as the real minute is
    crashed_for_seconds=2,
    page_devices_lost=4,
)


@pytest.fixture
def stack(tmp_path):
    with full_stack(tmp_path, policy=POLICY) as stack:
        yield stack


def notes_of(stack, name, status, seconds):
    """Return the annotations of the first notification of an alert with this status."""

    def delivered():
        return [alert["annotations"] for _, alert in stack.pager.alerts(alertname=name) if alert["status"] == status]

    return wait_until(delivered, seconds, f"{name} {status}")[0]


def check_links(stack, notes, rank):
    """Fail unless a page leads to the incident, which is there, and to the dashboard of its rank."""
    site = Site()
    assert notes["dashboard_url"].startswith(f"{site.grafana_url}/d/lockstep-rank?var-run={RUN}&var-rank={rank}&")
    incident = re.fullmatch(re.escape(site.coordinator_url) + r"(/incidents/[\w.-]+)", notes["incident_url"])[1]
    page = get(f"{stack.coordinator}{incident}")
    assert f"rank {rank}" in page
    return page


def is_one_page(stack, name):
    """Whether all that was delivered of runs that stop is one notification that the alert fires and one that it ends.

    A rank whose cores strangers have is slow, which is another fault and has pages of its own.
    """
    deliveries = [
        (delivery.body["status"], [alert["labels"]["alertname"] for alert in delivery.body["alerts"]])
        for delivery in stack.pager.deliveries
        if not STRANGERS & {alert["labels"]["alertname"] for alert in delivery.body["alerts"]}
    ]
    return deliveries == [("firing", [name]), ("resolved", [name])]


def test_a_hang_is_one_page_that_names_the_function(stack):
    """Its summary has rank, host, cause and function; it resolves when the job is ended, and nothing else is sent."""
    with stack.job(RUN, "hang", RANK):
        stack.wait_step(RUN, 50, PATIENCE_S)
        page = notes_of(stack, "LockstepRunHung", "firing", PATIENCE_S)
        host = socket.gethostname()
        named = f"Run {RUN} hangs: rank {RANK} on {host} has not arrived, data, training.py"
        assert re.fullmatch(re.escape(named) + r"\(\d+\): stuck_in_download\.", page["summary"]), page["summary"]
        assert f"Rank {RANK} stands in training.py" in page["description"]
        assert "stuck_in_download" in check_links(stack, page, RANK)
    notes_of(stack, "LockstepRunHung", "resolved", PATIENCE_S)
    assert is_one_page(stack, "LockstepRunHung"), stack.pager.deliveries


def test_a_crash_is_one_page_that_the_next_attempt_resolves(stack):
    """Its summary has rank, host, exception and function; what the peers did then is no page."""
    with stack.job(RUN, "crash", RANK):
        page = notes_of(stack, "LockstepRunCrashed", "firing", PATIENCE_S)
        named = f"Run {RUN} has crashed: rank {RANK} on {socket.gethostname()}, ValueError in training.py"
        assert re.fullmatch(re.escape(named) + r"\(\d+\): reject_document\.", page["summary"]), page["summary"]
        assert "reject_document" in check_links(stack, page, RANK)
    with stack.job(RUN, "none", RANK):
        notes_of(stack, "LockstepRunCrashed", "resolved", PATIENCE_S)
    assert is_one_page(stack, "LockstepRunCrashed"), stack.pager.deliveries
