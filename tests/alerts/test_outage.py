"""A coordinator that dies and comes back, and a page that ends: no one is sent what is not so.

First which alerts fire when, by Prometheus' rule engine; then what Alertmanager makes of it. What a silent alert keeps
back is shown without it as well, and must be sent then.
"""

import json
import re
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest

from alerts import rules
from tests.alerts.test_examples import ALERTMANAGER
from tests.alerts.test_scenarios import run_promtool
from tests.support import servers
from tests.support.routes import to_webhook
from tests.support.servers import WAIT_S, wait_until

PAGE, TICKET, CAUSE = "LockstepDevicesLost", "LockstepRunSlow", "LockstepSlowDeviceFound"
SILENT, EXPLAINED = "LockstepCoordinatorUnreachable", "LockstepRunExplained"
SEVERITIES = {alert.name: alert.severity for alert in rules.alerts()}
SUSPECT = 'lockstep_suspect_slowdown_ratio{run="a",rank="3",hostname="n1",domain_kind="dp",cause="compute"}'
RANKS = 'lockstep_run_ranks{run="a",job="lockstep-coordinator",instance="head:9856"}'
RECENT, HEALTHY = (
    f'lockstep_run_{what}_step_duration_seconds{{run="a",job="lockstep-coordinator",instance="head:9856"}}'
    for what in ("recent", "baseline")
)
UP = 'up{job="lockstep-coordinator",instance="head:9856"}'
# Each 15 s. A suspect from 5 min on; gone from 20 to 28 min, and a scrape longer until it knows its runs again.
OUTAGE = {
    UP: "1x79 0x31 1x80",
    RECENT: "1.5x79 stale _x32 1.5x80",
    HEALTHY: "1x79 stale _x32 1x80",
    SUSPECT: "_x20 0.5x59 stale _x32 0.5x80",
    RANKS: "64x79 stale _x32 64x80",
}
# The same fault, repaired while the coordinator is gone.
REPAIRED_MEANWHILE = OUTAGE | {RECENT: "1.5x79 stale _x32 1x80", SUSPECT: "_x20 0.5x59 stale _x112"}
# Scrapes that fail now and then; at the first of them the fault ends.
SHAKY = {
    UP: "1x60 0 1x9 0 1x9 0 1x60",
    RECENT: "1.5x60 stale 1x9 stale 1x9 stale 1x60",
    HEALTHY: "1x60 stale 1x9 stale 1x9 stale 1x60",
    SUSPECT: "_x20 0.5x40 stale _x100",
    RANKS: "64x60 stale 64x9 stale 64x9 stale 64x60",
}
# The same fault, repaired after 20 min.
REPAIRED = {
    UP: "1x200",
    RECENT: "1.5x79 1x121",
    HEALTHY: "1x200",
    SUSPECT: "_x20 0.5x59 stale _x120",
    RANKS: "64x200",
}


def firing(*names):
    return f'ALERTS{{alertname=~"{"|".join(names)}",alertstate="firing"}}'


def sent_ticket(*silent):
    """Return when the ticket fires and nothing keeps it back."""
    keeping = firing(PAGE, CAUSE, *silent)
    return f"{firing(TICKET)} unless on () {firing('LockstepCoordinatorDown')} unless on () {keeping}"


ENDED = f"vector(1) unless on () {firing(PAGE)}"
"""When the page does not fire: nothing keeps its end back."""


def times(condition, from_min, until_min, count):
    """Expect that `condition` holds at `count` evaluations between two minutes; more than 0 is at least so many."""
    number = f"count_over_time(({condition})[{(until_min - from_min) * 60:.0f}s:15s])"
    expected = [] if count == 0 else [{"labels": "{}", "value": 1}]
    expr = number if count == 0 else f"count({number} >= {count})"
    return {"expr": expr, "eval_time": f"{until_min * 60:.0f}s", "exp_samples": expected}


def case(series, *checks):
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    return {"interval": "15s", "input_series": inputs, "promql_expr_test": list(checks)}


OF_STOPS = {
    "LockstepRunCrashed": ('lockstep_run_incidents_open{run="a",cause="process"}', "_x20 1x{known} stale _x100"),
    "LockstepRunHung": ('lockstep_incident_silence_seconds{run="a",rank="3"}', "_x20 400x{known} stale _x100"),
    "LockstepRunStalled": ('lockstep_run_last_step_timestamp_seconds{run="a"}', "300x{all} stale _x100"),
}
"""A stop from 5 min on (a stall from 10 min on): the page's series, and how it goes."""


@pytest.mark.parametrize("page", OF_STOPS)
def test_a_page_of_a_stopped_run_neither_begins_nor_ends_without_a_coordinator(tmp_path, page):
    """It fires before an outage of eight minutes, in it, and half a minute longer; and then only if the run still stands."""
    series, values = OF_STOPS[page]
    before = values.format(known=59, all=79)
    known = {UP: "1x79 0x31 1x80", RANKS: "64x79 stale _x31 64x80", series: before}
    fires = f"vector(1) unless on () {firing(page)}"
    case_known = case(known, times(fires, 12, 28, 0), times(fires, 29, 40, 40))
    begun = {UP: "1x3 0x31 1x80", RANKS: "64x79 64x80", series: before.replace("stale _x100", "_x100")}
    case_begun = case(begun, times(firing(page), 0, 9, 0))
    done = run_promtool({"evaluation_interval": "15s", "tests": [case_known, case_begun]}, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_untrue_alert_is_sent(tmp_path):
    """At no evaluation is an alert untrue and free to be sent; without the silent alert of an explained run there are such."""
    outage = case(
        OUTAGE,
        times(sent_ticket(SILENT, EXPLAINED), 0, 40, 0),
        times(ENDED, 6, 40, 0),
    )
    meanwhile = case(REPAIRED_MEANWHILE, times(ENDED, 6, 28, 0), times(ENDED, 29, 40, 40))
    shaky = case(SHAKY, times(ENDED, 6, 15.5, 0), times(ENDED, 16, 30, 55))
    repaired = case(REPAIRED, times(sent_ticket(SILENT, EXPLAINED), 0, 50, 0), times(sent_ticket(SILENT), 0, 50, 39))
    done = run_promtool({"evaluation_interval": "15s", "tests": [outage, meanwhile, shaky, repaired]}, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


class Alerting:
    """Prometheus' side of Alertmanager's API: alerts that begin and end."""

    def __init__(self, url, pager):
        self._url = f"{url}/api/v2/alerts"
        self.pager = pager
        self._begun = {}

    def send(self, *names, ended=False):
        now = datetime.now(UTC)
        ends = now if ended else now + timedelta(hours=1)
        alerts = [
            {
                "labels": {"alertname": name, "severity": SEVERITIES[name], "run": "a"},
                "startsAt": self._begun.setdefault(name, now).isoformat(),
                "endsAt": ends.isoformat(),
            }
            for name in names
        ]
        request = urllib.request.Request(self._url, json.dumps(alerts).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as reply:
            assert reply.status == 200

    def notified(self, name):
        """Return the states in which an alert was notified, in their order."""
        return [alert["status"] for _, alert in self.pager.alerts(alertname=name)]

    def notify_all_groups(self):
        """Wait until one of them was notified twice: in the interval between, each other had its turn."""
        for _ in range(2):
            count = len(self.notified("LockstepExporterDown"))
            self.send("LockstepExporterDown", ended=count % 2 == 1)
            wait_until(
                lambda count=count: len(self.notified("LockstepExporterDown")) > count, WAIT_S, "another notification"
            )


@pytest.fixture
def alerting(tmp_path):
    """Give an Alertmanager with the example's routes and inhibitions, notified each second."""
    with servers.webhook() as pager:
        text = to_webhook(ALERTMANAGER.read_text(), pager.url)
        text = re.sub(r"(group_wait|group_interval): \w+", r"\1: 1s", text)
        with servers.alertmanager(tmp_path, text) as url:
            yield Alerting(url, pager)


@pytest.mark.servers
@pytest.mark.parametrize(
    ("silent", "notified"),
    [((SILENT,), ["firing"]), ((), ["firing", "resolved", "firing"])],
    ids=["kept back", "without"],
)
def test_a_ticket_outlives_the_restart_of_the_coordinator(alerting, silent, notified):
    """The ticket ends and comes again with the coordinator, and its receiver is notified of neither."""
    alerting.send(CAUSE, TICKET)
    wait_until(lambda: alerting.notified(CAUSE) == ["firing"], WAIT_S, "the ticket")
    if silent:
        alerting.send(*silent)
    alerting.send(CAUSE, ended=True)
    alerting.notify_all_groups()
    alerting.send(CAUSE)
    if silent:
        alerting.send(*silent, ended=True)
    alerting.notify_all_groups()
    assert alerting.notified(CAUSE) == notified
    assert alerting.notified(TICKET) == ([] if silent else ["firing"])
    assert alerting.notified(SILENT) == []


@pytest.mark.servers
def test_the_end_of_a_page_is_sent_without_a_coordinator(alerting):
    """It ends only once a coordinator knows that it is over, and another scrape that fails does not keep that back."""
    alerting.send(PAGE)
    wait_until(lambda: alerting.notified(PAGE) == ["firing"], WAIT_S, "the page")
    alerting.send(SILENT)
    alerting.send(PAGE, ended=True)
    wait_until(lambda: alerting.notified(PAGE) == ["firing", "resolved"], WAIT_S, "its end")
