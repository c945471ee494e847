"""A field of a specification: its kind, its limits, its help text."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

INTEGER, NUMBER, BOOLEAN, TEXT = "integer", "number", "boolean", "text"
CHOICE, NAMES = "choice", "names"
SECTION, VARIANTS, MAP, LIST = "section", "variants", "map", "list"

TYPE = "type"
"""The key that names the variant of the model, which determines the other keys."""
BLOCKS_MAX = 2048
ENTRIES_MAX = 1024
"""Most entries of one list or mapping."""
DIM_MAX = 10_000_000
HUGE = 1e24
TINY = 1 / HUGE
"""Smaller numbers count as 0: quotients of numbers between this and HUGE stay finite, and so do their cubes."""


class _Required:
    """Marks a field that has no default."""

    def __repr__(self) -> str:
        return "required"


REQUIRED = _Required()
NOTHING: Mapping[str, "Field"] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field. `low` and `high` are inclusive, `above` is not; `unit` is that of a number.

    A section has `fields`; a list or a map has an `item`, and a map a description of its `keys`; variants have fields
    by the value of TYPE. With `or_name`, a section may be one of some names instead; with `nullable`, a value may be
    null.
    """

    kind: str
    help: str
    default: object = REQUIRED
    unit: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    fields: Mapping[str, "Field"] = field(default_factory=lambda: NOTHING)
    variants: Mapping[str, Mapping[str, "Field"]] = field(default_factory=lambda: MappingProxyType({}))
    item: "Field | None" = None
    keys: str = ""
    nullable: bool = False
    or_name: tuple[str, ...] = ()


def count(help_: str, high: float = DIM_MAX, default: object = REQUIRED, *, low: int = 1) -> Field:
    """Return the field of a whole number from `low` to `high`."""
    return Field(kind=INTEGER, help=help_, low=low, high=high, default=default)


def optional(of: Field, default: object = None) -> Field:
    """Return the field with null allowed, and with `default` for a missing value."""
    return replace(of, nullable=True, default=default)


def optional_count(help_: str, high: float = DIM_MAX) -> Field:
    """Return the field of a whole number from 1 to `high`, or null, which is the default."""
    return optional(count(help_, high))


def amount(help_: str, unit: str, default: object = REQUIRED, *, above: float | None = 0.0) -> Field:
    """Return the field of a number above `above`, or of 0 and more."""
    low = None if above is not None else 0.0
    return Field(kind=NUMBER, help=help_, unit=unit, above=above, low=low, high=HUGE, default=default)


def share(help_: str, default: object = REQUIRED) -> Field:
    """Return the field of a ratio in (0, 1]."""
    return Field(kind=NUMBER, help=help_, above=0.0, high=1.0, default=default)


def flag(help_: str, default: object) -> Field:
    """Return the field of true or false."""
    return Field(kind=BOOLEAN, help=help_, default=default)


def number(help_: str, low: float, high: float, default: object = REQUIRED, *, unit: str = "") -> Field:
    """Return the field of a number from `low` to `high`."""
    return Field(kind=NUMBER, help=help_, unit=unit, low=low, high=high, default=default)


def text(help_: str, default: object = REQUIRED) -> Field:
    """Return the field of a text."""
    return Field(kind=TEXT, help=help_, default=default)


def choice(help_: str, choices: tuple[str, ...], default: object = REQUIRED) -> Field:
    """Return the field of one of `choices`."""
    return Field(kind=CHOICE, help=help_, choices=choices, default=default)


def section(help_: str, fields: Mapping[str, Field], default: object = REQUIRED) -> Field:
    """Return the field of a section; with NOTHING as its default it is optional."""
    return Field(kind=SECTION, help=help_, fields=fields, default=default)


def mapping(help_: str, keys: str, item: Field) -> Field:
    """Return the field of any number of items by key, by default none."""
    return Field(kind=MAP, help=help_, keys=keys, item=item, default=NOTHING)


def sections(help_: str, item_help: str, fields: Mapping[str, Field]) -> Field:
    """Return the field of a list of sections, by default empty."""
    return Field(kind=LIST, help=help_, item=section(item_help, fields), default=())
