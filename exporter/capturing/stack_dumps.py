"""Asks processes to write the stacks of their threads, and reads the result. No process is stopped.

The signal is sent to a pidfd, because another process can take over a pid. It is sent only while that process holds the
rank's ring and has the pipe for its stacks open; otherwise it is a different process, or has no handler. If one process
of a run cannot be signalled from here, all of its processes get the signal through the run's request pipe
(`stack_request_pipe.py`), because two signals would make two dumps.
"""

import contextlib
import os
import select
import signal
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Protocol

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.stacks import STACK_SIGNAL, STACKS_PIPE_BYTES

DUMP_SECONDS = 2.0
"""Time limit for a process to write its stacks; it takes a millisecond if the process runs at all."""
_QUIET_S = 0.1  # without new bytes: the format has no end mark
_POLL_S = 0.02
_READ_MAX_BYTES = 4 * STACKS_PIPE_BYTES  # of one dump, which keeps growing while it is read
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "in an uninterruptible system call"}


class Holder(Protocol):
    """The process that holds a ring (`ring_file.RingHolder`)."""

    @property
    def pid(self) -> int | None:
        """The process's pid in this PID namespace."""

    @property
    def is_gone(self) -> bool:
        """Whether no process holds it any more."""


class OwnedRing(Protocol):
    """A ring whose holder can be queried."""

    owner_uid: int

    def holder(self) -> Holder:
        """Return who holds the ring."""


@dataclass(slots=True)
class DumpTarget:
    """A process that can write its stacks; owns both descriptors until `close`.

    `pid` is 0 and `pidfd` -1 for a process in another PID namespace.
    """

    rank: int
    pid: int
    pidfd: int
    pipe: int
    where: str

    def close(self) -> None:
        """Close the descriptors; safe to call again."""
        for descriptor in (self.pidfd, self.pipe):
            if descriptor >= 0:
                os.close(descriptor)
        self.pidfd = self.pipe = -1


def open_target(path: Path, rank: int, ring: OwnedRing) -> DumpTarget:
    """Return the process that holds `ring` and has the pipe `path` open; the caller closes it.

    Raises
    ------
    MalformedError, OSError
        There is none, or it cannot be reached from here.
    """
    target = DumpTarget(rank, 0, -1, -1, str(path))
    try:
        target.pipe = os.open(path, _FLAGS)
        _check_pipe(target, ring.owner_uid)
        _open_process(target, ring)
    except BaseException:
        target.close()
        raise
    return target


def _check_pipe(target: DumpTarget, owner_uid: int) -> None:
    """Check that the pipe is the run's and that a process has it open for writing; discard its old content."""
    status = os.fstat(target.pipe)
    got = stat.filemode(status.st_mode), status.st_uid
    if not stat.S_ISFIFO(status.st_mode) or status.st_uid != owner_uid:
        raise MalformedError("stacks", where=target.where, got=got, expected=f"a pipe of uid {owner_uid}")
    if _drain(target.pipe, _READ_MAX_BYTES)[1]:
        got_end = "nothing that writes into it"
        raise MalformedError("stacks", where=target.where, got=got_end, expected="the rank's process")


def _open_process(target: DumpTarget, ring: OwnedRing) -> None:
    target.pid = _holder_pid(ring, target.where)
    if not target.pid:
        return
    target.pidfd = os.pidfd_open(target.pid)
    if _holder_pid(ring, target.where) != target.pid:  # the process may have ended before the pidfd was opened
        raise MalformedError("process", where=target.where, got="another one", expected="the ring's holder")


def _holder_pid(ring: OwnedRing, where: str) -> int:
    """Return the pid of the process that holds the ring, 0 if it is in another PID namespace."""
    holder = ring.holder()
    if holder.is_gone:
        raise MalformedError(
            "process of the rank", where=where, got="none: it has ended", expected="one that holds the ring"
        )
    return holder.pid or 0


def dump_stacks(
    targets: Sequence[DumpTarget], request: Callable[[], None], *, limit_s: float = DUMP_SECONDS
) -> dict[int, bytes | str]:
    """Return each rank's stacks as its process wrote them, or why there are none. Blocks for at most `limit_s`.

    `request` makes all processes of the run write their stacks; it is called if one of them cannot be signalled.
    """
    found: dict[int, bytes | str] = {**_ask(targets, request)}
    waiting = {target.pipe: _Dump(target) for target in targets if target.rank not in found}
    poll = select.poll()
    for pipe in waiting:
        poll.register(pipe, select.POLLIN)
    deadline_s = monotonic() + limit_s
    while waiting and monotonic() < deadline_s:
        for pipe, _ in poll.poll(_POLL_S * 1e3):
            if not waiting[pipe].read(monotonic()):
                poll.unregister(pipe)
        for pipe, dump in list(waiting.items()):
            if dump.is_over(monotonic()):
                with contextlib.suppress(KeyError):
                    poll.unregister(pipe)
                found[dump.target.rank] = waiting.pop(pipe).result()
    return found | {dump.target.rank: dump.result() for dump in waiting.values()}


def _ask(targets: Sequence[DumpTarget], request: Callable[[], None]) -> dict[int, str]:
    """Make each process write its stacks once; return the reason for each one that could not be asked."""
    refused = {target.rank: reason for target in targets if (reason := _refusal(target, 0))}
    if not refused:
        return {target.rank: reason for target in targets if (reason := _refusal(target, STACK_SIGNAL))}
    try:
        request()
    except (OSError, MalformedError) as error:
        others = [target for target in targets if target.rank not in refused]
        late = {target.rank: reason for target in others if (reason := _refusal(target, STACK_SIGNAL))}
        return late | {rank: f"{reason}, nor be asked by the run's pipe: {error}" for rank, reason in refused.items()}
    return {}


def _refusal(target: DumpTarget, number: int) -> str:
    """Send a process the signal `number` (0 only checks); return why that is not possible, empty if it is."""
    if target.pidfd < 0:
        return f"the process cannot be sent {STACK_SIGNAL.name}: it is in another PID namespace"
    try:
        signal.pidfd_send_signal(target.pidfd, number)
    except OSError as error:
        return f"the process cannot be sent {STACK_SIGNAL.name}: {error.strerror}"
    return ""


class _Dump:
    """The stacks that one process has written so far."""

    def __init__(self, target: DumpTarget) -> None:
        self.target = target
        self._data = bytearray()
        self._last_s: float | None = None
        self._has_ended = False

    def read(self, now_s: float) -> bool:
        """Read what is available; return whether more may come."""
        new, self._has_ended = _drain(self.target.pipe, _READ_MAX_BYTES - len(self._data))
        self._data += new
        if new:
            self._last_s = now_s
        return not self._has_ended and len(self._data) < _READ_MAX_BYTES

    def is_over(self, now_s: float) -> bool:
        """Whether the dump is complete, as far as this can be known."""
        is_quiet = self._last_s is not None and now_s - self._last_s >= _QUIET_S
        return is_quiet or self._has_ended or len(self._data) >= _READ_MAX_BYTES

    def result(self) -> bytes | str:
        """Return the dump, or why there is none."""
        if self._data:
            return bytes(self._data)
        state = _STATES.get(_state(self.target.pid), "")
        return f"the process is {state}" if state else "the process wrote no stack: none of its threads took the signal"


def _drain(pipe: int, max_bytes: int) -> tuple[bytes, bool]:
    """Return up to `max_bytes` bytes of the pipe's content, and whether no process has it open for writing."""
    data = bytearray()
    while len(data) < max_bytes:
        try:
            part = os.read(pipe, min(STACKS_PIPE_BYTES, max_bytes - len(data)))
        except BlockingIOError:
            return bytes(data), False
        if not part:
            return bytes(data), True
        data += part
    return bytes(data), False


def _state(pid: int) -> str:
    """Return the state of a process (proc_pid_stat(5)), empty if it is gone."""
    try:
        return Path("/proc", str(pid), "stat").read_bytes().rpartition(b") ")[2][:1].decode()
    except OSError:
        return ""
