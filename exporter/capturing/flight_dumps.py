"""The dump of torch's Flight Recorder that a rank's process leaves as a file, requested and read with its stacks.

The training names the file in its environment (TORCH_FR_DUMP_TEMP_FILE, before torch 2.9
TORCH_NCCL_DEBUG_INFO_TEMP_FILE), and its rings name it to us: only a regular file of the ring's owner is opened. torch
writes it when a collective of NCCL times out, and on request: ProcessGroupNCCL's monitor thread reads a named pipe
(TORCH_NCCL_DEBUG_INFO_PIPE_FILE) once a second, and dumps when any byte is in it (torch/csrc/distributed/c10d,
`DumpPipe`). The thread needs neither the interpreter nor the training's own thread. Never run on a device.
"""

import asyncio
import errno
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import ISSUED_MAX
from lockstep.contracts.messages import RecordedCollective
from lockstep.trace.flight_recorder import DUMP_MAX_BYTES, FlightEntry, last_of_groups, parse_dump

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_PIPE_FLAGS = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
WRITTEN_SECONDS = 2.5
"""Given to processes to dump: the monitor looks once a second, and an incident has its stacks within five."""
_LOOK_S = 0.1  # a dump that has not changed since the last look is whole
_OF_GROUP = 4  # collectives of each group: what ranks are in, and what led there


FileVersion = tuple[int, int, int]
"""Inode, time of the last change, size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightDump:
    """The dump of one rank. `since_unix_ns` is when the attempt began, `owner_uid` whose process the rank is.

    `prefix` and `pipe_prefix` begin the paths of its file and of the pipe that requests it; empty or relative ones are
    none.
    """

    rank: int
    prefix: str
    pipe_prefix: str
    owner_uid: int
    since_unix_ns: int

    @property
    def path(self) -> str:
        """The file's path."""
        return f"{self.prefix}{self.rank}"

    def request(self) -> bool:
        """Ask the process to write its dump; return whether it reads such requests.

        Raises
        ------
        MalformedError
            What has the pipe's name is another user's, or no pipe.
        OSError
            It cannot be opened or written into.
        """
        if not (self.prefix.startswith("/") and self.pipe_prefix.startswith("/")):
            return False
        path = f"{self.pipe_prefix}{self.rank}.pipe"
        try:
            pipe = os.open(path, _PIPE_FLAGS)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENXIO):  # ENXIO: no process has it open for reading
                return False
            raise
        try:
            self._check(os.fstat(pipe), path, stat.S_ISFIFO, "a pipe")
            os.write(pipe, b"1")
        except BlockingIOError:  # full: it has been asked
            return True
        finally:
            os.close(pipe)
        return True

    def version(self) -> FileVersion | None:
        """Return what changes when the file is written, None where there is none."""
        try:
            status = Path(self.path).lstat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def read(self) -> list[RecordedCollective]:
        """Return what the dump holds of each group's last collectives; empty where there is none of this attempt.

        Raises
        ------
        MalformedError
            The file is another user's, no regular file, or no dump.
        OSError
            It cannot be read.
        """
        if not self.prefix.startswith("/"):
            return []
        try:
            file = os.open(self.path, _FLAGS)
        except FileNotFoundError:
            return []
        with os.fdopen(file, "rb") as dump:
            status = os.fstat(file)
            self._check(status, self.path, stat.S_ISREG, "a file")
            if status.st_mtime_ns < self.since_unix_ns:
                return []
            entries = parse_dump(dump.read(DUMP_MAX_BYTES + 1), where=self.path)
        found = last_of_groups(entries, groups=ISSUED_MAX // _OF_GROUP, each=_OF_GROUP)
        return [_issued(entry) for entry in found if entry.sequence >= 0]

    def _check(self, status: os.stat_result, path: str, is_kind: Callable[[int], bool], kind: str) -> None:
        if not is_kind(status.st_mode) or status.st_uid != self.owner_uid:
            got = stat.filemode(status.st_mode), status.st_uid
            raise MalformedError("flight recorder", where=path, got=got, expected=f"{kind} of uid {self.owner_uid}")


async def wait_written(former: Mapping[FlightDump, FileVersion | None], seconds: float = WRITTEN_SECONDS) -> None:
    """Wait until the file of each requested dump is another than its former version and whole, or the time is over."""
    last, waiting = dict(former), set(former)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while waiting:
                await asyncio.sleep(_LOOK_S)  # files on shared file systems have no event to wait for
                for dump in list(waiting):
                    version = dump.version()
                    if version == last[dump] != former[dump]:
                        waiting.discard(dump)
                    last[dump] = version


def _issued(entry: FlightEntry) -> RecordedCollective:
    return RecordedCollective(
        group=entry.group,
        description=entry.description,
        sequence=entry.sequence,
        operation=entry.operation,
        tensors=entry.tensors,
        state="completed" if entry.is_retired else entry.state,
    )


def issued_bytes(issued: list[RecordedCollective]) -> int:
    """Return how much of a message these take at most."""
    return sum(_SPARE_BYTES + len(each.group + each.description + each.operation + each.tensors) for each in issued)


_SPARE_BYTES = 96
"""Of one on the wire, without its texts: names of fields, state, sequence."""
