"""Parses numbers of Ascend's profilers: times as text in microseconds with three decimals, "N/A", trailing tabs."""

import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation

import numpy as np
from numpy.typing import NDArray

from lockstep.trace import times
from lockstep.trace.columns import ABSENT

_LENGTH = 20  # sixteen digits, a point, three digits: microseconds since 1970 from 2001 to 2286
_POINT = 16
_ZERO, _NINE = ord("0"), ord("9")
_WHOLE_POWERS = 10 ** np.arange(_POINT - 1, -1, -1, dtype=np.int64)
_FRACTION_POWERS = 10 ** np.arange(2, -1, -1, dtype=np.int64)
_NS_PER_US = 1000
_PLAIN = re.compile(r"\s*(\d{1,16})(?:\.(\d{1,3}))?\s*", re.ASCII)
_MAX_CHARS = 64  # of a number; longer texts are invalid
_MAX_EXPONENT = 20
_INT64_MAX = 2**63 - 1

UNKNOWN = ("", "N/A")
"""Contents of a cell without a value."""

Time = str | float | Decimal | None


def ns_of_times(values: Sequence[Time]) -> NDArray[np.int64]:
    """Return times in us as int64 ns, exact to the ns that was written; ABSENT where there is none that makes sense."""
    if set(map(type, values)) == {str} and set(map(len, values)) == {_LENGTH}:  # type: ignore[arg-type]
        found = _ns_of_usual("".join(values))  # type: ignore[arg-type]
        if found is not None:
            return found
    return np.fromiter(map(ns_of_time, values), np.int64, len(values))


def ns_of_time(value: Time) -> int:
    """Return one time in us as ns, or ABSENT; a float is taken as the decimals it stands for."""
    if isinstance(value, str) and (plain := _PLAIN.fullmatch(value[:_MAX_CHARS])):
        ns = int(plain[1]) * _NS_PER_US + int((plain[2] or "").ljust(3, "0"))
    else:
        try:
            us = Decimal(value if isinstance(value, str) else str(value)) if len(str(value)) <= _MAX_CHARS else None
        except InvalidOperation:
            return ABSENT
        if us is None or not us.is_finite() or us.adjusted() > _MAX_EXPONENT:
            return ABSENT
        ns = round(us * _NS_PER_US)
    return ns if 0 <= ns <= times.START_MAX_US * _NS_PER_US else ABSENT


def _ns_of_usual(joined: str) -> NDArray[np.int64] | None:
    """Return the ns of texts that all have the usual form, or None if some has not."""
    if not joined.isascii():
        return None
    characters = np.frombuffer(joined.encode(), np.uint8).reshape(-1, _LENGTH)
    digits = (characters[:, :_POINT], characters[:, _POINT + 1 :])
    if np.any(characters[:, _POINT] != ord(".")) or any(np.any((part < _ZERO) | (part > _NINE)) for part in digits):
        return None
    whole_us = (digits[0] - _ZERO).astype(np.int64) @ _WHOLE_POWERS
    fraction_ns = (digits[1] - _ZERO).astype(np.int64) @ _FRACTION_POWERS
    known = whole_us <= int(times.START_MAX_US)
    found: NDArray[np.int64] = np.where(known, whole_us * known * _NS_PER_US + fraction_ns, ABSENT)
    return found


def number(text: str) -> float:
    """Return a number, or NaN for an empty cell, "N/A" and whatever else is none."""
    if text in UNKNOWN:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def integer(text: str) -> int:
    """Return a whole number of int64's range, or ABSENT."""
    text = text.strip()
    if text in UNKNOWN or len(text) > _MAX_CHARS:
        return ABSENT
    try:
        value = int(text)
    except ValueError:
        wide = number(text)
        value = int(wide) if wide.is_integer() else ABSENT
    return value if abs(value) <= _INT64_MAX else ABSENT


def numbers(texts: Iterable[str]) -> NDArray[np.float64]:
    """Return numbers, NaN where there is none."""
    return np.fromiter(map(number, texts), np.float64)


def integers(texts: Iterable[str]) -> NDArray[np.int64]:
    """Return whole numbers, ABSENT where there is none."""
    return np.fromiter(map(integer, texts), np.int64)


def durations_ns(us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return durations in us as int64 ns; ABSENT where unknown, negative or longer than any capture."""
    known = np.isfinite(us)
    known &= (np.where(known, us, -1) >= 0) & (np.where(known, us, 0) <= times.DURATION_MAX_US)
    found: NDArray[np.int64] = np.where(known, times.ns_of_us(np.where(known, us, 0.0)), ABSENT)
    return found
