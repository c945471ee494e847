"""Which functions' tensors outlive a step, of traces in the form that torch 2.13 writes, and of files that lie.

`tests/end_to_end/test_memory_growth.py` holds it to a real capture.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from lockstep.analysis.kept_allocations import UNKNOWN, kept_allocations
from lockstep.contracts.memory_report import RetainedAllocation
from lockstep.trace.kineto.load import load_trace

MIB = 1 << 20
BASE_NS = 1_700_000_000_000_000_000
STEP_US = 1000.0
STEPS = 4
PLACE = {"pid": 9, "tid": 9}


def frame(name: str, start_us: float, duration_us: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "python_function", "name": name, "ts": start_us, "dur": duration_us, "args": {}, **PLACE}


def memory(time_us: float, size_bytes: Any, address: Any, tid: int = 9) -> dict[str, Any]:
    args = {"Total Reserved": 0, "Total Allocated": 0, "Bytes": size_bytes, "Device Id": -1, "Addr": address}
    place = PLACE | {"tid": tid, "ts": time_us}
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", **place, "args": args}


def events() -> list[dict[str, Any]]:
    """Return four steps: each keeps 5 MiB, allocates gradients that the next step frees, and a temporary."""
    made = [frame("train.py(1): <module>", 0.0, 1e6)]
    for step in range(STEPS + 1):
        begin = 100 + step * STEP_US
        mark = {"ph": "X", "cat": "user_annotation", "name": f"lockstep.step#{step}", "ts": begin, "dur": 1.0}
        made.append(mark | PLACE | {"args": {}})
        if step == STEPS:
            break
        made += [
            frame("train.py(20): train", begin + 5, STEP_US - 10),
            memory(begin + 10, 4 * MIB, 5000),
            memory(begin + 20, -4 * MIB, 7000 + step - 1),
            memory(begin + 30, 4 * MIB, 7000 + step),
            frame("train.py(88): keep", begin + 100, 100.0),
            frame("torch/_tensor.py(9): clone", begin + 110, 80.0),
            memory(begin + 150, 5 * MIB, 90_000 + step),
            memory(begin + 900, -4 * MIB, 5000),
        ]
    return made


def written(path: Path, made: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"baseTimeNanoseconds": BASE_NS, "traceEvents": made}))
    return path


def kept(tmp_path: Path, made: list[dict[str, Any]]) -> list[RetainedAllocation]:
    path = written(tmp_path / "trace.json", made)
    return kept_allocations(path, load_trace(path))


def test_what_outlives_a_step_is_a_leak_and_what_the_next_step_frees_is_none(tmp_path: Path):
    """Of four steps the first three count; gradients and temporaries are of each step. The function is the training's."""
    assert kept(tmp_path, events()) == [RetainedAllocation(function="train.py(88): keep", bytes=3 * 5 * MIB, count=3)]


def test_an_allocation_of_another_thread_has_no_function_of_this_one(tmp_path: Path):
    """Autograd's threads have no Python frames."""
    found = kept(tmp_path, [*events(), memory(500, 8 * MIB, 3, tid=10)])
    assert RetainedAllocation(function=UNKNOWN, bytes=8 * MIB, count=1) in found
    assert len(found) == 2


def test_a_trace_without_memory_events_names_nothing(tmp_path: Path):
    """As every other capture is."""
    assert kept(tmp_path, [each for each in events() if each["name"] != "[memory]"]) == []


def test_one_step_shows_nothing(tmp_path: Path):
    """Nothing can have outlived it."""
    end = 100 + STEP_US
    made = [each for each in events() if each["ts"] <= end]
    assert kept(tmp_path, made) == []


@pytest.mark.parametrize(
    ("size_bytes", "address"),
    [("many", 5), (10**30, -1), (1e300, 7), (None, None), (-5, 7), ([5 * MIB], {}), ("5242880", "8" * 400), (True, 1)],
)
def test_memory_events_that_make_no_sense_name_nothing(tmp_path: Path, size_bytes: Any, address: Any):
    """The training may write what it likes into its trace."""
    plain = [each for each in events() if each["name"] != "[memory]"]
    found = kept(tmp_path, [*plain, memory(500, size_bytes, address)])
    assert all(0 <= each.bytes < 1 << 63 for each in found)


def test_a_file_that_is_gone_names_nothing(tmp_path: Path):
    """Traces are deleted by age."""
    columns = load_trace(written(tmp_path / "trace.json", events()))
    assert kept_allocations(tmp_path / "none.json", columns) == []
    (tmp_path / "empty.json").write_bytes(b"")
    assert kept_allocations(tmp_path / "empty.json", columns) == []
