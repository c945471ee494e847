"""Bounds of fields in messages, shared memory and configurations, declared in types: `Annotated[int, Range(0, 9)]`.

Decoding enforces the bounds: `codec.py` passes them to msgspec, and `violation` checks JSON from shared memory. So
arithmetic, arrays of int64 and encoders can use a decoded value without another check. A test rejects a number, text or
list of a message that declares no bound.
"""

from collections.abc import Sized
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from lockstep.contracts.limits import MONOTONIC_NS_MAX, NAME_MAX_BYTES, PROFILE_STEPS_MAX, UNIX_NS_MAX, WORLD_SIZE_MAX

MESSAGE_VERSION = 1
"""The version of all messages on the bus; it counts from the first release on."""
INT63_MAX = (1 << 63) - 1
STEP_MAX = (1 << 62) - 1
FLAGS_MAX = (1 << 32) - 1
PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class Range:
    """A number from `low` to `high`, both included; NaN is outside every range."""

    low: float
    high: float

    def __str__(self) -> str:
        """Return the `expected` part of an error."""
        return f"{self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Length:
    """The length of a text in characters, of bytes, or of a list or mapping in entries: `least` to `most`."""

    most: int
    least: int = 0

    def __str__(self) -> str:
        """Return the `expected` part of an error."""
        return f"{self.least} to {self.most} characters or entries"


@dataclass(frozen=True, slots=True)
class OneOf:
    """A text out of `values`."""

    values: tuple[str, ...]

    def __str__(self) -> str:
        """Return the `expected` part of an error."""
        return f"one of {', '.join(self.values)}"


Bound = Range | Length | OneOf

Count = Annotated[int, Range(0, INT63_MAX)]
UnixNs = Annotated[int, Range(0, UNIX_NS_MAX)]
MonotonicNs = Annotated[int, Range(0, MONOTONIC_NS_MAX)]
DurationNs = Annotated[int, Range(0, UNIX_NS_MAX)]
Flags = Annotated[int, Range(0, FLAGS_MAX)]
"""Bits; more than are defined, so that a newer agent's flag does not invalidate the message."""
Sequence = Annotated[int, Range(0, INT63_MAX)]
StreamId = Annotated[int, Range(1, INT63_MAX)]
Rank = Annotated[int, Range(0, WORLD_SIZE_MAX - 1)]
WorldSize = Annotated[int, Range(1, WORLD_SIZE_MAX)]
StepIndex = Annotated[int, Range(0, STEP_MAX)]
StepIndexOrNone = Annotated[int, Range(-1, STEP_MAX)]
"""-1 stands for no step: none captured, or the next one."""
RankOrNone = Annotated[int, Range(-1, WORLD_SIZE_MAX - 1)]
"""-1 stands for no rank: the context of the value gives it."""
CaptureSteps = Annotated[int, Range(0, PROFILE_STEPS_MAX)]
Version = Annotated[int, Range(0, (1 << 31) - 1)]
Name = Annotated[str, Length(NAME_MAX_BYTES)]
Reason = Annotated[str, Length(4096)]
"""Why something failed; not longer than a ring's region for answers."""


def unannotated(hint: Any) -> tuple[Any, Bound | None]:
    """Return the plain type of a field and its bound, or None if it declares none."""
    if get_origin(hint) is Annotated:
        plain, *metadata = get_args(hint)
        return plain, next((each for each in metadata if isinstance(each, Range | Length | OneOf)), None)
    return hint, None


def violation(value: Any, hint: Any) -> str:
    """Return what a value of the right plain type should have been, or an empty text if it is within its bound."""
    _, bound = unannotated(hint)
    match bound:
        case Range():
            return "" if bound.low <= value <= bound.high else str(bound)
        case Length():
            assert isinstance(value, Sized)
            return "" if bound.least <= len(value) <= bound.most else str(bound)
        case OneOf():
            return "" if value in bound.values else str(bound)
    return ""
