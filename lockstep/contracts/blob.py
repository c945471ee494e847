"""A JSON value in a fixed region of a shared file: one writer, many readers, no lock.

Layout, little-endian: generation u64, length u32, CRC-32 u32 (over generation, length and payload), payload. The
payload is stored first and the 16-byte header last, in one slice store. A reader that finds the two inconsistent sees a
wrong checksum and retries at its next poll: if the writer is killed in between, only that value is lost. The generation
alone answers "is there something new?" with one integer comparison.
"""

import json
import struct
import zlib
from typing import Any

from lockstep.contracts.errors import LocalError

_HEAD = struct.Struct("<QII")
_GENERATION = struct.Struct("<Q")
_SEED = struct.Struct("<QI")
HEAD_BYTES = _HEAD.size


def read_generation(view: memoryview, offset: int) -> int:
    """Return the generation stored at `offset`; 0 means that no value was ever written."""
    return int(_GENERATION.unpack_from(view, offset)[0])


def write_blob(view: memoryview, offset: int, capacity_bytes: int, generation: int, value: Any) -> None:
    """Store `value` as JSON.

    Only the file's single writer may call this. `capacity_bytes` includes the header.

    Raises
    ------
    LocalError
        The value does not fit; the region keeps its previous content.
    """
    payload = json.dumps(value, separators=(",", ":")).encode()
    if HEAD_BYTES + len(payload) > capacity_bytes:
        raise LocalError(
            f"value for a shared region at offset {offset}: got {len(payload)} bytes, "
            f"expected at most {capacity_bytes - HEAD_BYTES}"
        )
    crc = zlib.crc32(payload, zlib.crc32(_SEED.pack(generation, len(payload))))
    start = offset + HEAD_BYTES
    view[start : start + len(payload)] = payload
    view[offset:start] = _HEAD.pack(generation, len(payload), crc)


def read_blob(view: memoryview, offset: int, capacity_bytes: int) -> tuple[int, Any] | None:
    """Return (generation, value), or None if no complete value is stored there at this moment.

    A payload that is complete but not JSON, or nested too deeply, reads as the value None. JSON can spell half of a
    surrogate pair, as in Python's file names, which cannot be encoded again: it reads as a question mark.
    """
    generation, length, crc = _HEAD.unpack_from(view, offset)
    if generation == 0 or HEAD_BYTES + length > capacity_bytes:
        return None
    start = offset + HEAD_BYTES
    payload = bytes(view[start : start + length])
    if zlib.crc32(payload, zlib.crc32(_SEED.pack(generation, length))) != crc:
        return None
    try:
        value = json.loads(payload.decode())
        if b"\\ud" in payload.lower():
            value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):  # complete, so the writer is at fault: null, which no reader accepts
        return generation, None
    return generation, value
