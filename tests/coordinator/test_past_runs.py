"""What runs leave behind: bounded by number and age, on disk too, and never at the cost of a real run."""

import asyncio

import pytest

from coordinator import past_runs
from coordinator.decide import events as ev
from coordinator.decide.saved_run import DetectionProgress, SavedRun
from coordinator.past_runs import PAST_RUN_KEPT_S, PAST_RUNS_MAX, PastRuns
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from coordinator.store import Store
from tests.coordinator.conftest import START_UNIX_S, announce
from tests.coordinator.live import effects_of
from tests.coordinator.scenarios import Scenario, generate

NOW = START_UNIX_S + 10
HEALTHY = generate(Scenario(degrees="dp=4", steps=10))


def memory(*, records=0, incidents=1, at_s=NOW):
    return SavedRun(incidents_total=incidents, evaluated=DetectionProgress(records=records), last_sign_s=at_s)


def test_invented_names_displace_no_real_run():
    """Ten thousand runs with an incident and no step, all younger than the real ones: those go, in the order of age."""
    past = PastRuns({"real": memory(records=9), "older": memory(records=9, at_s=NOW - 1)})
    for number in range(10_000):
        past.add(f"invented-{number}", memory(at_s=NOW + number))
    dropped = past.trim(NOW + 10_000, ())
    assert dropped[0] == "invented-0"
    assert len(dropped) == 10_002 - PAST_RUNS_MAX
    assert past.memory("real") is not None
    assert past.memory("older") is not None
    assert past.memory("invented-9999") is not None
    assert past.trim(NOW + 10_001, ()) == []


def test_of_real_runs_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch):
    """Age is counted by the coordinator's clock, whatever nodes claim of their steps."""
    monkeypatch.setattr(past_runs, "PAST_RUNS_MAX", 2)
    past = PastRuns({name: memory(records=9, at_s=at_s) for name, at_s in (("b", 3.0), ("a", 1.0), ("c", 2.0))})
    assert past.trim(4.0, ()) == ["a"]


def test_what_is_too_old_is_dropped_once_an_hour_unless_its_run_goes_on():
    """A run that lasts for months keeps what it remembers."""
    past = PastRuns({"old": memory(records=9), "months": memory(records=9), "young": memory(at_s=NOW + 10)})
    later = NOW + PAST_RUN_KEPT_S + 5
    assert past.trim(later, {"months"}) == ["old"]
    assert past.trim(later + 10, {"months"}) == []
    assert past.trim(later + 3600, {"months"}) == ["young"]
    assert past.memory("months") is not None


def test_a_run_that_left_nothing_behind_is_nothing():
    """A flood of announcements alone takes no place."""
    past = PastRuns({})
    past.add("evicted", SavedRun(last_sign_s=NOW))
    assert past.memory("evicted") is None
    assert past._of_run == {}


def test_runs_that_come_and_go_are_bounded_in_memory_and_on_disk(tmp_path, monkeypatch, caplog):
    """From the announcement to the deleted row: what the youngest left behind is kept, and the log has one line."""
    monkeypatch.setattr(past_runs, "PAST_RUNS_MAX", 5)
    store = Store(str(tmp_path))
    runs = Runs(CoordinatorConfig(), Policy(), {}, lambda: 0.0)
    effects = effects_of(runs, store, lambda: NOW)
    for number in range(12):
        began_s, name = NOW + 4000 * number, f"run-{number}"
        effects.perform(runs.take(announce(0, 1, 2, 3, run=name, heartbeat_s=began_s), began_s))
        effects.perform(runs.take(HEALTHY.batch(0, 3, run=name), began_s))
        effects.writer.remember()
        assert asyncio.run(effects.writer.flush())
        for later_s in (120, 3700):
            effects.perform(runs.tick(began_s + later_s))
        assert runs.by_name == {}
        assert asyncio.run(effects.writer.flush())
    effects.perform(runs.tick(NOW + 48_000))
    assert asyncio.run(effects.writer.flush())
    assert set(store.load_runs()) == set(runs._table._past._of_run) == {f"run-{number}" for number in range(7, 12)}
    assert len([record for record in caplog.records if "dropped the state of" in record.message]) >= 1
    store.close()


def test_a_store_full_of_past_runs_is_trimmed_at_the_start(monkeypatch: pytest.MonkeyPatch):
    """Rows of an earlier coordinator count too."""
    monkeypatch.setattr(past_runs, "PAST_RUNS_MAX", 5)
    memories = {f"run-{number}": memory(records=1, at_s=NOW + number) for number in range(9)}
    runs = Runs(CoordinatorConfig(), Policy(), memories, lambda: 0.0)
    dropped = [run for run, given in runs.tick(NOW + 10) for each in given if isinstance(each, ev.DropSavedRun)]
    assert dropped == ["run-0", "run-1", "run-2", "run-3"]
