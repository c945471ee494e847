"""What reading a trace costs: MB of JSON a second on one core, peak memory, and what is left of it.

Builds a trace of about 100 MB by repeating the tests' recording with shifted times, reads it in a process of its own,
and prints each number beside its budget. Exit status 1: slower than half the budget, which no noise of a shared machine
explains, or a summary above 5 % of the trace.

    python benchmarks/trace_cost.py [megabytes]
"""

import gzip
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lockstep.contracts.codec import encode
from lockstep.trace.calls import build_calls
from lockstep.trace.load import load_trace
from lockstep.trace.summarise import summarise_trace

RECORDING = Path(__file__).parent.parent / "tests" / "trace" / "data" / "slow_forward_rank2.json.gz"
LOAD_BUDGET_MB_PER_S = 150.0  # reference/traces.md of the design: msgspec in blocks reached 145 to 198 on one core
PEAK_BUDGET_MB = 250.0
SUMMARY_BUDGET_RATIO = 0.05
_WINDOW_US = 200_000
_MB = 1e6


def build_trace(path: Path, size_bytes: int) -> None:
    """Write a trace of at least `size_bytes`: the recording again and again, each copy after the one before."""
    text = gzip.decompress(RECORDING.read_bytes()).decode()
    start = text.index("[", text.index('"traceEvents"')) + 1
    end = text.rindex("]", 0, text.rindex('"traceName"'))
    events = re.split(r'("ts": )(\d+)', text[start:end])
    with path.open("w") as file:
        file.write(text[:start])
        for copy in range(size_bytes // (end - start) + 1):
            for index in range(2, len(events), 3):
                events[index] = str(int(events[index]) + (_WINDOW_US if copy else 0))
            file.write(("," if copy else "") + "".join(events))
        file.write(text[end:])


def measure(path: Path) -> dict[str, float]:
    """Read the trace in this process, which has done nothing before; CPU seconds and peak memory."""
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s = time.process_time()
    columns = load_trace(path)
    loaded_s = time.process_time()
    loaded_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    calls = build_calls(columns)
    built_s = time.process_time()
    return {
        "events": len(columns),
        "nodes": len(calls),
        "load_s": loaded_s - began_s,
        "tree_s": built_s - loaded_s,
        "import_mb": before_kb / 1e3,
        "load_mb": loaded_kb / 1e3,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def main() -> int:
    """Print the table; return the exit status."""
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(Path(sys.argv[2]))))
        return 0
    size_bytes = int(float(sys.argv[1]) * _MB) if len(sys.argv) > 1 else 100_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        build_trace(path, size_bytes)
        raw_bytes = path.stat().st_size
        command = [sys.executable, __file__, "--measure", str(path)]
        cost = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    summary = summarise_trace(RECORDING, run="r", node="n", rank=2, request_id=1, steps=2)
    load_mb_per_s = raw_bytes / _MB / cost["load_s"]
    all_mb_per_s = raw_bytes / _MB / (cost["load_s"] + cost["tree_s"])
    summary_bytes = len(encode(summary))
    ratio = summary_bytes / summary.trace_bytes
    print(f"trace                {raw_bytes / _MB:8.1f} MB, {cost['events']} complete events, {cost['nodes']} nodes")
    print(f"load to columns      {load_mb_per_s:8.1f} MB/s of CPU   budget {LOAD_BUDGET_MB_PER_S:.0f}, design 200")
    print(f"load and call tree   {all_mb_per_s:8.1f} MB/s of CPU")
    print(f"peak memory          {cost['peak_mb']:8.1f} MB   budget {PEAK_BUDGET_MB:.0f}", end="")
    print(f"   (load {cost['load_mb']:.0f}, interpreter and imports {cost['import_mb']:.0f})")
    print(
        f"summary of 2 steps   {summary_bytes:8d} bytes = {ratio:.2%} of the trace   budget {SUMMARY_BUDGET_RATIO:.0%}"
    )
    good = load_mb_per_s >= LOAD_BUDGET_MB_PER_S / 2 and cost["peak_mb"] <= PEAK_BUDGET_MB
    return 0 if good and ratio <= SUMMARY_BUDGET_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
