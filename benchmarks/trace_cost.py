"""What reading a trace costs: MB of JSON a second on one core, peak memory, and what is left of it when stored.

Repeats a recording with shifted times and ids up to a size (`traces_made.py`), reads it in processes of its own, the
fastest of three counting, and prints each number with its budget; then stores every recording at hand as it is.
The recording is the largest next to the checkout, else the tests' own. Exit status 1: slower than half the budget,
which no noise of a shared machine explains, a compiled scan less than COMPILED_GAIN times as fast as Python in the same
run, more memory than its budget, a summary above 5 % of the JSON, or columns above `stored_budget_bytes`.

    python benchmarks/trace_cost.py [megabytes] [recording.json.gz]
"""

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.traces_made import write_repeated
from lockstep.contracts.codec import encode
from lockstep.trace.calls import build_calls
from lockstep.trace.kineto.decode import TraceDecoder
from lockstep.trace.kineto.load import columns_of, load_trace
from lockstep.trace.kineto.scanned import compiled_scan
from lockstep.trace.source import TraceSource
from lockstep.trace.span_table import compiled_build
from lockstep.trace.store import read_columns, write_columns
from lockstep.trace.summarise import summarise_trace

RECORDING = Path(__file__).parent.parent / "tests" / "trace" / "data" / "slow_forward_rank2.json.gz"
RECORDINGS = Path(__file__).parents[2] / "shared" / "data" / "traces"
LARGEST = RECORDINGS / "tracelens" / "mi300_resnet_act_checkpoint.json.gz"
LOAD_BUDGET_MB_PER_S = {True: 400.0, False: 150.0}
"""With the compiled scan, and in Python alone: msgspec in blocks reached 145 to 198 on one core."""
PEAK_BUDGET_MB = 150.0  # interpreter and imports are half of it
PEAK_BUDGET_BYTES_PER_EVENT = 160.0  # twice the columns
SUMMARY_BUDGET_RATIO = 0.05
STORED_BUDGET_RATIO = 0.02
SMALL_BYTES, SMALL_BUDGET_BYTES = 5_000_000, 24_000
"""Of a small trace, whatever its size: 5 kB are Parquet's own (a footer of 28 columns, a page of each), the others its
distinct names, shapes and settings, which a longer trace of the same job does not repeat. No share of some kB of JSON
means anything: a disk's blocks are larger."""
COMPILED_GAIN = 1.4
"""Both in one run and in CPU time, so that no load of the machine decides; 1.8 to 2.6 measured."""
CORES = (1, 2)
COMPILED, PYTHON = "--compiled", "--python"
_MAX_BYTES = 4 << 30
_RUNS = 3
_MB = 1e6


def peak_mb() -> float:
    """Return the most memory that this process had; getrusage would count its parent's as well."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024 / _MB


def measure(path: Path, *, is_compiled: bool) -> dict[str, float]:
    """Read the trace in this process, which has done nothing before; CPU seconds and peak memory."""
    before_mb = peak_mb()
    began_s = time.process_time()
    source = TraceSource(path, max_bytes=_MAX_BYTES)
    columns = columns_of(TraceDecoder(source, scan=compiled_scan() if is_compiled else None), source)
    loaded_s = time.process_time()
    loaded_mb = peak_mb()
    calls = build_calls(columns, compiled_build() if is_compiled else None)
    built_s = time.process_time()
    return {
        "events": len(columns),
        "nodes": len(calls),
        "load_s": loaded_s - began_s,
        "tree_s": built_s - loaded_s,
        "import_mb": before_mb,
        "load_mb": loaded_mb,
        **({f"wall_{cores}_s": wall_s(path, cores) for cores in CORES} if is_compiled else {}),
    }


def wall_s(path: Path, cores: int) -> float:
    """Return how long loading takes when several cores may read, not CPU time."""
    began_s = time.perf_counter()
    load_trace(path, max_bytes=_MAX_BYTES, cores=cores)
    return time.perf_counter() - began_s


def measure_apart(path: Path, *, is_compiled: bool) -> dict[str, float]:
    """Measure in processes of their own; the run with the fastest load."""
    command = [sys.executable, "-m", "benchmarks.trace_cost", COMPILED if is_compiled else PYTHON, str(path)]
    folder = Path(__file__).parent.parent
    texts = [
        subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout for _ in range(_RUNS)
    ]
    return min((json.loads(text) for text in texts), key=lambda cost: float(cost["load_s"]))


def print_load(recording: Path, size_bytes: int, folder: Path) -> bool:
    """Print what reading costs; return whether it is within bounds."""
    path = folder / "trace.json"
    copies = write_repeated(recording, path, size_bytes)
    raw_bytes = path.stat().st_size
    print(f"{recording.name}, {copies} times, {raw_bytes / _MB:.1f} MB")
    if compiled_scan() is None:
        print("the extension lockstep.trace.kineto._scan is not built: Python alone")
        return print_way(path, is_compiled=False)[0]
    (compiled_is_good, compiled_s), (python_is_good, python_s) = (
        print_way(path, is_compiled=each) for each in (True, False)
    )
    gain = python_s / compiled_s
    print(f"compiled to Python   {gain:8.2f} times as fast   budget {COMPILED_GAIN}")
    return compiled_is_good and python_is_good and gain >= COMPILED_GAIN


def stored_budget_bytes(json_bytes: int) -> float:
    """Return what the columns of a trace may take when stored."""
    return STORED_BUDGET_RATIO * json_bytes + (SMALL_BUDGET_BYTES if json_bytes < SMALL_BYTES else 0)


def print_way(path: Path, *, is_compiled: bool) -> tuple[bool, float]:
    """Print what one way of reading costs; return whether it is within bounds, and its CPU seconds."""
    cost, raw_bytes = measure_apart(path, is_compiled=is_compiled), path.stat().st_size
    load_mb_per_s = raw_bytes / _MB / cost["load_s"]
    all_mb_per_s = raw_bytes / _MB / (cost["load_s"] + cost["tree_s"])
    peak_budget_mb = PEAK_BUDGET_MB + PEAK_BUDGET_BYTES_PER_EVENT * cost["events"] / _MB
    budget_mb_per_s = LOAD_BUDGET_MB_PER_S[is_compiled]
    print("compiled scan" if is_compiled else "Python alone", end="")
    print(f": {cost['events']} complete events, {cost['nodes']} nodes")
    print(f"load to columns      {load_mb_per_s:8.1f} MB/s of CPU   budget {budget_mb_per_s:.0f}")
    print(f"load and call tree   {all_mb_per_s:8.1f} MB/s of CPU")
    if is_compiled:
        walls = " / ".join(f"{raw_bytes / _MB / cost[f'wall_{cores}_s']:.0f}" for cores in CORES)
        print(f"load, wall clock     {walls:>8} MB/s by {' / '.join(map(str, CORES))} cores")
    print(f"peak of the load     {cost['load_mb']:8.1f} MB   budget {peak_budget_mb:.0f}", end="")
    print(f"   (interpreter and imports {cost['import_mb']:.0f})")
    return load_mb_per_s >= budget_mb_per_s / 2 and cost["load_mb"] <= peak_budget_mb, cost["load_s"]


def print_stored(recording: Path, folder: Path, total: Counter[str]) -> bool:
    """Print how large the columns of a recording are as Parquet; return whether that is within bounds."""
    columns = load_trace(recording, max_bytes=_MAX_BYTES)
    path = folder / "columns.parquet"
    began_s = time.process_time()
    write_columns(columns, path)
    written_s = time.process_time()
    read_columns(path)
    read_s = time.process_time()
    stored_bytes = path.stat().st_size
    ratio, budget_bytes = stored_bytes / columns.trace_bytes, stored_budget_bytes(columns.trace_bytes)
    print(f"{recording.parent.name + '/' + recording.name:58.58}", end="")
    print(
        f"{columns.trace_bytes / _MB:6.1f} MB {ratio:6.2%} {stored_bytes / len(columns):5.1f} bytes an event",
        end="",
    )
    print("" if stored_bytes <= budget_bytes else "   MISSED", end="")
    print(f"   write {1e3 * (written_s - began_s):4.0f} ms, read {1e3 * (read_s - written_s):3.0f} ms")
    total.update(json_bytes=columns.trace_bytes, stored_bytes=stored_bytes)
    total.update(write_us=round(1e6 * (written_s - began_s)), read_us=round(1e6 * (read_s - written_s)))
    return stored_bytes <= budget_bytes


def main() -> int:
    """Print the tables; return the exit status."""
    if sys.argv[1:2] in ([COMPILED], [PYTHON]):
        print(json.dumps(measure(Path(sys.argv[2]), is_compiled=sys.argv[1] == COMPILED)))
        return 0
    size_bytes = int(float(sys.argv[1]) * _MB) if len(sys.argv) > 1 else 117_000_000
    recording = Path(sys.argv[2]) if len(sys.argv) > 2 else LARGEST if LARGEST.exists() else RECORDING
    with tempfile.TemporaryDirectory() as name:
        good = print_load(recording, size_bytes, Path(name))
        summary = summarise_trace(RECORDING, run="r", node="n", rank=2, request_id=1, steps=2)
        summary_bytes = len(encode(summary))
        ratio = summary_bytes / summary.trace_bytes
        print(f"summary of 2 steps   {summary_bytes:8d} bytes = {ratio:.2%} of the trace", end="")
        print(f"   budget {SUMMARY_BUDGET_RATIO:.0%}")
        print(f"stored as Parquet, budget {STORED_BUDGET_RATIO:.0%} of the JSON", end="")
        print(f", and {SMALL_BUDGET_BYTES / 1e3:.0f} kB below {SMALL_BYTES / _MB:.0f} MB")
        total: Counter[str] = Counter()
        recordings = sorted(RECORDINGS.rglob("*.json.gz")) or [RECORDING]
        stored = [print_stored(each, Path(name), total) for each in recordings]
        print(
            f"all {len(recordings)}: {total['json_bytes'] / _MB:.1f} MB of JSON, {total['stored_bytes'] / _MB:.2f} MB",
            end="",
        )
        print(f" stored, write {total['write_us'] / 1e6:.2f} s, read {total['read_us'] / 1e6:.2f} s of CPU")
    return 0 if good and ratio <= SUMMARY_BUDGET_RATIO and all(stored) else 1


if __name__ == "__main__":
    sys.exit(main())
