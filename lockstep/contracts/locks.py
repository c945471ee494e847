"""Who holds the POSIX lock of a file: the kernel gives it back with the process, whatever children it forked."""

import fcntl
import os
import struct

_LOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid


def lock_holder(descriptor: int) -> int | None:
    """Return the pid of the other process that holds the file, 0 if it is in another PID namespace, None without one.

    Asking takes no lock. Closing the descriptor gives back a lock that this process itself has on the file.

    Raises
    ------
    OSError
        The file system knows no locks.
    """
    asked = _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else pid
