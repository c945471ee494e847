"""Tables of measured steps as files hold them: columns checked, units read from their names, every row once.

A row that stands twice would be fitted and held out at once, and so be compared with itself: exact repetitions are
dropped. A row that cannot be read is dropped too; both are counted in `Table.dropped`.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Generic, TypeVar

from lockstep.contracts.errors import ConfigError, MalformedError

_BYTES_MAX = 64 * 2**20
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}

Row = Mapping[str, str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """What the rows of a file have become, in their order; how many stood twice, and why others were dropped."""

    name: str
    rows: Sequence[T]
    repeated: int
    refused: Sequence[str]

    @property
    def dropped(self) -> str:
        """What was dropped, in a line; empty if nothing was."""
        parts = [f"{self.repeated} repeated"] if self.repeated else []
        parts += [f"{len(self.refused)} that cannot be read (first: {self.refused[0]})"] if self.refused else []
        return f"{self.name}: rows dropped: {', '.join(parts)}" if parts else ""


def read_table(
    path: Path, columns: Sequence[str], time_column: str, make: Callable[[Row, float], T], *, optional: Sequence[str]
) -> Table[T]:
    """Return what `make` makes of each row and its step in seconds; `time_column` has `{}` where its unit stands.

    Raises
    ------
    MalformedError
        The file is too large or no text, or lacks a column.
    """
    header, lines = _lines(path)
    missing = [name for name in columns if name not in header]
    units = [unit for unit in _UNITS if time_column.format(unit) in header]
    if missing or len(units) != 1:
        expected = ", ".join(missing) or f"one of {', '.join(map(time_column.format, _UNITS))}"
        raise MalformedError("columns", where=path.name, got=", ".join(header), expected=expected)
    named = time_column.format(units[0])
    used = (*columns, *(name for name in optional if name in header), named)
    seen: set[tuple[str, ...]] = set()
    found: list[T] = []
    refused: list[str] = []
    repeated = 0
    for number, row in lines:
        key = tuple((row.get(name) or "").strip() for name in used)
        if key in seen:
            repeated += 1
            continue
        seen.add(key)
        try:
            found.append(make(dict(zip(used, key, strict=True)), _seconds(key[-1], _UNITS[units[0]])))
        except (ValueError, ConfigError, ZeroDivisionError) as error:
            refused.append(f"line {number}: {error}")
    return Table(path.name, found, repeated, refused)


def _lines(path: Path) -> tuple[list[str], list[tuple[int, dict[str, Any]]]]:
    if path.stat().st_size > _BYTES_MAX:
        raise MalformedError("table", where=path.name, got="more", expected=f"at most {_BYTES_MAX} bytes")
    try:
        reader = csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines(), skipinitialspace=True)
        header = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = header
        return header, [(reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise MalformedError("table", where=path.name, got=error, expected="CSV in UTF-8") from None


def _seconds(text: str, unit_s: float) -> float:
    seconds = float(text) * unit_s
    if not (isfinite(seconds) and seconds > 0):
        raise ValueError(f"step: got {text}, expected above 0")
    return seconds
