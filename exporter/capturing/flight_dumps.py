"""Requests and reads the dump that torch's Flight Recorder writes to a file, along with a rank's stacks.

The training process names the file in its environment (TORCH_FR_DUMP_TEMP_FILE, before torch 2.9
TORCH_NCCL_DEBUG_INFO_TEMP_FILE), and its ring passes the name on. Only a regular file of the ring's owner is opened.
torch writes the dump when an NCCL collective times out, and on request: ProcessGroupNCCL's monitor thread reads a named
pipe (TORCH_NCCL_DEBUG_INFO_PIPE_FILE) once a second and dumps when it contains any byte (torch/csrc/distributed/c10d,
`DumpPipe`). That thread needs neither the interpreter nor the training thread. Not yet tested on a device.
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
"""Time limit for a dump: the monitor polls once a second, and the stacks of an incident are due within five."""
_POLL_S = 0.1  # a dump that has not changed between two polls is complete
_OF_GROUP = 4  # latest collectives of each group: the one that ranks are in, and those that led to it


FileVersion = tuple[int, int, int]
"""Inode, modification time, size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightDump:
    """The dump of one rank. `since_unix_ns` is when the attempt began; `owner_uid` is the user of the rank's process.

    The paths of its file and of the pipe that requests it begin with `prefix` and `pipe_prefix`. An empty or relative
    prefix means that there is none.
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
            The pipe's name belongs to something that is another user's, or no pipe.
        OSError
            It cannot be opened or written to.
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
        except BlockingIOError:  # full: it was already requested
            return True
        finally:
            os.close(pipe)
        return True

    def version(self) -> FileVersion | None:
        """Return a value that changes when the file is written, or None if there is no file."""
        try:
            status = Path(self.path).lstat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def read(self) -> list[RecordedCollective]:
        """Return the latest collectives of each group in the dump; empty if there is no dump of this attempt.

        Raises
        ------
        MalformedError
            The file is another user's, not a regular file, or not a dump.
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
    """Wait until each requested dump has a new version and is complete, or until the time limit."""
    last, waiting = dict(former), set(former)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while waiting:
                await asyncio.sleep(_POLL_S)  # files on shared file systems offer no event to wait for
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
    """Return an upper bound of the size of these collectives in a message."""
    return sum(_SPARE_BYTES + len(each.group + each.description + each.operation + each.tensors) for each in issued)


_SPARE_BYTES = 96
"""Size of one collective on the wire, without its texts: names of fields, state, sequence."""
