"""Reads a third-party sqlite file: read-only, without side effects, within limits.

The file is opened as immutable: sqlite then neither locks it nor looks for a journal next to it. Only real tables count
(a view of the same name would run its author's query), only columns requested by name are read, nothing that a schema
could call is trusted, and a query that runs too long is stopped.
"""

import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import MalformedError
from lockstep.trace.columns import ABSENT

DATABASE_MAX_BYTES = 8 << 30
"""A capture of ten steps with stacks is hundreds of MB."""
ROWS_MAX = 50_000_000
STRINGS_MAX = 1 << 22
VALUE_MAX_BYTES = 1 << 20
BLOCK_ROWS = 1 << 16
_HEAD = b"SQLite format 3\0"
_SQL_MAX_BYTES = 1 << 16
_STEPS_BETWEEN_CHECKS = 1_000_000
_STEPS_MAX = 20_000_000_000
"""Of sqlite's machine: about 20 a row and column, so 50 million rows of 20 columns."""
_INT64_MAX = 2**63 - 1
_EXPECTED = "a sqlite database of an Ascend profiler"


class Database:
    """An open file; made by `opened`."""

    def __init__(self, connection: sqlite3.Connection, where: str) -> None:
        self.where = where
        self._connection = connection
        self._columns: dict[str, tuple[str, ...]] = {}

    def tables(self) -> set[str]:
        """Return the names of the real tables, as the file spells them."""
        listed = self._all("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        return {name for name, sql in listed if isinstance(name, str) and "VIRTUAL" not in str(sql)[:64].upper()}

    def has(self, table: str) -> bool:
        """Whether there is a table of this name."""
        return table in self.tables()

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the names of a table's columns, none if there is no such table."""
        if table not in self._columns:
            known = self.has(table)
            self._columns[table] = tuple(
                str(row[1]) for row in (self._all(f"PRAGMA table_info({_quoted(table)})") if known else ())
            )
        return self._columns[table]

    def blocks(
        self, table: str, wanted: Sequence[tuple[str, ...]], *, required: int = 0, order: str = ""
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield a table's rows in blocks, a value for each of the wanted columns.

        Each wanted column is a tuple of the names that versions have given it; one that is missing gives None. The
        first `required` of them must be there.

        Raises
        ------
        MalformedError
            A required column is missing, the file is damaged, or there are more than ROWS_MAX rows.
        """
        there = {name.lower(): name for name in self.columns(table)}
        chosen = [next((there[name.lower()] for name in names if name.lower() in there), None) for names in wanted]
        for names, column in zip(wanted[:required], chosen, strict=False):
            if column is None:
                raise self.malformed(f"table {table}", ", ".join(there) or "no such table", f"a column {names[0]}")
        picked = ", ".join(_quoted(column) if column else "NULL" for column in chosen)
        query = f"SELECT {picked} FROM {_quoted(table)}"  # noqa: S608 - names from the file's own schema, quoted
        if order:
            query += f" ORDER BY {order}"
        yield from self._blocks(query)

    def table(self, table: str, wanted: Sequence[tuple[str, ...]], *, required: int) -> list[NDArray[np.int64]]:
        """Return whole columns of numbers, int64 arrays of shape (n_rows,); empty where there is no such table.

        Raises
        ------
        MalformedError
            As for `blocks`.
        """
        parts: list[list[NDArray[np.int64]]] = [[np.zeros(0, np.int64)] for _ in wanted]
        for block in self.blocks(table, wanted, required=required) if self.has(table) else ():
            for part, values in zip(parts, zip(*block, strict=True), strict=True):
                part.append(integers(values))
        return [np.concatenate(part) for part in parts]

    def strings(self) -> dict[int, str]:
        """Return STRING_IDS, empty if the file has none; what is no pair of number and text is left out."""
        if not self.has("STRING_IDS"):
            return {}
        found: dict[int, str] = {}
        for block in self.blocks("STRING_IDS", [("id",), ("value",)], required=2):
            found.update((key, value) for key, value in block if type(key) is int and type(value) is str)
            if len(found) > STRINGS_MAX:
                raise self.malformed("STRING_IDS", f"over {STRINGS_MAX}", f"at most {STRINGS_MAX} strings")
        return found

    def malformed(self, what: str, got: object, expected: object) -> MalformedError:
        """Return the error that describes what is wrong with this file."""
        return MalformedError(what, where=self.where, got=got, expected=expected)

    def _all(self, query: str) -> list[tuple[Any, ...]]:
        return list(chain.from_iterable(self._blocks(query)))

    def _blocks(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        count = 0
        try:
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(BLOCK_ROWS):
                count += len(rows)
                if count > ROWS_MAX:
                    raise self.malformed("rows", f"over {ROWS_MAX}", f"at most {ROWS_MAX}")
                yield rows
        except (sqlite3.Error, OverflowError) as error:
            raise self.malformed("database", error, _EXPECTED) from error


@contextmanager
def opened(path: Path, *, max_bytes: int = DATABASE_MAX_BYTES) -> Iterator[Database]:
    """Open a file for reading and close it again.

    Raises
    ------
    MalformedError
        It cannot be read, is no regular file, is larger than `max_bytes`, or is no sqlite database.
    """
    where = str(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
            got = f"{stat.filemode(status.st_mode)} of {status.st_size} bytes"
            raise MalformedError("database", where=where, got=got, expected=f"a file of at most {max_bytes} bytes")
        with path.open("rb") as file:
            head = file.read(len(_HEAD))
    except OSError as error:
        raise MalformedError(
            "database", where=where, got=error.strerror or error, expected="a readable file"
        ) from error
    if head != _HEAD:
        raise MalformedError("database", where=where, got=repr(head), expected=_EXPECTED)
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as error:
        raise MalformedError("database", where=where, got=error, expected=_EXPECTED) from error
    try:
        _restrict(connection)
        yield Database(connection, where)
    finally:
        connection.close()


def _restrict(connection: sqlite3.Connection) -> None:
    """Disable everything that the file's schema could run, and limit the query's work."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_MAX_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, _SQL_MAX_BYTES)
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON"):
        connection.execute(f"PRAGMA {pragma}")
    checks = iter(range(_STEPS_MAX // _STEPS_BETWEEN_CHECKS))
    connection.set_progress_handler(lambda: int(next(checks, None) is None), _STEPS_BETWEEN_CHECKS)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def integers(values: Sequence[Any]) -> NDArray[np.int64]:
    """Return whole numbers, ABSENT where a value is none (older versions write times as text)."""
    return np.fromiter(map(_integer, values), np.int64, len(values))


def numbers(values: Sequence[Any]) -> NDArray[np.float64]:
    """Return numbers, NaN where a value is none."""
    return np.fromiter(
        (float(each) if type(each) in (int, float) else np.nan for each in values), np.float64, len(values)
    )


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if type(value) is float:
        return int(value) if abs(value) < _INT64_MAX and value.is_integer() else ABSENT
    if type(value) is str and value.isascii() and value.isdecimal() and len(value) < len(str(_INT64_MAX)) + 1:
        return min(int(value), _INT64_MAX)
    return ABSENT
