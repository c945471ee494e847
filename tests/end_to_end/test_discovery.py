"""Prometheus finds exporters through the coordinator, and scrapes both over TLS with a password and a certificate."""

import json
import sys
import urllib.parse
from pathlib import Path

import bcrypt
import pytest
import yaml

from tests.support.servers import WAIT_S, free_port, get_json, mosquitto, prometheus, running, wait_until

pytestmark = pytest.mark.servers
CERTIFICATES = Path(__file__).parents[1] / "serving" / "certificates"
PASSWORD = "a test's"
LOCKSTEP = [sys.executable, "-m", "lockstep.cli.main"]


def test_exporters_are_found_and_scraped_over_tls(tmp_path):
    """No target stands in Prometheus' configuration but the coordinator: the exporter's comes from its heartbeat."""
    web = tmp_path / "web.yml"
    tls = {"cert_file": str(CERTIFICATES / "server.crt"), "key_file": str(CERTIFICATES / "server.key")}
    tls |= {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": str(CERTIFICATES / "ca.crt")}
    users = {"prometheus": bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}
    web.write_text(yaml.safe_dump({"tls_server_config": tls, "basic_auth_users": users}))
    exporter_port, coordinator_port = free_port(), free_port()
    (tmp_path / "shared").mkdir()
    with mosquitto(tmp_path) as broker:
        common = [f"--set=broker_port={broker.port}", "--set=http_host=127.0.0.1", f"--web.config.file={web}"]
        own = {
            "exporter": (
                *(f"--set=http_port={exporter_port}", "--set=node=n0", f"--set=root={tmp_path / 'shared'}"),
                *(f"--set=spool_directory={tmp_path / 'spool'}", "--set=announce_seconds=1"),
                f"--set=advertise_address=127.0.0.1:{exporter_port}",
            ),
            "coordinator": (f"--set=http_port={coordinator_port}",),
        }
        with (
            running([*LOCKSTEP, "exporter", *common, *own["exporter"]], tmp_path / "exporter.log"),
            running([*LOCKSTEP, "coordinator", *common, *own["coordinator"]], tmp_path / "coordinator.log"),
            prometheus(tmp_path, json.dumps(configuration(coordinator_port))) as address,
        ):

            def up(job):
                query = urllib.parse.quote(f'up{{job="{job}"}}')
                answer = get_json(f"{address}/api/v1/query?query={query}")
                return {series["metric"]["instance"]: series["value"][1] for series in answer["data"]["result"]}

            wait_until(
                lambda: up("lockstep-coordinator") == {f"127.0.0.1:{coordinator_port}": "1"}, WAIT_S, "coordinator"
            )
            wait_until(lambda: up("lockstep-exporter") == {f"127.0.0.1:{exporter_port}": "1"}, WAIT_S, "exporter found")
            found = get_json(f"{address}/api/v1/targets")["data"]["activeTargets"]
            (exporter,) = [each for each in found if each["labels"]["job"] == "lockstep-exporter"]
            assert exporter["scrapeUrl"] == f"https://127.0.0.1:{exporter_port}/metrics"
            assert exporter["labels"]["node_name"] == "n0"


def configuration(coordinator_port):
    """Return Prometheus' configuration."""
    client = {
        "tls_config": {
            "ca_file": str(CERTIFICATES / "ca.crt"),
            "cert_file": str(CERTIFICATES / "prometheus.crt"),
            "key_file": str(CERTIFICATES / "prometheus.key"),
        },
        "basic_auth": {"username": "prometheus", "password": PASSWORD},
    }
    address = f"127.0.0.1:{coordinator_port}"
    discovery = {"url": f"https://{address}/api/v1/targets", "refresh_interval": "1s", **client}
    relabel = {"source_labels": ["__meta_lockstep_node"], "target_label": "node_name"}
    jobs = [
        {"job_name": "lockstep-coordinator", "static_configs": [{"targets": [address]}], "scheme": "https", **client},
        {"job_name": "lockstep-exporter", "http_sd_configs": [discovery], "relabel_configs": [relabel], **client},
    ]
    return {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
