"""The agent's file descriptors in the training process: their numbers, and reads and writes that keep the GIL.

`pread` and `pwrite` here hold the interpreter lock, `os.pread` and `os.pwrite` release it. A training thread that
releases it while another thread computes in Python may wait for that thread's switch interval, 5 ms, to get it back:
on idle cores six calls of `os.pwrite` lengthened a step of 28 ms by 7 ms, six of these by nothing that could be
measured (benchmarks/ring_cost.py). A call copies at most a slot to or from memory and takes 0.4 us (`os.pwrite`: 0.3).

The price is that the argument types are not declared, which would cost another 0.35 us: sizes and offsets are passed
as C ints, so they stay below 2**31. Both return what the C functions return as a C int, -1 for a failure, and raise
nothing. Neither declares its result: ctypes then converts it at once, without a search of its table of types.
"""

import ctypes
import errno
import fcntl
import os


class _Function(ctypes._CFuncPtr):  # type: ignore[name-defined, misc]  # noqa: SLF001
    """A C function that is called with the interpreter lock; PyDLL's own class declares a result."""

    _flags_ = ctypes._FUNCFLAG_CDECL | ctypes._FUNCFLAG_PYTHONAPI  # type: ignore[attr-defined]  # noqa: SLF001


_libc = ctypes.PyDLL(None)
pread = _Function(("pread", _libc))
pwrite = _Function(("pwrite", _libc))

HIGH_DESCRIPTOR = 900
"""Below 1,024, so that the kernel's table of descriptors stays at 8 KB, which every fork copies."""


def move_high(descriptor: int) -> int:
    """Return a duplicate of `descriptor` with a number from HIGH_DESCRIPTOR on, and close `descriptor`.

    New descriptors of the training get the lowest free number. A low number of ours that the training closed by mistake
    (a double close, `os.closerange`) would soon be the number of a file of its own, and we would write into it.

    Raises
    ------
    OSError
        The process has no descriptor left; `descriptor` is closed.
    """
    try:
        return _duplicate(descriptor)
    finally:
        os.close(descriptor)


def hold(descriptor: int) -> bool:
    """Lock the file until this process ends; forked children do not hold it. Return whether that is possible here."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _duplicate(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EMFILE):  # the process may not have as many
            raise
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0)
