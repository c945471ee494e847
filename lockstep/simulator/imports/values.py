"""Reads values of third-party configurations: looked up and checked, errors name the key."""

from collections.abc import Mapping
from typing import Any

from lockstep.contracts.errors import MalformedError

AUTO = "auto"
"""What Transformers replaces in a configuration of DeepSpeed by an argument of its Trainer."""


def without_auto(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return `values` without those of `names` that Transformers fills in by itself ("auto")."""
    return {name: value for name, value in values.items() if name not in names or value != AUTO}


def whole(values: Mapping[str, Any], name: str, where: str, default: int | None = None) -> int:
    """Return the whole number above 0 at `name`, the default where it is absent or null; 5e8 is one as well.

    Raises
    ------
    MalformedError
        It is something else, or absent without a default.
    """
    value = values.get(name)
    if value is None:
        value = default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value == AUTO:
        expected = "the number that Transformers puts there from the arguments of its Trainer"
        raise MalformedError(name, where=where, got=value, expected=expected)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise MalformedError(name, where=where, got=value, expected="a whole number above 0")
    return value


def section(values: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    """Return the mapping at `name`, an empty one where it is absent.

    Raises
    ------
    MalformedError
        It is something else.
    """
    value = values.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise MalformedError(name, where=where, got=type(value).__name__, expected="a mapping")
    return value


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return two documents as one, mappings merged, the second's values before the first's."""
    found = dict(first)
    for name, value in second.items():
        own = found.get(name)
        found[name] = merged(own, value) if isinstance(own, Mapping) and isinstance(value, Mapping) else value
    return found
