"""The rules on VictoriaMetrics: vmalert reads them, and replayed over the synthetic run they give what Prometheus gives.

Debian's package `victoria-metrics` is no part of the others that tests need; where it is missing these are skipped. The
live loop on it is in `tests/end_to_end/test_alert_loop_victoria.py`.
"""

import subprocess
import time
import urllib.parse
import urllib.request

import pytest
import yaml

from alerts import rules
from lockstep.cli.main import main
from tests.dashboards import synthetic
from tests.support import servers
from tests.support.servers import free_port, get_json, is_installed, running, wait_ready

pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(
        not is_installed("victoria-metrics", "vmalert"),
        reason="Debian's victoria-metrics (with vmalert) is not installed",
    ),
]
KEPT = ("slow_keep_seconds", "link_slow_keep_seconds", "expected_keep_seconds")


@pytest.fixture(scope="module")
def plain_rules(tmp_path_factory):
    """Export the rules for a vmalert that knows no keep_firing_for, as the documentation states; the run has eight ranks."""
    folder = tmp_path_factory.mktemp("rules")
    settings = [*(f"{name}=0" for name in KEPT), "slow_device_for_seconds=0", "page_devices_lost=4"]
    flags = [part for setting in settings for part in ("--set", setting)]
    assert main(["export", "rules", str(folder), *flags]) == 0
    return folder / "lockstep.rules.yaml"


def vmalert(*flags):
    command = [servers.program("vmalert"), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_vmalert_reads_the_rules_but_for_what_is_kept(plain_rules, capsys):
    """All of them without keep_firing_for; with it, a vmalert that does not know it reports that and nothing else."""
    done = vmalert(f"-rule={plain_rules}", "-dryRun")
    assert done.returncode == 0, done.stderr[-2000:]
    done = vmalert(f"-rule={rules.RENDERED}", "-dryRun")
    refused = [line for line in done.stderr.splitlines() if "invalid rule" in line]
    assert (done.returncode == 0) == (refused == [])
    assert all(line.endswith("unknown fields in rule: keep_firing_for") for line in refused)
    capsys.readouterr()


def without_texts(path, folder):
    """Return the rules without their texts: a replay answers no queries inside of them."""
    document = yaml.safe_load(path.read_text())
    for rule in (rule for group in document["groups"] for rule in group["rules"] if "alert" in rule):
        del rule["annotations"]
    (folder / "replayed.yaml").write_text(yaml.safe_dump(document))
    return folder / "replayed.yaml"


@pytest.fixture(scope="module")
def filled(tmp_path_factory, plain_rules):
    """Import the synthetic run, replay the rules over it; yield (address, Unix time of its end)."""
    folder = tmp_path_factory.mktemp("victoria")
    end = int(time.time()) // 60 * 60 - 60
    start = end - synthetic.SPAN_S
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [servers.program("victoria-metrics"), f"-storageDataPath={folder / 'data'}", f"-httpListenAddr={url[7:]}"]
    with running([*command, "-search.latencyOffset=0s"], folder / "log") as process:
        wait_ready(f"{url}/health", process, folder / "log")
        # Its import takes milliseconds where OpenMetrics has seconds.
        lines = [line for line in synthetic.openmetrics(start).splitlines() if not line.startswith("#")]
        body = "".join(f"{line}000\n" for line in lines).encode()
        with urllib.request.urlopen(f"{url}/api/v1/import/prometheus", body, timeout=60) as reply:
            assert reply.status == 204
        make_searchable(url)
        times = [
            f"-replay.time{name}={time.strftime('%FT%TZ', time.gmtime(at))}"
            for name, at in (("From", start), ("To", end))
        ]
        done = vmalert(
            f"-rule={without_texts(plain_rules, folder)}", f"-datasource.url={url}", f"-remoteRead.url={url}", f"-remoteWrite.url={url}",
            "-evaluationInterval=60s", "-replay.rulesDelay=1ms", *times,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        make_searchable(url)
        yield url, end


def make_searchable(url):
    """Flush all that was stored: VictoriaMetrics keeps it a second or more, part by part, before queries find it."""
    with urllib.request.urlopen(f"{url}/internal/force_flush", timeout=60) as reply:
        assert reply.status == 200


def ask(url, query, at):
    """Return the series of a query at a time."""
    parameters = urllib.parse.urlencode({"query": query, "time": at, "nocache": 1})
    answer = get_json(f"{url}/api/v1/query?{parameters}")
    return [] if answer is None else answer["data"]["result"]


def test_each_recorded_series_is_there(filled):
    """Each rule records what the synthetic run gives it, with the step time that it has."""
    url, end = filled
    assert [rule.record for rule in rules.recordings() if not ask(url, rule.record, end - 60)] == []
    (step,) = ask(url, "run:lockstep_step_time_seconds_per_step:ratio_rate1m", end - 60)
    assert float(step["value"][1]) == pytest.approx(synthetic.SLOW_STEP_S, rel=0.03)


def test_the_same_alert_fires_as_on_prometheus(filled):
    """One ticket, with rank, host and cause, from the fault on and not before, and one page."""
    url, end = filled
    firing = 'ALERTS{alertstate="firing",alertname="LockstepSlowDeviceFound"}'
    (ticket,) = ask(url, firing, end - 60)
    labels = ticket["metric"]
    assert (labels["run"], labels["rank"], labels["hostname"], labels["cause"]) == ("train", "2", "node1", "compute")
    assert ask(url, firing, end - synthetic.SPAN_S + synthetic.FAULT_S - 360) == []
    paging = {alert.name for alert in rules.alerts() if alert.severity == "critical"}
    every = ask(url, 'ALERTS{alertstate="firing"}', end - 60)
    assert {a["metric"]["alertname"] for a in every} & paging == {"LockstepDevicesLost"}
