"""The writer of a rank's ring file, all but its blocks; contracts/ring.py is the layout.

Blocks, the counts of issues and the running step's flags are written by the MarkBuffer, through the file opened here.
The rest lives in private memory, and each store copies what it changed to the file. A file that somebody cuts or
removes, or that has no space left, therefore costs a file, and never the training: the same stores to a shared mapping
end the process with SIGBUS.

The file is made under a temporary name with its space reserved, so that a full file system is an error here, then
renamed: a restarted rank replaces the file of its former attempt. Once a second `show_life` looks whether the file is
whole and has its name. One that was cut or removed is written again, without the blocks that were in it; where another
process of the same run and rank has replaced it, the agent ends.
"""

import ctypes
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import finalize

from lockstep.agent.boundary import warn
from lockstep.agent.descriptors import hold, move_high, pwrite
from lockstep.agent.shared_directory import make_run_directory
from lockstep.contracts import ring as layout
from lockstep.contracts.blob import write_blob
from lockstep.contracts.errors import LocalError
from lockstep.contracts.paths import ring_path

FILE_MODE = 0o640
INSPECT_INTERVAL_NS = 1_000_000_000
"""Four system calls, 4 us."""

_WORD_BYTES = 8
_NO_FILE = -1
_HEARTBEAT = layout.WORD_HEARTBEAT
_HEARTBEAT_OFFSET = layout.WORD_HEARTBEAT * _WORD_BYTES
FLAGS_OFFSET = layout.WORD_FLAGS * _WORD_BYTES


class RingWriter:
    """The one writer of `<directory>/<rank>.ring`; used by the training thread only. `file` is its descriptor."""

    __slots__ = (
        "__weakref__",
        "_generations",
        "_header",
        "_heartbeat_at",
        "_image",
        "_inode",
        "_inspect_due_ns",
        "_is_stored",
        "_release",
        "_rewritten",
        "_view",
        "_words",
        "block_count",
        "file",
        "file_bytes",
        "path",
    )

    def __init__(self, directory: Path, header: layout.RingHeader) -> None:
        """Create the file.

        Raises
        ------
        OSError
            No space, no permission, a file-size limit: nothing is left behind.
        MalformedError
            Something else has the directory's name, or it is another user's.
        """
        self.path = ring_path(directory, header.rank)
        self.file_bytes = header.file_bytes
        self.block_count = header.block_count
        image = bytearray(layout.BLOCKS_OFFSET)
        self._image = (ctypes.c_char * layout.BLOCKS_OFFSET).from_buffer(image)
        self._view = memoryview(image)
        self._words = self._view.cast("Q")  # native order: bootstrap refuses big-endian hosts
        self._header = layout.pack_header(header)
        self._view[: len(self._header)] = self._header
        self._words[_HEARTBEAT] = time.monotonic_ns()
        self._words[layout.WORD_STATE] = layout.STATE_RUNNING
        self._heartbeat_at = ctypes.byref(self._image, _HEARTBEAT_OFFSET)
        self._generations = dict.fromkeys(
            (layout.ENDING_OFFSET, layout.ANSWER_OFFSET, layout.GROUPS_OFFSET, layout.FACTS_OFFSET), 0
        )
        self._rewritten = 0
        self._inspect_due_ns = time.monotonic_ns() + INSPECT_INTERVAL_NS
        self._is_stored = True
        self.file = _NO_FILE
        try:
            self._create()
        except BaseException:
            if self.file != _NO_FILE:
                os.close(self.file)
            raise
        # Open for as long as we live, for the lock; at exit the process's end is early enough to give both back.
        self._release = finalize(self, os.close, self.file)
        self._release.atexit = False

    def show_life(self, now_ns: int, *, is_stored: bool = True, has_stepped: bool = True) -> bool:
        """Store a heartbeat (CLOCK_MONOTONIC, ns); return whether the file had to be written again.

        The file is inspected once a second while steps end (`has_stepped`), and immediately if a store by the mark
        buffer has failed (not `is_stored`). A process that ends no steps is not inspected: a child may have taken its
        rank, and the child's file then has the name.

        Raises
        ------
        OSError, LocalError
            The file is lost and no other one can be made.
        """
        self._words[_HEARTBEAT] = now_ns
        self._is_stored &= is_stored
        if (has_stepped and now_ns >= self._inspect_due_ns) or not is_stored:
            self._inspect_due_ns = now_ns + INSPECT_INTERVAL_NS
            if self._inspect():
                return True
        if pwrite(self.file, self._heartbeat_at, _WORD_BYTES, _HEARTBEAT_OFFSET) != _WORD_BYTES:
            self._is_stored = False
        return False

    def set_state(self, state: int, failures: int = 0) -> None:
        """Store the agent's state and how often its hooks failed."""
        self._words[layout.WORD_FAILURES] = self._rewritten + failures
        self._words[layout.WORD_STATE] = state
        self._store(layout.WORD_STATE * _WORD_BYTES, 2 * _WORD_BYTES)

    def set_thread(self, thread: int) -> None:
        """Store the id of the training thread (`threading.get_ident`)."""
        self._words[layout.WORD_THREAD] = thread
        self._store(layout.WORD_THREAD * _WORD_BYTES, _WORD_BYTES)

    def set_device_memory(self, sizes_bytes: tuple[int, int, int, int]) -> None:
        """Store the device's memory in bytes: reserved, allocated, peak allocated, and total."""
        for place, size_bytes in enumerate(sizes_bytes, layout.WORD_DEVICE_MEMORY):
            self._words[place] = size_bytes
        self._store(layout.DEVICE_MEMORY_OFFSET, layout.DEVICE_MEMORY_BYTES)

    def withdraw(self) -> None:
        """Remove the file, because this process turned out to be another rank; the last call to this object."""
        self.set_state(layout.STATE_FINISHED)
        with suppress(OSError, LocalError):
            if self._is_ours() and self._has_name():
                self.path.unlink()
                self.path.parent.rmdir()  # where no other ring is

    def write_answer(self, value: Any) -> None:
        """Store this rank's answer to its capture request (`capture.result_to_json`)."""
        self._write_blob(layout.ANSWER_OFFSET, layout.ANSWER_BYTES, value)

    def write_groups(self, value: Any) -> None:
        """Store the process groups of this rank, a list of objects as `groups.Groups` makes them.

        Raises
        ------
        LocalError
            They do not fit; the groups stored before stay.
        """
        self._write_blob(layout.GROUPS_OFFSET, layout.GROUPS_BYTES, value)

    def write_facts(self, value: Any) -> None:
        """Store what this rank runs on (`facts.facts_to_json`)."""
        self._write_blob(layout.FACTS_OFFSET, layout.FACTS_BYTES, value)

    def write_ending(self, value: Any) -> None:
        """Store how the process ends (`ending.describe_ending`)."""
        self._write_blob(layout.ENDING_OFFSET, layout.ENDING_BYTES, value)

    def _write_blob(self, offset: int, capacity_bytes: int, value: Any) -> None:
        write_blob(self._view, offset, capacity_bytes, self._generations[offset] + 1, value)
        self._generations[offset] += 1
        self._store(offset, capacity_bytes)

    def _store(self, offset: int, size_bytes: int) -> None:
        """Copy a part of the ring to the file; if this fails, the next sign of life writes all of it again."""
        if pwrite(self.file, ctypes.byref(self._image, offset), size_bytes, offset) != size_bytes:
            self._is_stored = False
            self._inspect_due_ns = 0

    def _inspect(self) -> bool:
        """See that the file is whole and has its name; write the ring again where it is not, and return True then."""
        if not self._is_ours():
            self._release.detach()
            self.file = _NO_FILE
            raise LocalError(f"descriptor of {self.path}: got closed, expected open: this process closed it")
        if not self._has_name():
            self._create(replaces=False)
        elif self._is_whole():
            return False
        else:
            self._fill()
        self._rewritten += 1
        self._words[layout.WORD_FAILURES] = self._rewritten
        self._store(layout.WORD_FAILURES * _WORD_BYTES, _WORD_BYTES)
        if self._rewritten == 1:
            warn(f"{self.path} was cut or removed: written again")
        return True

    def _is_ours(self) -> bool:
        """Whether the descriptor is still the ring's; one that the training closed may be another file's by now."""
        try:
            status = os.fstat(self.file)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._inode

    def _has_name(self) -> bool:
        """Whether the file has its name; where another one has it, the rank is that one's process now."""
        try:
            status = self.path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        if (status.st_dev, status.st_ino) != self._inode:
            raise LocalError(f"{self.path}: got a file of somebody else, expected the ring of this process")
        return True

    def _is_whole(self) -> bool:
        is_long = os.fstat(self.file).st_size == self.file_bytes
        return self._is_stored and is_long and os.pread(self.file, len(self._header), 0) == self._header

    def _create(self, *, replaces: bool = True) -> None:
        """Make a file of what the ring holds; unless it `replaces` one, nothing else may have its name.

        The descriptor keeps its number: other threads use it meanwhile.
        """
        make_run_directory(self.path.parent)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)  # left by a process of this pid that was killed right here
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        try:
            os.fchmod(file, FILE_MODE)  # whatever the umask took
            if self.file == _NO_FILE:
                self.file = move_high(file)
            else:
                os.dup2(file, self.file, inheritable=False)
                os.close(file)
            self._words[layout.WORD_HELD] = hold(self.file)
            self._fill()
            if replaces:
                temporary.rename(self.path)
            else:
                self.path.hardlink_to(temporary)
        finally:
            temporary.unlink(missing_ok=True)
        status = os.fstat(self.file)
        self._inode = (status.st_dev, status.st_ino)

    def _fill(self) -> None:
        """Reserve the file's space and write what is here of the ring."""
        os.ftruncate(self.file, self.file_bytes)
        os.posix_fallocate(self.file, 0, self.file_bytes)
        self._is_stored = os.pwrite(self.file, self._view, 0) == len(self._view)
