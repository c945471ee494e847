"""The process families against a made /proc and against the catalogue."""

import os
import resource
from pathlib import Path

import pytest

from lockstep.contracts.metrics import CATALOGUE
from lockstep.serving.process import OwnProcess

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = resource.getpagesize()
OURS = {metric.name: metric for metric in CATALOGUE if metric.source == "both"}


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Make a process of 3.5 s user and 0.5 s system time, started 20 s after boot, with a name that may confuse."""
    own = tmp_path / "self"
    (own / "fd").mkdir(parents=True)
    for number in range(3):
        (own / "fd" / str(number)).touch()
    fields = [0] * 50
    fields[11], fields[12], fields[19], fields[20], fields[21] = 7 * TICKS // 2, TICKS // 2, 20 * TICKS, 1 << 30, 1000
    (own / "stat").write_text(f"7 (lock) step) S {' '.join(map(str, fields[1:]))}\n")
    (own / "limits").write_text("Limit   Soft Limit  Hard Limit  Units\nMax open files    1024    4096    files\n")
    (tmp_path / "stat").write_text("cpu 1 2 3\nbtime 1700000000\n")
    return tmp_path


def values(proc: str) -> dict[str, float]:
    return {sample.name: sample.value for family in OwnProcess(proc).read() for sample in family.samples}


def test_a_process_is_exposed_in_base_units(proc: Path):
    """Seconds, bytes and Unix time, whatever the kernel counts in."""
    assert values(str(proc)) == {
        "process_virtual_memory_bytes": 1 << 30,
        "process_resident_memory_bytes": 1000 * PAGE_BYTES,
        "process_start_time_seconds": 1_700_000_020,
        "process_cpu_seconds_total": 4.0,
        "process_max_fds": 1024,
        "process_open_fds": 3,
    }


def test_families_are_the_catalogues(proc: Path):
    """Names, types and texts; nothing else is exported, and nothing that is not there."""
    found = {f.name + "_total" * (f.type == "counter"): (f.type, f.documentation) for f in OwnProcess(str(proc)).read()}
    assert found == {name: (metric.type, metric.help) for name, metric in OURS.items()}


def test_what_cannot_be_read_is_left_out(proc: Path, tmp_path: Path):
    """No zero in its place, and no error: without a limit, without a process, without /proc."""
    (proc / "self" / "limits").unlink()
    assert {"process_max_fds", "process_open_fds"}.isdisjoint(values(str(proc)))
    (proc / "self" / "stat").unlink()
    assert values(str(proc)) == {}
    assert values(str(tmp_path / "nowhere")) == {}


def test_this_process_is_read():
    """The machine's own /proc has all of it, and reading goes on to show changes."""
    process = OwnProcess()
    first = {family.name: family.samples[0].value for family in process.read()}
    with Path(os.devnull).open():
        second = {family.name: family.samples[0].value for family in process.read()}
    assert len(first) == len(OURS)
    assert second["process_open_fds"] == first["process_open_fds"] + 1
    assert second["process_cpu_seconds"] >= first["process_cpu_seconds"]
    assert second["process_start_time_seconds"] == first["process_start_time_seconds"]
