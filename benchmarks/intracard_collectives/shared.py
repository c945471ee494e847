# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""The memory of one rank that its peers read: two slots, in a file that has no name.

The file is a memfd: its space is reserved before it is used, it cannot be cut under a reader (sealed), and the kernel
frees it with the last process that holds it, so that a crash leaves nothing behind. A peer maps it read-only.

Array names end in U where they are bytes (uint8).
"""

import fcntl
import mmap
import os

import numpy as np
import numpy.typing as npt

from lockstep.contracts.errors import ConfigError, MalformedError

SLOTS = 2
"""A rank writes one while its peers may still read the other; `Mesh` proves that two are enough."""
SLOT_BYTES_MAX = 1 << 32
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

Bytes = npt.NDArray[np.uint8]


def make(slot_bytes: int) -> int:
    """Return the descriptor of new memory for two slots; the caller closes it.

    Raises
    ------
    ConfigError
        `slot_bytes` is out of range, or the node has not that much memory for it.
    """
    if not mmap.PAGESIZE <= slot_bytes <= SLOT_BYTES_MAX or slot_bytes % mmap.PAGESIZE:
        raise ConfigError(
            f"slot_bytes: got {slot_bytes}, expected a multiple of {mmap.PAGESIZE} up to {SLOT_BYTES_MAX}"
        )
    descriptor = os.memfd_create("lockstep-intracard", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, SLOTS * slot_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(f"slot_bytes: got {slot_bytes}, expected memory for {SLOTS} slots ({error})") from error
    return descriptor


def map_own(descriptor: int, slot_bytes: int) -> list[Bytes]:
    """Return the two slots of this rank, to write."""
    return _slots(mmap.mmap(descriptor, SLOTS * slot_bytes), slot_bytes)


def map_peer(descriptor: int, slot_bytes: int, where: str) -> list[Bytes]:
    """Return the two slots of a peer, to read.

    Raises
    ------
    MalformedError
        The memory is not of that size, or may still be cut, which would kill its reader.
    """
    got = os.fstat(descriptor).st_size
    if got != SLOTS * slot_bytes:
        raise MalformedError("size of shared memory", where=where, got=got, expected=SLOTS * slot_bytes)
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise MalformedError("shared memory", where=where, got=error, expected="a sealed memfd") from error
    if not seals & fcntl.F_SEAL_SHRINK:
        raise MalformedError("seals of shared memory", where=where, got=seals, expected="sealed against cutting")
    return _slots(mmap.mmap(descriptor, got, prot=mmap.PROT_READ), slot_bytes)


def _slots(memory: mmap.mmap, slot_bytes: int) -> list[Bytes]:
    memory_U = np.frombuffer(memory, dtype=np.uint8)
    return [memory_U[begin : begin + slot_bytes] for begin in range(0, SLOTS * slot_bytes, slot_bytes)]
