"""A function that comes after its page: one update to those who read along, by real Prometheus and Alertmanager."""

import contextlib
import json
import re
from dataclasses import replace
from urllib.parse import quote

import pytest

from alerts import rules
from alerts.policy import AlertPolicy, Site
from coordinator.collector import SnapshotCollector
from lockstep.serving.exposition import render
from tests.alerts.test_examples import ALERTMANAGER
from tests.alerts.test_notifications import TEMPLATES, sent
from tests.coordinator.test_collector import HANG, run_snapshot, snapshot
from tests.support import servers
from tests.support.routes import with_addresses
from tests.support.servers import LIVE_LIMIT_S, WAIT_S, get_json, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(LIVE_LIMIT_S)]

POLICY = AlertPolicy(function_new_seconds=15, page_sent_seconds=16)
DEADLINE_S = WAIT_S
FUNCTION = "train.py(88): stuck_in_download"
HUNG = replace(HANG, ranks=(2,), domain=("dp", "dp0"), excess_seconds=90.0)


class CoordinatorPage:
    """The coordinator's /metrics of a run with these incidents, as the collector writes it."""

    def __init__(self):
        self.incidents = ()

    def text(self):
        unknown = dict.fromkeys(
            ("last_step_unix_s", "recent_step_seconds", "expected_step_seconds", "memory_remaining_seconds")
        )
        hung = {"state": "hung", "world_size": 64, "suspects": (), "slow_ranks": 0, "fluctuating": False}
        known = run_snapshot(incidents=self.incidents, hostnames={2: "node7"}, **hung, **unknown)
        return render(SnapshotCollector(snapshot(known)), "text")


@pytest.fixture
def site(tmp_path):
    """Give the coordinator's page, Prometheus' address, and all that the example's receivers send."""
    page = CoordinatorPage()
    (tmp_path / "lockstep.rules.yaml").write_text(rules.render(policy=POLICY))
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(servers.webhook())
        text = with_addresses(ALERTMANAGER.read_text(), receiver.url, TEMPLATES)
        text = re.sub(r"(group_wait|group_interval): \w+", r"\1: 1s", text)
        manager = stack.enter_context(servers.alertmanager(tmp_path, text)).removeprefix("http://")
        address = stack.enter_context(servers.metrics_pages(lambda _: page.text().decode()))
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(tmp_path / "lockstep.rules.yaml")],
            "scrape_configs": [{"job_name": Site().coordinator_job, "static_configs": [{"targets": [address]}]}],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager]}]}]},
        }
        yield page, stack.enter_context(servers.prometheus(tmp_path, json.dumps(configuration))), receiver


def firing(prometheus, name, offset=""):
    """Return the alerts of this name that fire, or fired so long ago."""
    query = f'ALERTS{{alertname="{name}",alertstate="firing"}}{offset}'
    return get_json(f"{prometheus}/api/v1/query?query={quote(query)}")["data"]["result"]


def test_a_function_that_comes_later_is_sent_once_and_the_page_stays_one(site):
    """PagerDuty gets a trigger and a resolve of one key; Slack gets the function, no end of it, and nothing else."""
    page, prometheus, receiver = site
    page.incidents = (HUNG,)
    wait_until(lambda: sent(receiver, "/pagerduty"), DEADLINE_S, "the page")
    wait_until(lambda: firing(prometheus, "LockstepRunHung", " offset 16s"), DEADLINE_S, "a page that was sent")
    page.incidents = (replace(HUNG, cause="data", function=FUNCTION),)
    wait_until(lambda: sent(receiver, "/slack"), DEADLINE_S, "the function")
    wait_until(lambda: not firing(prometheus, "LockstepFunctionFound"), DEADLINE_S, "the end of the news")
    page.incidents = ()
    wait_until(lambda: len(sent(receiver, "/pagerduty")) > 1, DEADLINE_S, "the end of the page")
    first, last = sent(receiver, "/pagerduty")
    assert (first["event_action"], last["event_action"]) == ("trigger", "resolve")
    assert first["dedup_key"] == last["dedup_key"]
    assert first["payload"]["summary"] == "Run job hangs: rank 2 on node7 has not arrived."
    (update,) = sent(receiver, "/slack")
    (message,) = update["attachments"]
    assert message["title"] == f"Run job, function found: rank 2 on node7, data, {FUNCTION}."
    assert message["title_link"] == f"{Site().coordinator_url}/incidents/{HUNG.id}"


def test_a_function_that_the_page_has_is_sent_no_second_time(site):
    """Known before the page: its summary has it, and no update follows while the page goes on."""
    page, prometheus, receiver = site
    page.incidents = (replace(HUNG, cause="data", function=FUNCTION),)
    wait_until(lambda: sent(receiver, "/pagerduty"), DEADLINE_S, "the page")
    wait_until(lambda: firing(prometheus, "LockstepRunHung", " offset 18s"), DEADLINE_S, "a page that lasts")
    (only,) = sent(receiver, "/pagerduty")
    assert only["payload"]["summary"] == f"Run job hangs: rank 2 on node7 has not arrived, data, {FUNCTION}."
    assert sent(receiver, "/slack") == []
