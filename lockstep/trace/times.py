"""Converts microseconds, as profilers write them, to integer nanoseconds without loss.

A float64 holds a time since Kineto's base (a start of a quarter) to the ns: below 2**43 us its spacing is 2**-10 us,
so the nearest thousandth is the one that was written. Times since 1970 with decimals need exact decimals instead:
there the spacing is 0.25 us.
"""

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

EXACT_MAX_US = float(1 << 43)
START_MAX_US = float(1 << 52)
"""The year 2112 since 1970. With a base below 2**62 ns no sum leaves int64."""
BASE_MAX_NS = 1 << 62
DURATION_MAX_US = 1e12
"""11 days; nothing that a capture sees lasts longer."""

_NS_PER_US = 1000
_START_MAX_NS = int(START_MAX_US) * _NS_PER_US
_DECIMALS = 3  # as profilers write them
_WHOLE_DIGITS = 16  # of START_MAX_US
_TEXT_MAX = _WHOLE_DIGITS + 1 + _DECIMALS
_COMMA, _POINT, _ZERO, _NINE = b",.09"


def ns_of_us(us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return `us`, finite and within the limits above, in ns; whole and fraction are converted apart."""
    whole = np.floor(us)
    return whole.astype(np.int64) * _NS_PER_US + np.rint((us - whole) * _NS_PER_US).astype(np.int64)


def needs_decimals(us: NDArray[np.float64]) -> bool:
    """Whether some value was written with more digits than a float64 carries."""
    far = np.abs(us) >= EXACT_MAX_US
    if not far.any():
        return False
    far_us = us[far & np.isfinite(us)]
    return bool(np.any(far_us != np.floor(far_us)))


def usable(start_us: NDArray[np.float64], duration_us: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which events have a start and a duration that make sense; NaN and infinity are beyond every limit."""
    return (np.abs(start_us) <= START_MAX_US) & (duration_us >= 0) & (duration_us <= DURATION_MAX_US)


def ns_of_texts(texts: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return starts written as text in ns, and which of them are known; arrays of shape (n_texts,).

    All at once where all are as profilers write them, of one length, three decimals, no quote; else one by one.
    """
    if len(texts) and (alike := _ns_of_alike(b",".join(texts) + b",", len(texts))) is not None:
        return alike.astype(np.int64), alike <= _START_MAX_NS
    starts = [ns_of_text(bytes(text)) for text in texts]
    known = np.array([start is not None for start in starts], np.bool_)
    return np.array([start or 0 for start in starts], np.int64), known


def _ns_of_alike(joined: bytes, count: int) -> NDArray[np.uint64] | None:
    """Return the starts of texts of one length, each with a comma behind it: digits, a point and three digits."""
    length, rest = divmod(len(joined), count)
    if rest or not _DECIMALS + 3 <= length <= _TEXT_MAX + 1:
        return None
    text = np.frombuffer(joined, np.uint8).reshape(count, length)
    point = length - _DECIMALS - 2
    if (text[:, -1] != _COMMA).any() or (text[:, point] != _POINT).any():
        return None
    digits = np.delete(text, (point, -1), axis=1) - np.uint8(_ZERO)  # what is below the zero wraps around
    if (digits > _NINE - _ZERO).any():
        return None
    start_ns = np.zeros(count, np.uint64)  # holds all that fits the longest text
    for digit in digits.T:
        start_ns *= 10
        start_ns += digit
    return start_ns


def ns_of_text(us: bytes) -> int | None:
    """Return a start written as a JSON number, quoted or not, in ns; None if it is none or beyond the limits above."""
    us = us.strip(b'"')
    whole, _, fraction = us.partition(b".")
    if len(fraction) == _DECIMALS and len(whole) <= _WHOLE_DIGITS and whole.isdigit() and fraction.isdigit():
        start_ns = int(whole + fraction)
        return start_ns if start_ns <= _START_MAX_NS else None
    try:
        exact = Decimal(us.decode("ascii"))
        return round(exact * _NS_PER_US) if abs(exact) <= START_MAX_US else None
    except (ArithmeticError, ValueError):  # no number, or a signalling NaN
        return None
