"""How the processes of ranks end: seen by their pidfd, which no other process can take over as it can a pid.

The exporter is not their parent, so the kernel says more in one of two places, each for a time only: the process's own
line in /proc as long as its parent has not waited for it (torchrun does within 0.1 s), and from Linux 6.15 on the pidfd
from then on. Neither is there in another PID namespace; then a process that has released its ring has vanished.
"""

import asyncio
import fcntl
import os
import select
import signal
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic_ns, time_ns

from lockstep.contracts.messages import EXIT_CODE, SIGNAL, VANISHED, RankEnding

_GET_INFO = 0xC040FF0B  # PIDFD_GET_INFO of a struct pidfd_info of 64 bytes, the first version's
_INFO = struct.Struct("<QQ11Ii")  # mask, cgroup, 11 ids, exit status
_INFO_EXIT = 1 << 3
_START_TIME, _START_STACK, _EXIT_STATUS = 19, 25, 49  # fields of proc_pid_stat(5), from the state (0) on
_VMSTAT = Path("/proc/vmstat")
_OOM_KILL = b"\noom_kill "
_OOM_INTERVAL_NS = 1_000_000_000
_OOM_SAMPLES = 6
"""The kernel counts a kill when it begins; the memory of the process, and so its end, can take seconds after that."""
_CODE_MAX = 255


@dataclass(frozen=True, slots=True)
class _Watched:
    """A process: its pidfd, when it started (clock ticks since boot), and whether /proc says how it ends."""

    pid: int
    pidfd: int
    start_time: int
    is_readable: bool


class EndWatch:
    """Watches processes by a key of the caller's; belongs to the event loop, and works without one.

    `on_end` is called, with the key, as soon as the loop sees that a process has ended: its line in /proc goes soon.
    """

    def __init__(self, on_end: Callable[[str], None] | None = None, proc: str = "/proc") -> None:
        self._on_end = on_end or _ignore
        self._proc = proc
        self._watched: dict[str, _Watched] = {}
        self._endings: dict[str, RankEnding | None] = {}
        self._oom_kills: deque[int] = deque(maxlen=_OOM_SAMPLES)  # the kernel's count, the oldest first
        self._oom_due_ns = 0

    def watch(self, key: str, pid: int) -> None:
        """Watch a process, which exists, under `key`; to be called again and again as long as it does."""
        self._count_oom_kills()
        known = self._watched.get(key)
        if known is not None:
            if not known.is_readable and _is_readable(self._stat(pid)):  # one that just began may not be yet
                self._watched[key] = replace(known, is_readable=True)
            return
        if key in self._endings:
            return
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # it has ended meanwhile, or the kernel is older than 5.3
            return
        fields = self._stat(pid)
        self._watched[key] = _Watched(
            pid,
            pidfd,
            start_time=int(fields[_START_TIME]) if fields else 0,
            is_readable=_is_readable(fields),
        )
        with suppress(RuntimeError):  # no loop runs: `ending` looks
            asyncio.get_running_loop().add_reader(pidfd, self._ended, key)

    def is_watched(self, key: str) -> bool:
        """Whether the process under `key` is watched and has not ended."""
        self._look(key)
        return key in self._watched

    def ending(self, key: str, last_sign_unix_ns: int) -> RankEnding | None:
        """Return how a process ended that has released its ring, None where it ended well.

        One that was not watched has vanished, after the last sign of life that it gave.
        """
        self._look(key)
        if key in self._endings:
            return self._endings[key]
        return RankEnding(unix_ns=last_sign_unix_ns, kind=VANISHED)

    def forget(self, key: str) -> None:
        """Drop all that is known under `key`."""
        self._endings.pop(key, None)
        watched = self._watched.pop(key, None)
        if watched is not None:
            self._close(watched)

    def close(self) -> None:
        """Give all descriptors back."""
        for key in list(self._watched):
            self.forget(key)

    def _look(self, key: str) -> None:
        watched = self._watched.get(key)
        if watched is not None and select.select([watched.pidfd], [], [], 0)[0]:
            self._ended(key)

    def _ended(self, key: str) -> None:
        now_ns = time_ns()
        watched = self._watched.pop(key, None)
        if watched is None:
            return
        status = self._status(watched)
        self._close(watched)
        oom = bool(self._oom_kills) and oom_kills() > self._oom_kills[0] >= 0
        self._endings[key] = _ending(status, now_ns, is_out_of_memory=oom)
        self._on_end(key)

    def _status(self, watched: _Watched) -> int | None:
        """Return the wait status of a process that has ended, None where it is not known."""
        if watched.is_readable:
            fields = self._stat(watched.pid)
            if fields and int(fields[_START_TIME]) == watched.start_time:
                return int(fields[_EXIT_STATUS])
        info = bytearray(_INFO.size)
        struct.pack_into("<Q", info, 0, _INFO_EXIT)
        try:
            fcntl.ioctl(watched.pidfd, _GET_INFO, info)
        except OSError:  # before Linux 6.15, or not waited for yet
            return None
        mask, *_, status = _INFO.unpack(info)
        return status if mask & _INFO_EXIT else None

    def _count_oom_kills(self) -> None:
        now_ns = monotonic_ns()
        if now_ns >= self._oom_due_ns:
            self._oom_due_ns = now_ns + _OOM_INTERVAL_NS
            self._oom_kills.append(oom_kills())

    def _stat(self, pid: int) -> list[bytes]:
        try:
            return Path(self._proc, str(pid), "stat").read_bytes().rpartition(b") ")[2].split()
        except OSError:
            return []

    def _close(self, watched: _Watched) -> None:
        with suppress(RuntimeError, ValueError):
            asyncio.get_running_loop().remove_reader(watched.pidfd)
        os.close(watched.pidfd)


def _is_readable(fields: list[bytes]) -> bool:
    """Whether the kernel shows us the protected fields of a process, which are 0 for others."""
    return bool(fields) and fields[_START_STACK] != b"0"


def oom_kills() -> int:
    """Return how many processes of this host the kernel has killed for want of memory, -1 where it does not tell."""
    try:
        _, _, count = _VMSTAT.read_bytes().partition(_OOM_KILL)
    except OSError:
        return -1
    return int(count.split(b"\n", 1)[0]) if count else -1


def _ending(status: int | None, unix_ns: int, *, is_out_of_memory: bool) -> RankEnding | None:
    """Return the ending that a wait status means, None for a process that ended well."""
    if status is None:
        return RankEnding(unix_ns=unix_ns, kind=VANISHED)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number:
        oom = is_out_of_memory and number == signal.SIGKILL
        return RankEnding(unix_ns=unix_ns, kind=SIGNAL, code=number, is_out_of_memory=oom)
    code = os.WEXITSTATUS(status) & _CODE_MAX
    return RankEnding(unix_ns=unix_ns, kind=EXIT_CODE, code=code) if code else None


def _ignore(_key: str) -> None:
    pass
