"""MLflow's own client writes to a store of files and reads it back."""

import gc
import json
from pathlib import Path

import pytest

from lockstep.contracts.errors import ConfigError
from lockstep.trackers.tracker import TrackerOptions, open_tracker
from tests.trackers.samples import BEGIN, incident, interval, notes_of, points_of

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return the URI of a store: MLflow has files only on request, and others only in its full package."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    yield f"file://{tmp_path}/store"
    gc.collect()  # its store leaves folders open, which shall be seen here, where that is ignored


def client_of(store):
    from mlflow import MlflowClient  # noqa: PLC0415  (of the extra `trackers`)

    return MlflowClient(tracking_uri=store)


def open_(store, **values):
    return open_tracker("mlflow", TrackerOptions(run="job", address=store, **values))


def test_figures_and_incidents_are_read_back(store):
    """By step and time, in a run of our own that a restart continues and the job's end ends."""
    tracker = open_(store)
    tracker.log_points(points_of(interval(0, mfu_ratio=0.41), interval(10)))
    again = open_(store, tracker_run=tracker.tracker_run)
    again.log_points(points_of(interval(0, begin=BEGIN + 90, attempt=1)))
    notes = notes_of(incident())
    again.log_incidents(notes, notes)
    again.close(is_over=True)
    client = client_of(store)
    (run,) = client.search_runs([client.get_experiment_by_name("lockstep").experiment_id])
    assert (run.info.status, run.data.tags["lockstep.run"]) == ("FINISHED", "job")
    history = client.get_metric_history(run.info.run_id, "lockstep/step_seconds")
    assert [(each.step, each.timestamp, each.value) for each in history] == [
        (9, int((BEGIN + 1) * 1000), 0.1),
        (19, int((BEGIN + 2) * 1000), 0.1),
        (9, int((BEGIN + 91) * 1000), 0.1),
    ]
    assert run.data.metrics["lockstep/mfu_ratio"] == 0.41
    assert {"lockstep/compute_seconds", "lockstep/dp_wait_seconds", "lockstep/attempt"} <= run.data.metrics.keys()
    assert run.data.tags["lockstep.incident"].endswith("step 40, open: http://c:9856/incidents/job-1")
    with Path(client.download_artifacts(run.info.run_id, "lockstep/incidents.json")).open() as file:
        table = json.load(file)
    assert dict(zip(table["columns"], table["data"][0], strict=True)) == notes[0].row()


def test_a_run_of_training_gets_the_figures_and_is_not_ended(store):
    """It goes on after the forwarder, which owns nothing there."""
    client = client_of(store)
    run = client.create_run(client.create_experiment("train")).info.run_id
    tracker = open_(store, tracker_run=run, is_attached=True)
    tracker.log_points(points_of(interval(0)))
    tracker.close(is_over=True)
    assert client.get_run(run).info.status == "RUNNING"
    assert client.get_run(run).data.metrics["lockstep/step_seconds"] == 0.1


def test_an_unknown_run_is_refused_by_name(store):
    """Before anything is sent."""
    with pytest.raises(ConfigError, match="--id: got '0123', expected the id of a run of mlflow at file"):
        open_(store, tracker_run="0123", is_attached=True)


def test_more_metrics_than_a_call_takes_are_several_calls(store):
    """MLflow refuses more than 1,000 in one; none is lost."""
    tracker = open_(store)
    tracker.log_points(points_of(*(interval(first) for first in range(0, 1500, 10))))
    client = client_of(store)
    assert len(client.get_metric_history(tracker.tracker_run, "lockstep/step_seconds")) == 150
