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

START_SECONDS = 30.0


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> object:
    """Return the first true value of `condition`; fail by name after `seconds`."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.05)
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
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        raise FileNotFoundError(f"{name} is not installed: run `make system-packages`")
    return found


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


@contextlib.contextmanager
def mosquitto(directory: Path, port: int | None = None) -> Iterator[int]:
    """Run mosquitto and yield its port."""
    port = port or free_port()
    configuration = directory / "mosquitto.conf"
    configuration.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    with running([program("mosquitto"), "-c", str(configuration)], directory / "mosquitto.log") as process:

        def listening():
            assert process.poll() is None, (directory / "mosquitto.log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        wait_until(listening, START_SECONDS, "mosquitto")
        yield port


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


@dataclass
class Webhook:
    """A pager: keeps what Alertmanager delivers, with the time of arrival."""

    port: int
    deliveries: list[tuple[float, dict]] = field(default_factory=list)

    def alerts(self, **labels: str) -> list[tuple[float, dict]]:
        """Return (unix time, alert) of every delivered alert with these labels."""
        return [
            (at, alert)
            for at, delivery in self.deliveries
            for alert in delivery["alerts"]
            if labels.items() <= alert["labels"].items()
        ]


@contextlib.contextmanager
def webhook() -> Iterator[Webhook]:
    """Receive webhooks on a free port."""
    deliveries: list[tuple[float, dict]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            deliveries.append((time.time(), json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            """Keep the test's output quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Webhook(server.server_address[1], deliveries)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
