"""The fields that are read of events' arguments, by category, and the decoding of many events' at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import ABSENT, Occupancy
from lockstep.trace.interned import Interned
from lockstep.trace.kineto.categories import ArgumentSet
from lockstep.trace.kineto.collective_args import CollectiveFields, SyncFields, decode_one, integer


class OperatorArguments(CollectiveFields, gc=False):
    """Of an operator or annotation."""

    external: Any = msgspec.field(name="External id", default=ABSENT)
    sequence: Any = msgspec.field(name="Sequence number", default=ABSENT)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b""))
    stack: Any = msgspec.field(name="Call stack", default="")


class CallArguments(msgspec.Struct, gc=False):
    """Of a call of runtime or driver."""

    external: Any = msgspec.field(name="External id", default=ABSENT)
    former_external: Any = msgspec.field(name="external id", default=ABSENT)
    correlation: Any = ABSENT
    bytes: Any = ABSENT


class KernelArguments(CollectiveFields, gc=False):
    """Of a kernel."""

    external: Any = msgspec.field(name="External id", default=ABSENT)
    former_external: Any = msgspec.field(name="external id", default=ABSENT)
    correlation: Any = ABSENT
    device: Any = ABSENT
    stream: Any = ABSENT
    blocks: msgspec.Raw = msgspec.field(name="blocks per SM", default=msgspec.Raw(b""))
    warps: msgspec.Raw = msgspec.field(name="est. achieved occupancy %", default=msgspec.Raw(b""))


class DeviceArguments(SyncFields, gc=False):
    """Of whatever else may be work of a device."""

    external: Any = msgspec.field(name="External id", default=ABSENT)
    former_external: Any = msgspec.field(name="external id", default=ABSENT)
    correlation: Any = ABSENT
    device: Any = ABSENT
    stream: Any = ABSENT
    bytes: Any = ABSENT


FORMS: dict[ArgumentSet, type[msgspec.Struct]] = {
    ArgumentSet.OPERATOR: OperatorArguments,
    ArgumentSet.CALL: CallArguments,
    ArgumentSet.KERNEL: KernelArguments,
    ArgumentSet.DEVICE: DeviceArguments,
}
_DECODERS: dict[ArgumentSet, msgspec.json.Decoder[list[Any]]] = {
    reading: msgspec.json.Decoder(list[form])  # type: ignore[valid-type]
    for reading, form in FORMS.items()
}


class EventArguments(Protocol):
    """The arguments of the events of one reading; arrays of shape (n_events,)."""

    @property
    def at(self) -> NDArray[np.intp]:
        """Return the places of these events in their block."""

    def integers(self, field: str) -> NDArray[np.int64]:
        """Return what a field of the reading's form has, ABSENT where it is no whole number."""

    def shapes(self, codes: Interned[str]) -> NDArray[np.int32]:
        """Return the codes of raw dimensions and types."""

    def stacks(self, codes: Interned[str]) -> NDArray[np.int32]:
        """Return the codes of call stacks, ABSENT where an event has none."""

    def occupancies(self, codes: Interned[Occupancy]) -> NDArray[np.int32]:
        """Return the codes of kernels' occupancies, from raw blocks and warps."""

    def parsed(self) -> tuple[NDArray[np.intp], Sequence[Any]]:
        """Return the events, by place, whose arguments were decoded, with these: all that may be of collectives."""


_FIELDS: dict[str, Callable[[Sequence[Any]], list[Any]]] = {
    "external": lambda fields: [each.external for each in fields],
    "former_external": lambda fields: [each.former_external for each in fields],
    "correlation": lambda fields: [each.correlation for each in fields],
    "sequence": lambda fields: [each.sequence for each in fields],
    "bytes": lambda fields: [each.bytes for each in fields],
    "device": lambda fields: [each.device for each in fields],
    "stream": lambda fields: [each.stream for each in fields],
}
"""Comprehensions take half the time of an `attrgetter`."""


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    """The arguments of events as objects of a form."""

    at: NDArray[np.intp]
    fields: Sequence[Any]

    def integers(self, field: str) -> NDArray[np.int64]:
        """Return what a field has; decimal digits in text count."""
        return integers(_FIELDS[field](self.fields))

    def shapes(self, codes: Interned[str]) -> NDArray[np.int32]:
        """Return the codes of raw dimensions and types."""
        dims, types = [bytes(each.dims) for each in self.fields], [bytes(each.types) for each in self.fields]
        return np.fromiter(map(codes.__getitem__, zip(dims, types, strict=True)), np.int32, len(self.fields))

    def stacks(self, codes: Interned[str]) -> NDArray[np.int32]:
        """Return the codes of call stacks, ABSENT where an event has none."""
        texts = [each.stack for each in self.fields]
        if texts.count("") == len(texts):
            return np.full(len(texts), ABSENT, np.int32)
        return np.array([codes[text] if text and isinstance(text, str) else ABSENT for text in texts], np.int32)

    def occupancies(self, codes: Interned[Occupancy]) -> NDArray[np.int32]:
        """Return the codes of raw blocks and warps."""
        blocks, warps = [bytes(each.blocks) for each in self.fields], [bytes(each.warps) for each in self.fields]
        return np.fromiter(map(codes.__getitem__, zip(blocks, warps, strict=True)), np.int32, len(self.fields))

    def parsed(self) -> tuple[NDArray[np.intp], Sequence[Any]]:
        """Return all of them."""
        return self.at, self.fields


def integers(values: Sequence[Any]) -> NDArray[np.int64]:
    """Return values as int64, array of shape (n_events,); decimal digits in text count, all else is ABSENT."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array(list(map(integer, values)), np.int64)


def decode_raws(raws: Sequence[msgspec.Raw | bytes], reading: ArgumentSet) -> list[Any]:
    """Return the arguments of each event; of those that are no object, no argument."""
    text = b"".join((b"[", b",".join(raws), b"]"))
    try:
        return _DECODERS[reading].decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return [decode_one(raw, FORMS[reading]) for raw in raws]
