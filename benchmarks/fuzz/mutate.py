"""Mutations of valid input: of values inside it, of its bytes, of its text. Deterministic by the generator given."""

import json
import math
from collections.abc import Callable
from random import Random
from typing import Any

INTEGERS = (
    *(0, 1, -1, 2, 7, 63, 64, 127, 128, 255, 256, -128, -129),
    *((1 << 15) - 1, 1 << 15, (1 << 16) - 1, 1 << 16, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32),
    *(1 << 53, (1 << 53) + 1, (1 << 61), (1 << 62) - 1, 1 << 62, (1 << 62) + 1),
    *((1 << 63) - 1, -(1 << 63), -(1 << 63) + 1, 1 << 63, (1 << 64) - 1),
)
FLOATS = (0.0, -0.0, 0.5, -1.0, 1e-300, 1e300, 5e-324, math.nan, math.inf, -math.inf)
HALF_PAIR = "\ue000"
"""Stands for half a surrogate pair, which encoders refuse: `with_half_pairs` puts it into the bytes."""
TEXTS = (
    *("", "a", "0", "-1", "null", "true", "nan", "1e9", "../../etc/passwd", "a/b", "lockstep/v1", "+", "#", "\0", "\n"),
    *(
        "x" * 127,
        "x" * 129,
        "x" * 5000,
        "é" * 64,
        HALF_PAIR,
        f"a{HALF_PAIR}b",
        "<script>alert(1)</script>",
        '"}',
        "%s%n",
    ),
    *("dp", "pp", "collective", "running", "done", "rank", "rank,rank", "rank,step,start_ns,end_ns"),
)
_DEPTHS = (10, 100, 1000, 5000)
_COPIED_VALUES_MAX = 20_000  # together, so that copies of copies stay small
_COPIES = (*(1, 2, 5) * 20, *(64, 65, 128, 129, 200) * 2, 4096, 4097)  # the last are limits of lists

Value = Any


def scalar(random: Random) -> Value:
    """Return a number, text, truth or nothing that few fields expect."""
    kind = random.randrange(10)
    if kind < 5:
        return random.choice(INTEGERS) + random.choice((0, 0, 0, 1, -1))
    if kind < 6:
        return random.choice(FLOATS)
    if kind < 8:
        return random.choice(TEXTS)
    return random.choice((None, True, False, b"", b"\xff\x00", [], {}, [[]], {"": []}))


def nested(random: Random) -> Value:
    """Return lists or mappings inside each other."""
    value: Value = 0
    is_list = random.random() < 0.5
    for _ in range(random.choice(_DEPTHS[:2])):
        value = [value] if is_list else {"a": value}
    return value


def changed_value(random: Random, value: Value, changes: int = 1) -> Value:
    """Return a copy of lists, mappings and scalars with some changes at any depth."""
    for _ in range(changes):
        value = _changed(random, value)
    return value


def _changed(random: Random, value: Value) -> Value:
    children = _children(value)
    if children and random.random() < 0.97:
        key = random.choice(children)
        if isinstance(value, dict):
            return _changed_mapping(random, value, key)
        return _changed_list(random, list(value), key)
    return nested(random) if random.random() < 0.02 else _other(random, value)


def _other(random: Random, value: Value) -> Value:
    """Return something in the place of a scalar, more often than not of its type: what types refuse is soon refused."""
    others: tuple[Value, ...] = ()
    match value:
        case bool():
            others = (not value,)
        case int():
            others = (random.choice(INTEGERS), value + 1, value - 1, -value, value * 2, value // 2, value << 20)
        case float():
            others = (random.choice(FLOATS), value * 2, -value, value * 1e9)
        case str():
            others = (random.choice(TEXTS), value * 2, value[: len(value) // 2], value[::-1], value.upper())
        case bytes():
            others = (changed_bytes(random, value),)
    return random.choice(others) if others and random.random() < 0.7 else scalar(random)


def _children(value: Value) -> list[Any]:
    if isinstance(value, dict):
        return list(value)
    return list(range(len(value))) if isinstance(value, list | tuple) else []


def _size(value: Value) -> int:
    """Return the number of values inside a value, itself included."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return 1 + sum(map(_size, inside))


def _changed_mapping(random: Random, value: dict[Any, Value], key: Any) -> dict[Any, Value]:
    copy = dict(value)
    match random.randrange(24):
        case 0:
            del copy[key]
        case 1:
            copy[random.choice(TEXTS)] = copy[key]
        case 2:
            copy[key] = copy[random.choice(list(copy))]
        case _:
            copy[key] = _changed(random, copy[key])
    return copy


def _changed_list(random: Random, value: list[Value], index: int) -> list[Value]:
    match random.randrange(24):
        case 0:
            del value[index]
        case 1:
            copies = min(random.choice(_COPIES), _COPIED_VALUES_MAX // _size(value[index]))
            value[index:index] = [value[index]] * copies
        case 2:
            value[index] = value[random.randrange(len(value))]
        case 3:
            random.shuffle(value)
        case _:
            value[index] = _changed(random, value[index])
    return value


def changed_bytes(random: Random, data: bytes, changes: int = 1) -> bytes:
    """Return bytes with flipped bits, cuts, insertions, copies and boundary integers at any place."""
    changed = bytearray(data)
    for _ in range(changes):
        at = random.randrange(len(changed) + 1)
        match random.randrange(8):
            case 0:
                del changed[at:]
            case 1:
                del changed[at : at + random.choice((1, 2, 8, 64))]
            case 2:
                changed[at:at] = random.randbytes(random.choice((1, 2, 8, 64)))
            case 3:
                changed[at:at] = changed[at : at + random.choice((1, 8, 64, 512))]
            case 4:
                number, size = random.choice(INTEGERS) % (1 << 64), random.choice((1, 2, 4, 8))
                order = random.choice(("big", "little"))
                changed[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, order)
            case _:
                for _ in range(random.choice((1, 1, 1, 4, 16))):
                    if changed:
                        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def with_half_pairs(data: bytes) -> bytes:
    """Return encoded text with half surrogate pairs where `HALF_PAIR` stands; both take three bytes."""
    return data.replace(HALF_PAIR.encode(), b"\xed\xa0\x80")


def as_json(random: Random, value: Value) -> bytes:
    """Return JSON text of a value, NaN, half pairs and bytes included, rarely nested deeper than a parser goes."""
    text = json.dumps(_plain(value)).replace("\\ue000", "\\ud800")
    if random.random() < 0.01:
        depth = random.choice(_DEPTHS)
        text = "[" * depth + text + "]" * depth
    return text.encode()


def _plain(value: Value) -> Value:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def pick(random: Random, ways: tuple[tuple[float, Callable[[Random], bytes]], ...]) -> bytes:
    """Return what one of some ways makes, chosen by weight."""
    chosen = random.random() * sum(weight for weight, _ in ways)
    for weight, way in ways:
        chosen -= weight
        if chosen < 0:
            return way(random)
    return ways[-1][1](random)
