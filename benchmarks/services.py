"""Services as real processes that a benchmark starts, kills, suspends and starts again; what they export and store."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from coordinator.intake.streams import SETTLED
from coordinator.store import FILE_NAME
from tests.support.servers import Mosquitto, free_port, get, wait_until

ROOT = Path(__file__).resolve().parents[1]
SHIPPED_BROKER = ROOT / "deploy" / "compose" / "mosquitto.conf"
START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_OWN_LINES = ("listener ", "allow_anonymous ")
_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

Samples = dict[str, float]
"""Values by series: the name with its labels, as the page writes them."""


def shipped_broker(directory: Path) -> Mosquitto:
    """Return a mosquitto with the limits that Lockstep ships, on a loopback port of its own."""
    lines = [line for line in SHIPPED_BROKER.read_text().splitlines() if not line.startswith(_OWN_LINES)]
    return Mosquitto(directory, "\n".join(lines) + "\n")


class Service:
    """A coordinator or an exporter, by its configuration; its port and its files outlive its processes."""

    def __init__(self, kind: str, name: str, directory: Path, settings: dict[str, object]) -> None:
        self.kind, self.name = kind, name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._config = directory / f"{name}.yaml"
        self._log = directory / f"{name}.log"
        lines = settings | {"http_host": "127.0.0.1", "http_port": self.port}
        self._config.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))

    @property
    def pid(self) -> int:
        """Process id of the running service.

        Raises
        ------
        RuntimeError
            It does not run.
        """
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(
                f"{self.name}: got no process, expected one that runs; its log ends:\n{self.log()[-3000:]}"
            )
        return self.process.pid

    def start(self) -> None:
        """Start it; `wait_ready` waits until it serves."""
        assert self.process is None
        command = [sys.executable, "-m", "lockstep.cli.main", self.kind, "--config", str(self._config)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
        self.starts += 1

    def wait_ready(self, path: str = "/-/healthy") -> None:
        """Wait until it answers.

        Raises
        ------
        RuntimeError
            The process ended.
        TimeoutError
            It does not answer in time.
        """
        process = self.process
        assert process is not None

        def answers() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {process.returncode}:\n{self.log()[-3000:]}")
            return get(self.url + path) is not None

        wait_until(answers, START_SECONDS, f"{self.name} at {self.url}{path}")

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order; nothing happens where it does not run."""
        if self.process is not None:
            self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(how)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def suspend(self) -> None:
        """Stop it where it stands."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        """Return what all its processes have logged."""
        return self._log.read_text(errors="replace")

    def scrape(self) -> Samples | None:
        """Return what `/metrics` shows, None where no server answers."""
        page = get(f"{self.url}/metrics")
        return None if page is None else parse_samples(page)


def parse_samples(page: str) -> Samples:
    """Return the samples of a page in the text format."""
    found = (_SAMPLE.fullmatch(line) for line in page.splitlines() if not line.startswith("#"))
    return {
        f"{match['name']}{{{match['labels'] or ''}}}": float(match["value"]) for match in found if match is not None
    }


def total(samples: Samples, name: str, labels: str = "") -> float:
    """Return the sum over the series of a name whose labels contain `labels`; 0 where there is none."""
    return sum(value for series, value in samples.items() if series.startswith(f"{name}{{") and labels in series)


class Usage(NamedTuple):
    """What a process has taken: CPU seconds since it began, and its resident memory now.

    `waited_s` is how long its first thread was ready to run and had no core.
    """

    cpu_s: float
    resident_bytes: int
    waited_s: float


def usage(pid: int) -> Usage:
    """Return what a living process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    resident = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert resident is not None
    waited_ns = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    return Usage((int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND, int(resident[1]) << 10, waited_ns / 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a coordinator that ended has left in its state directory."""

    evaluated: dict[str, int]
    """Records by run that reached the detectors."""
    ledger: dict[str, int]
    """Records by outcome: settled, or the reason of their loss."""
    incidents: dict[str, dict[str, object]]
    """Incidents by id, as JSON."""
    integrity: str

    @property
    def settled(self) -> int:
        """Records that reached their run."""
        return self.ledger.get(SETTLED, 0)

    @property
    def lost(self) -> dict[str, int]:
        """Records lost, by reason; reasons without any are left out."""
        return {reason: count for reason, count in self.ledger.items() if reason != SETTLED and count}


def read_store(state_directory: Path) -> Stored:
    """Read the store of a coordinator that does not run."""
    with closing(sqlite3.connect(state_directory / FILE_NAME)) as database:
        runs = database.execute("SELECT run, body FROM runs").fetchall()
        return Stored(
            evaluated={run: json.loads(body)["evaluated"]["records"] for run, body in runs},
            ledger=dict(database.execute("SELECT outcome, records FROM ledger").fetchall()),
            incidents={
                name: json.loads(body) for name, body in database.execute("SELECT id, body FROM incidents").fetchall()
            },
            integrity="; ".join(row[0] for row in database.execute("PRAGMA integrity_check").fetchall()),
        )
