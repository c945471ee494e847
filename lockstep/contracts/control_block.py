"""Byte layout of the control block, through which the ranks of one run on one node are asked to capture.

    0    header    magic, version
    64   order     blob: one CaptureRequest (contracts/capture.py)

There is one file per run and node. Only the exporter's control thread writes it. Every rank reads it when it stores
marks, with one integer comparison (the blob's generation).
"""

import struct

from lockstep.contracts.blob import HEAD_BYTES
from lockstep.contracts.errors import ContractVersionError, MalformedError

CONTROL_MAGIC = b"LKSTCTRL"
CONTROL_VERSION = 2
ORDER_OFFSET = 64
CONTROL_BYTES = 8192
ORDER_BYTES = CONTROL_BYTES - ORDER_OFFSET

_HEADER = struct.Struct("<8sII")


def pack_control_header() -> bytes:
    """Return the header of a control block."""
    return _HEADER.pack(CONTROL_MAGIC, CONTROL_VERSION, CONTROL_BYTES)


def check_control_header(data: bytes | memoryview, *, where: str) -> None:
    """Refuse data that is not a control block of this version.

    Raises
    ------
    MalformedError, ContractVersionError
        It is not a control block, or one of another version.
    """
    if len(data) < ORDER_OFFSET + HEAD_BYTES:
        raise MalformedError("control block size", where=where, got=len(data), expected=CONTROL_BYTES)
    magic, version, size = _HEADER.unpack_from(data)
    if magic != CONTROL_MAGIC:
        raise MalformedError("magic", where=where, got=magic, expected=CONTROL_MAGIC)
    if (version, size) != (CONTROL_VERSION, CONTROL_BYTES) or len(data) != CONTROL_BYTES:
        raise ContractVersionError(
            "control version, bytes",
            where=where,
            got=(version, size),
            expected=(CONTROL_VERSION, CONTROL_BYTES),
        )
