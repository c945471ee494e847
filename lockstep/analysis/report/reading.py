"""Reads values of a JSON summary, none of them trusted: an invalid value counts as missing, and missing is None."""

from typing import Any

NUMBER_MAX = 1e18
"""The largest plausible number: a window of 1e18 ns lasts 31 years."""


def number(value: Any) -> float | int | None:
    """Return a finite number, None for everything else."""
    if type(value) is int or type(value) is float:  # no bool, which is an int too; NaN passes no comparison
        return value if -NUMBER_MAX <= value <= NUMBER_MAX else None
    return None


def amount(value: Any) -> float | int | None:
    """Return a number of at least 0."""
    found = number(value)
    return found if found is not None and found >= 0 else None


def rate(value: Any) -> float | None:
    """Return a number above 0, which has a place on a logarithmic axis; rates may pass `NUMBER_MAX`."""
    if type(value) is int or type(value) is float:
        return float(value) if 0 < value < NUMBER_MAX**2 else None
    return None


def nanoseconds(value: Any) -> int | None:
    """Return a length of time in whole ns."""
    found = amount(value)
    return None if found is None else round(found)


def share(value: Any) -> float | None:
    """Return a ratio of at least 0."""
    found = amount(value)
    return None if found is None else float(found)


def text(value: Any) -> str:
    """Return a text, empty where there is none."""
    return value if isinstance(value, str) else ""


def texts(value: Any) -> list[str]:
    """Return the texts of a list."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list | tuple) else []


def record(value: Any) -> dict[str, Any]:
    """Return an object, an empty one where there is none."""
    return value if isinstance(value, dict) else {}


def records(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list | tuple) else []


def ranks(value: Any) -> tuple[int, ...]:
    """Return rank numbers in order, each once; a single number is a list of one."""
    found = [value] if isinstance(value, int) else value if isinstance(value, list | tuple) else []
    return tuple(sorted({each for each in found if _is_rank(each)}))


def rank(value: Any) -> int | None:
    """Return a rank number, which may also be the text that a key of an object is."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < len(str(int(NUMBER_MAX))):
        value = int(value)
    return value if _is_rank(value) else None


def _is_rank(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= NUMBER_MAX
