"""Every field of every message declares what it may hold, and decoding holds it to that."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from benchmarks.fuzz.seeds import MESSAGES
from lockstep.contracts import codec
from lockstep.contracts.bounds import Count, Length, OneOf, Range, unannotated, violation
from lockstep.contracts.errors import MalformedError

FORMS = get_args(codec.Message)
BOUNDED = (int, float, str, bytes, list, dict)
HOSTILE: tuple[Any, ...] = (
    *(-(1 << 64), -(1 << 63) - 1, -(1 << 63), -(1 << 53), -2, -1),
    *((1 << 31) - 1, 1 << 31, 1 << 32, 1 << 53, (1 << 53) + 1, 1 << 62, (1 << 62) + 1),
    *((1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 128),
    *(math.nan, math.inf, -math.inf, -0.5, 1e300, True, None),
    *("\ud800", "a\udfff", "", "x" * (1 << 17), "é" * 4097, "\0", b"\xff", [], [[]], {}),
)
Path = tuple[Any, ...]


def is_any_number(hint: Any) -> bool:
    """Whether a type is a tuple of any number of entries, which is a list to a bound."""
    return get_origin(hint) is tuple and get_args(hint)[1:] == (...,)


def unbounded(form: Any, hint: Any) -> Iterator[str]:
    """Yield the fields of a form, and of those inside it, that declare no bound."""
    plain, bound = unannotated(hint)
    if is_dataclass(plain):
        for field in fields(plain):
            yield from unbounded(f"{plain.__name__}.{field.name}", field.type)
        return
    origin = get_origin(plain)
    if ((origin or plain) in BOUNDED or is_any_number(plain)) and bound is None:
        yield form
    for inside in get_args(plain) if origin in (list, dict, tuple, Union, UnionType) else ():
        yield from unbounded(form, inside)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_field_declares_its_bound(form):
    """A field without one would pass any number."""
    assert sorted(set(unbounded(form.__name__, form))) == []


def test_a_field_without_a_bound_is_seen():
    """The check itself fails on plain numbers, texts and lists, however deep."""

    @dataclass
    class Inside:
        text: str

    @dataclass
    class Outside:
        plain: int
        maybe: float | None
        many: Annotated[list[int], Length(3)]
        table: dict[str, Count]
        some: tuple[Count, ...]
        two: tuple[Count, Count]
        inside: Annotated[list[Inside], Length(2)]
        fine: Count | None
        flag: bool

    assert set(unbounded("", Outside)) == {
        *("Outside.plain", "Outside.maybe", "Outside.many", "Outside.table", "Outside.some", "Inside.text"),
    }


def leaves(value: Any, hint: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the place and type of every value inside a message, the message's own parts included."""
    plain, _ = unannotated(hint)
    if get_origin(plain) in (Union, UnionType):
        hint = next(each for each in get_args(plain) if each is not type(None))
        plain, _ = unannotated(hint)
    origin = get_origin(plain)
    if is_dataclass(plain):
        for field in fields(plain):
            yield from leaves(getattr(value, field.name), field.type, (*path, field.name))
        return
    if path:
        yield path, hint
    if (origin is list or is_any_number(plain)) and value:
        yield from leaves(value[0], get_args(plain)[0], (*path, 0))
    elif origin is tuple and value:
        for index, inside in enumerate(get_args(plain)):
            yield from leaves(value[index], inside, (*path, index))
    elif origin is dict and value:
        key = next(iter(value))
        yield from leaves(value[key], get_args(plain)[1], (*path, key))


def changed(value: Any, path: Path, to: Any) -> Any:
    """Return a message with another value at one place."""
    if not path:
        return to
    part, *rest = path
    if isinstance(part, str) and is_dataclass(value):
        return replace(value, **{part: changed(getattr(value, part), tuple(rest), to)})
    if isinstance(value, dict):
        return {**value, part: changed(value[part], tuple(rest), to)}
    items = list(value)
    items[part] = changed(items[part], tuple(rest), to)
    return type(value)(items)


PLACES = [
    pytest.param(topic, message, path, hint, id=f"{type(message).__name__}.{'.'.join(map(str, path))}")
    for topic, message in MESSAGES
    for path, hint in leaves(message, type(message))
]


def forms_in(hint: Any) -> Iterator[type]:
    """Yield the dataclasses that a type is made of."""
    plain, _ = unannotated(hint)
    if is_dataclass(plain):
        yield plain
    for inside in [field.type for field in fields(plain)] if is_dataclass(plain) else get_args(plain):
        yield from forms_in(inside)


def forms_of(value: Any) -> Iterator[type]:
    """Yield the dataclasses that a value holds."""
    if is_dataclass(value):
        yield type(value)
        for field in fields(value):
            yield from forms_of(getattr(value, field.name))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from forms_of(each)


def test_every_field_is_reached():
    """The samples hold every form, no list or mapping empty and nothing missing, so that the tests below see all."""
    held = {form for _, message in MESSAGES for form in forms_of(message)}
    assert {form for message in get_args(codec.Message) for form in forms_in(message)} - held == set()
    for _, message in MESSAGES:
        empty = [path for path, _ in leaves(message, type(message)) if at(message, path) in (None, "", b"", [], {})]
        assert empty == [], message


@pytest.mark.parametrize(("topic", "message"), MESSAGES, ids=lambda each: type(each).__name__)
def test_the_samples_are_messages(topic, message):
    """They come back equal."""
    assert codec.decode(topic, codec.encode(message)) == message


def decoded(topic: str, message: Any) -> Any:
    """Return what a receiver gets of a message, None where it is refused or cannot be built."""
    try:
        payload = codec.encode(message)
    except (MalformedError, TypeError, ValueError, AttributeError):  # all but the first: no summary has such parts
        return None
    try:
        return codec.decode(topic, payload)
    except MalformedError:
        return None


def at(message: Any, path: Path) -> Any:
    for part in path:
        message = getattr(message, part) if is_dataclass(message) else message[part]
    return message


def is_allowed(value: Any, hint: Any) -> bool:
    plain, _ = unannotated(hint)
    return type(value) is (get_origin(plain) or plain) and not violation(value, hint)


def is_optional(message: Any, path: Path) -> bool:
    holder = at(message, path[:-1])
    return is_dataclass(holder) and type(None) in get_args(get_type_hints(type(holder))[path[-1]])


@pytest.mark.parametrize(("topic", "message", "path", "hint"), PLACES)
def test_no_field_takes_what_it_does_not_declare(topic, message, path, hint):
    """Boundary integers, NaN, infinities, half surrogate pairs and other types: within the bound, or MalformedError."""
    for value in HOSTILE:
        got = decoded(topic, changed(message, path, value))
        if got is not None:
            held = at(got, path)
            assert is_allowed(held, hint) or (held is None and is_optional(message, path)), (value, held)
            assert codec.decode(topic, codec.encode(got)) == got


def numbers(value: Any) -> Iterator[int | float]:
    """Yield every number inside a decoded message."""
    if isinstance(value, int | float):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from numbers(getattr(value, field.name))
    elif isinstance(value, dict):
        yield from (number for each in value.values() for number in numbers(each))
    elif isinstance(value, list | tuple):
        yield from (number for each in value for number in numbers(each))


@pytest.mark.parametrize(("topic", "message", "path", "hint"), PLACES)
def test_the_ends_of_a_range_fit_arrays_and_sums(topic, message, path, hint):
    """What decoding lets through, an int64 array takes, two times added as well."""
    _, bound = unannotated(hint)
    if not isinstance(bound, Range):
        return
    plain, _ = unannotated(hint)
    for end in (bound.low, bound.high):
        got = decoded(topic, changed(message, path, plain(end)))
        assert all(math.isfinite(number) for number in numbers(got))
        np.array([number for number in numbers(got) if isinstance(number, int)], dtype=np.int64)


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (3, Annotated[int, Range(0, 3)], ""),
        (4, Annotated[int, Range(0, 3)], "0 to 3"),
        (10**400, Annotated[float, Range(0.0, 1e21)], "0.0 to 1e+21"),
        (math.nan, Annotated[float, Range(0.0, 1.0)], "0.0 to 1.0"),
        ("abc", Annotated[str, Length(2)], "0 to 2 characters or entries"),
        ([], Annotated[list, Length(2, least=1)], "1 to 2 characters or entries"),
        ("b", Annotated[str, OneOf(("a", "c"))], "one of a, c"),
        ("c", Annotated[str, OneOf(("a", "c"))], ""),
        (5, int, ""),
    ],
)
def test_violation_names_what_was_expected(value, hint, expected):
    """What came as JSON is held to the same bounds as messages."""
    assert violation(value, hint) == expected
