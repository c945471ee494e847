"""Every threshold by its dotted name: what it may be, why it is what it is, and how to make a policy of other values.

Pure but for reading the text of `policy.py` once: the reason of a default is the comment next to it there. Values come
from outside (HTTP, a file), so each is checked by name, type and range before any is used.
"""

import difflib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from coordinator.settings import policy as source
from coordinator.settings.policy import Policy
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.limits import PROFILE_STEPS_MAX
from lockstep.contracts.records import DOMAIN_KINDS

Value = bool | int | float | tuple[str, ...]

_TEXTS_MAX = 64  # patterns in a list
_TEXT_MAX = 128  # characters of one: as long as a run's name
_GOT_MAX = 120  # characters of a wrong value in a message

_LINE = re.compile(
    r"class (?P<owner>\w+)|    (?P<field>\w+): [^#]*(?:# (?P<reason>.*))?$|    (?:\)  )?# (?P<more>.*)$"
)  # of policy.py
_WEEK_S = 7 * 86_400.0
# By a word of a name: unit, least and greatest value. The first that fits counts.
_FORMS: tuple[tuple[str, str, float, float], ...] = (
    ("seconds", "seconds", 0.0, _WEEK_S),
    ("steps", "steps", 1, 100_000),
    ("every", "steps", 1, 100_000),
    ("rate", "share a step", 1e-6, 1.0),
    ("share", "share", 0.0, 1.0),
    ("sigmas", "sigmas", 0.0, 100.0),
    ("sigma", "ratio", 0.0, 10.0),
    ("ratio", "ratio", 0.0, 10.0),
    ("factor", "factor", 0.01, 100.0),
)
_OTHER = ("", "", 0.0, 1e9)
_RANGES: dict[str, tuple[float, float]] = {
    "excess.false_page_steps": (1000.0, 1e9),
    "excess.floor_ratio": (0.001, 10.0),  # below, rounding of the record itself is an effect
    "excess.warm_up_steps": (8, 10_000),
    "fluctuation.false_page_steps": (1000.0, 1e9),
    "fluctuation.warm_up_steps": (8, 10_000),
    "timeline.grace_seconds": (0.1, 3600.0),
    "timeline.part_max_seconds": (1.0, 86_400.0),  # longer sums of nanoseconds leave 64 bits
    "run.recover_steps": (1, 10_000),
    "run.lost_seconds": (1.0, 86_400.0),
    "run.keep_seconds": (1.0, _WEEK_S),
    "profile.steps": (1, PROFILE_STEPS_MAX),
    "profile.cooldown_seconds": (0.0, 86_400.0),
    "profile.per_day": (0, 10_000),
    "profile.per_run": (0, 10_000),
}
_FIXED = frozenset(
    {  # memory is laid out by these when a run begins
        "timeline.window_cells",
        "timeline.window_steps_min",
        "timeline.window_steps_max",
    }
)
# (less, more): with the first one not below the second, a test could never alarm, or never end.
_ORDERED = (
    ("excess.slack_sigmas", "excess.clip_sigmas"),
    ("excess.settle_steps", "excess.warm_up_steps"),
    ("run.lost_seconds", "run.lost_keep_seconds"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyThreshold:
    """One field of one policy class. `low` and `high` are inclusive and None where the value is no number.

    `is_live` is False for what is laid out in memory when a run begins: it cannot be changed while runs go on.
    """

    name: str
    form: Any
    default: Value
    unit: str
    low: float | None
    high: float | None
    is_live: bool
    reason: str


@cache
def catalogue() -> dict[str, PolicyThreshold]:
    """Return every threshold by name, in the order of `policy.py`."""
    base, reasons = Policy(), _reasons()
    known = {}
    for section in fields(base):
        group = getattr(base, section.name)
        for item in fields(group):
            name = f"{section.name}.{item.name}"
            reason = reasons.get((type(group).__name__, item.name), "")
            known[name] = _threshold(name, item.type, getattr(group, item.name), reason)
    return known


def _threshold(name: str, form: Any, default: Value, reason: str) -> PolicyThreshold:
    field = name.partition(".")[2]
    _, unit, low, high = next((known for known in _FORMS if known[0] in field.split("_")), _OTHER)
    low, high = _RANGES.get(name, (max(low, 1) if form is int else low, high))
    is_number = form in (int, float)
    return PolicyThreshold(
        name=name,
        form=form,
        default=default,
        unit=unit if is_number else "",
        low=low if is_number else None,
        high=high if is_number else None,
        is_live=name not in _FIXED,
        reason=reason,
    )


def value_of(policy: Policy, name: str) -> Value:
    """Return the value of a threshold that exists."""
    section, _, field = name.partition(".")
    value: Value = getattr(getattr(policy, section), field)
    return value


def apply(policy: Policy, values: Mapping[str, Value]) -> Policy:
    """Return the policy with other values, which `check_values` has seen."""
    by_section: dict[str, dict[str, Value]] = {}
    for name, value in values.items():
        section, _, field = name.partition(".")
        by_section.setdefault(section, {})[field] = value
    changed: dict[str, Any] = {section: replace(getattr(policy, section), **own) for section, own in by_section.items()}
    return replace(policy, **changed)


def check_values(values: Mapping[str, Any], *, where: str) -> dict[str, Value]:
    """Return the values as the policy holds them; all of them are right, or none is taken.

    Raises
    ------
    ConfigError
        An unknown name (the nearest is named), a value of another type or out of range.
    """
    return {str(name): check_value(name, value, where=where) for name, value in values.items()}


def check_value(name: object, value: Any, *, where: str) -> Value:
    """Return one value as the policy holds it.

    Raises
    ------
    ConfigError
        As `check_values`.
    """
    known = catalogue().get(str(name))
    if known is None:
        text = f"{name!s:.{_TEXT_MAX}}"
        near = difflib.get_close_matches(text, catalogue(), n=1, cutoff=0.0)[0]
        raise ConfigError(f"{where}: got {text!r}, expected the name of a threshold; the nearest is {near!r}")
    if known.form is bool:
        if type(value) is not bool:
            raise _wrong(known, value, where, "true or false")
        return value
    if known.low is None or known.high is None:
        return _texts(known, value, where)
    allowed: tuple[type, ...] = (int,) if known.form is int else (int, float)
    # NaN fails the comparison, and an integer of any length is compared before it is converted.
    if type(value) not in allowed or not known.low <= value <= known.high:
        what = "an integer" if known.form is int else "a number"
        raise _wrong(known, value, where, f"{what} from {known.low:g} to {known.high:g}")
    number: Value = known.form(value)
    return number


def _texts(known: PolicyThreshold, value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not 0 < len(value) <= _TEXTS_MAX:
        raise _wrong(known, value, where, f"a list of 1 to {_TEXTS_MAX} texts")
    for text in value:
        if not isinstance(text, str) or not 0 < len(text) <= _TEXT_MAX:
            raise _wrong(known, text, where, f"texts of 1 to {_TEXT_MAX} characters")
        if known.name == "scope.domain_kinds" and text not in DOMAIN_KINDS:
            raise _wrong(known, text, where, f"some of {', '.join(DOMAIN_KINDS)}")
    return tuple(value)


def _wrong(known: PolicyThreshold, value: Any, where: str, expected: str) -> ConfigError:
    return ConfigError(f"{where}: {known.name}: got {_short(value)}, expected {expected}")


def _short(value: Any) -> str:
    if type(value) is int and value.bit_length() > 64:  # noqa: PLR2004  (writing out thousands of digits is refused)
        return f"an integer of {value.bit_length()} bits"
    return f"{value!r:.{_GOT_MAX}}"


def check_order(policy: Policy, *, where: str) -> None:
    """Check that thresholds which bound each other do.

    Raises
    ------
    ConfigError
        One is not below the other; both are named.
    """
    for less, more in _ORDERED:
        low, high = value_of(policy, less), value_of(policy, more)
        assert isinstance(low, int | float)
        assert isinstance(high, int | float)
        if low >= high:
            raise ConfigError(f"{where}: {less}: got {low}, expected less than {more}, which is {high}")


def _reasons() -> dict[tuple[str, str], str]:
    """Return the comment next to each default by (class, field); none where the text of the module is not there."""
    try:
        text = inspect.getsource(source)
    except OSError:
        return {}
    found: dict[tuple[str, str], str] = {}
    owner = field = ""
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        if match["owner"]:
            owner, field = match["owner"], ""
        elif match["field"]:
            field = match["field"]
            found[owner, field] = match["reason"] or ""
        elif field:  # the comment goes on below
            found[owner, field] = f"{found[owner, field]} {match['more']}".lstrip()
    return found
