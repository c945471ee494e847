"""The fields read of each event of a Chrome trace, by its phase; unused phases cost as little as possible.

Arguments stay raw JSON: an error in them does not invalidate the event, and most are never parsed.
"""

from typing import Any

import msgspec

Id = int | str | float | None
"""Whatever the writer took for a process or thread: numbers, negative ones, text."""

NO_ARGUMENTS = msgspec.Raw(b"{}")


class Complete(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A complete event; times in us."""

    name: str = ""
    cat: str = ""
    pid: Id = None
    tid: Id = None
    ts: float = float("nan")
    dur: float = float("nan")
    args: msgspec.Raw = NO_ARGUMENTS


class ExactComplete(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """The same for starts that a float64 does not carry: those stay text."""

    name: str = ""
    cat: str = ""
    pid: Id = None
    tid: Id = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: float = float("nan")
    args: msgspec.Raw = NO_ARGUMENTS


class Metadata(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """The name of a process or thread, or how to show it."""

    name: str = ""
    pid: Id = None
    tid: Id = None
    args: msgspec.Raw = NO_ARGUMENTS


class EventPhase(msgspec.Struct):
    """The phase of an event of whatever form."""

    ph: Any = ""


_Other: Any = tuple(
    msgspec.defstruct(f"Phase{ord(letter)}", [], tag_field="ph", tag=letter, gc=False)
    for letter in "sftiIBEbneSTpFCPNODVvRcr(),"
)
"""All other phases of the format; of these nothing is read."""

_others: Any = _Other[0]
for _other in _Other[1:]:
    _others |= _other

Event: Any = Complete | Metadata | _others
ExactEvent: Any = ExactComplete | Metadata | _others
