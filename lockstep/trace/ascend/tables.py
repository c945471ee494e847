"""Reads CSV files of any length in blocks of rows: limited sizes, headers checked by name, bad rows counted."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from lockstep.trace.source import TraceSource

TABLE_MAX_BYTES = 2 << 30
"""The largest file: 45 columns of a million kernels are 300 MB."""
ROWS_MAX = 20_000_000
LINE_MAX_CHARS = 1 << 20
"""Call stacks are kilobytes; nothing else is as long."""
COLUMNS_MAX = 1024
BLOCK_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class CsvRows:
    """A block of rows by column: cells as text by header, all of equal length; `dropped_count` rows were too short."""

    cells: Mapping[str, Sequence[str]]
    count: int
    dropped_count: int


class CsvTable:
    """One CSV file; iterate once over its blocks. `header` is known from the beginning.

    Raises
    ------
    MalformedError
        The file cannot be read, is larger than its limits, or its header lacks one of the `required` names; each of
        these is a tuple of names of which one must be there.
    """

    def __init__(self, path: Path, *, required: Sequence[tuple[str, ...]], max_bytes: int = TABLE_MAX_BYTES) -> None:
        self.source = TraceSource(path, max_bytes=max_bytes)
        self._reader = csv.reader(_lines(self.source))
        try:
            header = next(self._reader, [])
        except csv.Error as error:
            raise self.source.malformed("CSV", error, "rows") from error
        self.header = tuple(name.strip().strip("\ufeff") for name in header)
        for names in required:
            if not set(names) & set(self.header):
                raise self.source.malformed(
                    "header", ",".join(self.header), f"a column {' or '.join(map(repr, names))}"
                )
        if len(self.header) > COLUMNS_MAX:
            raise self.source.malformed("columns", len(self.header), f"at most {COLUMNS_MAX}")

    def __iter__(self) -> Iterator[CsvRows]:
        """Yield blocks of at most BLOCK_ROWS rows; rows shorter than the header are dropped.

        Raises
        ------
        MalformedError
            A row cannot be split into cells, or there are more than ROWS_MAX.
        """
        read_count = 0
        while block := self._block():
            read_count += len(block)
            if read_count > ROWS_MAX:
                raise self.source.malformed("rows", f"over {ROWS_MAX}", f"at most {ROWS_MAX}")
            whole = [row for row in block if len(row) >= len(self.header)]
            columns = list(zip(*whole, strict=False)) or [()] * len(self.header)
            cells = dict(zip(self.header, columns, strict=False))
            yield CsvRows(cells, len(whole), len(block) - len(whole))

    def _block(self) -> list[list[str]]:
        try:
            return [row for row in islice(self._reader, BLOCK_ROWS) if row]
        except csv.Error as error:
            raise self.source.malformed("CSV", error, "rows") from error


def _lines(source: TraceSource) -> Iterator[str]:
    """Yield lines; one without an end is refused before it fills memory."""
    rest = b""
    for chunk in source:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield _text(source, line) + "\n"
        if len(rest) > LINE_MAX_CHARS:
            raise source.malformed("line", f"{len(rest)} bytes", f"at most {LINE_MAX_CHARS}")
    if rest:
        yield _text(source, rest)


def _text(source: TraceSource, line: bytes) -> str:
    if len(line) > LINE_MAX_CHARS:
        raise source.malformed("line", f"{len(line)} bytes", f"at most {LINE_MAX_CHARS}")
    return line.decode(errors="replace")


class Columns:
    """Finds a block's cells under any of the names that versions have used for a column."""

    def __init__(self, rows: CsvRows) -> None:
        self.count = rows.count
        self._cells = rows.cells

    def texts(self, *names: str) -> Sequence[str]:
        """Return the cells of the first of these columns that is there, stripped; empty texts if none is."""
        for name in names:
            if name in self._cells:
                return [cell.strip() for cell in self._cells[name]]
        return [""] * self.count
