"""Builds one frozen dataclass per service from configuration file, environment and flags, or any other from a table.

A service's configuration is a frozen keyword-only dataclass with defaults. The annotation of a key holds a number's
range and a description (`Annotated[int, Range(0, 65535), "TCP port"]`). Sources are applied in order, and the later one
wins: file, environment (`LOCKSTEP_EXPORTER_BATCH_SECONDS` for `batch_seconds` of the exporter), flags. No other code
reads the environment.
"""

import difflib
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

from lockstep.contracts.bounds import Range, unannotated
from lockstep.contracts.errors import ConfigError

C = TypeVar("C")

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_EXPECTED = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    tuple[str, ...]: "a list of texts",
}
_NEAR_MIN = 0.5  # similarity of two names, by difflib


def build_config(
    form: type[C],
    *,
    file: Mapping[str, Any] | None = None,
    file_name: str = "configuration file",
    environment: Mapping[str, str] | None = None,
    prefix: str = "",
    flags: Mapping[str, str] | None = None,
) -> C:
    """Return `form` built from all sources. `flags` are the key-value pairs of `--set`, texts like the environment's.

    Raises
    ------
    ConfigError
        A key is unknown (the message names the nearest known key, otherwise all), a value has the wrong type, or a key
        without a default has no value.
    """
    known = get_type_hints(form)
    values: dict[str, Any] = {}
    for key, value in (file or {}).items():
        values[key] = _typed(_known(key, known, file_name), known, value, f"{file_name}: {key}")
    for name, text in (environment or {}).items():
        if name.startswith(prefix):
            key = _known(name.removeprefix(prefix).lower(), known, f"environment variable {name}")
            values[key] = _from_text(key, known, text, f"environment variable {name}")
    for key, text in (flags or {}).items():
        values[key] = _from_text(_known(key, known, "--set"), known, text, f"--set {key}")
    for item in fields(form):  # type: ignore[arg-type]
        if item.default is MISSING and item.default_factory is MISSING and item.name not in values:
            raise ConfigError(f"{file_name}: expected a value for {item.name}")
    return form(**values)


def ranges_of(form: type) -> dict[str, Range]:
    """Return the range of each key that has one."""
    bounds = {key: unannotated(hint)[1] for key, hint in get_type_hints(form, include_extras=True).items()}
    return {key: bound for key, bound in bounds.items() if isinstance(bound, Range)}


def descriptions_of(form: type) -> dict[str, str]:
    """Return each key's description, the text in its annotation: `Annotated[int, Range(0, 9), "what it is"]`."""
    hints = get_type_hints(form, include_extras=True)
    return {key: next(each for each in hints[key].__metadata__ if isinstance(each, str)) for key in hints}


def check_ranges(config: object) -> None:
    """Check that every number of a configuration is within its range.

    Raises
    ------
    ConfigError
        The first one that is not, by key.
    """
    for key, bound in ranges_of(type(config)).items():
        value = getattr(config, key)
        if not bound.low <= value <= bound.high:
            raise ConfigError(f"{key}: got {value}, expected {bound.low:g} to {bound.high:g}")


def _known(key: str, known: Mapping[str, Any], where: str) -> str:
    if key in known:
        return key
    near = difflib.get_close_matches(str(key), known, n=1, cutoff=_NEAR_MIN)
    expected = f"the nearest known key is {near[0]!r}" if near else f"expected one of {', '.join(sorted(known))}"
    raise ConfigError(f"unknown key in {where}: got {key!r}, {expected}")


def _from_text(key: str, known: Mapping[str, Any], text: str, where: str) -> Any:
    kind = known[key]
    try:
        if kind is bool:
            return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[text.lower()]
        return kind(text) if kind in (int, float) else text
    except (KeyError, ValueError):
        raise ConfigError(f"{where}: got {text!r}, expected {_EXPECTED[kind]}") from None


def _typed(key: str, known: Mapping[str, Any], value: Any, where: str) -> Any:
    kind = known[key]
    kind = float if kind == float | None else kind
    if kind is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
        return float(value)
    if kind == tuple[str, ...] and isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    if kind is float or type(value) is not kind:
        raise ConfigError(f"{where}: got {value!r}, expected {_EXPECTED[kind]}")
    return value
