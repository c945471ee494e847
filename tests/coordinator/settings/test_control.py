"""Layers of thresholds and how they change."""

import pytest

from coordinator.settings.config import LIVE_KEYS, CoordinatorConfig
from coordinator.settings.control import Control, Settings
from coordinator.settings.policy import Policy
from coordinator.settings.thresholds import apply
from lockstep.contracts.errors import ConfigError


def settings(token="", thresholds=None, **values):
    """Return a configuration whose policy file holds `thresholds`."""
    return Settings(config=CoordinatorConfig(**values), policy=apply(Policy(), thresholds or {}), token=token)


def control(kept=None, **values):
    return Control(settings(**values), kept or {}, 100.0)


def put(made, values, run=""):
    return made.commit(made.plan(values, run=run, where="test"), who="a test")


def described(made, name, run=""):
    return next(item for item in made.describe(run) if item["name"] == name)


def test_the_later_layer_wins_and_names_its_origin():
    """Default, configuration, all runs, one run."""
    made = control(thresholds={"excess.floor_ratio": 0.05})
    name = "excess.floor_ratio"
    assert described(made, "run.recover_steps")["source"] == "default"
    assert (described(made, name)["value"], described(made, name)["source"]) == (0.05, "file")
    put(made, {name: 0.1})
    put(made, {name: 0.2}, run="job")
    assert (described(made, name)["value"], described(made, name)["source"]) == (0.1, "api")
    assert (described(made, name, "job")["value"], described(made, name, "job")["source"]) == (0.2, "run")
    assert described(made, name, "other")["source"] == "api"
    assert [made.policy(run).excess.floor_ratio for run in ("", "job", "other")] == [0.1, 0.2, 0.1]


def test_null_takes_a_change_back():
    """What lies below is in force again, and only what is different is reported."""
    made = control()
    put(made, {"excess.floor_ratio": 0.1, "detectors.slow_link": False})
    (change,) = put(made, {"excess.floor_ratio": None, "run.recover_steps": None})
    assert (change.name, change.before, change.after) == ("excess.floor_ratio", 0.1, 0.025)
    assert made.overrides() == {"detectors.slow_link": False}
    put(made, {"detectors.slow_link": None})
    assert made.policy() == Policy()


@pytest.mark.parametrize(
    ("values", "run", "named"),
    [
        ({"excess.floor_ratio": 0.1, "excess.nope": 1}, "", "nope"),
        ({"excess.nope": None}, "", "nearest"),
        ({"timeline.window_cells": 1000}, "", "laid out when a run begins"),
        ({"scope.runs": ["a"]}, "job", "among the thresholds of all runs"),
        ({"run.lost_seconds": 4000.0}, "", "expected less than"),
    ],
)
def test_nothing_of_a_wrong_change_is_taken(values, run, named):
    """The policy is the one from before."""
    made = control()
    with pytest.raises(ConfigError, match=named):
        made.plan(values, run=run, where="test")
    assert made.policy() == made.policy("job") == Policy()


def test_a_change_for_all_runs_must_not_break_the_thresholds_of_one():
    """Both were right alone; the run is named."""
    made = control()
    put(made, {"run.lost_seconds": 500.0}, run="job")
    with pytest.raises(ConfigError, match=r"of run job: run.lost_seconds"):
        made.plan({"run.lost_keep_seconds": 400.0}, where="test")


def test_a_plan_changes_nothing_until_it_is_committed():
    """Keeping it may fail in between."""
    made = control()
    plan = made.plan({"excess.floor_ratio": 0.1}, where="test")
    assert made.policy() == Policy()
    made.commit(plan, who="a test")
    assert made.policy().excess.floor_ratio == 0.1
    assert made.changes == {"api": 1, "file": 0}


def test_kept_changes_are_checked_again(caplog):
    """Names of another version and what the configuration contradicts are left out by name, the rest is in force."""
    kept = {
        "": {"excess.floor_ratio": 0.1, "excess.gone": 1, "run.lost_seconds": 5000.0},
        "job": {"scope.domain_kinds": ["dp"]},
    }
    made = control(kept)
    assert made.overrides() == {"excess.floor_ratio": 0.1}
    assert made.policy("job").scope.domain_kinds == ("dp",)
    assert [text for text in caplog.messages if "excess.gone" in text]
    assert [text for text in caplog.messages if "run.lost_seconds" in text]


def test_reconfiguring_applies_what_it_can_and_names_the_rest():
    """Ports stay, degrees and thresholds change, what was reported over HTTP goes before both."""
    made = control(http_port=1234)
    put(made, {"run.recover_steps": 30})
    new = settings("new", {"excess.floor_ratio": 0.1, "run.recover_steps": 20}, http_port=5678, domains="dp=8")
    done = made.reconfigure(new, who="a test", now_s=200.0)
    assert set(done.applied) == {"domains"}
    assert done.needs_restart == ("http_port",)
    assert [(change.name, change.after) for change in done.changes] == [("excess.floor_ratio", 0.1)]
    assert (made.config.http_port, made.config.domains, made.token) == (1234, "dp=8", "new")
    assert (made.policy().run.recover_steps, made.policy().excess.floor_ratio) == (30, 0.1)
    assert (made.changes["file"], made.reload_unix_s) == (1, 200.0)


def test_a_configuration_that_changes_over_http_contradict_is_refused_whole():
    """Nothing of it is in force."""
    made = control()
    put(made, {"run.lost_keep_seconds": 100.0})
    before = made.config
    with pytest.raises(ConfigError, match=r"run.lost_seconds"):
        made.reconfigure(settings(thresholds={"run.lost_seconds": 200.0}), who="a test", now_s=200.0)
    assert made.config is before
    assert made.policy().run.lost_seconds == Policy().run.lost_seconds
    assert made.reload_unix_s == 100.0


def test_every_live_key_is_a_key():
    """A key that is renamed must not silently need a restart."""
    assert all(hasattr(CoordinatorConfig(), key) for key in LIVE_KEYS)
