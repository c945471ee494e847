"""Dumps the stacks of this process's threads on a signal of the exporter; contracts/stacks.py has the reasons.

No Python code of ours runs when the signal comes, and no handler is registered if the training, or a library of it, has
one for that signal.
"""

import contextlib
import faulthandler
import fcntl
import os
import re
import signal
from pathlib import Path

from lockstep.agent.descriptors import move_high
from lockstep.agent.stack_requests import StackRequestPipe
from lockstep.contracts.paths import stack_request_path
from lockstep.contracts.stacks import STACK_SIGNAL, STACKS_PIPE_BYTES, stacks_path

PIPE_MODE = 0o640
LOOK_INTERVAL_NS = 1_000_000_000
"""Three system calls, 3 us."""

_NO_FILE = -1
_FLAGS = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_STATUS = Path("/proc/self/status")
_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)
_DEFAULTS = (signal.SIG_DFL, signal.SIG_IGN, None)


class StackDumps:
    """Stack dumps of one process. `fact` is the signal's name while ours, else the reason (`RankFacts.stacks`)."""

    def __init__(self) -> None:
        self.fact = ""
        self._path: Path | None = None
        self._file = _NO_FILE
        self._inode = (0, 0)
        self._look_ns = 0
        self._requests: StackRequestPipe | None = None

    def begin(self, directory: Path, rank: int, trusted: frozenset[int]) -> None:
        """Register the signal for `rank`, if nothing else handles it; without it the training is still monitored.

        `trusted` are the uids from which requests through a pipe are accepted, where the exporter may not send signals.
        """
        self.end()
        try:
            if _is_caught():
                self.fact = f"the training handles {STACK_SIGNAL.name}"
                return
            self._make_pipe(stacks_path(directory, rank))
            faulthandler.register(STACK_SIGNAL, file=self._file, all_threads=True, chain=False)
        except (OSError, RuntimeError, ValueError) as error:
            self._close()
            self.fact = f"no pipe or handler: {type(error).__name__}"
            return
        self.fact = STACK_SIGNAL.name
        self._requests = StackRequestPipe(stack_request_path(directory), trusted)
        self._requests.look()

    def look(self, now_ns: int) -> None:
        """Once a second, release the signal if the training has registered it or has closed the pipe's descriptor."""
        if self._path is None or now_ns < self._look_ns:
            return
        self._look_ns = now_ns + LOOK_INTERVAL_NS
        if not self._is_ours() or signal.getsignal(STACK_SIGNAL) not in _DEFAULTS:
            self.end()
            self.fact = f"the training took {STACK_SIGNAL.name}"
        elif self._requests is not None:
            self._requests.look()

    def end(self) -> None:
        """Release the signal, and remove the pipe unless another process of the rank has put its own there."""
        path = self._path
        self.forget()
        if path is not None:
            with contextlib.suppress(OSError):
                status = path.lstat()
                if (status.st_dev, status.st_ino) == self._inode:
                    path.unlink()

    def forget(self) -> None:
        """Release the signal in a forked child; its parent keeps the pipe's name."""
        if self._requests is not None:  # before the handler goes: what has none ignores the signal
            self._requests.close()
            self._requests = None
        if (
            self._path is not None and signal.getsignal(STACK_SIGNAL) in _DEFAULTS
        ):  # else it is the training's, and stays
            faulthandler.unregister(STACK_SIGNAL)
        self.fact = ""
        self._close()

    def _make_pipe(self, path: Path) -> None:
        """Create the pipe under a temporary name, then rename it; a former attempt's is replaced."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        os.mkfifo(temporary, PIPE_MODE)
        try:
            self._file = move_high(os.open(temporary, _FLAGS))
            self._path = path
            status = os.fstat(self._file)
            self._inode = (status.st_dev, status.st_ino)
            os.fchmod(self._file, PIPE_MODE)  # whatever the umask took
            with contextlib.suppress(OSError):  # the user has as much in other pipes: 64 KiB are left
                fcntl.fcntl(self._file, fcntl.F_SETPIPE_SZ, STACKS_PIPE_BYTES)
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._is_ours():
            os.close(self._file)
        self._file, self._path = _NO_FILE, None

    def _is_ours(self) -> bool:
        """Whether the descriptor is still the pipe's; one that the training closed may be another file's by now."""
        try:
            status = os.fstat(self._file)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._inode


def _is_caught() -> bool:
    """Whether any code of this process, in C too, handles the signal.

    Raises
    ------
    OSError, ValueError
        The kernel does not show it.
    """
    found = _CAUGHT.search(_STATUS.read_text())
    if found is None:
        raise ValueError(f"{_STATUS}: got no line of caught signals, expected one")
    return bool(int(found[1], 16) >> (STACK_SIGNAL - 1) & 1)
