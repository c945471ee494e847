"""What an exporter costs its node: CPU, memory, and the time of a scrape, for a full node at a brisk pace.

A real `lockstep exporter` with a real mosquitto; this process plays the ranks, by the marks that an agent leaves for
steps with so many collectives, half of them synchronous and half of them inside the backward, and a coordinator that
acknowledges. Pages are scraped as Prometheus does, over open connections, in OpenMetrics, compressed, but more often: a
chart's default is every 15 s. A plain process with as many series runs next to it (plain_exporter.py): absolute figures
depend on the day, relative ones do not.

    python -m benchmarks.exporter_cost [--ranks 8] [--seconds 20] [--collectives 200] [--json]

Exit code 1 when a budget is missed.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from benchmarks.checks import Check, has_missed
from lockstep.contracts.facts import RankFacts, facts_to_json
from lockstep.contracts.marks import MarkKind, pack_call_site, pack_issue
from lockstep.contracts.peaks import peak_flops_per_second
from lockstep.contracts.records import MISSING
from tests.support.mark_ring import Mark, MarkRing, make_header
from tests.support.model_coordinator import coordinating_in_thread
from tests.support.servers import free_port, get, mosquitto, running, wait_ready, wait_until

STEPS_PER_SECOND = 10
COLLECTIVES = 200
CPU_BUDGET_RATIO = 0.03
"""All together: accounting (alone: benchmarks.accounting_cost), publishing and scrapes."""
MEMORY_BUDGET_MB = 80
SCRAPE_BUDGET_MS = 5.0
HOST_WATCH_BUDGET_RATIO = 0.005
WARM_UP_STEPS = 2 * STEPS_PER_SECOND
SETTLE_S = 1.5
"""Time after the last step in which everything is published; its CPU time counts, the time itself does not."""
_PROMETHEUS = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}
_WAITING = "lockstep_exporter_spool_messages "
_HOST_WATCH = "lockstep_exporter_host_watch_time_seconds_total "
_FACTS = RankFacts(
    device="NVIDIA H200",
    device_kind="cuda",
    dtype="bf16",
    peak_flops_per_second=peak_flops_per_second("NVIDIA H200", "bf16"),
)


STEP_NS = 1_000_000_000 // STEPS_PER_SECOND
_TENSOR = pack_call_site("allreduce_", synchronous=True, domain=0, slot=1, group_size=8)
_DATA = pack_call_site("allreduce_", synchronous=False, domain=3, slot=2, group_size=64)
_OPTIMIZER = 7  # the identity of the one that there is
_GAP_NS = 50_000


class StepTemplate:
    """Marks of one step, whose times are from its beginning on; a step has one optimizer and one backward."""

    def __init__(self, collectives: int) -> None:
        self._marks: list[Mark] = []
        self._now_ns = 0
        self._add(MarkKind.DATA_BEGIN)
        self._add(MarkKind.DATA_END)
        self._add(MarkKind.BATCH, argument=8)
        for ordinal in range(collectives // 2):
            self._issue(_TENSOR, ordinal)
            self._add(MarkKind.EXPECT, subject=ordinal)
            self._add(MarkKind.WAIT_BEGIN)
            self._add(MarkKind.WAIT_END)
        self._add(MarkKind.BACKWARD_BEGIN)
        asynchronous = range(collectives // 2, collectives)
        for ordinal in asynchronous:
            self._issue(_DATA, ordinal)
        for ordinal in asynchronous:
            self._add(MarkKind.DONE, subject=ordinal)
        self._add(MarkKind.WAIT_BEGIN)
        self._add(MarkKind.WAIT_END)
        self._add(MarkKind.BACKWARD_END, argument=MISSING)
        self._add(MarkKind.OPTIMIZER_BEGIN, subject=_OPTIMIZER)
        self._collectives = collectives

    def _issue(self, site: int, ordinal: int) -> None:
        detail, argument = pack_issue(site, 1 << 20)
        self._add(MarkKind.ISSUE, detail, ordinal, argument)

    def _add(self, kind: int, detail: int = 0, subject: int = 0, argument: int = 0) -> None:
        self._now_ns += _GAP_NS
        self._marks.append((self._now_ns, kind, detail, subject, argument))

    def marks(self, step: int, start_ns: int) -> list[Mark]:
        """Return the marks of a step that begins at `start_ns` (CLOCK_MONOTONIC) and takes STEP_NS."""
        first = step * self._collectives
        begin: list[Mark] = [] if step else [(start_ns, MarkKind.BEGIN, 0, 0, 0)]
        shifted = [
            (start_ns + at, kind, detail, subject + first if kind in _OF_COLLECTIVES else subject, argument)
            for at, kind, detail, subject, argument in self._marks
        ]
        return [*begin, *shifted, (start_ns + STEP_NS, MarkKind.OPTIMIZER_END, 0, 0, (step + 1) * STEP_NS // 2)]


_OF_COLLECTIVES = (MarkKind.ISSUE, MarkKind.EXPECT, MarkKind.DONE)


def open_rings(directory: Path, ranks: int) -> list[MarkRing]:
    """Return the rings of a run's ranks on this node."""
    now_ns = time.monotonic_ns()
    return [MarkRing(directory, make_header(rank, world_size=ranks), now_ns=now_ns, hold=True) for rank in range(ranks)]


def process_cost(pid: int) -> tuple[float, float]:
    """Return (CPU seconds, resident MB) of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    resident = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(resident.split()[1]) / 1024


class Scraper:
    """Scrapes a page as Prometheus does, over a connection that stays open; `times_ms` are those until it was read."""

    def __init__(self, port: int) -> None:
        self.times_ms: list[float] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)

    def scrape(self) -> None:
        """Scrape once, and record how long it took; the text is not unpacked."""
        began = time.perf_counter()
        self._connection.request("GET", "/metrics", headers=_PROMETHEUS)
        answer = self._connection.getresponse()
        body = answer.read()
        self.times_ms.append((time.perf_counter() - began) * 1000)
        assert answer.status == HTTPStatus.OK
        assert body


class Ranks:
    """Plays the steps of all ranks of a run."""

    def __init__(self, directory: Path, ranks: int, collectives: int) -> None:
        self.steps = 0
        self._rings = open_rings(directory, ranks)
        self._template = StepTemplate(collectives)
        self._begin_ns = 0
        for ring in self._rings:
            ring.facts(facts_to_json(_FACTS))

    def step(self) -> None:
        """Wait until the running step ends, at the job's pace, and write its marks."""
        self._begin_ns = self._begin_ns or time.monotonic_ns()
        start_ns = self._begin_ns + self.steps * STEP_NS
        time.sleep(max(0, start_ns + STEP_NS - time.monotonic_ns()) / 1e9)
        marks = self._template.marks(self.steps, start_ns)
        for ring in self._rings:
            ring.marks(marks)
            ring.beat(start_ns + STEP_NS)
        self.steps += 1


def measure(directory: Path, ranks: int, seconds: int, collectives: int) -> dict[str, Any]:
    """Return the costs over `seconds` of steady work, and those of the plain process over the same seconds."""
    settings = {"root": str(directory / "shared"), "spool_directory": str(directory / "spool"), "node": "node"}
    settings["metrics_level"] = "full"  # the most that it can cost
    played = Ranks(directory / "shared" / "run", ranks, collectives)
    with mosquitto(directory) as broker, coordinating_in_thread(broker.port):
        port = free_port()
        settings |= {"broker_port": str(broker.port), "http_port": str(port), "http_host": "127.0.0.1"}
        flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        log = directory / "exporter.log"
        with running([sys.executable, "-m", "lockstep.cli.main", "exporter", *flags], log) as exporter:
            url = f"http://127.0.0.1:{port}"
            wait_ready(f"{url}/-/ready", exporter, log)
            for _ in range(WARM_UP_STEPS):
                played.step()
            series = sum(not line.startswith("#") for line in (get(f"{url}/metrics") or "").splitlines())
            with plain_exporter(directory, series) as (plain, plain_port):
                costs = _measure_both(played, seconds, (exporter, port), (plain, plain_port))
            wait_until(lambda: _steps(url) == ranks * played.steps, 10, f"{ranks * played.steps} steps in /metrics")
            wait_until(lambda: _sum_of(url, _WAITING) == 0, 10, "every message committed")
            host_watch_s = _sum_of(url, _HOST_WATCH)
    played_s = played.steps / STEPS_PER_SECOND + SETTLE_S
    return {
        "ranks": ranks,
        "collectives": collectives,
        "series": series,
        "host_watch_ratio": host_watch_s / played_s,
        "processes": sum(path.name.isdigit() for path in Path("/proc").iterdir()),
        **costs,
    }


def _measure_both(
    played: Ranks, seconds: int, real: tuple[subprocess.Popen[bytes], int], plain: tuple[subprocess.Popen[bytes], int]
) -> dict[str, float]:
    """Play steps, scrape both processes once a second, and return what they took."""
    scraper, plain_scraper = Scraper(real[1]), Scraper(plain[1])
    cpu_begin, _ = process_cost(real[0].pid)
    plain_begin, _ = process_cost(plain[0].pid)
    for second in range(seconds):
        # Not always at the same time of a second: what the exporter does once a second may then always coincide.
        at = 3 * second % STEPS_PER_SECOND
        for tenth in range(STEPS_PER_SECOND):
            played.step()
            if tenth == at:
                scraper.scrape()
            elif tenth == (at + STEPS_PER_SECOND // 2) % STEPS_PER_SECOND:
                plain_scraper.scrape()
    time.sleep(SETTLE_S)
    cpu_end, resident_mb = process_cost(real[0].pid)
    plain_end, _ = process_cost(plain[0].pid)
    return {
        "cpu_ratio": (cpu_end - cpu_begin) / seconds,
        "plain_cpu_ratio": (plain_end - plain_begin) / seconds,
        "resident_mb": resident_mb,
        "scrape_p50_ms": statistics.median(scraper.times_ms),
        "scrape_max_ms": max(scraper.times_ms),
        "plain_scrape_p50_ms": statistics.median(plain_scraper.times_ms),
    }


@contextmanager
def plain_exporter(directory: Path, series: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the plain process; yield it and its port."""
    port, log = free_port(), directory / "plain.log"
    command = [sys.executable, "-m", "benchmarks.plain_exporter", str(port), str(series)]
    with running(command, log) as process:
        wait_ready(f"http://127.0.0.1:{port}/metrics", process, log)
        yield process, port


def _steps(url: str) -> float:
    return _sum_of(url, "lockstep_steps_total{")


def _sum_of(url: str, start: str) -> float:
    """Return the sum of the series whose lines begin so."""
    page = get(f"{url}/metrics") or ""
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(start))


def checks_of(row: dict[str, Any]) -> list[Check]:
    """Return every figure with its budget."""
    return [
        _at_most("CPU, scrapes included", row["cpu_ratio"], CPU_BUDGET_RATIO, "{:.2%} of a core"),
        _at_most("host watch, a part of it", row["host_watch_ratio"], HOST_WATCH_BUDGET_RATIO, "{:.2%} of a core"),
        Check("processes on this node", str(row["processes"])),
        _at_most("memory", row["resident_mb"], MEMORY_BUDGET_MB, "{:.0f} MB"),
        _at_most("time of a scrape, median", row["scrape_p50_ms"], SCRAPE_BUDGET_MS, "{:.1f} ms"),
        Check("time of a scrape, longest", f"{row['scrape_max_ms']:.1f} ms"),
        Check("CPU of a plain process with as many series", f"{row['plain_cpu_ratio']:.2%} of a core"),
        Check("CPU, relative to it", f"{row['cpu_ratio'] / row['plain_cpu_ratio']:.2f}"),
        Check("time of a scrape of the plain process, median", f"{row['plain_scrape_p50_ms']:.1f} ms"),
        Check("time of a scrape, relative to it", f"{row['scrape_p50_ms'] / row['plain_scrape_p50_ms']:.2f}"),
    ]


def _at_most(what: str, value: float, budget: float, form: str) -> Check:
    return Check(what, form.format(value), f"at most {form.format(budget)}", value <= budget)


def main() -> int:
    """Measure, print, compare with the budgets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--collectives", type=int, default=COLLECTIVES, help="of a step (default: %(default)s)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        row = measure(Path(directory), arguments.ranks, arguments.seconds, arguments.collectives)
    checks = checks_of(row)
    if arguments.json:
        print(json.dumps(row))
    else:
        of_step = f"{row['collectives']} collectives each"
        print(f"{row['ranks']} ranks at {STEPS_PER_SECOND} steps/s, {of_step}, one scrape a second, every step counted")
        for check in checks:
            print(check.text())
    return int(has_missed(checks))


if __name__ == "__main__":
    sys.exit(main())
