"""Thresholds by name: known, typed, within range, and with the reason of their default."""

from dataclasses import fields

import pytest

from coordinator.detect.anomalies import KINDS
from coordinator.settings.policy import Policy
from coordinator.settings.run_policy import DetectorPolicy
from coordinator.settings.thresholds import apply, catalogue, check_order, check_values, value_of
from lockstep.contracts.errors import ConfigError

_DETECTION_SETTINGS_MAX = 40


def test_every_setting_has_a_valid_default_a_unit_and_a_reason():
    """What an operator reads of it is complete, and no default is out of its own range."""
    base, known = Policy(), catalogue()
    assert check_values({name: value_of(base, name) for name in known}, where="defaults").keys() == known.keys()
    check_order(base, where="defaults")
    for name, setting in known.items():
        assert setting.reason, name
        is_number = setting.form in (int, float)
        assert (setting.low is not None, setting.high is not None, bool(setting.unit)) == (is_number,) * 3, name
    assert known["excess.floor_ratio"].reason.startswith("reference: smallest effect reported")
    assert (known["excess.floor_ratio"].unit, known["run.lost_seconds"].unit) == ("ratio", "seconds")


def test_detection_has_few_settings():
    """Captures aside; what follows from the budget, and what a method holds, is none."""
    assert len([name for name in catalogue() if not name.startswith("profile.")]) <= _DETECTION_SETTINGS_MAX
    assert [name for name in catalogue() if name.endswith("false_page_steps")] == ["budget.false_page_steps"]


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("excess.false_page_steps", "'budget.false_page_steps'"),
        ("fluctuation.gate_sigmas", "'budget.false_page_steps'"),
        ("run.fluctuation_seconds", "'run.pending_seconds'"),
        ("excess.clip_sigmas", "a constant of the method"),
    ],
)
def test_a_former_setting_is_refused_with_what_decides_now(name, instead):
    """A policy file of a former version is corrected by the message."""
    with pytest.raises(ConfigError, match=rf"^here: got '{name}'") as caught:
        check_values({name: 1.0}, where="here")
    assert instead in str(caught.value)


def test_the_budget_reaches_all_sections_that_hold_limits():
    """Of an operator's value as of the default; what a section is given otherwise is not heeded."""
    policy = apply(Policy(), {"budget.false_page_steps": 10_000.0, "excess.floor_ratio": 0.05})
    steps = {each.false_page_steps for each in (policy.budget, policy.excess, policy.fluctuation, policy.run)}
    assert steps == {10_000.0}


def test_there_is_a_switch_for_every_kind_of_anomaly():
    """A kind without one could not be silenced."""
    assert set(KINDS) <= {item.name for item in fields(DetectorPolicy)}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"excess.flor_ratio": 0.1}, "'excess.floor_ratio'"),
        ({"x" * 10_000: 1}, "nearest is"),
        ({1: 1}, "nearest is"),
        ({"excess.floor_ratio": "0.1"}, "got '0.1', expected a number from 0.001 to 10"),
        ({"excess.floor_ratio": True}, "expected a number"),
        ({"excess.floor_ratio": float("nan")}, "got nan"),
        ({"excess.floor_ratio": 0.0}, "from 0.001"),
        ({"excess.floor_ratio": 10**5000}, "an integer of 16610 bits"),
        ({"excess.warm_up_steps": 20.0}, "expected an integer"),
        ({"excess.warm_up_steps": 0}, "from 8"),
        ({"profile.steps": 0}, "from 1"),
        ({"detectors.hang": 1}, "expected true or false"),
        ({"scope.runs": "prod-*"}, "expected a list"),
        ({"scope.runs": []}, "expected a list of 1"),
        ({"scope.runs": ["a", 7]}, "got 7"),
        ({"scope.runs": ["a" * 200]}, "characters"),
        ({"scope.domain_kinds": ["xp"]}, "got 'xp', expected some of tp"),
    ],
)
def test_a_wrong_value_is_named_with_what_would_do(values, named):
    """Where, what, got and expected stand in the message, and it stays short."""
    with pytest.raises(ConfigError, match=r"^here: ") as caught:
        check_values(values, where="here")
    assert named in str(caught.value)
    assert len(str(caught.value)) < 400


def test_values_reach_their_fields_and_no_other():
    """Numbers are converted to the field's type, lists to tuples."""
    values = check_values({"excess.floor_ratio": 1, "scope.runs": ["a*"], "detectors.hang": False}, where="here")
    policy = apply(Policy(), values)
    assert (policy.excess.floor_ratio, type(policy.excess.floor_ratio)) == (1.0, float)
    assert (policy.scope.runs, policy.detectors.hang) == (("a*",), False)
    assert apply(policy, {"excess.floor_ratio": 0.025, "scope.runs": ("*",), "detectors.hang": True}) == Policy()


def test_thresholds_that_bound_each_other_are_held_to_it():
    """A run would be forgotten before it is lost."""
    with pytest.raises(ConfigError, match=r"lost_seconds: got 3600.0, expected less than run.lost_keep_seconds"):
        check_order(apply(Policy(), {"run.lost_seconds": 3600.0}), where="here")
