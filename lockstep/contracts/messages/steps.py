"""Batches of step records that a node sends."""

from dataclasses import dataclass, field
from typing import Annotated

from lockstep.contracts.bounds import MESSAGE_VERSION, Count, Length, Name, OneOf, Range, UnixNs, Version
from lockstep.contracts.limits import BATCH_RECORDS_MAX, MESSAGE_MAX_BYTES

_LAYOUT_MAX_BYTES = 4096  # three times the names of all fields

LAPPED, TORN = "lapped", "torn"
LOSS_REASONS = (LAPPED, TORN)
"""Why a record in a ring could not be read: overwritten before it was read, or damaged because its writer was killed.
"""
LossReason = Annotated[str, OneOf(LOSS_REASONS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """The step records that one node gathered in one interval, one after the other.

    `layout` names the values of a record, separated by commas: `rank` first, then fields of the step record, except
    those missing throughout. `records` holds `count` records of that many little-endian int64 (`rows.py` joins and
    splits them). `start_ns` and `end_ns` are wall clock here. The receiver ignores fields that it does not know, so
    that two versions can communicate. `lost` counts, by reason (`LOSS_REASONS`), records of the run that this exporter
    could not read from the rings since the previous batch; a batch without records may carry it.
    """

    run: Name
    node: Name
    sent_unix_ns: UnixNs
    count: Annotated[int, Range(0, BATCH_RECORDS_MAX)]
    layout: Annotated[str, Length(_LAYOUT_MAX_BYTES, least=1)]
    records: Annotated[bytes, Length(MESSAGE_MAX_BYTES)]
    lost: Annotated[dict[LossReason, Count], Length(len(LOSS_REASONS))] = field(default_factory=dict)
    version: Version = MESSAGE_VERSION
