"""Codes for repeated values, each stored once, numbered by first appearance."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from lockstep.trace.columns import ABSENT

Value = TypeVar("Value", bound=Hashable)


class Codes(dict[Any, int]):
    """Codes without a limit: looking up a new value adds it."""

    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


class Interned(dict[Any, int], Generic[Value]):
    """Codes of what sources make, of at most `max_count` distinct values of `max_bytes` together; else ABSENT.

    A source that makes None has none, and is ABSENT.

    Looking a source up (raw JSON, in which the same shapes may be written in two ways) gives the code of its value, and
    makes that only once, as long as the sources keep within the same limits.
    """

    def __init__(self, make: Callable[[Any], Value | None], max_count: int, max_bytes: int) -> None:
        super().__init__()
        self._make = make
        self._codes: dict[Value, int] = {}
        self._max_count = max_count
        self._free_bytes = max_bytes
        self._free_source_bytes = max_bytes

    def __missing__(self, source: Any) -> int:
        value = self._make(source)
        code = ABSENT if value is None else self._code(value)
        size = _size(source)
        if len(self) < self._max_count and size <= self._free_source_bytes:
            self._free_source_bytes -= size
            self[source] = code
        return code

    def values_in_order(self) -> list[Value]:
        """Return the values by their codes."""
        return list(self._codes)

    def _code(self, value: Value) -> int:
        code = self._codes.get(value, ABSENT)
        size = _size(value)
        if code == ABSENT and len(self._codes) < self._max_count and size <= self._free_bytes:
            self._free_bytes -= size
            code = self._codes[value] = len(self._codes)
        return code


def _size(value: Any) -> int:
    """Return the bytes of a text, or of all texts of a tuple."""
    return sum(map(_size, value)) if isinstance(value, tuple) else len(value) if isinstance(value, str | bytes) else 1
