"""Finds the process that holds a file's POSIX lock. The kernel releases the lock when that process ends.

Children that the process forked do not inherit the lock.
"""

import fcntl
import os
import struct

_LOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid


def lock_holder(descriptor: int) -> int | None:
    """Return the pid of the other process that locks the file, 0 if it is in another PID namespace, None if unlocked.

    Querying takes no lock. Closing the descriptor releases any lock that this process itself has on the file.

    Raises
    ------
    OSError
        The file system does not support locks.
    """
    asked = _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else pid
