"""Every setting of the policy by its dotted name: what it may be, why it is what it is, and a policy of other values.

Pure. What a setting is stands in its annotation (`setting.py`). Values come from outside (HTTP, a file), so each is
checked by name, type and range before any is used.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, get_type_hints

from coordinator.settings.policy import Policy
from coordinator.settings.setting import Setting
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.records import DOMAIN_KINDS

Value = bool | int | float | tuple[str, ...]

_TEXTS_MAX = 64  # patterns in a list
_TEXT_MAX = 128  # characters of one: as long as a run's name
_GOT_MAX = 120  # characters of a wrong value in a message
_BUDGET = "budget.false_page_steps"
_FORMER = {
    "excess.false_page_steps": _BUDGET,
    "fluctuation.false_page_steps": _BUDGET,
    "excess.gate_factor": _BUDGET,
    "excess.chance_sigmas_min": _BUDGET,
    "fluctuation.chance_rate": _BUDGET,
    "fluctuation.gate_sigmas": _BUDGET,
    "fluctuation.noisy_gate_sigmas": _BUDGET,
    "run.hang_lacking_max": _BUDGET,
    "run.fluctuation_steps": "run.pending_seconds",
    "run.fluctuation_seconds": "run.pending_seconds",
}
"""Settings of former versions, and what decides in their place."""
# (less, more): with the first one not below the second, a run would be forgotten before it is lost.
_ORDERED = (("run.lost_seconds", "run.lost_keep_seconds"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyThreshold:
    """One setting of one policy class. `low` and `high` are inclusive and None where the value is no number.

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
    """Return every setting by name, in the order of the policy's sections."""
    base = Policy()
    known = {}
    for section in fields(base):
        group = getattr(base, section.name)
        for field, hint in get_type_hints(type(group), include_extras=True).items():
            setting = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Setting)), None)
            if setting is not None:
                name = f"{section.name}.{field}"
                known[name] = _threshold(name, hint.__origin__, getattr(group, field), setting)
    return known


def _threshold(name: str, form: Any, default: Value, setting: Setting) -> PolicyThreshold:
    return PolicyThreshold(
        name=name,
        form=form,
        default=default,
        unit=setting.unit,
        low=setting.low,
        high=setting.high,
        is_live=setting.is_live,
        reason=setting.reason,
    )


@cache
def _constants() -> frozenset[str]:
    """Return the names of what the policy's sections hold besides: constants of the method."""
    base = Policy()
    names = {f"{section.name}.{item.name}" for section in fields(base) for item in fields(getattr(base, section.name))}
    return frozenset(names - catalogue().keys())


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
        raise _unknown(f"{name!s:.{_TEXT_MAX}}", where)
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


def _unknown(name: str, where: str) -> ConfigError:
    if name in _FORMER:
        return ConfigError(
            f"{where}: got {name!r}, a setting of former versions, expected {_FORMER[name]!r}, which decides now"
        )
    if name in _constants():
        return ConfigError(f"{where}: got {name!r}, a constant of the method, expected the name of a setting")
    near = difflib.get_close_matches(name, catalogue(), n=1, cutoff=0.0)[0]
    return ConfigError(f"{where}: got {name!r}, expected the name of a threshold; the nearest is {near!r}")


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
    """Check that settings which bound each other do.

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
