"""What survives the coordinator."""

import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from coordinator.decide.incidents import CLOSED, CaptureNote, Incident, from_json, to_json
from coordinator.decide.saved_run import DetectorState, SavedRun
from coordinator.store import FILE_NAME, Store
from lockstep.contracts.errors import ConfigError, MalformedError
from lockstep.contracts.finding import Advice


def incident(number=1, **more):
    values = {
        "id": f"job-{number}",
        "run": "job",
        "kind": "slow_rank",
        "cause": "compute",
        "scope": "rank",
        "ranks": (2, 3),
        "domain": ("dp", "dp0"),
        "onset_step": 60,
        "detected_step": 62,
        "opened_unix_ns": number,
        "slowdown_ratio": 0.5,
        "excess_seconds": 0.05,
        "evidence": ("rank 2 is slow",),
        "numbers": {"excess_ratio": 0.5},
        "profile_evidence": ("it stays in forward",),
        "advice": (Advice(suggestion="a", how="b", predicted_gain_ratio=None, source="c"),),
        "profile": CaptureNote(request_id=7, ranks=(2, 0), first_step=70, steps=3, cost_seconds=0.5),
    }
    return Incident(**(values | more))


def test_the_json_form_is_what_the_api_promises_and_comes_back_whole():
    """Keys, shapes and round trip."""
    value = to_json(incident())
    assert from_json(value, where="test") == incident()
    assert value["domain"] == {"kind": "dp", "id": "dp0"}
    assert value["evidence"] == ["rank 2 is slow", "it stays in forward"]
    assert value["profile"] == {"request_id": 7, "ranks": [2, 0], "first_step": 70, "steps": 3, "cost_seconds": 0.5}
    assert value["advice"] == [{"suggestion": "a", "how": "b", "predicted_gain_ratio": None, "source": "c"}]
    promised = {"id", "run", "kind", "cause", "scope", "ranks", "domain", "onset_step", "detected_step", "closed_step"}
    promised |= {"slowdown_ratio", "lost_device_seconds", "evidence", "numbers", "function", "operator", "advice"}
    assert promised | {"confidence", "state", "opened_unix_ns", "profile"} <= value.keys()


@pytest.mark.parametrize("break_it", [lambda v: v.pop("domain"), lambda v: v.update(advice=[{"x": 1}])])
def test_another_json_form_is_refused_by_name(break_it):
    """What this version did not write is an error that states where."""
    value = to_json(incident())
    break_it(value)
    with pytest.raises(MalformedError, match="incident in somewhere"):
        from_json(value, where="somewhere")


def test_what_a_run_knows_is_there_after_a_restart(tmp_path):
    """A second process finds the open incident, not the closed one, the run's counts, and what was learnt."""
    learnt = DetectorState(fingerprint="f", step=9, end_unix_s=1.5, arrays={"a": np.arange(3.0)})
    memory = SavedRun(
        incidents_total=2,
        lost_device_seconds=4.5,
        capture_times_s=(1.0, 2.0),
        capture_counts={"done": 2},
        incident_tracker={"evaluated_steps": 7},
        capture={"request_id": 5},
        learnt=learnt,
    )
    store = Store(str(tmp_path))
    store.keep([incident(1), incident(2)], {"job": memory})
    store.keep([incident(2, state=CLOSED, closed_step=90)], {"job": replace(memory, incidents_total=3, learnt=None)})
    store.close()
    again = Store(str(tmp_path))
    kept = again.load_runs()["job"]
    assert kept.incidents == (incident(1),)
    assert (kept.incidents_total, kept.lost_device_seconds, kept.capture_times_s) == (3, 4.5, (1.0, 2.0))
    assert (kept.incident_tracker, kept.capture) == ({"evaluated_steps": 7}, {"request_id": 5})
    assert (kept.learnt.step, kept.learnt.arrays["a"].tolist()) == (9, [0, 1, 2])
    assert [i.id for i in again.incidents(run="job")] == ["job-2", "job-1"]
    assert [i.id for i in again.incidents(state=CLOSED)] == ["job-2"]
    assert again.incidents(run="other") == []
    assert again.incident("job-1") == incident(1)
    assert again.incident("job-9") is None
    again.forget_learnt(["job"])
    assert again.load_runs()["job"].learnt is None
    again.close()


def test_what_belongs_together_is_written_together(tmp_path):
    """An incident that cannot be written leaves the memory that speaks of it unwritten too."""
    store = Store(str(tmp_path))
    with pytest.raises(sqlite3.Error):
        store.keep([incident(1), incident(2, run=None)], {"job": SavedRun(incidents_total=2)})
    assert store.incidents() == []
    assert store.load_runs() == {}
    store.keep([incident(1)], {"job": SavedRun(incidents_total=1)})
    assert store.load_runs()["job"].incidents == (incident(1),)
    store.close()


def test_learnt_state_that_is_damaged_is_discarded_by_name(tmp_path, caplog):
    """The run is still known; its detectors begin again, and the log states that."""
    store = Store(str(tmp_path))
    store.keep([], {"job": SavedRun(incidents_total=4)})
    store._database.execute("INSERT INTO learnt VALUES ('job', ?)", (b"damaged",))
    kept = store.load_runs()["job"]
    assert (kept.incidents_total, kept.learnt) == (4, None)
    assert "run job" in caplog.text
    assert "discarded" in caplog.text
    store.close()


def test_a_killed_writer_loses_nothing_it_had_written(tmp_path):
    """What was kept is on disk before `close`: a reader next to the open writer sees it."""
    store = Store(str(tmp_path))
    store.keep_incident(incident(1))
    second_connection = sqlite3.connect(tmp_path / FILE_NAME)
    assert second_connection.execute("SELECT count(*) FROM incidents").fetchone() == (1,)
    second_connection.close()
    store.close()


def test_bad_places_are_named(tmp_path):
    """A file in the way, a file of another version and a file that is no database are configuration errors."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="state_directory"):
        Store(str(tmp_path / "file"))
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(ConfigError, match="got version 99"):
        Store(str(tmp_path))
    (tmp_path / FILE_NAME).write_bytes(b"no database at all" * 100)
    with pytest.raises(ConfigError, match="state_directory"):
        Store(str(tmp_path))


def test_without_a_directory_everything_is_in_memory():
    """The single-machine default writes no file."""
    store = Store("")
    store.keep_incident(incident(1))
    assert [i.id for i in store.incidents()] == ["job-1"]
    store.close()


def test_foreign_rows_are_an_error_that_names_them(tmp_path):
    """A row that another program wrote is refused, not half read."""
    store = Store(str(tmp_path))
    store._database.execute("INSERT INTO runs VALUES ('job', '[]')")
    with pytest.raises(MalformedError, match="memory of run job"):
        store.load_runs()
    store._database.execute("INSERT INTO incidents VALUES ('x', 'job', 'open', 1, '{')")
    with pytest.raises(MalformedError, match="incident"):
        store.incidents()
    store.close()
