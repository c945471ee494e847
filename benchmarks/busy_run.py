"""A healthy run on cores that strangers share: no one is to be paged, and no hang or collection blamed.

    python -m benchmarks.busy_run --minutes 30

Real torchrun ranks that train and collect garbage in every step (`busy_job.py`), one busy process a core next to them,
`lockstep up` with its default settings, and Prometheus with the default rules. Exit code 1 where anything pages, or an
incident is a hang or of collections. Tickets and other incidents are printed: strangers do slow ranks.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from alerts import rules
from alerts.policy import AlertPolicy
from coordinator.detect.anomalies import HANG, UNSYNCHRONISED_GC
from lockstep.contracts.paths import DEFAULT_ROOT
from tests.support.servers import free_port, get_json, is_installed, prometheus, running, wait_ready, wait_until

RUN = "busy"
SCRAPE_SECONDS = 5
PAGING, TICKET = "critical", "warning"  # severities (docs/alerts.md)
START_SECONDS = 300.0
_LOCKSTEP = [sys.executable, "-m", "lockstep.cli.main"]
_BUSY = "while True: sum(range(10000))"
_JOB = Path(__file__).with_name("busy_job.py")


def main() -> int:
    """Train for so long, and print what was found meanwhile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--strangers", type=int, default=os.cpu_count() or 1, help="busy processes (default: a core)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=Path(DEFAULT_ROOT).parent) as shared,
        tempfile.TemporaryDirectory() as directory,
    ):
        found = _observe(Path(shared), Path(directory), options)
    print(json.dumps(found, indent=2))
    wrong = found["pages"] + [each for each in found["incidents"] if _is_wrong(each)]
    print("right: no page, no hang, no collections" if not wrong else f"wrong: {wrong}")
    return 1 if wrong else 0


def _is_wrong(incident: dict[str, Any]) -> bool:
    return incident["kind"] in (HANG, UNSYNCHRONISED_GC) or incident["cause"] == "gc"


def _observe(shared: Path, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    coordinator_port, exporter_port = free_port(), free_port()
    coordinator = f"http://127.0.0.1:{coordinator_port}"
    ports = ["--coordinator-port", str(coordinator_port), "--exporter-port", str(exporter_port)]
    up = [*_LOCKSTEP, "up", "--root", str(shared), *ports]
    with contextlib.ExitStack() as parts:
        log = directory / "up.log"
        services = parts.enter_context(running(up, log))
        wait_ready(f"{coordinator}/-/healthy", services, log)
        server = None
        if is_installed("prometheus"):
            configuration = _configuration(directory, coordinator_port, exporter_port)
            server = parts.enter_context(prometheus(directory, configuration))
        parts.enter_context(_strangers(options.strangers))
        job_log = directory / "job.log"
        parts.enter_context(running(_job(shared, options.ranks), job_log, os.environ | {"OMP_NUM_THREADS": "1"}))
        wait_until(lambda: _step(coordinator) > 0, START_SECONDS, "the first steps of the training")
        began_s, first_step = time.monotonic(), _step(coordinator)
        while time.monotonic() < began_s + 60 * options.minutes:
            time.sleep(5.0)  # the measurement's own length, not a wait for an event
        pages, tickets = _alerts(server)
        return {
            "minutes": round((time.monotonic() - began_s) / 60, 1),
            "ranks": options.ranks,
            "strangers": options.strangers,
            "load": round(os.getloadavg()[0], 1),
            "steps": _step(coordinator) - first_step,
            "pages": pages,
            "tickets": tickets,
            "incidents": _incidents(coordinator),
            "captures": dict(_captures(coordinator)),
            "stderr_lines_of_kineto": job_log.read_text().count("USDT"),
        }


def _job(shared: Path, ranks: int) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*_LOCKSTEP, "run", "--run", RUN, "--root", str(shared), "--", *torchrun, str(_JOB), "--steps", "100000000"]


@contextlib.contextmanager
def _strangers(count: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def _configuration(directory: Path, *ports: int) -> str:
    """Return Prometheus' configuration with the default rules and both services."""
    rule_file = directory / "lockstep.rules.yaml"
    rule_file.write_text(rules.render(policy=AlertPolicy()))
    targets = [
        f"  - job_name: lockstep-{service}\n    static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
        for service, port in zip(("coordinator", "exporter"), ports, strict=True)
    ]
    intervals = f"scrape_interval: {SCRAPE_SECONDS}s, evaluation_interval: {SCRAPE_SECONDS}s"
    return f"global: {{{intervals}}}\nrule_files: [{rule_file}]\nscrape_configs:\n{''.join(targets)}"


def _step(coordinator: str) -> int:
    run = get_json(f"{coordinator}/api/v1/runs/{RUN}") or {}
    return run.get("step") or 0


def _incidents(coordinator: str) -> list[dict[str, Any]]:
    found = (get_json(f"{coordinator}/api/v1/incidents?run={RUN}") or {"incidents": []})["incidents"]
    keys = ("kind", "cause", "state", "ranks", "onset_step", "function", "root_cause", "slowdown_ratio", "evidence")
    return [{key: each[key] for key in keys} for each in found]


def _captures(coordinator: str) -> Counter[str]:
    answer = get_json(f"{coordinator}/api/v1/runs/{RUN}/profile") or {}
    captures = [each for each in (answer.get("current"), *answer.get("past", ())) if each]
    return Counter(rank["state"] for each in captures for rank in each["ranks"])


def _alerts(server: str | None) -> tuple[list[str], list[str]]:
    """Return the names of alerts that fired: those that page, and those that are tickets."""
    if server is None:
        raise SystemExit("prometheus is not installed: whether anybody is paged was not evaluated")
    query = 'group by (alertname, severity) (max_over_time(ALERTS{alertstate="firing"}[1d]))'
    answer = get_json(f"{server}/api/v1/query?query={quote(query)}") or {"data": {"result": []}}
    found = [each["metric"] for each in answer["data"]["result"]]
    pages = [each["alertname"] for each in found if each.get("severity") == PAGING]
    return pages, [each["alertname"] for each in found if each.get("severity") == TICKET]


if __name__ == "__main__":
    sys.exit(main())
