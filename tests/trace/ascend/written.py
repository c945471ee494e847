"""Small trace_view.json files for the tests."""

import json
from pathlib import Path

PYTHON, CANN, NPU, HCCL, OVERLAP = 100, 200, 300, 400, 500
_PROCESSES = {
    PYTHON: "Python",
    CANN: "CANN",
    NPU: "Ascend Hardware",
    HCCL: "Communication",
    OVERLAP: "Overlap Analysis",
}
BASE_NS = 1_736_405_443_863_674_400


def stamp(ns: int) -> str:
    """Return a time as torch_npu writes it."""
    return f"{(BASE_NS + ns) // 1000}.{(BASE_NS + ns) % 1000:03d}"


def row(name: str, pid: int, tid: int, start_ns: int, duration_ns: int, **more) -> dict:
    """Return a complete event."""
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": stamp(start_ns), "dur": duration_ns / 1000, **more}


def flow(kind: str, number: object, begin: tuple[int, int, int], end: tuple[int, int, int]) -> list[dict]:
    """Return both ends of a flow; an end is (pid, tid, ns)."""
    return [
        {"ph": phase, "bp": "e", "name": kind, "id": number, "pid": pid, "tid": tid, "ts": stamp(ns), "cat": kind}
        for phase, (pid, tid, ns) in (("s", begin), ("f", end))
    ]


def metadata() -> list[dict]:
    """Return the names of processes and threads, as they stand somewhere among the events."""
    named = [
        {"name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}, "ph": "M"}
        for pid, name in _PROCESSES.items()
    ]
    labels = [
        {"name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": "NPU 3"}, "ph": "M"} for pid in (NPU, HCCL)
    ]
    threads = [("Group 0 Communication", 0), ("Plane 0", 1)]
    planes = [
        {"name": "thread_name", "pid": HCCL, "tid": tid, "args": {"name": name}, "ph": "M"} for name, tid in threads
    ]
    return [*named, *labels, *planes]


def write(folder: Path, events: list[dict], *, separators=(", ", ": ")) -> Path:
    """Write the events as one line and return the file."""
    path = folder / "trace_view.json"
    path.write_text(json.dumps(events, separators=separators))
    return path
