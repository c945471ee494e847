"""Step batches as exporters sent them before: a byte string per column. To go with the next version of step batches.

A coordinator takes both, so that nodes need not be upgraded with it, and what lies in their spools is not lost.
"""

import struct
from dataclasses import dataclass

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import StepBatch
from lockstep.contracts.records import RECORD_INDEX
from lockstep.contracts.rows import RANK, VALUE_BYTES, join_columns

VERSION = 1
_RANK_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBatch:
    """`ranks` holds `count` little-endian int32, each column `count` little-endian int64."""

    run: str
    node: str
    sequence: int
    sent_unix_ns: int
    count: int
    ranks: bytes
    columns: dict[str, bytes]
    lost_records: int = 0
    version: int = VERSION


def upgraded(batch: ColumnBatch, where: str) -> StepBatch:
    """Return the same records in the present form, columns left out that nobody knows.

    Raises
    ------
    MalformedError
        A column is longer or shorter than `count` says; nothing is allocated for it.
    """
    _exactly("ranks bytes", where, len(batch.ranks), batch.count * _RANK_BYTES)
    for name, column in batch.columns.items():
        _exactly(f"column {name!r:.64} bytes", where, len(column), batch.count * VALUE_BYTES)
    known = {name: column for name, column in batch.columns.items() if name in RECORD_INDEX}
    ranks = struct.pack(f"<{batch.count}q", *struct.unpack(f"<{batch.count}i", batch.ranks))
    layout, records = join_columns({RANK: ranks} | known)
    return StepBatch(
        run=batch.run,
        node=batch.node,
        sequence=batch.sequence,
        sent_unix_ns=batch.sent_unix_ns,
        count=batch.count,
        layout=layout,
        records=records,
        lost_records=batch.lost_records,
    )


def _exactly(what: str, where: str, got: int, expected: int) -> None:
    if got != expected:
        raise MalformedError(what, where=where, got=got, expected=expected)
