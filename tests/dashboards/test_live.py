"""Rules and dashboards against a real Prometheus that holds a synthetic run."""

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from alerts import rules
from alerts.policy import AlertPolicy
from dashboards import catalogue
from dashboards.builders import every_panel
from dashboards.levels import OF_NODE
from lockstep.cli.main import main
from tests.dashboards import synthetic
from tests.support import servers
from tests.support.browser import chromium
from tests.support.servers import WAIT_S, wait_until

pytestmark = pytest.mark.servers
BOARDS = {path.stem: json.loads(text) for path, text in catalogue.render().items()}
PANELS = [p for board in BOARDS.values() for p in every_panel(board) if p["type"] != "row"]
TARGETS = [(panel, target) for panel in PANELS for target in panel["targets"]]
# Each query once: dashboards share some of their panels.
DISTINCT = {(target["expr"], target["instant"]): (panel, target) for panel, target in TARGETS}
DOCS = Path(__file__).parents[2] / "docs" / "dashboards.md"
DEADLINE_S = 60
SERIES_MAX = 1000


class Prometheus:
    """The HTTP API of a server; `end` is the Unix time of the last sample of the synthetic run."""

    def __init__(self, url, end):
        self.url = url
        self.end = end

    def get(self, path, **parameters):
        """Return the data of an answer; fails on an error or a warning."""
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(parameters)}", timeout=WAIT_S) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success"
        assert not answer.get("warnings")
        return answer["data"]

    def ask(self, target, run, rank=synthetic.SLOW_RANK):
        """Return the series that a panel's query has for `run`."""
        expr = fill(target["expr"], run, rank)
        if target["instant"]:
            return self.get("/api/v1/query", query=expr, time=self.end)["result"]
        window = {"start": self.end - synthetic.SPAN_S, "end": self.end, "step": 60}
        return self.get("/api/v1/query_range", query=expr, **window)["result"]


def fill(expr, run, rank=synthetic.SLOW_RANK):
    """Return an expression with the values that Grafana would put in for its variables."""
    values = {"$__rate_interval": "1m", "$__range": "1h", "$hostname": ".+", "$cluster": ".*", "$rank": str(rank)}
    for name, value in values.items():
        expr = expr.replace(name, value)
    return expr.replace("$run", run)


def until(condition):
    """Wait for what another process does; fails after the deadline."""
    wait_until(condition, DEADLINE_S, "an answer of Prometheus")


QUICK = AlertPolicy(slow_device_for_seconds=0, page_devices_lost=4)
"""The rules without the wait of a ticket, and with a page for what the run of eight ranks loses."""


@contextmanager
def running(folder, end, rule_files):
    """Run Prometheus over the blocks in `folder`/tsdb."""
    config = json.dumps({"global": {"evaluation_interval": "1s"}, "rule_files": rule_files})
    with servers.prometheus(folder, config) as url:
        yield Prometheus(url, end)


def promtool(*command):
    subprocess.run(["promtool", "tsdb", "create-blocks-from", *command], check=True, capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Fill in the synthetic run, then its recorded series as the rules make them, and serve both with the rules loaded."""
    folder = tmp_path_factory.mktemp("prometheus")
    end = int(time.time()) - synthetic.SCRAPE_S
    start = end - synthetic.SPAN_S
    text = folder / "run.txt"
    text.write_text(synthetic.openmetrics(start))
    promtool("openmetrics", text, folder / "tsdb")
    with running(folder, end, []) as first:
        window = (f"--start={start}", f"--end={end}", f"--url={first.url}", f"--output-dir={folder / 'tsdb'}")
        promtool("rules", *window, f"--eval-interval={synthetic.SCRAPE_S}s", rules.RENDERED)
    (folder / "quick.rules.yaml").write_text(rules.render(policy=QUICK))
    with running(folder, end, [str(folder / "quick.rules.yaml")]) as second:
        yield second


@pytest.mark.parametrize(
    ("panel", "target"), DISTINCT.values(), ids=[f"{p['title']}-{t['refId']}" for p, t in DISTINCT.values()]
)
def test_a_panel_shows_a_run_and_nothing_of_another(server, panel, target):
    """Each query has data of the run, not too much of it, numbers only; and none of a run that does not exist."""
    rank = synthetic.SLOW_RANK
    if target["legendFormat"].startswith("its local rank's"):
        rank = synthetic.UNNAMED_RANK
    elif OF_NODE in target["expr"]:
        rank = synthetic.SUMMED_RANK
    series = server.ask(target, synthetic.RUN, rank)
    assert 1 <= len(series) <= SERIES_MAX
    points = [point for each in series for point in each.get("values") or [each["value"]]]
    assert all(re.fullmatch(r"-?[0-9.e+-]+", number) for _, number in points)
    if 'run="$run"' in target["expr"]:  # and series without a cluster are those of all clusters
        assert server.ask(target, "another") == []


def test_variables_find_the_run_and_its_hosts(server):
    """The variables of each dashboard offer what the run has."""
    found = {}
    for board in BOARDS.values():
        for item in board["templating"]["list"]:
            if item["type"] == "query":
                selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", item["definition"]).groups()
                window = {"start": server.end - synthetic.SPAN_S, "end": server.end}
                parameters = {"match[]": fill(selector, synthetic.RUN), **window}
                found[item["name"]] = server.get(f"/api/v1/label/{label}/values", **parameters)
    ranks = [str(rank) for rank in range(synthetic.RANKS)]
    assert found == {"run": [synthetic.RUN], "hostname": ["node1", "node2"], "rank": ranks, "cluster": []}


@pytest.mark.parametrize(
    ("rank", "shown"),
    [
        (synthetic.SLOW_RANK, {"its own: GPU 1": synthetic.SLOW_CLOCK_MHZ}),
        (synthetic.UNNAMED_RANK, {"its local rank's: GPU 3": 1983, "its local rank's: NPU 3": 803}),
        (5, {"its own: GPU 2": 1982}),
    ],
)
def test_a_ranks_own_device_is_met(server, rank, shown):
    """By UUID whatever its number, else by the number of its local rank, never by both; no one's GPU is met at all.

    On both hosts the devices were handed out from the last to the first, so the number of a local rank misleads.
    """
    (panel,) = [panel for panel in BOARDS["rank"]["panels"] if panel["title"] == "Clock"]
    found = {}
    for target in panel["targets"]:
        for series in server.ask(target, synthetic.RUN, rank):
            name = re.sub(r"{{(\w+)}}", lambda match, labels=series["metric"]: labels[match[1]], target["legendFormat"])
            found[name] = float(series["values"][-1][1])
    assert {name: clock for name, clock in found.items() if name.startswith("its ")} == shown
    assert {name for name in found if name.startswith("GPU")} == {f"GPU {number}" for number in range(4)}


def test_the_join_that_the_page_teaches(server):
    """The query of docs/dashboards.md has the suspect's device, with its rank."""
    (expr,) = [part for part in DOCS.read_text().split("```") if "group_left (run, rank)" in part]
    (series,) = server.ask({"expr": expr, "instant": True}, synthetic.RUN)
    assert (series["metric"]["run"], series["metric"]["rank"], series["metric"]["gpu"]) == ("train", "2", "1")


def test_a_coloured_number_is_there_while_all_is_well(server):
    """A minute before the fault each has its one value, and that of what should not be is 0."""
    moment = server.end - synthetic.SPAN_S + synthetic.FAULT_S - 60
    values = {}
    for panel in PANELS:
        steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
        if panel["type"] == "stat" and len(steps) > 1:
            (target,) = panel["targets"]
            found = server.get("/api/v1/query", query=fill(target["expr"], synthetic.RUN), time=moment)["result"]
            values[panel["title"]] = [float(each["value"][1]) for each in found]
    # Of a rank that is no suspect no one measures by how much it is slower.
    assert values.pop("Slower than its peers") == []
    assert {title: len(found) for title, found in values.items() if len(found) != 1} == {}
    assert [values[title] for title in ("Runs held back", "Exporters without broker", "Slow ranks")] == [[0], [0], [0]]
    assert values["Agents down"] == [1]  # the one of the synthetic run


def test_processes_are_those_of_the_services(server):
    """Every exporter of Prometheus has series of these names; shown are ours."""
    for title in ("CPU of the services", "Memory of the services"):
        (panel,) = [panel for panel in PANELS if panel["title"] == title]
        found = [{series["metric"]["instance"] for series in server.ask(t, synthetic.RUN)} for t in panel["targets"]]
        assert found == [{"node1:9855"}, {"head:9856"}]


def test_annotations_mark_the_incident(server):
    """The incident marks the panels from the fault to the end; nothing is marked as begun that began before."""
    marks = {mark["name"]: mark["expr"] for mark in BOARDS["run"]["annotations"]["list"]}
    marked = server.ask({"expr": marks["Incidents"], "instant": False}, synthetic.RUN)
    closed, incident = sorted(marked, key=lambda each: each["metric"]["incident"])
    assert closed["metric"]["incident"] == synthetic.CLOSED_INCIDENT
    assert server.ask({"expr": marks["Starts and restarts"], "instant": False}, synthetic.RUN) == []
    assert incident["metric"] == {"incident": "train-1", "rank": "2", "cause": "compute"}
    assert abs(incident["values"][0][0] - (server.end - synthetic.SPAN_S + synthetic.FAULT_S)) <= 60


def shown(server, title, letter="A"):
    """Return the series of a panel by their legend labels, with their last value."""
    board = every_panel(BOARDS["run"])
    (target,) = [t for p in board for t in p.get("targets", []) if p["title"] == title and t["refId"] == letter]
    series = server.ask(target, synthetic.RUN)
    return {tuple(s["metric"].values()): float((s.get("values") or [s["value"]])[-1][1]) for s in series}


def test_a_closed_incident_is_listed_and_an_open_one_is_not(server):
    """Of what was open in the chosen time, the table has what is not open any more."""
    assert [labels for labels in shown(server, "Closed incidents") if synthetic.CLOSED_INCIDENT in labels]
    assert not [labels for labels in shown(server, "Closed incidents") if "train-1" in labels]


def test_the_culprit_stands_out(server):
    """Rank 2 works longest and waits least, its host is the longest, and seven devices' waiting is what is lost."""
    work, waits = shown(server, "Longest own work"), shown(server, "Shortest waits")
    (rank, host), longest = max(work.items(), key=lambda item: item[1])
    assert {rank, host} == {"2", "node1"}
    assert longest == pytest.approx(1.3, rel=0.05)
    assert set(min(waits, key=waits.get)) == {"2", "node1"}
    hosts = shown(server, "Own work by host")
    assert max(hosts, key=hosts.get) == ("node1",)
    (lost,) = shown(server, "Devices lost").values()
    assert lost == pytest.approx(7 * 0.5 / 1.5, rel=0.05)


def test_the_inspector_shows_who_arrives_last_and_what_a_link_carries(server):
    """By the device's clock: all wait for rank 2, within kernels whose bandwidth falls on the other ranks alone."""
    moment = server.end
    waited = {}
    (target,) = [t for p, t in TARGETS if p["title"] == "Ranks that the others waited for"]
    for series in server.ask(target, synthetic.RUN):
        waited[series["metric"]["rank"]] = float(series["values"][-1][1])
    assert max(waited, key=waited.get) == str(synthetic.SLOW_RANK)
    assert max(waited.values()) == pytest.approx(synthetic.SLOW_STEP_S - synthetic.HEALTHY_STEP_S, rel=0.01)
    own = total(server, "rank", "Bus bandwidth by communicator", "{{communicator}} {{operation}}", moment)
    usual = total(
        server, "rank", "Bus bandwidth by communicator", "{{communicator}} {{operation}}, average rank", moment
    )
    assert own == pytest.approx(1.75e8 / 0.5, rel=0.01)
    assert usual == pytest.approx(8 * 1.75e8 / (7 * 1.0 + 0.5), rel=0.01)
    assert total(server, "domains", "Bus bandwidth by communicator", "{{communicator}} {{operation}}", moment) == usual


def test_own_work_and_waits_fill_the_step(server):
    """What the panels of own work and waits show adds up to the mean step time."""
    parts = sum(shown(server, "Own work by phase").values()) + sum(shown(server, "Waits by kind of domain").values())
    (target,) = [t for p, t in TARGETS if p["title"] == "Step time" and t["legendFormat"] == "mean"]
    (mean,) = server.ask(target, synthetic.RUN)
    assert float(mean["values"][-1][1]) == pytest.approx(synthetic.SLOW_STEP_S, rel=0.02)
    assert parts == pytest.approx(synthetic.SLOW_STEP_S, rel=0.02)


def total(server, board, title, legend, moment):
    """Return the sum of what a panel shows at a moment; a column of a table is named by its heading."""
    panels = [panel for panel in every_panel(BOARDS[board]) if panel["title"] == title and panel["type"] != "row"]
    targets = []
    for panel in panels:
        if panel["type"] == "table":
            names = panel["transformations"][-1]["options"]["renameByName"]
            targets += [each for each in panel["targets"] if names.get(f"Value #{each['refId']}") == legend]
        else:
            targets += [each for each in panel["targets"] if legend in (None, each["legendFormat"])]
    (target,) = targets
    found = server.get("/api/v1/query", query=fill(target["expr"], synthetic.RUN), time=moment)["result"]
    series = [each for each in found if each["metric"].get("rank") in (None, str(synthetic.SLOW_RANK))]
    assert series, (board, title, legend)
    return sum(float(each["value"][1]) for each in series)


ALIKE = {
    "step time": [
        ("run", "Step time", "recent median"),
        ("run", "Step time", "mean"),
        ("fleet", "Runs", "step time"),
    ],
    "slower than healthy": [
        ("run", "Slower than healthy", None),
        ("fleet", "Runs", "slower"),
        ("fleet", "Slower than healthy", "{{run}}"),
    ],
    "own work of the slow rank": [
        ("run", "Longest own work", "rank {{rank}} on {{hostname}}"),
        ("domains", "Wait matrix", "own work"),
        ("domains", "Own work by rank and time", "{{rank}}"),
        ("rank", "Own work and the average rank's", "{{phase}}"),
    ],
    "waits of the slow rank": [
        ("run", "Shortest waits", "rank {{rank}} on {{hostname}}"),
        ("domains", "Wait matrix", "dp"),
        ("domains", "Waiting by rank and time", "{{rank}}"),
        ("rank", "Waits and the average rank's", "{{domain_kind}}"),
    ],
    "own work of the average rank": [
        ("run", "Own work by phase", "{{phase}}"),
        ("rank", "Own work and the average rank's", "{{phase}}, average rank"),
    ],
    "waits of the average rank": [
        ("run", "Waits by kind of domain", "{{domain_kind}}"),
        ("domains", "Waits by kind", "{{domain_kind}}"),
        ("rank", "Waits and the average rank's", "{{domain_kind}}, average rank"),
    ],
    "bus bandwidth": [
        ("run", "Bus bandwidth", "{{domain_kind}}"),
        ("domains", "Bus bandwidth", "{{domain_kind}}"),
        ("rank", "Bus bandwidth of its collectives", "{{domain_kind}}"),
    ],
    "devices lost": [
        ("run", "Devices lost", "devices"),
        ("fleet", "Devices lost", "{{run}}"),
        ("fleet", "Runs", "devices lost"),
    ],
    "slowdown of the suspect": [
        ("run", "Suspects", "slowdown"),
        ("run", "Slowdown of suspects", "rank {{rank}} on {{hostname}}: {{cause}}"),
        ("rank", "Slower than its peers", None),
    ],
    "MFU": [("run", "MFU", "MFU"), ("fleet", "Runs", "MFU"), ("fleet", "MFU", "{{run}}")],
    "tokens": [("run", "Tokens", "tokens"), ("fleet", "Tokens", "{{run}}")],
    "exposed communication": [("run", "Exposed communication", "all"), ("fleet", "Exposed communication", "{{run}}")],
}
"""Panels that show one quantity: board, title, legend of the line or heading of the column."""
AFTER_FAULT_S = 75
"""A minute, and the scrape before it."""


@pytest.mark.parametrize("after_s", [AFTER_FAULT_S, 900])
def test_a_slowdown_reads_the_same_on_every_panel(server, after_s):
    """A minute after it began, and later: each quantity is one number on the Run, Rank, Domains and Fleet dashboards."""
    moment = server.end - synthetic.SPAN_S + synthetic.FAULT_S + after_s
    read = {name: [total(server, *place, moment) for place in places] for name, places in ALIKE.items()}
    for name, numbers in read.items():
        assert numbers == pytest.approx([numbers[0]] * len(numbers), rel=0.01), name
    slow_s, healthy_s = synthetic.SLOW_STEP_S, synthetic.HEALTHY_STEP_S
    assert read["step time"][0] == pytest.approx(slow_s)
    assert read["slower than healthy"][0] == pytest.approx(slow_s / healthy_s - 1)
    for who in ("slow", "average"):
        parts = read[f"own work of the {who} rank"][0] + read[f"waits of the {who} rank"][0]
        assert parts == pytest.approx(slow_s, rel=0.01)
    steps = total(server, "run", "Steps", "steps", moment)
    assert steps * slow_s == pytest.approx(1, rel=0.01)
    share = total(server, "fleet", "Share of devices lost", None, moment)
    assert share * synthetic.RANKS == pytest.approx(read["devices lost"][0], rel=0.01)


def test_every_rule_evaluates(server):
    """Prometheus evaluates each rule without an error over a whole set of series, labels joined one to one."""

    def evaluated():
        return [rule for group in server.get("/api/v1/rules")["groups"] for rule in group["rules"]]

    until(lambda: all(rule["health"] != "unknown" for rule in evaluated()))
    assert {rule["name"]: rule.get("lastError") for rule in evaluated() if rule["health"] != "ok"} == {}
    assert len(evaluated()) == len(rules.alerts()) + len(rules.recordings())


def test_the_page_names_rank_cause_and_function(server):
    """The alert of the synthetic fault names what is known, and no other alert pages."""

    def firing():
        active = server.get("/api/v1/alerts")["alerts"]
        return {a["labels"]["alertname"]: a for a in active if a["state"] == "firing"}

    until(lambda: "LockstepSlowDeviceFound" in firing())
    alerts = firing()
    labels = alerts["LockstepSlowDeviceFound"]["labels"]
    assert (labels["run"], labels["rank"], labels["hostname"], labels["cause"]) == ("train", "2", "node1", "compute")
    description = alerts["LockstepSlowDeviceFound"]["annotations"]["description"]
    assert "60%" in description
    assert f"Function: {synthetic.FUNCTION}." in description
    assert {name for name, alert in alerts.items() if alert["labels"]["severity"] == "critical"} == {
        "LockstepDevicesLost"
    }
    summary = alerts["LockstepDevicesLost"]["annotations"]["summary"]
    assert f"rank 2 on node1, compute, {synthetic.FUNCTION}." in summary


def test_the_preview_shows_all_dashboards(server, tmp_path, capsys):
    """`lockstep preview` draws every panel from the server, without an error, in a page that a browser takes as it is."""
    out = tmp_path / "preview.html"
    arguments = ["--prometheus", server.url, "--var", f"rank={synthetic.SLOW_RANK}", "--last", "50m"]
    found = 'ALERTS{alertname="LockstepSlowDeviceFound"}'
    until(lambda: server.get("/api/v1/query", query=found, time=time.time())["result"])
    assert main(["preview", str(out), *arguments]) == 0
    page = out.read_text()
    assert 'class="bad"' not in page
    for known in ("rank 2 on node1", synthetic.FUNCTION, "slow_function", "LockstepSlowDeviceFound", "diagnosed"):
        assert known in page, known
    with chromium() as browser:
        for width, scheme in ((1600, "light"), (1200, "dark")):
            browser.open(out, width=width, scheme=scheme)
            shown = browser.ask("[...document.querySelectorAll('section')].filter(e => e.checkVisibility()).length")
            assert shown == len([panel for panel in PANELS if panel["type"] != "row"])
            assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
            # No word of a table is broken, and no panel is wider than its place.
            assert browser.ask(
                "[...document.querySelectorAll('td:not(.w), th')].every("
                "e => getComputedStyle(e).whiteSpace === 'nowrap')"
            )
            assert (
                browser.ask(
                    "[...document.querySelectorAll('section')].filter(e => e.scrollWidth > e.clientWidth)"
                    ".map(e => e.innerText)"
                )
                == []
            )
        assert browser.complaints == []
    capsys.readouterr()
