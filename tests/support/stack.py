"""The whole way on one machine, every part a real process: trainers to pager. Used by tests and benchmarks."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families as parse_text

from alerts import rules
from alerts.policy import AlertPolicy
from tests.support.servers import (
    Webhook,
    alertmanager,
    free_port,
    get,
    get_json,
    mosquitto,
    prometheus,
    running,
    wait_ready,
    wait_until,
    webhook,
)

ROOT = Path(__file__).resolve().parents[2]
TRAINING = ROOT / "lockstep" / "cli" / "demo" / "training.py"
LOCKSTEP = [sys.executable, "-m", "lockstep.cli.main"]
INTERVAL = "1s"
_POLICY = AlertPolicy(slow_device_for_seconds=0)  # a ticket is to come while a test waits


@dataclass
class Stack:
    """Addresses of what runs, and the pager."""

    directory: Path
    shared: Path
    coordinator: str
    exporter: str
    prometheus: str
    pager: Webhook

    def incidents(self, run: str) -> list[dict]:
        """Return the incidents of a run from the coordinator's API."""
        answer = get_json(f"{self.coordinator}/api/v1/incidents?run={run}")
        return [] if answer is None else answer["incidents"]

    def run(self, run: str) -> dict | None:
        """Return the run from the coordinator's API; None before it has reported."""
        return get_json(f"{self.coordinator}/api/v1/runs/{run}")

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the exporter's samples of this name that have these labels."""
        page = get(f"{self.exporter}/metrics") or ""
        found = (sample for family in parse_text(page) for sample in family.samples if sample.name == name)
        return sum(sample.value for sample in found if labels.items() <= sample.labels.items())

    def strangers_cores(self, run: str, rank: int) -> float:
        """Return how many of a rank's cores others than the run had on average while it stepped."""
        labels = {"run": run, "rank": str(rank)}
        others_s = self.metric("lockstep_other_cpu_time_seconds_total", **labels)
        return others_s / self.metric("lockstep_step_time_seconds_total", **labels)

    @contextlib.contextmanager
    def job(
        self, run: str, fault: str, rank: int, *, fault_step: int = 60, ranks: int = 4, extra: tuple[str, ...] = ()
    ) -> Iterator[Path]:
        """Run the demonstration's training under `lockstep run`; yield its output file."""
        log = self.directory / f"{run}.log"
        command = [
            *LOCKSTEP, "run", "--run", run, "--root", str(self.shared), "--",
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
            str(TRAINING),
            "--fault", fault, "--rank", str(rank), "--fault-step", str(fault_step), "--steps", "100000", *extra,
        ]  # fmt: skip
        with running(command, log, os.environ | {"OMP_NUM_THREADS": "1"}):
            yield log

    def wait_step(self, run: str, step: int, seconds: float) -> None:
        """Wait until the run has completed `step`."""
        wait_until(lambda: (self.run(run) or {"step": -1})["step"] >= step, seconds, f"step {step} of {run}")


def fault_begin(log: Path) -> tuple[int, float] | None:
    """Return (step, unix time) at which the job's fault began, once it has."""
    match = re.search(r"begins at step (\d+), unix time ([\d.]+)", log.read_text())
    return (int(match[1]), float(match[2])) if match else None


@contextlib.contextmanager
def full_stack(
    directory: Path,
    settings: dict[str, str] | None = None,
    policy: AlertPolicy = _POLICY,
    interval: str = INTERVAL,
) -> Iterator[Stack]:
    """Start mosquitto, exporter, coordinator, Prometheus, Alertmanager and a pager.

    `interval` is that of scrapes, which may last as long, and of evaluations.
    """
    shared = directory / "shared"
    shared.mkdir()
    with contextlib.ExitStack() as parts:
        pager = parts.enter_context(webhook())
        broker_port = parts.enter_context(mosquitto(directory)).port
        ports = {}
        for service in ("exporter", "coordinator"):
            ports[service] = free_port()
            config = directory / f"{service}.yaml"
            lines = {"broker_port": broker_port, "http_host": "127.0.0.1", "http_port": ports[service]}
            if service == "exporter":
                lines |= {"root": str(shared), "node": "node-a", "spool_directory": str(directory / "spool")}
                lines |= {"metrics_level": "full"}
            else:
                lines |= {"state_directory": str(directory / "state")} | (settings or {})
            config.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
            log = directory / f"{service}.log"
            process = parts.enter_context(running([*LOCKSTEP, service, "--config", str(config)], log))
            wait_ready(f"http://127.0.0.1:{ports[service]}/-/healthy", process, log)
        alerts = parts.enter_context(alertmanager(directory, _alertmanager_yaml(pager.url)))
        rule_file = directory / "lockstep.rules.yaml"
        rule_file.write_text(rules.render(policy=policy))
        server = parts.enter_context(prometheus(directory, _prometheus_yaml(ports, alerts, rule_file, interval)))
        yield Stack(
            directory=directory,
            shared=shared,
            coordinator=f"http://127.0.0.1:{ports['coordinator']}",
            exporter=f"http://127.0.0.1:{ports['exporter']}",
            prometheus=server,
            pager=pager,
        )


def _prometheus_yaml(ports: dict[str, int], alerts: str, rule_file: Path, interval: str) -> str:
    jobs = "".join(
        f"  - job_name: lockstep-{service}\n    static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
        for service, port in ports.items()
    )
    return (
        f"global: {{scrape_interval: {interval}, evaluation_interval: {interval}}}\n"
        f"rule_files: [{rule_file}]\nscrape_configs:\n{jobs}"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['{alerts.removeprefix('http://')}']}}]}}]}}\n"
    )


def _alertmanager_yaml(pager: str) -> str:
    return (
        "route: {receiver: pager, group_by: [alertname, run], group_wait: 0s, group_interval: 1s, repeat_interval: 1h,\n"
        "  routes: [{receiver: nobody, matchers: ['severity=\"none\"']}]}\n"
        "receivers:\n  - name: nobody\n"
        f"  - name: pager\n    webhook_configs: [{{url: '{pager}/', send_resolved: true}}]\n"
    )
