"""Arguments that few events have: what a collective is, what a wait on the device waited for."""

import re
from typing import Any, TypeVar

import msgspec

from lockstep.contracts import limits
from lockstep.trace.columns import ABSENT, CollectiveArguments, SyncArguments

RANKS_MAX_CHARS = 4 << 20
"""Of distinct lists of ranks; one is at most 30 ranks long where torch writes it."""
TEXT_MAX_CHARS = 256
"""Of a collective's, group's or wait's name."""

_INT64_MAX = (1 << 63) - 1
_RANKS = re.compile(r"\s*\[\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)\s*\]\s*")
Form = TypeVar("Form", bound=msgspec.Struct)


class CollectiveFields(msgspec.Struct, gc=False):
    """An event's arguments on its collective."""

    collective: Any = msgspec.field(name="Collective name", default=None)
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    dtype: Any = None
    group: Any = msgspec.field(name="Process Group Name", default=None)
    description: Any = msgspec.field(name="Process Group Description", default=None)
    ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    number: Any = msgspec.field(name="Seq", default=None)


class SyncFields(CollectiveFields, gc=False):
    """The same, and the arguments on its wait."""

    sync: Any = msgspec.field(name="cuda_sync_kind", default=None)
    waits_on_stream: Any = msgspec.field(name="wait_on_stream", default=None)
    waits_on_correlation: Any = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=None)


class CollectiveArgsReader:
    """Reads them one by one; collectives that are alike are one object."""

    def __init__(self) -> None:
        self._interned: dict[CollectiveArguments, CollectiveArguments] = {}
        self._ranks: dict[str, tuple[int, ...] | None] = {}
        self._ranks_free_chars = RANKS_MAX_CHARS

    def collective(self, read: CollectiveFields) -> CollectiveArguments:
        """Return an event's arguments on its collective."""
        arguments = CollectiveArguments(
            name=_text(read.collective),
            group=_text(read.group),
            description=_text(read.description),
            ranks=self._ranks_of(read.ranks),
            group_size=integer(read.group_size),
            in_elements=integer(read.in_elements),
            out_elements=integer(read.out_elements),
            dtype=_text(read.dtype),
            sequence=integer(read.number),
        )
        return self._interned.setdefault(arguments, arguments)

    def sync(self, read: SyncFields) -> SyncArguments:
        """Return an event's arguments on its wait."""
        return SyncArguments(
            kind=_text(read.sync),
            waits_on_stream=integer(read.waits_on_stream),
            waits_on_correlation=integer(read.waits_on_correlation),
        )

    def _ranks_of(self, text: object) -> tuple[int, ...] | None:
        """Return the ranks of "[0, 1]"; None where torch has cut the list ("[0, ..., 63]"), and beyond the limit."""
        if not isinstance(text, str):
            return None
        if text not in self._ranks and len(text) <= self._ranks_free_chars:
            self._ranks_free_chars -= len(text)
            found = _RANKS.fullmatch(text)
            ranks = tuple(map(int, found[1].split(","))) if found else ()
            self._ranks[text] = ranks if ranks and max(ranks) < limits.WORLD_SIZE_MAX else None
        return self._ranks.get(text)


def decode_one(raw: msgspec.Raw | bytes, form: type[Form]) -> Form:
    """Return the arguments of one event, none if they are no object."""
    try:
        return msgspec.json.decode(bytes(raw).decode(errors="replace"), type=form)
    except msgspec.DecodeError:
        return form()


def integer(value: object) -> int:
    """Return a whole number, decimal digits in text as well; ABSENT for all else and beyond int64."""
    try:
        number = int(value) if isinstance(value, int | float | str) else ABSENT  # int() itself limits the digits
    except (ValueError, OverflowError):
        return ABSENT
    return number if -_INT64_MAX <= number <= _INT64_MAX else ABSENT


def _text(value: object) -> str:
    return str(value)[:TEXT_MAX_CHARS] if isinstance(value, str | int) else ""
