"""Debian's servers, started on loopback ports of their own and ended by pid. A missing one is a failure."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

may_start = True
"""Whether servers may be started now; pytest sets it for each test."""
START_SECONDS = 120.0  # a coordinator on a machine with thirty tasks for two cores needs 30
WAIT_S = 120.0
"""For what one process brings about on such a machine; within the limit of a test that sets none."""
PATIENCE_S = 300.0
"""For what several processes bring about together there. A test that passes never waits so long."""
LIVE_LIMIT_S = 1200
"""Of a test with real ranks and all servers, which waits for several such things."""


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> object:
    """Return the first true value of `condition`; fail by name after `seconds`.

    The longer it has waited the less often it looks: most conditions are requests, which take time from what they wait for.
    """
    begin = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - begin
        if waited_s > seconds:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(min(max(0.02, waited_s / 20), 0.2))
    return value


def get(url: str) -> str | None:
    """Return the body of a page that answers 200, else None."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, OSError):
        return None


def get_json(url: str):
    """Return the JSON of a page that answers 200, else None."""
    body = get(url)
    return None if body is None else json.loads(body)


def program(name: str) -> str:
    """Return the path of an installed server; it may stand in sbin, which is not on everyone's PATH."""
    assert may_start, f"{name}: a test that starts it is marked `servers`"
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        raise FileNotFoundError(f"{name} is not installed: run `make system-packages`")
    return found


def is_installed(*names: str) -> bool:
    """Whether all programs are there."""
    with contextlib.suppress(FileNotFoundError):
        return all(program(name) for name in names)
    return False


@contextlib.contextmanager
def running(command: list[str], log: Path, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen]:
    """Run a process, its output in `log`; end it at the end, politely first."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_ready(url: str, process: subprocess.Popen, log: Path) -> None:
    """Wait until `url` answers 200; a process that ended early fails with its log."""

    def ready():
        if process.poll() is not None:
            raise RuntimeError(f"{url}: the process ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        return get(url)

    wait_until(ready, START_SECONDS, url)


class Mosquitto:
    """Debian's broker on a loopback port that stays the same over restarts; no persistence.

    `extra` are further lines of its configuration.
    """

    def __init__(self, directory: Path, extra: str = "") -> None:
        self.port = free_port()
        self._directory = directory
        self._process: subprocess.Popen | None = None
        # Started as root it would otherwise become a user who may not read this test's files.
        lines = f"listener {self.port} 127.0.0.1\nallow_anonymous true\nuser root\n{extra}"
        (directory / "mosquitto.conf").write_text(lines)

    def start(self) -> None:
        """Start it and wait until it listens."""
        log = self._directory / "mosquitto.log"
        with log.open("wb") as output:
            command = [program("mosquitto"), "-c", str(self._directory / "mosquitto.conf")]
            self._process = process = subprocess.Popen(command, stdout=output, stderr=output)

        def listening() -> bool:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return True
            return False

        wait_until(listening, START_SECONDS, "mosquitto")

    @property
    def pid(self) -> int:
        """The process, while it runs."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End it without a chance to report it; it may be started again."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)
        self._process = None

    def stop(self) -> None:
        """End it; it may be started again."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
            self._process = None


@contextlib.contextmanager
def mosquitto(directory: Path) -> Iterator[Mosquitto]:
    """Run mosquitto."""
    broker = Mosquitto(directory)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@contextlib.contextmanager
def prometheus(directory: Path, configuration: str) -> Iterator[str]:
    """Run Prometheus on `configuration` and yield its address."""
    port = free_port()
    (directory / "prometheus.yml").write_text(configuration)
    log = directory / "prometheus.log"
    command = [
        program("prometheus"),
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with running(command, log) as process:
        wait_ready(f"http://127.0.0.1:{port}/-/ready", process, log)
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def alertmanager(directory: Path, configuration: str) -> Iterator[str]:
    """Run Alertmanager on `configuration` and yield its address."""
    port = free_port()
    (directory / "alertmanager.yml").write_text(configuration)
    log = directory / "alertmanager.log"
    command = [
        program("prometheus-alertmanager"),
        f"--config.file={directory / 'alertmanager.yml'}",
        f"--storage.path={directory / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with running(command, log) as process:
        wait_ready(f"http://127.0.0.1:{port}/-/ready", process, log)
        yield f"http://127.0.0.1:{port}"


class Delivery(NamedTuple):
    """One POST of Alertmanager: Unix time of arrival, path, body."""

    at: float
    path: str
    body: dict


@dataclass
class Webhook:
    """A pager: keeps what Alertmanager delivers."""

    url: str
    deliveries: list[Delivery] = field(default_factory=list)

    def alerts(self, **labels: str) -> list[tuple[float, dict]]:
        """Return (unix time, alert) of every delivered alert with these labels."""
        return [
            (delivery.at, alert)
            for delivery in self.deliveries
            for alert in delivery.body["alerts"]
            if labels.items() <= alert["labels"].items()
        ]


@contextlib.contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on a free port; yield host and port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def webhook() -> Iterator[Webhook]:
    """Receive webhooks on a free port."""
    deliveries: list[Delivery] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            deliveries.append(Delivery(time.time(), self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            """Keep the test's output quiet."""

    with _serving(Handler) as address:
        yield Webhook(f"http://{address}", deliveries)


@contextlib.contextmanager
def answers(text: str) -> Iterator[str]:
    """Answer every request, GET and POST, with `text`; yield host and port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def do_POST(self):
            self.do_GET()

        def log_message(self, *_):
            """Keep the test's output quiet."""

    with _serving(Handler) as address:
        yield address


@contextlib.contextmanager
def metrics_pages(text: Callable[[str], str]) -> Iterator[str]:
    """Serve what `text` returns for a path, as an exporter's /metrics; yield host and port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = text(self.path).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Keep the test's output quiet."""

    with _serving(Handler) as address:
        yield address
