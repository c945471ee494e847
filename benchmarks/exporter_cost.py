"""What an exporter costs its node: CPU, memory, and the time of a scrape, for a full node at a brisk pace.

A real `lockstep exporter` with a real mosquitto; this process plays the ranks, by the marks that an agent leaves for
steps with so many collectives, half of them synchronous and half of them inside the backward, and a coordinator that
acknowledges.

    python -m benchmarks.exporter_cost [--ranks 8] [--seconds 20] [--collectives 200] [--json]

Exit code 1 when a budget is missed.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
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
CPU_BUDGET_RATIO = 0.05
"""3 % for the accounting (benchmarks.accounting_cost), 2 % for all else, scrapes included."""
MEMORY_BUDGET_MB = 80
SCRAPE_BUDGET_MS = 5.0
HOST_WATCH_BUDGET_RATIO = 0.005
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


def measure(directory: Path, ranks: int, seconds: int, collectives: int) -> dict[str, Any]:
    """Return the costs over `seconds` of steady work."""
    settings = {"root": str(directory / "shared"), "spool_directory": str(directory / "spool"), "node": "node"}
    settings["metrics_level"] = "full"  # the most that it can cost
    rings = open_rings(directory / "shared" / "run", ranks)
    for ring in rings:
        ring.facts(facts_to_json(_FACTS))
    scrape_ms = []
    with mosquitto(directory) as broker, coordinating_in_thread(broker.port):
        port = free_port()
        settings |= {"broker_port": str(broker.port), "http_port": str(port), "http_host": "127.0.0.1"}
        flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        log = directory / "exporter.log"
        with running([sys.executable, "-m", "lockstep.cli.main", "exporter", *flags], log) as exporter:
            url = f"http://127.0.0.1:{port}"
            wait_ready(f"{url}/-/ready", exporter, log)
            template = StepTemplate(collectives)
            begin_ns = time.monotonic_ns()
            cpu_begin, _ = process_cost(exporter.pid)
            for step in range(seconds * STEPS_PER_SECOND):
                start_ns = begin_ns + step * STEP_NS
                time.sleep(max(0, start_ns + STEP_NS - time.monotonic_ns()) / 1e9)  # the pace of the job that is played
                marks = template.marks(step, start_ns)
                for ring in rings:
                    ring.marks(marks)
                    ring.beat(start_ns + STEP_NS)
                if step % STEPS_PER_SECOND == 0:
                    began = time.perf_counter()
                    assert get(f"{url}/metrics")
                    scrape_ms.append((time.perf_counter() - began) * 1000)
            total = ranks * seconds * STEPS_PER_SECOND
            wait_until(lambda: _steps(url) == total, 10, f"{total} steps in /metrics")
            wait_until(lambda: _sum_of(url, _WAITING) == 0, 10, "every message committed")
            cpu_end, resident_mb = process_cost(exporter.pid)
            host_watch_s = _sum_of(url, _HOST_WATCH)
    return {
        "ranks": ranks,
        "collectives": collectives,
        "cpu_ratio": (cpu_end - cpu_begin) / seconds,
        "host_watch_ratio": host_watch_s / seconds,
        "processes": sum(path.name.isdigit() for path in Path("/proc").iterdir()),
        "resident_mb": resident_mb,
        "scrape_p50_ms": statistics.median(scrape_ms),
        "scrape_max_ms": max(scrape_ms),
    }


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
    ]


def _at_most(what: str, value: float, budget: float, form: str) -> Check:
    return Check(what, form.format(value), f"at most {form.format(budget)}", value <= budget)


def main() -> int:
    """Measure, print, judge."""
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
