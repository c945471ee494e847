"""A site's overrides: thresholds by name, and for each alert whether it is enabled, its severity and its wait.

A policy file is YAML:

    thresholds: {slow_ratio: 0.2}
    alerts:
      LockstepLinkSlow: {enabled: false}
      LockstepRunSlow: {severity: critical, for: 30m}
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, get_args

from alerts.policy import AlertPolicy
from alerts.rule import Alert, RuleGroup, Severity
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.settings import ranges_of
from lockstep.contracts.yaml_text import read_yaml_file

SEVERITIES: tuple[str, ...] = get_args(Severity)
FOR_SECONDS_MAX = 86_400
"""To wait for more than a day is to disable the alert."""
DURATION = r"([0-9]+h)?([0-9]+m)?([0-9]+s)?"
_UNITS_S = (3600, 60, 1)
_KEYS = ("enabled", "severity", "for")


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A site's settings of one alert; None keeps the alert's own value."""

    enabled: bool = True
    severity: Severity | None = None
    for_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePolicy:
    """All settings of a site: thresholds, and overrides by alert name."""

    thresholds: AlertPolicy = field(default_factory=AlertPolicy)
    alerts: Mapping[str, Override] = field(default_factory=dict)

    def apply(self, groups: tuple[RuleGroup, ...]) -> tuple[RuleGroup, ...]:
        """Return the groups with the overrides applied to each alert; recorded series stay unchanged."""
        return tuple(replace(group, rules=tuple(self._kept(group))) for group in groups)

    def _kept(self, group: RuleGroup) -> Any:
        for rule in group.rules:
            own = self.alerts.get(rule.name) if isinstance(rule, Alert) else None
            if own is None or not isinstance(rule, Alert):
                yield rule
            elif own.enabled:
                for_seconds = rule.for_seconds if own.for_seconds is None else own.for_seconds
                yield replace(rule, severity=own.severity or rule.severity, for_seconds=for_seconds)


def read_policy_file(path: Path, names: tuple[str, ...]) -> SitePolicy:
    """Return the settings in a policy file; `names` are the existing alerts.

    Raises
    ------
    ConfigError
        It cannot be read, or is not a valid policy.
    """
    document = read_yaml_file(path, "alert policy") or {}
    where = str(path)
    policy = SitePolicy()
    for key, values in _mapping(document, where).items():
        if key not in ("thresholds", "alerts"):
            _refuse_name(where, key, ("thresholds", "alerts"))
        for name, value in _mapping(values, f"{where}: {key}").items():
            if key == "thresholds":
                policy = with_threshold(policy, name, value, where=f"{where}: thresholds")
                continue
            for setting, chosen in _mapping(value, f"{where}: alerts.{name}").items():
                policy = with_override(policy, name, setting, chosen, names=names, where=f"{where}: alerts")
    return policy


def with_threshold(policy: SitePolicy, name: object, value: object, *, where: str) -> SitePolicy:
    """Return the policy with one threshold changed; `value` may be the text of a number.

    Raises
    ------
    ConfigError
        There is no such threshold, or the value is not a number of its kind or out of range.
    """
    ranges = ranges_of(AlertPolicy)
    if name not in ranges:
        _refuse_name(where, name, tuple(ranges))
    kind, bound = type(getattr(policy.thresholds, str(name))), ranges[str(name)]
    try:
        number = kind(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    accepted = (int,) if kind is int else (int, float)
    if isinstance(number, bool) or not isinstance(number, accepted):
        raise ConfigError(f"{where} {name}: got {value!r:.100}, expected {'an integer' if kind is int else 'a number'}")
    if not bound.low <= number <= bound.high:
        raise ConfigError(f"{where} {name}: got {value!s:.100}, expected {bound.low:g} to {bound.high:g}")
    changed: dict[str, Any] = {str(name): kind(number)}
    return replace(policy, thresholds=replace(policy.thresholds, **changed))


def with_override(
    policy: SitePolicy, name: object, setting: object, value: object, *, names: tuple[str, ...], where: str
) -> SitePolicy:
    """Return the policy with `enabled`, `severity` or `for` of one alert changed; `value` may be a text.

    Raises
    ------
    ConfigError
        There is no such alert or setting, or the value is invalid for it.
    """
    if name not in names:
        _refuse_name(where, name, names)
    if setting not in _KEYS:
        _refuse_name(f"{where} {name}", setting, _KEYS)
    own, at = policy.alerts.get(str(name), Override()), f"{where} {name}.{setting}"
    match setting:
        case "enabled":
            own = replace(own, enabled=_truth(value, at))
        case "severity":
            if value not in SEVERITIES:
                raise ConfigError(f"{at}: got {value!r:.100}, expected one of {', '.join(SEVERITIES)}")
            severity: Any = value
            own = replace(own, severity=severity)
        case _:
            own = replace(own, for_seconds=_seconds(value, at))
    return replace(policy, alerts={**policy.alerts, str(name): own})


def _truth(value: object, at: str) -> bool:
    truth = {"true": True, "false": False}.get(str(value).lower()) if isinstance(value, bool | str) else None
    if truth is None:
        raise ConfigError(f"{at}: got {value!r:.100}, expected true or false")
    return truth


def _seconds(value: object, at: str) -> int:
    found = re.fullmatch(DURATION, value) if isinstance(value, str) and value else None
    if found is None:
        raise ConfigError(f"{at}: got {value!r:.100}, expected a duration like 90s, 15m or 1h30m")
    seconds = sum(unit * int(part[:-1] if part else 0) for unit, part in zip(_UNITS_S, found.groups(), strict=True))
    if seconds > FOR_SECONDS_MAX:
        raise ConfigError(f"{at}: got {value!s:.100}, expected at most {FOR_SECONDS_MAX // 3600}h")
    return seconds


def _mapping(value: object, where: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: got {value!r:.100}, expected keys with values")
    return value


def _refuse_name(where: str, got: object, known: tuple[str, ...]) -> NoReturn:
    nearest = "".join(f"; did you mean {match}?" for match in get_close_matches(str(got), known, n=1))
    raise ConfigError(f"{where}: got {got!r:.100}, expected one of {', '.join(known)}{nearest}")


def schema(names: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON schema of a policy file, draft 7."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Alert policy of lockstep export rules --policy; written by make generate",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "thresholds": {
                "type": "object",
                "additionalProperties": False,
                "properties": {each.name: threshold_schema(each.name) for each in fields(AlertPolicy)},
            },
            "alerts": overrides_schema(names),
        },
    }


def threshold_schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of one threshold."""
    bound = ranges_of(AlertPolicy)[name]
    kind = "integer" if isinstance(getattr(AlertPolicy(), name), int) else "number"
    return {"type": kind, "minimum": bound.low, "maximum": bound.high}


def overrides_schema(names: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON schema of the overrides, by alert."""
    own = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "enabled": {"type": "boolean"},
            "severity": {"enum": list(SEVERITIES)},
            "for": {"type": "string", "minLength": 2, "maxLength": 9, "pattern": f"^{DURATION}$"},
        },
    }
    return {"type": "object", "additionalProperties": False, "properties": dict.fromkeys(names, own)}
