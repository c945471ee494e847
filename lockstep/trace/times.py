"""Microseconds, as profilers write them, to integer nanoseconds without losing one.

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
    far = us[np.isfinite(us) & (np.abs(us) >= EXACT_MAX_US)]
    return bool(np.any(far != np.floor(far)))


def usable(start_us: NDArray[np.float64], duration_us: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which events have a start and a duration that make sense."""
    known = np.isfinite(start_us) & np.isfinite(duration_us)
    known &= np.abs(np.where(known, start_us, 0)) <= START_MAX_US
    duration_us = np.where(known, duration_us, 0)
    return known & (duration_us >= 0) & (duration_us <= DURATION_MAX_US)


def ns_of_texts(texts: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return starts written as text in ns, and which of them are known; arrays of shape (n_texts,).

    All at once where all are as profilers write them, three decimals without a quote; else one by one.
    """
    joined = b",".join(texts)
    if len(texts) and (alike := _ns_of_alike(joined, len(texts))) is not None:
        return alike, alike <= _START_MAX_NS
    starts = [ns_of_text(text) for text in texts]
    known = np.array([start is not None for start in starts], np.bool_)
    return np.array([start or 0 for start in starts], np.int64), known


def _ns_of_alike(joined: bytes, count: int) -> NDArray[np.int64] | None:
    """Return the starts of texts that are digits, a point and three digits each; None if one is not."""
    text = np.frombuffer(joined, np.uint8)
    commas = np.concatenate((np.flatnonzero(text == _COMMA), [len(text)]))
    points = np.flatnonzero(text == _POINT)
    digits = np.count_nonzero((text >= _ZERO) & (text <= _NINE))
    lengths = np.diff(commas, prepend=-1) - 1
    if len(commas) != count or len(points) != count or digits != len(text) - 2 * count + 1:
        return None
    if not ((commas - points == _DECIMALS + 1) & (lengths > _DECIMALS + 1) & (lengths <= _TEXT_MAX)).all():
        return None
    return np.fromstring(joined.replace(b".", b""), np.int64, sep=",")


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
