"""Requests for stacks where the exporter may not signal this process: a pipe that makes the kernel send the signal.

The pipe is the exporter's, which alone writes to it; this process has it open for reading with O_ASYNC and F_SETSIG and
reads nothing. No thread waits, and no Python code runs: SIGURG arrives as if the exporter had sent it.
"""

import fcntl
import os
import stat
from pathlib import Path

from lockstep.agent.descriptors import move_high
from lockstep.agent.shared_directory import check_directory, check_owner
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.stacks import STACK_SIGNAL

_NO_FILE = -1
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class StackRequestPipe:
    """Follows the pipe at `path`, which the exporter may create late or replace. Used by the training thread only."""

    def __init__(self, path: Path, trusted: frozenset[int]) -> None:
        self._path = path
        self._trusted = trusted
        self._file = _NO_FILE
        self._inode = (0, 0)

    def look(self) -> None:
        """Open the pipe that has the path now, unless it is open; one of an untrusted user is ignored."""
        try:
            status = self._path.lstat()
            inode = status.st_dev, status.st_ino
            if inode == self._inode and self._is_ours():
                return
            self.close()
            if stat.S_ISFIFO(status.st_mode):
                self._open()
        except (OSError, MalformedError):
            return

    def close(self) -> None:
        """Accept no more requests; a descriptor that the training closed and reused is left open."""
        if self._is_ours():
            os.close(self._file)
        self._file = _NO_FILE

    def _open(self) -> None:
        file = os.open(self._path, _FLAGS)
        try:
            status = os.fstat(file)
            self._check(status)
            fcntl.fcntl(file, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(file, fcntl.F_SETSIG, STACK_SIGNAL)  # before O_ASYNC, whose own signal ends a process
            fcntl.fcntl(file, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        except BaseException:
            os.close(file)
            raise
        self._file = move_high(file)
        self._inode = status.st_dev, status.st_ino

    def _check(self, status: os.stat_result) -> None:
        check_directory(self._path.parent.parent, self._trusted, what="exporter's directory")
        check_owner(status, self._trusted, what="request of stacks", where=self._path)
        if not stat.S_ISFIFO(status.st_mode):
            got = stat.filemode(status.st_mode)
            raise MalformedError("request of stacks", where=str(self._path), got=got, expected="a pipe")

    def _is_ours(self) -> bool:
        try:
            status = os.fstat(self._file)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._inode
