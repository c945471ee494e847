"""Thresholds by name: known, typed, within range, and with the reason of their default."""

from dataclasses import fields

import pytest

from coordinator.detect.findings import KINDS
from coordinator.settings.policy import DetectorPolicy, Policy
from coordinator.settings.thresholds import apply, catalogue, check_order, check_values, value_of
from lockstep.contracts.errors import ConfigError


def test_every_field_of_every_policy_is_a_threshold_with_a_valid_default():
    """Nothing that decides is out of reach, and no default is out of its own range."""
    base = Policy()
    names = {f"{section.name}.{item.name}" for section in fields(base) for item in fields(getattr(base, section.name))}
    assert catalogue().keys() == names
    assert check_values({name: value_of(base, name) for name in names}, where="defaults").keys() == names
    check_order(base, where="defaults")


def test_the_reason_is_the_comment_beside_the_default():
    """One line, a comment that goes on below, and none; all but a few defaults have one."""
    known = catalogue()
    assert known["excess.floor_ratio"].reason.startswith("reference: smallest effect reported")
    assert "descheduled for 7 steps" in known["excess.noisy_sigma"].reason
    assert known["fluctuation.baseline_rate"].reason.startswith("times at most one sigma")
    assert known["profile.per_day"].reason == ""
    assert (known["excess.floor_ratio"].unit, known["run.lost_seconds"].unit) == ("ratio", "seconds")
    numbers = [threshold for threshold in known.values() if threshold.low is not None]
    assert sum(bool(threshold.reason) for threshold in numbers) > 0.85 * len(numbers)


def test_there_is_a_switch_for_every_kind_of_finding():
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
        ({"excess.clear_steps": 5.0}, "expected an integer"),
        ({"excess.clear_steps": 0}, "from 1"),
        ({"cause.typical_every": 0}, "from 1"),
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
    """A slack as large as the clip would let nothing through, ever."""
    with pytest.raises(ConfigError, match=r"slack_sigmas: got 6.0, expected less than excess.clip_sigmas"):
        check_order(apply(Policy(), {"excess.slack_sigmas": 6.0}), where="here")
