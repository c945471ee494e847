"""The live loop as an operator sets it up, without torch: `lockstep export` writes rules, routes and scrape jobs.

Fake nodes, exporters, mosquitto, a coordinator, Prometheus that finds the exporters through it, Alertmanager with the
example's routes and inhibitions, a webhook. Only waiting times differ from what is exported.
"""

import contextlib
import json
import re
import sys
from dataclasses import dataclass
from typing import Any

import yaml

from lockstep.cli.main import main
from tests.end_to_end.fake_nodes import FakeNodes
from tests.support import servers
from tests.support.policy_file import policy_file
from tests.support.routes import to_webhook
from tests.support.servers import PATIENCE_S, free_port, get_json, mosquitto, running, wait_ready, wait_until

LOCKSTEP = [sys.executable, "-m", "lockstep.cli.main"]
RUN, RANKS_PER_NODE, NODES = "llm", 2, 2
GRAFANA, RUNBOOKS, PAGES = "https://graphs.lan", "https://wiki.lan/lockstep", "https://detector.lan"
# Shorter waiting, in the order of the real ones: what explains comes before what it explains. Old vmalerts know no
# keep_firing_for, so nothing is kept.
POLICY = {
    "page_devices_lost": 1,  # of four
    "slow_device_for_seconds": 2,
    "coordinator_down_for_seconds": 2,
    "coordinator_down_page_seconds": 6,
    "slow_for_seconds": 8,
    "slow_keep_seconds": 0,
    "link_slow_keep_seconds": 0,
    "expected_keep_seconds": 0,
    "unwatched_for_seconds": 8,
    "stale_age_seconds": 10,
}
SLOW, SLOW_TICKET = "LockstepDevicesLost", "LockstepSlowDeviceFound"
DOWN, STAYS_DOWN = "LockstepCoordinatorDown", "LockstepCoordinatorStaysDown"
TICKETS = {("/chat", "LockstepRunSlow"), ("/chat", SLOW_TICKET)}
"""May be sent for a moment when the coordinator goes: with intervals of a second, on busy cores, what keeps it back can come
later than the end of the page (tests/alerts/test_outage.py holds the order with the intervals of the example)."""


@dataclass
class Loop:
    """What runs: `coordinator` can be ended, `alertmanager` asked, `pager` looked at."""

    nodes: FakeNodes
    coordinator: Any
    coordinator_url: str
    alertmanager: str
    pager: servers.Webhook

    def notified(self, name, status, rank=None):
        """Return the notifications of an alert that fires or is resolved, with `rank` those whose summary names it."""
        named = "" if rank is None else f" rank {rank} on "
        found = [alert for _, alert in self.pager.alerts(alertname=name) if alert["status"] == status]
        return [alert for alert in found if named in alert["annotations"]["summary"]]

    def routes(self):
        """Return (receiver's path, alert) of all that was delivered."""
        return {(d.path, alert["labels"]["alertname"]) for d in self.pager.deliveries for alert in d.body["alerts"]}

    def inhibited(self):
        """Return the names of alerts that Alertmanager has and keeps to itself."""
        alerts = get_json(f"{self.alertmanager}/api/v2/alerts") or []
        return {alert["labels"]["alertname"] for alert in alerts if alert["status"]["inhibitedBy"]}


@contextlib.contextmanager
def lockstep(folder, broker_port, command, **settings):
    """Run a service on a free port; yield its process and address."""
    settings |= {"http_host": "127.0.0.1", "http_port": (port := free_port()), "broker_port": broker_port}
    if command == "exporter":
        settings["advertise_address"] = f"127.0.0.1:{port}"
    log = folder / f"{command}-{port}.log"
    flags = [f"--set={key}={value}" for key, value in settings.items()]
    with running([*LOCKSTEP, command, *flags], log) as process:
        yield process, f"http://127.0.0.1:{port}", log


def exported(folder):
    """Write everything as an operator would, and return the folder."""
    thresholds = [part for key, value in POLICY.items() for part in ("--set", f"{key}={value}")]
    links = ["--grafana-url", GRAFANA, "--runbooks-url", RUNBOOKS, "--coordinator-url", PAGES]
    assert main(["export", "all", str(folder / "site"), *links, *thresholds]) == 0
    return folder / "site"


def quick_routes(site, pager):
    """Return the exported routes, their receivers on loopback and their waits short."""
    text = to_webhook((site / "alertmanager.example.yml").read_text(), pager)
    return re.sub(r"group_wait: \w+", "group_wait: 0s", text).replace("group_interval: 5m", "group_interval: 1s")


def scrape_jobs(site, coordinator, alertmanager):
    """Return the exported scrape configuration, exporters found through the coordinator, every second."""
    document = yaml.safe_load((site / "prometheus.example.yml").read_text())
    document["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    document["rule_files"] = [str(site / "lockstep.rules.yaml")]
    document["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [alertmanager.removeprefix("http://")]}]}]
    exporters, coordinators = document["scrape_configs"]
    del exporters["static_configs"]
    exporters["http_sd_configs"] = [{"url": f"{coordinator}/api/v1/targets", "refresh_interval": "1s"}]
    coordinators["static_configs"] = [{"targets": [coordinator.removeprefix("http://")]}]
    return document


def prometheus(folder, jobs, _):
    """Run Prometheus on the scrape jobs, which name the rules and Alertmanager."""
    return servers.prometheus(folder, json.dumps(jobs))


@contextlib.contextmanager
def victoria_metrics(folder, jobs, alertmanager):
    """Run VictoriaMetrics on the scrape jobs, and vmalert on the rules."""
    ports = free_port(), free_port()
    rules = jobs.pop("rule_files")[0]
    # Its own parts of the file, which VictoriaMetrics refuses: rules are vmalert's, discovery's interval a flag.
    del jobs["alerting"], jobs["global"]["evaluation_interval"]
    for job in jobs["scrape_configs"]:
        job.pop("label_value_length_limit", None)
        for found in job.get("http_sd_configs", []):
            del found["refresh_interval"]
    (folder / "scrape.json").write_text(json.dumps(jobs))
    store = [
        servers.program("victoria-metrics"), f"-promscrape.config={folder / 'scrape.json'}",
        f"-storageDataPath={folder / 'victoria'}", f"-httpListenAddr=127.0.0.1:{ports[0]}",
        "-promscrape.httpSDCheckInterval=1s", "-search.latencyOffset=0s", "-promscrape.config.strictParse=false",
    ]  # fmt: skip
    alerting = [
        servers.program("vmalert"), f"-rule={rules}", f"-datasource.url=http://127.0.0.1:{ports[0]}",
        f"-remoteWrite.url=http://127.0.0.1:{ports[0]}", f"-notifier.url={alertmanager}",
        "-evaluationInterval=1s", f"-httpListenAddr=127.0.0.1:{ports[1]}",
    ]  # fmt: skip
    with running(store, folder / "victoria.log") as process:
        wait_ready(f"http://127.0.0.1:{ports[0]}/health", process, folder / "victoria.log")
        scraped = f"http://127.0.0.1:{ports[0]}/api/v1/query?query=up"
        wait_until(lambda: len(get_json(scraped)["data"]["result"]) > NODES, PATIENCE_S, "scrapes that can be searched")
        with running(alerting, folder / "vmalert.log") as vmalert:
            wait_ready(f"http://127.0.0.1:{ports[1]}/health", vmalert, folder / "vmalert.log")
            yield


@contextlib.contextmanager
def live_loop(folder, server):
    """Start everything, `server` as what scrapes and evaluates; the fake nodes step."""
    site = exported(folder)
    roots = [folder / f"shared{node}" for node in range(NODES)]
    with contextlib.ExitStack() as parts:
        enter = parts.enter_context
        pager, broker = enter(servers.webhook()), enter(mosquitto(folder))
        quick = {"batch_seconds": 0.2, "announce_seconds": 1, "scan_seconds": 0.2}
        started = []
        for node, root in enumerate(roots):
            root.mkdir()
            places = {"node": f"n{node}", "root": root, "spool_directory": folder / f"spool{node}"}
            started.append(enter(lockstep(folder, broker.port, "exporter", **quick, **places)))
        policy = policy_file(folder, {"profile.enabled": "false", "run.recover_steps": 20})
        settings = {"domains": f"dp={NODES * RANKS_PER_NODE}", "policy_file": policy}
        started.append(enter(lockstep(folder, broker.port, "coordinator", **settings)))
        for process, url, log in started:
            wait_ready(f"{url}/-/ready", process, log)
        process, url, _ = started[-1]
        manager = enter(servers.alertmanager(folder, quick_routes(site, pager.url)))
        jobs = scrape_jobs(site, url, manager)
        enter(server(folder, jobs, manager))
        nodes = FakeNodes(roots, RUN, RANKS_PER_NODE)
        enter(nodes.stepping())
        yield Loop(nodes, process, url, manager, pager)


def check_page(alert, rank):
    """Fail unless a page names which run, which rank, why, what to do and where to look."""
    labels, notes = alert["labels"], alert["annotations"]
    own = {name: value for name, value in labels.items() if name != "alertgroup"}  # which vmalert adds
    assert own == {"alertname": SLOW, "run": RUN, "severity": "critical"}
    assert f": rank {rank} on host{rank // RANKS_PER_NODE}, compute" in notes["summary"]
    assert f"The slowest is rank {rank} on host{rank // RANKS_PER_NODE}:" in notes["description"]
    assert notes["runbook_url"] == f"{RUNBOOKS}/{SLOW}.md"
    assert notes["dashboard_url"] == f"{GRAFANA}/d/lockstep-rank?var-run={RUN}&var-rank={rank}&from=now-1h&to=now"
    assert notes["incident_url"].startswith(f"{PAGES}/incidents/{RUN}-"), notes


def check_loop(folder, server):
    """Fail unless a slow rank is one page, its recovery resolves the page, and a dead coordinator pages by itself."""
    with live_loop(folder, server) as loop:

        def known():
            run = get_json(f"{loop.coordinator_url}/api/v1/runs/{RUN}")
            return run is not None and run["state"] == "healthy" and run["step"] >= 60

        wait_until(known, PATIENCE_S, "a healthy run")
        assert loop.pager.deliveries == []
        loop.nodes.slow_rank = 2
        page, *_ = wait_until(lambda: loop.notified(SLOW, "firing"), PATIENCE_S, "the page")
        check_page(page, 2)
        wait_until(
            lambda: {"LockstepRunSlow", SLOW_TICKET} <= loop.inhibited(),
            PATIENCE_S,
            "the tickets that the page answers",
        )
        loop.nodes.slow_rank = None
        wait_until(lambda: loop.notified(SLOW, "resolved", rank=2), PATIENCE_S, "the end of it")
        assert loop.routes() == {("/pager", SLOW)}, loop.routes()
        assert [delivery.body["status"] for delivery in loop.pager.deliveries] == ["firing", "resolved"]
        loop.nodes.slow_rank = 1
        page, *_ = wait_until(lambda: loop.notified(SLOW, "firing", rank=1), PATIENCE_S, "another page")
        check_page(page, 1)
        loop.coordinator.terminate()
        down, *_ = wait_until(lambda: loop.notified(DOWN, "firing"), PATIENCE_S, "the coordinator's own ticket")
        assert down["annotations"]["runbook_url"] == f"{RUNBOOKS}/{DOWN}.md"
        wait_until(lambda: "LockstepRunUnwatched" in loop.inhibited(), PATIENCE_S, "a verdict that is kept back")
        wait_until(lambda: loop.notified(STAYS_DOWN, "firing"), PATIENCE_S, "the page of a coordinator that stays down")
        assert loop.routes() - TICKETS == {("/pager", SLOW), ("/chat", DOWN), ("/pager", STAYS_DOWN)}
