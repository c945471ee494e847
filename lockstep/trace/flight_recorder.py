"""Reads dumps of torch's Flight Recorder: the last collectives that a rank issued in each of its groups.

A dump is a dict with `version` and `entries` (pytorch.org/tutorials, "Flight Recorder for Debugging Stuck Jobs"), as
JSON (`_dump_fr_trace_json`) or as a pickle (what torch writes into files). The training process writes it, so it is
read as hostile input: the pickle reader here knows only the opcodes of plain values, and can call nothing.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lockstep.contracts.errors import MalformedError

DUMP_MAX_BYTES = 4 << 20
"""2,000 entries, the recorder's default, with their Python frames are 1 MB."""
_VALUES_MAX = 1_000_000
"""Values of a pickle, each of which may be a single byte: 64 MB in memory."""
_ENTRIES_MAX = 20_000
_TEXT_MAX = 64
_TENSORS_MAX, _DIMENSIONS_MAX = 4, 8  # written out of one entry
_VERSION = "2."
"""The first part of the versions whose entries have these fields: 2.1 to 2.10 are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightEntry:
    """One collective that a rank has issued.

    `group` is the name that torch gives the process group, the same on all of its ranks, `description` the one that the
    training gave it. `sequence` counts the collectives of the group from 1. `operation` is without the backend,
    `tensors` the dtypes and sizes of its inputs as text. `state` is scheduled, started or completed; `is_retired`:
    torch has seen its end.
    """

    group: str
    description: str
    sequence: int
    operation: str
    tensors: str
    state: str
    is_retired: bool
    created_unix_ns: int


def parse_dump(data: bytes, *, where: str) -> list[FlightEntry]:
    """Return the collectives of a dump in its order; sends and receives, and entries without a group, are left out.

    Raises
    ------
    MalformedError
        It is no dump of version 2, or too large.
    """
    if len(data) > DUMP_MAX_BYTES:
        raise MalformedError("flight recorder", where=where, got=len(data), expected=f"at most {DUMP_MAX_BYTES} bytes")
    try:
        value = json.loads(data) if data[:1] == b"{" else _Unpickler(data).value()
    except (ValueError, LookupError, TypeError, struct.error, RecursionError) as error:
        got = f"{type(error).__name__}: {error}"[:200]
        raise MalformedError("flight recorder", where=where, got=got, expected="plain values") from None
    version = value.get("version") if isinstance(value, dict) else None
    if not isinstance(version, str) or not version.startswith(_VERSION):
        got = repr(version)[:_TEXT_MAX]
        raise MalformedError("version of the flight recorder", where=where, got=got, expected=f"{_VERSION}x")
    entries = value.get("entries", [])
    if not isinstance(entries, list) or len(entries) > _ENTRIES_MAX:
        raise MalformedError("entries", where=where, got=type(entries).__name__, expected=f"up to {_ENTRIES_MAX}")
    return [entry for each in entries if (entry := _entry(each)) is not None]


def _entry(value: Any) -> FlightEntry | None:
    if not isinstance(value, dict) or value.get("is_p2p") is not False:
        return None
    group, sequence = value.get("process_group"), value.get("collective_seq_id")
    if not isinstance(group, list | tuple) or len(group) != 2 or type(sequence) is not int:  # noqa: PLR2004
        return None
    created = value.get("time_created_ns")
    return FlightEntry(
        group=_text(group[0]),
        description=_text(group[1]),
        sequence=sequence,
        operation=_text(value.get("profiling_name")).rpartition(":")[2],
        tensors=_tensors(value.get("input_dtypes"), value.get("input_sizes")),
        state=_text(value.get("state")),
        is_retired=value.get("retired") is True,
        created_unix_ns=created if type(created) is int else 0,
    )


def _text(value: Any) -> str:
    return value[:_TEXT_MAX] if isinstance(value, str) and value.isprintable() else ""


def _tensors(dtypes: Any, sizes: Any) -> str:
    """Return the inputs of a collective as text: "Float [100], Float [2, 10]"."""
    if not isinstance(dtypes, list) or not isinstance(sizes, list):
        return ""
    parts = []
    for dtype, size in list(zip(dtypes, sizes, strict=False))[:_TENSORS_MAX]:
        shape = size if isinstance(size, list) else []
        parts.append(
            f"{_text(dtype)} [{', '.join(str(each) for each in shape[:_DIMENSIONS_MAX] if type(each) is int)}]"
        )
    return ", ".join(parts)[:_TEXT_MAX]


class _Unpickler:
    """Reads a pickle of plain values: None, truths, numbers, texts, lists, tuples and dicts of them.

    `pickle.Unpickler` calls what its input names, and grows its memo to any index that its input names.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def value(self) -> Any:
        """Return what the pickle holds.

        Raises
        ------
        ValueError, LookupError, TypeError, struct.error
            It holds something else, or ends too early.
        """
        for _ in range(_VALUES_MAX):
            code = self._take(1)
            if code == b".":
                return self._stack.pop()
            self._do(code)
        raise ValueError(f"more than {_VALUES_MAX} values")

    def _do(self, code: bytes) -> None:
        if code in _CONSTANTS:
            self._stack.append(_CONSTANTS[code]())
        elif code in _NUMBERS:
            self._stack.append(self._unpack(_NUMBERS[code]))
        elif code == b"\x8a":  # LONG1
            self._stack.append(int.from_bytes(self._take(self._unpack(_BYTE)), "little", signed=True))
        elif code in _TEXT_LENGTHS:
            self._stack.append(self._take(self._unpack(_TEXT_LENGTHS[code])).decode("utf-8", "replace"))
        elif code in _PUTS:
            self._memo[self._unpack(_PUTS[code])] = self._stack[-1]
        elif code in _GETS:
            self._stack.append(self._memo[self._unpack(_GETS[code])])
        elif code in _TUPLES:
            self._stack.append(tuple(self._popped(_TUPLES[code])))
        elif code == b"(":
            self._marks.append(len(self._stack))
        else:
            self._collect(code)

    def _collect(self, code: bytes) -> None:
        """Put values into the tuple, list or dict below them: all above the mark, or the last one or two."""
        if code == b"\x80":  # PROTO, whose number decides nothing: opcodes do
            self._take(1)
            return
        if code not in b"teaus":
            raise ValueError(f"opcode {code!r} at byte {self._at - 1}")
        if code in b"as":
            values = self._popped(1 if code == b"a" else 2)
        else:
            values = self._popped(len(self._stack) - self._marks.pop())
        if code == b"t":
            self._stack.append(tuple(values))
        elif code in b"ea":
            self._container(list).extend(values)
        else:
            self._container(dict).update(zip(*[iter(values)] * 2, strict=True))

    def _container(self, kind: type) -> Any:
        if type(self._stack[-1]) is not kind:
            raise ValueError(f"got {type(self._stack[-1]).__name__} at byte {self._at}, expected {kind.__name__}")
        return self._stack[-1]

    def _popped(self, count: int) -> list[Any]:
        start = len(self._stack) - count
        if count < 0 or start < 0:
            raise ValueError(f"too few values at byte {self._at}")
        values, self._stack[start:] = self._stack[start:], []
        return values

    def _unpack(self, form: struct.Struct) -> Any:
        return form.unpack(self._take(form.size))[0]

    def _take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        if len(part) < count:
            raise ValueError(f"the pickle ends at byte {len(self._data)}")
        self._at += count
        return part


_BYTE, _SHORT, _WORD = struct.Struct("<B"), struct.Struct("<H"), struct.Struct("<I")
_CONSTANTS: dict[bytes, Any] = {
    b"N": lambda: None,
    b"\x88": lambda: True,
    b"\x89": lambda: False,
    b"]": list,
    b"}": dict,
    b")": tuple,
}
_NUMBERS = {b"J": struct.Struct("<i"), b"K": _BYTE, b"M": _SHORT, b"G": struct.Struct(">d")}
_TEXT_LENGTHS = {b"X": _WORD, b"\x8c": _BYTE}
_PUTS = {b"q": _BYTE, b"r": _WORD}
_GETS = {b"h": _BYTE, b"j": _WORD}
_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}


def last_of_groups(entries: list[FlightEntry], *, groups: int, each: int) -> Iterator[FlightEntry]:
    """Yield the last `each` collectives of the `groups` groups that issued one last, each group's in their order."""
    by_group: dict[str, list[FlightEntry]] = {}
    for entry in entries:
        by_group.setdefault(entry.group, []).append(entry)
    newest = sorted(by_group.values(), key=lambda own: -max(entry.created_unix_ns for entry in own))
    for own in newest[:groups]:
        yield from sorted(own, key=lambda entry: entry.sequence)[-each:]
