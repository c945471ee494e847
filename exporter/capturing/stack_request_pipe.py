"""A run's request pipe: the exporter writes to it to make the run's processes on this node dump their stacks.

It serves processes that the exporter may not signal: those of another user, or in another PID namespace. The agents
open the pipe for reading with O_ASYNC, so the kernel sends each of them its signal on every write (fcntl(2), F_SETSIG).
No agent reads the data; the exporter drains it before its next write. Only the exporter can write, because a writer can
slow the processes by making them dump.

The descriptor stays open as long as the run is known: the kernel also signals when the last writer closes the pipe.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.paths import stack_request_path

_MODE = 0o640
_FLAGS = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_DRAIN_BYTES = 64 << 10


def make_request_pipe(directory: Path, gid: int) -> None:
    """Create the pipe of the run of `directory` for the group `gid` unless it exists; replace anything else there.

    Raises
    ------
    OSError
        The file system refuses.
    """
    path = stack_request_path(directory)
    with suppress(FileNotFoundError):
        status = path.lstat()
        if stat.S_ISFIFO(status.st_mode) and (status.st_uid, status.st_gid) == (os.geteuid(), gid):
            return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    os.mkfifo(temporary, _MODE)
    try:
        os.chown(temporary, -1, gid)
        temporary.chmod(_MODE)  # regardless of the umask
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class RequestPipes:
    """The pipes that have been written to, by run directory. Owns their descriptors until `close`."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}

    def signal(self, directory: Path) -> None:
        """Make every process of the run on this node that has the pipe open write its stacks.

        Raises
        ------
        OSError, MalformedError
            There is no such pipe, or the exporter does not own it.
        """
        file = self._file(directory)
        with suppress(BlockingIOError):
            while os.read(file, _DRAIN_BYTES):  # kernels before 5.14 signal only when an empty pipe is written to
                pass
        os.write(file, b"\n")

    def drop(self, directory: Path) -> None:
        """Close the descriptor of a run that is gone."""
        if directory in self._open:
            os.close(self._open.pop(directory))

    def close(self) -> None:
        """Give all descriptors back."""
        for directory in list(self._open):
            self.drop(directory)

    def _file(self, directory: Path) -> int:
        path = stack_request_path(directory)
        known = self._open.get(directory)
        status = path.lstat()
        if known is not None:
            if os.path.samestat(os.fstat(known), status):
                return known
            self.drop(directory)
        if not stat.S_ISFIFO(status.st_mode) or status.st_uid != os.geteuid():
            got = stat.filemode(status.st_mode), status.st_uid
            expected = f"a pipe of uid {os.geteuid()}"
            raise MalformedError("request of stacks", where=str(path), got=got, expected=expected)
        file = os.open(path, _FLAGS)
        self._open[directory] = file
        return file
