"""The fields that are read of events' arguments, by category, and the decoding of many events' at once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import ABSENT
from lockstep.trace.kineto.categories import ArgumentSet
from lockstep.trace.kineto.rare import CollectiveFields, SyncFields, decode_one


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


class ParsedArguments(NamedTuple):
    """The arguments of the events of one reading, and these events' places in their block."""

    at: NDArray[np.intp]
    fields: Sequence[Any]


def decode_raws(raws: Sequence[msgspec.Raw], reading: ArgumentSet) -> list[Any]:
    """Return the arguments of each event; of those that are no object, no argument."""
    text = b"".join((b"[", b",".join(raws), b"]"))
    try:
        return _DECODERS[reading].decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return [decode_one(raw, FORMS[reading]) for raw in raws]
