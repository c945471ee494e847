"""Validates values against the table of fields; an error names the place, the wrong value and what is expected."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from math import isfinite
from typing import Any

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.yaml_text import Path, Places, dotted
from lockstep.simulator.spec.field import (
    BOOLEAN,
    CHOICE,
    ENTRIES_MAX,
    HUGE,
    INTEGER,
    LIST,
    MAP,
    NAMES,
    NUMBER,
    REQUIRED,
    SECTION,
    TEXT,
    TINY,
    TYPE,
    VARIANTS,
    Field,
)

_NAMED = 8
"""Most keys that a message lists; it counts the others."""


class UnknownKeyError(MalformedError):
    """A key that is not allowed at its place, whatever its value."""


def check(value: Any, field: Field, places: Places, path: Path = ()) -> Any:
    """Return `value` with its defaults filled in.

    Raises
    ------
    MalformedError
        A key is unknown (UnknownKeyError) or missing, or a value is not what its field holds; names place, got,
        expected, nearest.
    """
    if value is None and field.nullable:
        return None
    if isinstance(value, str) and value in field.or_name:
        return value
    return _CHECKS[field.kind](value, field, places, path)


def nearest(name: str, known: tuple[str, ...]) -> str:
    """Return the text that names what `name` should have been: the nearest of `known` first."""
    near = [each for each in known if each.casefold() == name.casefold()] or get_close_matches(name, known, n=1)
    listed = ", ".join(known[:_NAMED]) + (f" and {len(known) - _NAMED} more" if len(known) > _NAMED else "")
    return f"{near[0]!r} (nearest of {listed})" if near else f"one of {listed}"


def _section(value: Any, field: Field, places: Places, path: Path) -> dict[str, Any]:
    return _keys(value, field.fields, places, path, or_name=field.or_name)


def _variants(value: Any, field: Field, places: Places, path: Path) -> dict[str, Any]:
    kinds = tuple(field.variants)
    if not isinstance(value, Mapping):
        raise places.refuse(path, got=_described(value), expected=f"a mapping with {TYPE}: {kinds[0]}")
    kind = value.get(TYPE)
    if kind is None:
        _check_misspelt(value, field, places, path)
        raise places.refuse((*path, TYPE), got="nothing", expected=f"one of {', '.join(kinds)}")
    if kind not in kinds:
        raise places.refuse((*path, TYPE), got=repr(kind), expected=nearest(str(kind), kinds))
    rest = {key: each for key, each in value.items() if key != TYPE}
    return {TYPE: kind, **_keys(rest, field.variants[kind], places, path, with_it=f" with {TYPE}: {kind}")}


def _check_misspelt(value: Mapping[str, Any], field: Field, places: Places, path: Path) -> None:
    """Refuse a misspelling of TYPE."""
    known = {key for fields in field.variants.values() for key in fields}
    for key in get_close_matches(TYPE, [key for key in value if key not in known], n=1):
        raise places.refuse((*path, key), got=f"the unknown key {key!r}", expected=repr(TYPE), key=True)


def _keys(
    value: Any,
    fields: Mapping[str, Field],
    places: Places,
    path: Path,
    *,
    or_name: tuple[str, ...] = (),
    with_it: str = "",
) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        names = f"one of {', '.join(or_name)}, or " if or_name else ""
        raise places.refuse(path, got=_described(value), expected=f"{names}a mapping of {', '.join(fields)}")
    for key in value:
        if key not in fields:
            expected = nearest(key, tuple(fields)) + with_it
            raise UnknownKeyError(
                dotted((*path, key)),
                where=places.of((*path, key), key=True),
                got=f"the unknown key {key!r}",
                expected=expected,
            )
    found = {}
    for key, field in fields.items():
        if key in value:
            found[key] = check(value[key], field, places, (*path, key))
        elif field.default is REQUIRED:
            raise places.refuse((*path, key), got="nothing", expected=f"{expected_of(field)}: {field.help}")
        else:
            found[key] = field.default if field.default is None else check(_plain(field), field, places, (*path, key))
    return found


def _plain(field: Field) -> Any:
    return list(field.default) if isinstance(field.default, tuple) else field.default


def _map(value: Any, field: Field, places: Places, path: Path) -> dict[str, Any]:
    assert field.item is not None
    if not isinstance(value, Mapping) or len(value) > ENTRIES_MAX:
        expected = f"a mapping of at most {ENTRIES_MAX} entries, each {field.keys}: {expected_of(field.item)}"
        raise places.refuse(path, got=_described(value), expected=expected)
    return {key: check(each, field.item, places, (*path, key)) for key, each in value.items()}


def _list(value: Any, field: Field, places: Places, path: Path) -> list[Any]:
    assert field.item is not None
    if not isinstance(value, list) or len(value) > ENTRIES_MAX:
        raise places.refuse(path, got=_described(value), expected=f"a list of at most {ENTRIES_MAX} entries")
    return [check(each, field.item, places, (*path, index)) for index, each in enumerate(value)]


def _names(value: Any, field: Field, places: Places, path: Path) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or len(names) > ENTRIES_MAX or not all(isinstance(each, str) for each in names):
        raise places.refuse(path, got=_described(value), expected=f"a name or a list of names: {field.help}")
    return tuple(names)


def _integer(value: Any, field: Field, places: Places, path: Path) -> int:
    number = _bounded(value, field, places, path)
    if number != int(number):
        raise places.refuse(path, got=repr(value), expected=expected_of(field))
    return int(number)


def _number(value: Any, field: Field, places: Places, path: Path) -> float:
    return float(_bounded(value, field, places, path))


def _bounded(value: Any, field: Field, places: Places, path: Path) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if (
        not is_number
        or (isinstance(value, float) and not isfinite(value))
        or (field.low is not None and value < field.low)
        or (field.above is not None and value < field.above + TINY)
        or (field.high is not None and value > field.high)
    ):
        raise places.refuse(path, got=_described(value), expected=expected_of(field))
    return value  # type: ignore[no-any-return]  # a number, as was just checked


def _boolean(value: Any, field: Field, places: Places, path: Path) -> bool:
    if not isinstance(value, bool):
        raise places.refuse(path, got=_described(value), expected=expected_of(field))
    return value


def _text(value: Any, field: Field, places: Places, path: Path) -> str:
    if not isinstance(value, str):
        raise places.refuse(path, got=_described(value), expected=expected_of(field))
    return value


def _choice(value: Any, field: Field, places: Places, path: Path) -> str:
    if value not in field.choices:
        raise places.refuse(path, got=_described(value), expected=nearest(str(value), field.choices))
    return str(value)


def expected_of(field: Field) -> str:
    """Return a description of the values that the field accepts."""
    if field.kind == CHOICE:
        return " | ".join(field.choices)
    if field.kind in (INTEGER, NUMBER):
        bounds = _bounds(field)
        return f"{_KIND_TEXTS[field.kind]}{bounds}{f' ({field.unit})' if field.unit else ''}"
    named = " | ".join(field.or_name)
    return f"{named} | {_KIND_TEXTS[field.kind]}" if named else _KIND_TEXTS[field.kind]


def _bounds(field: Field) -> str:
    if field.high is None or field.high >= HUGE:
        return f" above {field.above:.12g}" if field.above is not None else f" of at least {field.low or 0:.12g}"
    low = f"above {field.above:.12g} and at most" if field.above is not None else f"{field.low or 0:.12g} to"
    return f" {low} {field.high:.12g}"


def _described(value: Any) -> str:
    """Return a short text of a wrong value of any size."""
    if isinstance(value, list | Mapping):
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}"
    return "null" if value is None else repr(value)


_KIND_TEXTS = {
    SECTION: "a mapping",
    VARIANTS: f"a mapping with {TYPE}",
    MAP: "a mapping",
    LIST: "a list",
    NAMES: "a name or a list of names",
    INTEGER: "a whole number",
    NUMBER: "a number",
    BOOLEAN: "true or false",
    TEXT: "text",
}
_CHECKS: dict[str, Callable[[Any, Field, Places, Path], Any]] = {
    SECTION: _section,
    VARIANTS: _variants,
    MAP: _map,
    LIST: _list,
    NAMES: _names,
    INTEGER: _integer,
    NUMBER: _number,
    BOOLEAN: _boolean,
    TEXT: _text,
    CHOICE: _choice,
}
