"""Small traces for the tests: events, documents, and where the recordings are."""

import json
from pathlib import Path

from lockstep.trace.tree import ROOT, CallTree

RECORDING = Path(__file__).parent / "data" / "slow_forward_rank2.json.gz"
SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"
# Those that the figures of these tests were measured on. `public` holds others, which nothing here has a figure of.
MEASURED = ("hta", "kineto", "torch_cpu", "tracelens")
SHARED_TRACES = sorted(path for folder in MEASURED for path in (SHARED / folder).rglob("*.json.gz"))

BASE_NS = 1_790_857_026_000_000_000


def without_children_ns(tree: CallTree) -> list[int]:
    """Return what each node takes beyond its children."""
    found = tree.total_ns.copy()
    for parent, total_ns in zip(tree.parent, tree.total_ns, strict=True):
        if parent != ROOT:
            found[parent] -= total_ns
    return found


def us(ns: int) -> str:
    """Return `ns` as profilers write it: microseconds with three decimals."""
    return f"{'-' if ns < 0 else ''}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


def event(name="f", start_ns=0, duration_ns=1000, *, cat="python_function", tid=1, **more) -> dict:
    """Return a complete event; times are strings marked for `document` to unquote, so that no digit is lost."""
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 7,
        "tid": tid,
        "ts": us(start_ns),
        "dur": us(duration_ns),
        **more,
    }


def document(events, *, base_ns: int | None = BASE_NS, layout="torch") -> bytes:
    """Return a trace of `events` in one of the layouts met in the field."""
    texts = [_numbers(json.dumps(each, indent=2 if layout in ("torch", "indented") else None)) for each in events]
    base = "" if base_ns is None else f'"baseTimeNanoseconds": {base_ns}'
    if layout == "list":
        return ("[" + ", ".join(texts) + "]").encode()
    between = ", " if layout == "one line" else ",\n  "
    head = ', "schemaVersion": 1' if base_ns is not None else '"schemaVersion": 1'
    if layout == "base last":
        return ('{"schemaVersion": 1, "traceEvents": [' + between.join(texts) + "], " + base + "}").encode()
    return ("{" + base + head + ', "traceEvents": [\n' + between.join(texts) + '\n], "traceName": "t"}').encode()


def _numbers(text: str) -> str:
    """Unquote the event's own times, which come before its arguments: those may have keys of the same names."""
    for key in ("ts", "dur"):
        at = text.find(f'"{key}": "')
        if at >= 0:
            value = at + len(key) + 4
            end = text.index('"', value + 1)
            text = text[:value] + text[value + 1 : end] + text[end + 1 :]
    return text


def write(folder: Path, content: bytes, name="trace.json") -> Path:
    """Write a trace file and return its path."""
    path = folder / name
    path.write_bytes(content)
    return path
