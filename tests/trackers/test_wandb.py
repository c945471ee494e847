"""W&B offline: what its process wrote is read back from its file, record by record."""

import json
import struct
import subprocess
import sys

import pytest

from lockstep.contracts.errors import ConfigError
from lockstep.trackers.tracker import TrackerOptions, open_tracker
from tests.test_architecture import ROOT
from tests.trackers.samples import BEGIN, incident, interval, notes_of, points_of

pytestmark = pytest.mark.frameworks
BLOCK, HEAD = 32768, 7  # of the log format of LevelDB, which W&B's files have


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return where W&B writes, offline."""
    for name, value in {"MODE": "offline", "DIR": tmp_path, "SILENT": "true", "ERROR_REPORTING": "false"}.items():
        monkeypatch.setenv(f"WANDB_{name}", str(value))
    return tmp_path


def records(path):
    """Return the records of a file of W&B."""
    from wandb.proto.wandb_internal_pb2 import Record  # noqa: PLC0415  (of the extra `trackers`)

    data, at, whole, found = path.read_bytes(), HEAD, b"", []
    assert data[:4] == b":W&B"
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(whole))
            whole = b""
    return found


def rows(found):
    """Return the rows of the history."""
    histories = [record.history.item for record in found if record.HasField("history")]
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items} for items in histories
    ]


def test_figures_and_incidents_are_in_the_file(folder):
    """A row a point, dated with the end of its steps, over an axis that may begin again; the incidents as a table."""
    tracker = open_tracker("wandb", TrackerOptions(run="job"))
    tracker.log_points(points_of(interval(0, mfu_ratio=0.41), interval(0, begin=BEGIN + 90, attempt=1)))
    notes = notes_of(incident())
    tracker.log_incidents(notes, notes)
    tracker.close(is_over=True)
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    found = records(path)
    first, second, table = rows(found)
    assert (first["lockstep/step"], first["lockstep/mfu_ratio"], first["_timestamp"]) == (9, 0.41, BEGIN + 1)
    assert (second["lockstep/step"], second["lockstep/attempt"], second["_timestamp"]) == (9, 1, BEGIN + 91)
    assert {"lockstep/compute_seconds", "lockstep/dp_wait_seconds"} <= first.keys()
    assert {record.metric.step_metric for record in found if record.metric.glob_name == "lockstep/*"} == {
        "lockstep/step"
    }
    assert any(name.startswith("lockstep/incidents") for name in table)
    (file,) = folder.glob("wandb/offline-run-*/files/media/table/lockstep/incidents*.json")
    shown = json.loads(file.read_text())
    assert dict(zip(shown["columns"], shown["data"][0], strict=True)) == notes[0].row()


def test_a_restart_continues_the_run_that_was_begun(folder):
    """Its id is in the state file; W&B joins both files when they are synchronised."""
    first = open_tracker("wandb", TrackerOptions(run="job"))
    first.close(is_over=False)
    second = open_tracker("wandb", TrackerOptions(run="job", tracker_run=first.tracker_run))
    second.close(is_over=True)
    assert second.tracker_run == first.tracker_run
    with pytest.raises(ConfigError, match="--address: got one, expected WANDB_BASE_URL"):
        open_tracker("wandb", TrackerOptions(run="job", address="http://x"))


WITHOUT_ITS_PROCESS = """
import os, signal
from pathlib import Path
from lockstep.contracts.errors import LocalError
from lockstep.trackers.tracker import TrackerOptions, open_tracker
from tests.test_architecture import ROOT
from tests.trackers.samples import interval, points_of
tracker = open_tracker("wandb", TrackerOptions(run="job"))
for thread in Path("/proc/self/task").iterdir():
    for child in map(int, (thread / "children").read_text().split()):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
try:
    for first in range(0, 100_000, 10):
        tracker.log_points(points_of(interval(first)))
except LocalError as error:
    print(error)
tracker.close(is_over=False)
print("closed")
"""


def test_a_process_of_wandb_that_has_ended_is_reported(folder):
    """It cannot be had back in this process; another one continues the run."""
    command = [sys.executable, "-c", WITHOUT_ITS_PROCESS]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    reported, closed = ended.stdout.splitlines()
    assert reported.endswith("expected W&B's own process, which has ended: start again, which continues the run")
    assert closed == "closed"
