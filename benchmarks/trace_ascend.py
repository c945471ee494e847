"""What reading Ascend's trace_view.json costs: MB of JSON a second on one core, and peak memory.

Builds a list in one line of about 100 MB by repeating the tests' recording with shifted times and ids, and reads it in
a process of its own: as columns with launches, shapes and stacks; as blocks only; and, to compare machines, with the
standard library's json. Prints each number; exit status 1 if columns are read more slowly than json alone parses, which
no noise of a shared machine explains, or if memory is not that of blocks and columns.

    python benchmarks/trace_ascend.py [megabytes]
"""

import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lockstep.trace.ascend.decode import AscendDecoder
from lockstep.trace.ascend.load import load_trace_view
from lockstep.trace.source import TraceSource

_OUTPUT = Path(__file__).parent.parent / "tests/trace/ascend/data/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT"
RECORDING = _OUTPUT / "trace_view.json.gz"
DESIGN_MB_PER_S = 200.0  # measured: names, threads and times of this file alone, on an idle core
PEAK_BUDGET_MB = 250.0
RATIO_FLOOR = 1.0
_WINDOW_US = 200_000
_MB = 1e6
_MAX_BYTES = 1 << 31


def build_trace(path: Path, size_bytes: int) -> None:
    """Write a trace of at least `size_bytes` in one line, each copy after the one before."""
    events = json.loads(gzip.decompress(RECORDING.read_bytes()))
    written = 0
    with path.open("w") as file:
        while file.tell() < size_bytes:
            shifted = [_shifted(event, written) for event in events]
            file.write(("[" if not written else ", ") + json.dumps(shifted)[1:-1])
            written += 1
        file.write("]")


def _shifted(event: dict[str, Any], copy: int) -> dict[str, Any]:
    moved = dict(event)
    if "ts" in event:
        whole, _, fraction = event["ts"].partition(".")
        moved["ts"] = f"{int(whole) + copy * _WINDOW_US}.{fraction or '000'}"
    if "id" in event:
        moved["id"] = type(event["id"])(int(event["id"]) + copy * (1 << 70 if isinstance(event["id"], str) else 10**12))
    args = event.get("args", {})
    for key in ("connection_id", "correlation_id"):
        if key in args:
            moved["args"] = {**args, key: args[key] + copy * 100_000}
    return moved


def measure(path: Path, how: str) -> dict[str, float]:
    """Read the trace in this process, which has done nothing before; CPU seconds and peak memory."""
    began_s = time.process_time()
    if how == "columns":
        columns = load_trace_view(path, max_bytes=_MAX_BYTES)
        counts = {"events": columns.event_count, "rows": len(columns), "launched": int((columns.correlation > 0).sum())}
    elif how == "blocks":
        decoder = AscendDecoder(TraceSource(path, max_bytes=_MAX_BYTES))
        counts = {"events": sum(block.event_count for block in decoder)}
    else:
        counts = {"events": len(json.loads(path.read_bytes()))}
    took_s = time.process_time() - began_s
    return {**counts, "cpu_s": took_s, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3}


def main() -> int:
    """Print the table; return the exit status."""
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(Path(sys.argv[2]), sys.argv[3])))
        return 0
    size_bytes = int(float(sys.argv[1]) * _MB) if len(sys.argv) > 1 else 100_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace_view.json"
        build_trace(path, size_bytes)
        raw_mb = path.stat().st_size / _MB
        cost = {}
        for how in ("json", "blocks", "columns"):
            command = [sys.executable, __file__, "--measure", str(path), how]
            cost[how] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    speed = {how: raw_mb / each["cpu_s"] for how, each in cost.items()}
    found = cost["columns"]
    print(f"trace                {raw_mb:8.1f} MB, {found['events']:.0f} events, {found['rows']:.0f} of them rows")
    print(
        f"columns and launches {speed['columns']:8.1f} MB/s of CPU   design {DESIGN_MB_PER_S:.0f} for times and names"
    )
    print(f"blocks alone         {speed['blocks']:8.1f} MB/s of CPU")
    print(f"json, no columns     {speed['json']:8.1f} MB/s of CPU, {cost['json']['peak_mb']:.0f} MB")
    print(f"ratio to json        {speed['columns'] / speed['json']:8.1f}   floor {RATIO_FLOOR}")
    print(f"peak memory          {found['peak_mb']:8.1f} MB   budget {PEAK_BUDGET_MB:.0f}")
    good = speed["columns"] >= RATIO_FLOOR * speed["json"] and found["peak_mb"] <= PEAK_BUDGET_MB * max(1, raw_mb / 100)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
