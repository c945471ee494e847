"""What an exporter costs its node: CPU, memory, and the time of a scrape, for a full node at a brisk pace.

A real `lockstep exporter` with a real mosquitto; this process plays the ranks, through the agent's own ring writer, and
a coordinator that acknowledges.
Run with `python -m benchmarks.exporter_cost [--ranks 8] [--seconds 20] [--json]`. Budget: DESIGN.md, section 5.
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

from lockstep.agent.ring import RingWriter
from lockstep.contracts.facts import RankFacts, facts_to_json
from lockstep.contracts.records import MISSING, RECORD_FIELDS, RECORD_INDEX, RECORD_STRUCT
from lockstep.contracts.ring import RingHeader
from tests.support.model_coordinator import coordinating_in_thread
from tests.support.servers import free_port, get, mosquitto, running, wait_ready, wait_until

STEPS_PER_SECOND = 10
CPU_BUDGET_RATIO = 0.02
MEMORY_BUDGET_MB = 80
SCRAPE_BUDGET_MS = 5.0
HOST_WATCH_BUDGET_RATIO = 0.005
_WAITING = "lockstep_exporter_spool_messages "
_HOST_WATCH = "lockstep_exporter_host_watch_time_seconds_total "
_MEASURED = ("data_ns", "compute_ns", "host_ns", "gc_ns", "dp_wait_ns", "tp_wait_ns")
_COUNTED = (
    *("gc_count", "gc_full_count", "recompilations", "samples", "tokens", "work", "model_flops", "cpu_ns", "agent_ns"),
    *(f"{kind}_{field}" for kind in ("dp", "tp") for field in ("bytes", "bus_bytes", "comm_ns", "count")),
    *("device_step_ns", "device_comm_ns", "host_lead_ns"),
)
_FACTS = RankFacts(device="NVIDIA H200", device_kind="cuda", dtype="bf16", peak_flops_per_second=989.5e12)


def make_record(step: int, begin_ns: int, end_ns: int) -> list[int]:
    """Return a record whose parts sum to its step."""
    record = [MISSING] * len(RECORD_FIELDS)
    for name in _COUNTED:
        record[RECORD_INDEX[name]] = 1000
    part = (end_ns - begin_ns) // len(_MEASURED)
    for name in _MEASURED:
        record[RECORD_INDEX[name]] = part
    record[RECORD_INDEX["host_ns"]] += end_ns - begin_ns - part * len(_MEASURED)
    record[:4] = [step, begin_ns, end_ns, 0]
    return record


def open_rings(directory: Path, ranks: int) -> list[RingWriter]:
    """Return the rings of a run's ranks on this node."""
    offset = time.time_ns() - time.monotonic_ns()
    return [
        RingWriter(
            directory,
            RingHeader(
                rank=rank,
                local_rank=rank,
                world_size=ranks,
                pid=os.getpid(),
                attempt=time.time_ns(),
                clock_offset_ns=offset,
                hostname="node",
            ),
        )
        for rank in range(ranks)
    ]


def process_cost(pid: int) -> tuple[float, float]:
    """Return (CPU seconds, resident MB) of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    resident = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(resident.split()[1]) / 1024


def measure(directory: Path, ranks: int, seconds: int) -> dict[str, Any]:
    """Return the costs over `seconds` of steady work."""
    settings = {"root": str(directory / "shared"), "spool_directory": str(directory / "spool"), "node": "node"}
    rings = open_rings(directory / "shared" / "run", ranks)
    for ring in rings:
        ring.write_facts(facts_to_json(_FACTS))
    scrape_ms = []
    with mosquitto(directory) as broker, coordinating_in_thread(broker.port):
        port = free_port()
        settings |= {"broker_port": str(broker.port), "http_port": str(port), "http_host": "127.0.0.1"}
        flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        log = directory / "exporter.log"
        with running([sys.executable, "-m", "lockstep.cli.main", "exporter", *flags], log) as exporter:
            url = f"http://127.0.0.1:{port}"
            wait_ready(f"{url}/-/ready", exporter, log)
            begin_ns = time.monotonic_ns()
            cpu_begin, _ = process_cost(exporter.pid)
            for step in range(seconds * STEPS_PER_SECOND):
                due_ns = begin_ns + (step + 1) * 1_000_000_000 // STEPS_PER_SECOND
                time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)  # the pace of the job that is played
                now_ns = time.monotonic_ns()
                for ring in rings:
                    ring.write(
                        RECORD_STRUCT.pack(*make_record(step, now_ns - 1_000_000_000 // STEPS_PER_SECOND, now_ns))
                    )
                    ring.beat(now_ns)
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        row = measure(Path(directory), arguments.ranks, arguments.seconds)
    if arguments.json:
        print(json.dumps(row))
        return
    print(f"{row['ranks']} ranks at {STEPS_PER_SECOND} steps/s, one scrape a second, every step counted")
    print(f"CPU        {row['cpu_ratio']:.2%} of a core   budget {CPU_BUDGET_RATIO:.0%} (scrapes included here)")
    watched = f"{row['host_watch_ratio']:.2%} of a core   budget {HOST_WATCH_BUDGET_RATIO:.1%}"
    print(f"host watch {watched} (a part of it; {row['processes']} processes on this node)")
    print(f"memory     {row['resident_mb']:.0f} MB            budget {MEMORY_BUDGET_MB} MB")
    times = f"p50 {row['scrape_p50_ms']:.1f} ms, max {row['scrape_max_ms']:.1f} ms"
    print(f"/metrics   {times}   budget {SCRAPE_BUDGET_MS:.0f} ms")


if __name__ == "__main__":
    main()
