"""The table of fields as a JSON schema, for editors, and as rows, for docs/simulator.md."""

from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.simulator.spec.check import expected_of
from lockstep.simulator.spec.field import (
    BOOLEAN,
    CHOICE,
    ENTRIES_MAX,
    INTEGER,
    LIST,
    MAP,
    NAMES,
    NUMBER,
    REQUIRED,
    SECTION,
    TYPE,
    VARIANTS,
    Field,
)
from lockstep.simulator.spec.fields import SPECIFICATION

_TYPES = {BOOLEAN: "boolean", INTEGER: "integer", NUMBER: "number"}


def schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a specification. It does not express conditions between fields."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Lockstep simulation"}
    return {**head, **_schema(SPECIFICATION)}


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield path, accepted values, default and meaning of every field, in the order of the table."""
    yield from _rows("", SPECIFICATION.fields)


def _schema(field: Field) -> dict[str, Any]:
    described = _of_kind(field)
    if field.or_name:
        described = {"anyOf": [{"enum": list(field.or_name)}, described]}
    if field.nullable:
        described = {"anyOf": [{"type": "null"}, described]}
    found = {"description": field.help, **described}
    if field.default is not REQUIRED and isinstance(field.default, bool | int | float | str):
        found["default"] = field.default
    return found


def _of_kind(field: Field) -> dict[str, Any]:
    if field.kind == SECTION:
        return _object(field.fields)
    if field.kind == VARIANTS:
        return {"oneOf": [_variant(kind, fields) for kind, fields in field.variants.items()]}
    if field.item is not None:
        return _many(field, field.item)
    return _plain(field)


def _many(field: Field, item: Field) -> dict[str, Any]:
    if field.kind == LIST:
        return {"type": "array", "maxItems": ENTRIES_MAX, "items": _schema(item)}
    return {"type": "object", "maxProperties": ENTRIES_MAX, "additionalProperties": _schema(item)}


def _plain(field: Field) -> dict[str, Any]:
    if field.kind == CHOICE:
        return {"enum": list(field.choices)}
    if field.kind == NAMES:
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    bounds = {"minimum": field.low, "exclusiveMinimum": field.above, "maximum": field.high}
    return {"type": _TYPES.get(field.kind, "string")} | {key: each for key, each in bounds.items() if each is not None}


def _object(fields: Mapping[str, Field]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [name for name, each in fields.items() if each.default is REQUIRED],
        "properties": {name: _schema(each) for name, each in fields.items()},
    }


def _variant(kind: str, fields: Mapping[str, Field]) -> dict[str, Any]:
    described = _object(fields)
    described["required"] = [TYPE, *described["required"]]
    described["properties"] = {TYPE: {"const": kind}, **described["properties"]}
    return described


def _rows(above: str, fields: Mapping[str, Field]) -> Iterator[tuple[str, str, str, str]]:
    for name, field in fields.items():
        path = f"{above}{name}"
        yield path, expected_of(field) + (" | null" if field.nullable else ""), _default(field), field.help
        yield from _below(path, field)


def _below(path: str, field: Field) -> Iterator[tuple[str, str, str, str]]:
    if field.kind == VARIANTS:
        yield f"{path}.{TYPE}", " | ".join(field.variants), "required", "which model; the other keys depend on it"
        for name, each, kinds in _merged(field.variants):
            for row in _rows(f"{path}.", {name: each}):
                yield (*row[:3], f"({', '.join(kinds)}) {row[3]}")
    elif field.kind == MAP and field.item is not None:
        yield from _rows(f"{path}.", {f"<{field.keys}>": field.item})
    elif field.kind == LIST and field.item is not None:
        yield from _rows(f"{path}[].", field.item.fields) if field.item.kind == SECTION else ()
    else:
        yield from _rows(f"{path}.", field.fields)


def _merged(variants: Mapping[str, Mapping[str, Field]]) -> list[tuple[str, Field, list[str]]]:
    """Return each field once, with the variants that have it; fields with one name may differ between variants."""
    found: list[tuple[str, Field, list[str]]] = []
    for kind, fields in variants.items():
        for name, field in fields.items():
            for other_name, other, kinds in found:
                if other_name == name and other == field:
                    kinds.append(kind)
                    break
            else:
                found.append((name, field, [kind]))
    return found


def _default(field: Field) -> str:
    if field.default is REQUIRED:
        return "required"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    if isinstance(field.default, int | float):
        return f"{field.default:.12g}"
    return str(field.default) if isinstance(field.default, str) else ""
