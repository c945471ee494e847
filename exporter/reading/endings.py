"""Observes how the ranks' processes end, through their pidfds, because another process can take over a pid.

The exporter is not their parent, so the kernel reports an exit status in only two places, each for a limited time. The
first is the process's line in /proc, until its parent waits for it (torchrun does within 0.1 s). The second, from Linux
6.15, is the pidfd from then on. Neither is available across PID namespaces; then a process that has released its ring
counts as vanished.
"""

import asyncio
import fcntl
import os
import select
import signal
import struct
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic_ns, time_ns

from exporter.kernel_files import CGROUPS, PROC, read
from exporter.reading.oom_kills import OomKills, group_oom_kills, host_oom_kills
from lockstep.contracts.messages import EXIT_CODE, SIGNAL, VANISHED, RankEnding

_GET_INFO = 0xC040FF0B  # PIDFD_GET_INFO of a struct pidfd_info of 64 bytes, as in its first version
_INFO = struct.Struct("<QQ11Ii")  # mask, cgroup, 11 ids, exit status
_INFO_EXIT = 1 << 3
_FLAGS, _START_TIME, _START_STACK, _EXIT_STATUS = 6, 19, 25, 49  # fields of proc_pid_stat(5), from the state (0) on
_PF_EXITING = 0x4  # of these flags (Linux, include/linux/sched.h)
_SIGKILL_BIT = 1 << (signal.SIGKILL - 1)  # of the masks in proc_pid_status(5)
_STATUS_BYTES = 4096
_CODE_MAX = 255


@dataclass(slots=True)
class _Watched:
    """A process: its pidfd, its start time (clock ticks since boot), and whether /proc shows how it ends.

    `oom_kills` are those of its control group. `alive_unix_ns` is when it was last known to live and not to be killed.
    A killed process that gets no CPU time takes seconds to end, so the time of its end would wrongly make it the later
    one.
    """

    pid: int
    pidfd: int
    start_time: int
    is_readable: bool
    oom_kills: OomKills
    alive_unix_ns: int
    is_dying: bool = False


class ProcessEndWatcher:
    """Watches processes under keys of the caller; runs on the event loop, and works without one.

    With a running loop, the end of a process is noticed at once, because its line in /proc soon disappears. Processes
    that have ended by then get the same time: their order is unknown.
    """

    def __init__(self, proc: str = PROC, cgroups: str = CGROUPS) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._watched: dict[str, _Watched] = {}
        self._endings: dict[str, RankEnding | None] = {}
        self._host_oom_kills = host_oom_kills(proc)

    def watch(self, key: str, pid: int) -> None:
        """Watch a process under `key`; call this repeatedly while it lives."""
        now_ns = monotonic_ns()
        self._host_oom_kills.sample(now_ns)
        known = self._watched.get(key)
        if known is not None:
            if not known.is_dying:
                known.alive_unix_ns = time_ns()
            known.oom_kills.sample(now_ns)
            known.is_readable = known.is_readable or _is_readable(self._stat(pid))  # a new one may not be yet
            return
        if key in self._endings:
            return
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # it ended meanwhile, or the kernel is older than 5.3
            return
        fields = self._stat(pid)
        watched = self._watched[key] = _Watched(
            pid,
            pidfd,
            start_time=int(fields[_START_TIME]) if fields else 0,
            is_readable=_is_readable(fields),
            oom_kills=group_oom_kills(pid, self._proc, self._cgroups),
            alive_unix_ns=time_ns(),
        )
        watched.oom_kills.sample(now_ns)
        with suppress(RuntimeError):  # no loop is running: `ending` checks
            asyncio.get_running_loop().add_reader(pidfd, self._note_ended)

    def is_watched(self, key: str) -> bool:
        """Whether the process under `key` is watched and has not ended."""
        self._look(key)
        return key in self._watched

    def has_ended(self, key: str) -> bool:
        """Whether the process under `key` was watched and has ended."""
        self._look(key)
        return key in self._endings

    def ending(self, key: str, last_sign_unix_ns: int) -> RankEnding | None:
        """Return how a process that released its ring ended, or None if it ended successfully.

        A process that was not watched has vanished, after its last sign of life.
        """
        self._look(key)
        if key in self._endings:
            return self._endings[key]
        return RankEnding(unix_ns=last_sign_unix_ns, kind=VANISHED)

    def forget(self, key: str) -> None:
        """Forget everything about `key`."""
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
        if watched is not None and _have_ended([watched.pidfd]):
            self._note_ended()

    def _note_ended(self) -> None:
        """Record all processes that have ended, with the same time."""
        now_ns = time_ns()
        ended = _have_ended([watched.pidfd for watched in self._watched.values()])
        for key, watched in list(self._watched.items()):
            if watched.pidfd in ended:
                del self._watched[key]
                self._endings[key] = self._ending(watched, now_ns)
                self._close(watched)
        if ended:
            for watched in self._watched.values():
                watched.is_dying = watched.is_dying or self._is_killed(watched.pid)

    def _is_killed(self, pid: int) -> bool:
        """Whether a living process has been sent SIGKILL or is exiting."""
        fields = self._stat(pid)
        if fields and int(fields[_FLAGS]) & _PF_EXITING:
            return True
        status = read(f"{self._proc}/{pid}/status", _STATUS_BYTES)
        masks = (line.split()[1] for line in status.splitlines() if line.startswith((b"SigPnd:", b"ShdPnd:")))
        return any(int(mask, 16) & _SIGKILL_BIT for mask in masks)

    def _ending(self, watched: _Watched, unix_ns: int) -> RankEnding | None:
        have_risen = watched.oom_kills.have_risen()
        if have_risen is None:  # its group is gone, or not visible
            have_risen = self._host_oom_kills.have_risen()
        ending = _ending(self._status(watched), unix_ns, is_out_of_memory=bool(have_risen))
        return None if ending is None else replace(ending, alive_unix_ns=min(watched.alive_unix_ns, unix_ns))

    def _status(self, watched: _Watched) -> int | None:
        """Return the wait status of a process that has ended, or None if unknown."""
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
    """Whether the kernel lets us read the protected fields of a process, which are 0 otherwise."""
    return bool(fields) and fields[_START_STACK] != b"0"


def _have_ended(pidfds: list[int]) -> set[int]:
    """Return the pidfds whose processes have ended."""
    poller = select.poll()  # select(2) refuses descriptors from 1,024 on
    for pidfd in pidfds:
        poller.register(pidfd, select.POLLIN)
    return {pidfd for pidfd, _ in poller.poll(0)}


def _ending(status: int | None, unix_ns: int, *, is_out_of_memory: bool) -> RankEnding | None:
    """Return the ending that a wait status stands for, or None for a successful one."""
    if status is None:
        return RankEnding(unix_ns=unix_ns, kind=VANISHED)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number:
        oom = is_out_of_memory and number == signal.SIGKILL
        return RankEnding(unix_ns=unix_ns, kind=SIGNAL, code=number, is_out_of_memory=oom)
    code = os.WEXITSTATUS(status) & _CODE_MAX
    return RankEnding(unix_ns=unix_ns, kind=EXIT_CODE, code=code) if code else None
