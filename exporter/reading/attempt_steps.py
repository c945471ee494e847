"""Builds the steps of one attempt of a rank: blocks of marks in, records out.

This module decides which blocks are read when, and counts what is lost of them. It reads no files (the caller fetches
bytes) and does not know what a step consists of (lockstep/accounting does). Work and memory of a read are bounded,
whatever a ring holds: a block may hold as many steps as marks.
"""

import logging
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from exporter.reading.read_offsets import ReadOffset
from lockstep.accounting.block_reader import BlockRead, BlockReader, Fetch
from lockstep.accounting.lost_marks import BuilderCounts
from lockstep.accounting.step_builder import StepBuilder
from lockstep.accounting.step_record import BuiltStep, EndedStep, built_steps
from lockstep.contracts.bounds import INT63_MAX, STEP_MAX
from lockstep.contracts.errors import PeerError
from lockstep.contracts.messages import LAPPED, LOSS_REASONS, TORN
from lockstep.contracts.records import RECORD_FIELDS, RECORD_INDEX

if TYPE_CHECKING:
    from lockstep.contracts.capture import StepBoundary
    from lockstep.contracts.marks import MarkBlock

_log = logging.getLogger(__name__)

RECORDS_PER_READ = 512
"""Records of one read: 2,500 steps a second at five reads a second."""
_WHERE = "offsets"
_STEP, _END = RECORD_INDEX["step"], RECORD_INDEX["end_ns"]

Records = NDArray[np.int64]
"""Array of shape (n_records, n_fields), int64, columns as `RECORD_FIELDS`; times ns of CLOCK_MONOTONIC."""


def to_records(rows: list[bytes]) -> Records:
    """Return packed records (RECORD_STRUCT) as an array."""
    return np.frombuffer(b"".join(rows), dtype="<i8").reshape(len(rows), len(RECORD_FIELDS))


NO_RECORDS: Records = to_records([])


def _no_losses() -> dict[str, int]:
    return dict.fromkeys(LOSS_REASONS, 0)


@dataclass(slots=True)
class StepsRead:
    """The result of one read: steps that `ended`, how many of them are `incomplete`, and losses by `LOSS_REASONS`.

    `records` are those of the ended steps that no earlier reader has returned, once they are built. Lost steps are
    counted once the step number is known again, which may be in a later read than that of the lost blocks.
    """

    ended: list[EndedStep] = field(default_factory=list)
    records: Records = field(default_factory=lambda: NO_RECORDS)
    incomplete: int = 0
    lost_steps: dict[str, int] = field(default_factory=_no_losses)
    lost_blocks: dict[str, int] = field(default_factory=_no_losses)
    malformed_marks: int = 0


class AttemptSteps:
    """Reads the files of one attempt one after the other: an agent whose file was removed writes a new one.

    A file has `block_count` blocks. `offset` is where an earlier reader of the same attempt stopped; its steps are not
    returned again. `last_step` and `last_end_ns` are those of the latest record, None before the first. `is_drained`:
    the last read returned all that its file held then. `fill_ratio`: the part of the blocks that were new at the last
    read, inf if that did not reach the end.
    """

    def __init__(self, block_count: int, offset: ReadOffset | None = None) -> None:
        self.last_step: int | None = None
        self.last_end_ns: int | None = None
        self._builder = StepBuilder()
        self._pending: deque[MarkBlock] = deque()
        self._gap_reason = TORN
        self._saved: dict[str, Any] | None = None
        self._saved_sequence = 0
        self._is_saved = self._has_marks = False
        self.is_drained = False
        self.fill_ratio = 0.0
        self._block_count = block_count
        next_sequence = self._resume(offset) if offset is not None else 0
        self._reader = BlockReader(block_count, next_sequence)

    def _resume(self, offset: ReadOffset) -> int:
        """Restore the state of an earlier reader; return the block to continue with."""
        self.last_step, self.last_end_ns = offset.last_step, offset.last_end_ns
        if offset.builder is None:
            return 0
        try:
            self._builder = StepBuilder.from_state(offset.builder, where=_WHERE)
        except PeerError as error:
            _log.warning("the state of an attempt's steps is not used: %s", error)
            return 0
        self._saved, self._saved_sequence, self._is_saved = offset.builder, offset.next_sequence, True
        return offset.next_sequence

    def offset(self, attempt: int, answer_generation: int) -> ReadOffset:
        """Return where the next reader continues, with the state at the end of the last read that ended a step."""
        if not self._is_saved and self._builder.is_numbered:
            self._saved = self._builder.state()
            self._saved_sequence = self._next_sequence
            self._is_saved = True
        return ReadOffset(
            attempt, answer_generation, self._saved_sequence, self.last_step, self.last_end_ns, self._saved
        )

    @property
    def _next_sequence(self) -> int:
        return self._pending[0].sequence if self._pending else self._reader.next_sequence

    @property
    def ends(self) -> int:
        """Return the ends of optimizers and of named steps so far: any of them may end a step."""
        return self._builder.ends

    @property
    def is_unnumbered(self) -> bool:
        """Whether the running step has no known number although there are marks, so that no record can be built."""
        return self._has_marks and not self._builder.is_numbered

    def boundary(self, first_step: int) -> "StepBoundary | None":
        """Return where `first_step` begins, or the running step if that is later; None if steps are not numbered."""
        boundary = self._builder.boundary(first_step)
        if boundary is None or boundary.first_end > INT63_MAX or boundary.first_step > STEP_MAX:
            return None
        return boundary

    def read(self, fetch: Fetch, blocks_max: int, records_max: int = RECORDS_PER_READ) -> StepsRead:
        """Read what is new, up to about `blocks_max` blocks and about `records_max` records, and build the records."""
        found = self.take(fetch, blocks_max, records_max)
        self.build(found, built_steps(found.ended))
        return found

    def take(self, fetch: Fetch, blocks_max: int, records_max: int = RECORDS_PER_READ) -> StepsRead:
        """Read the same without building records: they cost less for all ranks at once. `build` takes them."""
        found = StepsRead()
        is_end_reached, before_sequence = False, self._reader.next_sequence
        if not self._pending:
            blocks = self._reader.read(fetch, blocks_max)
            is_end_reached = len(blocks.blocks) < blocks_max
            self._pending.extend(blocks.blocks)
            self._note_lost(found, blocks)
        counts = self._builder.counts
        before = BuilderCounts(counts.lost_marks, counts.lost_steps, counts.malformed_marks)
        self._has_marks |= bool(self._pending)
        try:
            while self._pending and len(found.ended) < records_max:
                found.ended += self._builder.take_next(self._pending, marks_max=records_max - len(found.ended))
        except BaseException:
            self._forget()
            raise
        self.is_drained = is_end_reached and not self._pending
        new = self._reader.next_sequence - before_sequence
        self.fill_ratio = new / self._block_count if self.is_drained else math.inf
        found.lost_steps[self._gap_reason] += counts.lost_steps - before.lost_steps
        found.malformed_marks = counts.malformed_marks - before.malformed_marks
        return found

    def build(self, found: StepsRead, built: list[BuiltStep]) -> None:
        """Add the records of the steps that ended in a read, as built, to it."""
        found.incomplete = sum(step.is_incomplete for step in built)
        if built:
            found.records = self._new(to_records([step.record for step in built]))

    def drop_pending(self) -> int:
        """Drop blocks that were read but not accounted for yet; return their number."""
        count = len(self._pending)
        self._pending.clear()
        return count

    def _note_lost(self, found: StepsRead, blocks: BlockRead) -> None:
        found.lost_blocks[LAPPED] += blocks.overwritten
        found.lost_blocks[TORN] += blocks.torn
        if blocks.overwritten or blocks.torn:
            self._gap_reason = LAPPED if blocks.overwritten else TORN

    def _new(self, records: Records) -> Records:
        """Return the records that no earlier reader has returned."""
        if self.last_step is not None:
            records = records[records[:, _STEP] > self.last_step]
        if len(records):
            self.last_step, self.last_end_ns = int(records[-1, _STEP]), int(records[-1, _END])
            self._is_saved = False
        return records

    def _forget(self) -> None:
        """Start over after a fault in the accounting: the rank has no step number until it can be derived again."""
        state = self._saved
        self._builder = StepBuilder() if state is None else StepBuilder.from_state(state, where=_WHERE)
