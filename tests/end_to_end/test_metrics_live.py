"""/metrics of both services as a scraper meets them: real processes, eight ranks that measure everything on a host."""

import gzip
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from lockstep.cli import series_table
from lockstep.contracts.memory_report import DEVICE
from lockstep.contracts.metrics import BY_NAME, CATALOGUE
from lockstep.contracts.records import DOMAIN_KINDS
from tests.end_to_end.fake_nodes import FakeNodes
from tests.support.servers import LIVE_LIMIT_S, PATIENCE_S, free_port, get, mosquitto, running, wait_ready, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(LIVE_LIMIT_S)]

LOCKSTEP = [sys.executable, "-m", "lockstep.cli.main"]
RUN, RANKS, SCRAPERS = "llm", 8, 40
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
SERVICES = ("exporter", "coordinator")
AS_THE_NODE_SHOWS = {
    "lockstep_cpu_wait_time_seconds_total",
    "lockstep_cpu_throttled_time_seconds_total",
    "lockstep_process_cpu_time_seconds_total",
    "lockstep_other_cpu_time_seconds_total",
    "lockstep_rank_cores",
    "lockstep_node_cpu_pressure_seconds_total",
    "lockstep_node_load",
}
"""What a container may not let be read."""
ON_A_DEVICE = {
    "lockstep_device_step_time_seconds_total",
    "lockstep_device_collective_time_seconds_total",
    "lockstep_host_lead_seconds_total",
}
LEVEL = "default"
"""What an exporter has that is not configured otherwise."""
SERIES_ON_A_DEVICE = {
    "lockstep_memory_bytes": sum(kind.startswith(DEVICE) for kind in BY_NAME["lockstep_memory_bytes"].values_at(LEVEL))
    * RANKS
}
"""Of a family's series, those that ranks without a device have not."""
ONCE_KNOWN = {
    "lockstep_run_earlier_step_duration_seconds",
    "lockstep_run_expected_step_seconds",
    "lockstep_run_expected_step_error_ratio",
    "lockstep_run_imbalance_ratio",
    "lockstep_fleet_recent_incidents",
    "lockstep_memory_growth_bytes_per_step",
    "lockstep_run_memory_remaining_seconds",
}
"""What takes an earlier attempt of the run, a model of the job, a window of steps, an incident, or memory that grows."""


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    """Start both services with ranks that step; yield their addresses."""
    folder = tmp_path_factory.mktemp("live")
    root = folder / "shared"
    root.mkdir()
    ports = {service: free_port() for service in SERVICES}
    with mosquitto(folder) as broker:
        common = [f"--set=broker_port={broker.port}", "--set=http_host=127.0.0.1"]
        own = {
            "exporter": [f"--set=root={root}", f"--set=spool_directory={folder / 'spool'}", "--set=batch_seconds=0.2"],
            "coordinator": [f"--set=domains=dp={RANKS}"],
        }
        commands = {
            service: [*LOCKSTEP, service, *common, *own[service], f"--set=http_port={ports[service]}"]
            for service in SERVICES
        }
        logs = {service: folder / f"{service}.log" for service in SERVICES}
        nodes = FakeNodes([root], RUN, RANKS, whole=True)
        with (
            running(commands["exporter"], logs["exporter"]) as exporter,
            running(commands["coordinator"], logs["coordinator"]) as coordinator,
            nodes.stepping(),
        ):
            found = {service: f"http://127.0.0.1:{port}" for service, port in ports.items()}
            for service, process in (("exporter", exporter), ("coordinator", coordinator)):
                wait_ready(f"{found[service]}/-/ready", process, logs[service])
            known = f'lockstep_run_baseline_step_duration_seconds{{run="{RUN}"}}'
            wait_until(
                lambda: known in (get(f"{found['coordinator']}/metrics") or ""), PATIENCE_S, "a run with a baseline"
            )
            settled = "lockstep_exporter_last_acknowledgement_timestamp_seconds "
            wait_until(
                lambda: f"\n{settled}" in (get(f"{found['exporter']}/metrics") or ""), PATIENCE_S, "an acknowledgement"
            )
            yield found


def scrape(address, **headers):
    """Return (content type, text) of a scrape."""
    request = urllib.request.Request(f"{address}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        body = answer.read()
        if answer.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        return answer.headers["Content-Type"], body.decode()


def families(text):
    """Return the number of series by family of the catalogue."""
    names = Counter(re.match(r"[a-zA-Z0-9_:]+", line)[0] for line in text.splitlines() if not line.startswith("#"))
    known = {metric.name for metric in CATALOGUE}
    found = Counter()
    for name, count in names.items():
        found[name if name in known else re.sub(r"_(bucket|sum|count)\Z", "", name)] += count
    return found


def promised(source):
    """Return what the catalogue states that eight ranks of one run have, findings aside."""
    kinds = len(DOMAIN_KINDS)
    of_each = {"kind": RANKS * kinds, "rank": RANKS, "run_kind": kinds, "run": 1, "service": 1}
    return {
        metric.name: series_table.series_of(metric, LEVEL) * of_each[scope]
        for metric in CATALOGUE
        if metric.source in (source, "both") and (scope := series_table.scope_of(metric, LEVEL)) in of_each
        if source == "coordinator" or metric.form(LEVEL) != "absent"
    }


@pytest.mark.parametrize("service", SERVICES)
def test_a_scrape_has_the_series_that_are_promised(addresses, service):
    """Family by family what docs/metrics.md counts, for eight ranks in all kinds of domains; and no other."""
    _, text = scrape(addresses[service])
    found, expected = families(text), promised(service)
    optional = AS_THE_NODE_SHOWS | ON_A_DEVICE | ONCE_KNOWN
    assert set(found) <= set(expected)
    here = {name: count - SERIES_ON_A_DEVICE.get(name, 0) for name, count in expected.items()}
    differ = {name: (found[name], count) for name, count in here.items() if found[name] != count}
    assert {name: pair for name, pair in differ.items() if name not in optional or pair[0]} == {}
    most = (
        series_table.of_node(ranks=RANKS, kinds=len(DOMAIN_KINDS), level=LEVEL)
        if service == "exporter"
        else series_table.of_coordinator(runs=1)
    )
    usual = sum(count for name, count in here.items() if name not in ON_A_DEVICE | ONCE_KNOWN)
    assert sum(expected.values()) == most >= found.total() > 0.85 * usual


@pytest.mark.parametrize("service", SERVICES)
def test_promtool_has_no_complaint_of_a_live_page(addresses, service):
    """Prometheus' own linter, on what came over the wire; and no sample has a time of its own."""
    kind, text = scrape(addresses[service])
    assert kind == TEXT
    checked = subprocess.run(["promtool", "check", "metrics"], input=text.encode(), capture_output=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
    samples = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r'[a-z_]+({([a-z_]+="[^"]*",?)+})? \S+', line) for line in samples)


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, TEXT),
        ("text/plain", TEXT),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", OPENMETRICS),
        ("application/openmetrics-text;version=2.0.0", TEXT),
    ],
)
def test_the_form_is_the_one_asked_for(addresses, service, accept, kind):
    """Over HTTP as `choose_form` decides, compressed or not."""
    headers = {} if accept is None else {"Accept": accept}
    for encoding in ({}, {"Accept-Encoding": "gzip"}):
        got, text = scrape(addresses[service], **headers, **encoding)
        assert got == kind
        assert text.endswith("# EOF\n") == (kind == OPENMETRICS)


@pytest.mark.parametrize("service", SERVICES)
def test_forty_scrapers_at_once_are_all_answered(addresses, service):
    """Whole pages, all of them, and the service answers its probe afterwards."""
    with ThreadPoolExecutor(SCRAPERS) as pool:
        pages = list(pool.map(lambda _: scrape(addresses[service])[1], range(SCRAPERS)))
    assert {frozenset(families(page).items()) for page in pages} == {frozenset(families(pages[0]).items())}
    assert get(f"{addresses[service]}/-/healthy") is not None


@pytest.mark.parametrize("service", SERVICES)
def test_nothing_but_reading(addresses, service):
    """A scraper's path takes no body."""
    request = urllib.request.Request(f"{addresses[service]}/metrics", data=b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=PATIENCE_S)
    assert refused.value.code == 405
    refused.value.close()
