"""Gathers the step records of one interval into messages."""

from typing import TYPE_CHECKING

import numpy as np

from exporter.reading.attempt_steps import Records
from lockstep.contracts.bounds import INT63_MAX
from lockstep.contracts.limits import BATCH_RECORDS_MAX, MESSAGE_MAX_BYTES
from lockstep.contracts.messages import StepBatch
from lockstep.contracts.records import MISSING, RECORD_BYTES, RECORD_FIELDS
from lockstep.contracts.rows import RANK, SEPARATOR, VALUE_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ENVELOPE_BYTES = 8 << 10  # names of run, node and fields, with a margin
RECORDS_MAX = min(BATCH_RECORDS_MAX, (MESSAGE_MAX_BYTES - _ENVELOPE_BYTES) // (RECORD_BYTES + VALUE_BYTES))
"""Records in one message, so that it stays within MESSAGE_MAX_BYTES even with every field present."""


class Batcher:
    """Gathers records, and counts of lost ones, until they are taken; one per exporter."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._gathered: dict[str, list[tuple[int, Records]]] = {}
        self._lost: dict[str, dict[str, int]] = {}

    def add(self, run: str, rank: int, records: Records) -> None:
        """Add records with wall-clock times, array of shape (n_records, n_fields)."""
        self._gathered.setdefault(run, []).append((rank, records))

    def add_lost(self, run: str, reason: str, count: int) -> None:
        """Add a count of a run's records that could not be read, by reason (`LOSS_REASONS`)."""
        lost = self._lost.setdefault(run, {})
        lost[reason] = min(lost.get(reason, 0) + count, INT63_MAX)  # a ring may claim more ended steps

    def take(self, unix_ns: int) -> list[StepBatch]:
        """Return what was gathered as messages, in read order; the first message of a run has its loss counts."""
        gathered, self._gathered = self._gathered, {}
        lost, self._lost = self._lost, {}
        batches: list[StepBatch] = []
        for run in gathered | lost:
            ranks, records = _joined(gathered.get(run, []))
            for start in range(0, max(1, len(records)), RECORDS_MAX):
                chunk = slice(start, start + RECORDS_MAX)
                layout, data = to_rows(ranks[chunk], records[chunk])
                batches.append(
                    StepBatch(
                        run=run,
                        node=self._node,
                        sent_unix_ns=unix_ns,
                        count=len(records[chunk]),
                        layout=layout,
                        records=data,
                        lost=lost.pop(run, {}),
                    )
                )
        return batches


def _joined(parts: list[tuple[int, Records]]) -> "tuple[NDArray[np.int64], Records]":
    """Return the rank of each record, and the records."""
    if not parts:
        return np.empty(0, np.int64), np.empty((0, len(RECORD_FIELDS)), np.int64)
    ranks = np.concatenate([np.full(len(records), rank) for rank, records in parts])
    return ranks, np.concatenate([records for _, records in parts])


def to_rows(ranks: "NDArray[np.int64]", records: Records) -> tuple[str, bytes]:
    """Return the layout and records of a message, without the fields that hold no value at all."""
    present = np.flatnonzero((records != MISSING).any(axis=0))
    rows = np.empty((len(records), 1 + len(present)), dtype="<i8")
    rows[:, 0] = ranks
    rows[:, 1:] = records[:, present]
    return SEPARATOR.join((RANK, *(RECORD_FIELDS[place] for place in present))), rows.tobytes()
