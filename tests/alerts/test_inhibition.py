"""What keeps what to itself, by a live Alertmanager on the example: every pair of alerts, on one run and on two."""

import json
import urllib.request

import pytest

from alerts import rules
from tests.alerts.test_examples import ALERTMANAGER
from tests.support import servers
from tests.support.routes import to_webhook
from tests.support.servers import WAIT_S, get_json, wait_until

pytestmark = pytest.mark.servers

SLOWNESS = {"LockstepRunSlow", "LockstepRunSlowerThanExpected"}
TICKETS = SLOWNESS | {"LockstepSlowDeviceFound", "LockstepLinkSlow"}
SUSPICION = TICKETS | {"LockstepDevicesLost"}
CRASHED, HUNG, STALLED = ({f"LockstepRun{how}", f"LockstepSmallRun{how}"} for how in ("Crashed", "Hung", "Stalled"))
MISSING = {"LockstepRunRanksMissing"}
OF_ONE_RUN = {
    **dict.fromkeys(CRASHED, SUSPICION | HUNG | STALLED | MISSING),
    **dict.fromkeys(HUNG, SUSPICION | STALLED | MISSING),
    **dict.fromkeys(STALLED, SUSPICION | MISSING),
    "LockstepDevicesLost": TICKETS,
    "LockstepSlowDeviceFound": SLOWNESS,
    "LockstepRunExplained": SLOWNESS,
}
"""What explains, and what it explains about the same run."""
PAGES = {"LockstepRunCrashed", "LockstepRunHung", "LockstepRunStalled", "LockstepDevicesLost"}
VERDICTS = (TICKETS | CRASHED | HUNG | STALLED | MISSING) - PAGES
VERDICTS |= {"LockstepRunUnwatched", "LockstepFunctionFound", "LockstepMemoryRunsOut"}
"""What a run's series from the coordinator mean, or their absence: none of it is sent without a coordinator, and
pages do not change without one (tests/alerts/test_outage.py)."""
ALERTS = {alert.name: alert for alert in rules.alerts()}
PER_RUN = sorted(name for name, alert in ALERTS.items() if alert.per_run)
DEADLINE_S = WAIT_S


@pytest.fixture
def api(tmp_path):
    """Start Alertmanager with the example; no one listens at its receivers."""
    text = to_webhook(ALERTMANAGER.read_text(), "http://127.0.0.1:9")
    with servers.alertmanager(tmp_path, text) as address:
        yield f"{address}/api/v2/alerts"


def post(api, *alerts):
    body = [{"labels": {**labels, "severity": ALERTS[labels["alertname"]].severity}} for labels in alerts]
    request = urllib.request.Request(api, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=WAIT_S) as reply:
        assert reply.status == 200


def inhibited(api):
    """Return (alert, run) of all that is kept back; the run is empty for what has none."""
    alerts = get_json(api) or []
    return {(a["labels"]["alertname"], a["labels"].get("run", "")) for a in alerts if a["status"]["inhibitedBy"]}


def expect(api, silent):
    """Wait until exactly these are kept back; raise with the difference if that never comes."""

    def reached():
        return inhibited(api) == silent

    try:
        wait_until(reached, DEADLINE_S, "inhibitions")
    except TimeoutError:
        assert inhibited(api) == silent


def test_every_pair_of_alerts(api):
    """A cause silences what it explains on its run and nothing else; no coordinator silences all verdicts."""
    pairs = [(source, target) for source in PER_RUN for target in PER_RUN if source != target]
    post(
        api,
        *({"alertname": name, "run": f"{pair[0]}-{pair[1]}"} for pair in pairs for name in pair),
        *({"alertname": name, "run": f"alone-{name}"} for name in PER_RUN),
    )
    silent = {(t, f"{s}-{t}") for s, t in pairs if t in OF_ONE_RUN.get(s, ())}
    silent |= {(t, f"{t}-{s}") for s, t in pairs if t in OF_ONE_RUN.get(s, ())}
    expect(api, silent)

    post(api, {"alertname": "LockstepExporterDown"}, {"alertname": "LockstepExporterAbsent"})
    expect(api, silent)  # a node that died: its exporter is lost as well, and its ranks are a page all the same

    post(api, {"alertname": "LockstepCoordinatorStale"})
    runs = {(name, f"{a}-{b}") for a, b in pairs for name in (a, b)} | {(name, f"alone-{name}") for name in PER_RUN}
    silent |= {each for each in runs if each[0] == "LockstepRunUnwatched"}
    expect(api, silent)

    post(api, {"alertname": "LockstepCoordinatorUnreachable"})
    silent |= {each for each in runs if each[0] in VERDICTS} | {("LockstepCoordinatorStale", "")}
    expect(api, silent)

    others = [{"alertname": name} for name, alert in ALERTS.items() if not alert.per_run]
    post(api, *others)
    silent |= {("LockstepCoordinatorDown", "")}  # its page has come
    expect(api, silent)
    notified = {name for name in PER_RUN if ALERTS[name].severity != "none"} - VERDICTS
    assert notified == {"LockstepAgentDown"} | PAGES, "a new alert: is it a verdict of the coordinator?"


def test_another_cluster_is_another_matter(api):
    """A run of the same name there notifies, and so does all that its own coordinator reports."""
    slow = [{"alertname": "LockstepRunSlow", "run": "a", "cluster": cluster} for cluster in ("east", "west")]
    post(api, *slow, {"alertname": "LockstepSlowDeviceFound", "run": "a", "cluster": "east"})
    expect(api, {("LockstepRunSlow", "a")})
    links = [{"alertname": "LockstepLinkSlow", "run": "b", "cluster": cluster} for cluster in ("east", "west")]
    unwatched = [{"alertname": "LockstepRunUnwatched", "run": "c", "cluster": cluster} for cluster in ("east", "west")]
    coordinators = [{"alertname": f"LockstepCoordinator{what}", "cluster": "east"} for what in ("Stale", "Down")]
    post(api, *links, *unwatched, *coordinators)

    def silent():
        return sorted(
            (a["labels"]["alertname"], a["labels"]["cluster"]) for a in get_json(api) if a["status"]["inhibitedBy"]
        )

    names = ("CoordinatorStale", "LinkSlow", "RunSlow", "RunUnwatched", "SlowDeviceFound")
    expected = [(f"Lockstep{name}", "east") for name in names]
    wait_until(lambda: silent() == expected, DEADLINE_S, f"east alone to be silent: {expected}")
