"""Writes control blocks, on one thread, the only writer of these files and of the directories that hold them.

It has its own thread because creating a file waits for the file system. Ranks have the block open, so a block of the
right version is reused and its generation continues; anything else of that name is replaced. The group of the run can
read a block. Only the exporter can write it, because its writer can order captures.
"""

import logging
import os
import queue
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from exporter.capturing.stack_request_pipe import make_request_pipe
from exporter.shared_directory import prepare_run, remove_gone
from lockstep.contracts.blob import HEAD_BYTES, read_generation, write_blob
from lockstep.contracts.capture import CaptureRequest, request_to_json
from lockstep.contracts.control_block import (
    CONTROL_BYTES,
    ORDER_BYTES,
    ORDER_OFFSET,
    check_control_header,
    pack_control_header,
)
from lockstep.contracts.errors import LocalError, MalformedError
from lockstep.contracts.paths import control_path

_log = logging.getLogger(__name__)

_MODE = 0o640
_JOBS_MAX = 64
_JOIN_S = 2.0


@dataclass(frozen=True, slots=True)
class ControlJob:
    """A request to make sure that a run has a control block, and to write `order` into it if there is one.

    Without an order, a job for a run that is gone removes what the run has left.
    """

    run: str
    directory: Path
    order: CaptureRequest | None = None


class ControlWriter:
    """Owns the control thread. `on_failure` is called on that thread, with the job and the reason."""

    def __init__(self, on_failure: Callable[[ControlJob, str], None]) -> None:
        self._on_failure = on_failure
        self._jobs: queue.Queue[ControlJob | None] = queue.Queue(_JOBS_MAX)
        self._thread = threading.Thread(target=self._work, name="control", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, job: ControlJob) -> bool:
        """Queue a job without waiting; return False if the queue is full."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            return False
        return True

    def stop(self) -> None:
        """Stop the thread after the queued jobs; give up on a job that hangs in the file system."""
        try:
            self._jobs.put(None, timeout=_JOIN_S)
        except queue.Full:
            return
        self._thread.join(_JOIN_S)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if job.order is not None or not remove_gone(job.directory):
                    write_control(job.directory, job.order)
            except (OSError, LocalError, MalformedError) as error:
                _log.warning("control block of run %s: %s", job.run, error)
                self._on_failure(job, str(error))


def write_control(directory: Path, order: CaptureRequest | None) -> None:
    """Create the control block of a run if there is none of this version, and store `order` in it.

    Raises
    ------
    OSError
        The file system refuses, or the run has no directory.
    MalformedError
        The run's directory is a link, or none.
    LocalError
        The order does not fit.
    """
    gid = prepare_run(directory)
    make_request_pipe(directory, gid)
    descriptor, generation = _open(control_path(directory), gid)
    try:
        if order is not None:
            _store(descriptor, generation + 1, order)
    finally:
        os.close(descriptor)


def _open(path: Path, gid: int) -> tuple[int, int]:
    """Return (descriptor, generation) of the block at `path` for the group `gid`; create one if none can be reused."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return _create(path, gid), 0
    except OSError as error:
        _log.warning("control block replaced: %s", error)
        return _create(path, gid), 0
    try:
        generation = _check(descriptor, gid, str(path))
    except MalformedError as error:
        _log.warning("control block replaced: %s", error)
        os.close(descriptor)
        return _create(path, gid), 0
    return descriptor, generation


def _check(descriptor: int, gid: int, where: str) -> int:
    """Return the generation of the block's order, if the block has this version, this owner and this group."""
    status = os.fstat(descriptor)
    got = (stat.filemode(status.st_mode), status.st_uid, status.st_gid)
    expected = (stat.filemode(stat.S_IFREG | _MODE), os.geteuid(), gid)
    if got != expected:
        raise MalformedError("control block", where=where, got=got, expected=expected)
    data = os.pread(descriptor, CONTROL_BYTES + 1, 0)
    check_control_header(data, where=where)
    return read_generation(memoryview(data), ORDER_OFFSET)


def _create(path: Path, gid: int) -> int:
    """Create an empty block under a temporary name, and rename it once it is complete."""
    temporary = path.with_name(f".control.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
    try:
        if os.fstat(descriptor).st_gid != gid:
            os.fchown(descriptor, -1, gid)
        os.fchmod(descriptor, _MODE)  # regardless of the umask
        os.posix_fallocate(descriptor, 0, CONTROL_BYTES)
        os.pwrite(descriptor, pack_control_header(), 0)
        temporary.replace(path)
    except OSError:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)
        raise
    return descriptor


def _store(descriptor: int, generation: int, order: CaptureRequest) -> None:
    """Store the payload first and the header last, as `write_blob` does in memory."""
    region = bytearray(ORDER_BYTES)
    write_blob(memoryview(region), 0, ORDER_BYTES, generation, request_to_json(order))
    os.pwrite(descriptor, region[HEAD_BYTES:], ORDER_OFFSET + HEAD_BYTES)
    os.pwrite(descriptor, region[:HEAD_BYTES], ORDER_OFFSET)
