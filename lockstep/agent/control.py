"""Reads the node's control block, with one small `pread` at a step boundary if nothing changed.

The exporter may create the file late, or replace it when it restarts; its path is checked once a second. A request that
the block contains when the rank begins was meant for a former attempt and is ignored.

A block requests work in this process, so it is accepted only if it is an ordinary file of a trusted user in a directory
of one. It is read with `pread`: a truncated block reads as no block, where a mapping would end training with SIGBUS.
"""

import ctypes
import os
import stat
from pathlib import Path
from typing import Any

from lockstep.agent.descriptors import move_high, pread
from lockstep.agent.shared_directory import check_directory, check_owner
from lockstep.contracts.blob import read_blob
from lockstep.contracts.control_block import CONTROL_BYTES, ORDER_BYTES, ORDER_OFFSET, check_control_header
from lockstep.contracts.errors import MalformedError

LOOK_INTERVAL_NS = 1_000_000_000  # the longest that a new control block stays unseen
_GENERATION_BYTES = 8
_NO_FILE = -1
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe in a block's place must not block us


class ControlReader:
    """Reads `path`, which must be a file of one of the `trusted` uids. Used by the training thread only."""

    def __init__(self, path: Path, trusted: frozenset[int]) -> None:
        self._path = path
        self._trusted = trusted
        self._inode = (0, 0)
        self._checked_version = (0, 0, 0)
        self._file = _NO_FILE
        self._present = ctypes.c_uint64()
        self._present_at = ctypes.byref(self._present)
        self._generation = 0
        self._looked_ns = -LOOK_INTERVAL_NS

    def poll(self, now_ns: int) -> Any | None:
        """Return the content of the block as a JSON value if it is new, else None.

        Raises
        ------
        MalformedError, ContractVersionError
            The file is no control block of this version, or that of an untrusted user. Raised once, until it changes.
        """
        if now_ns - self._looked_ns >= LOOK_INTERVAL_NS:
            self._looked_ns = now_ns
            self._look()
        if self._file == _NO_FILE:
            return None
        if pread(self._file, self._present_at, _GENERATION_BYTES, ORDER_OFFSET) != _GENERATION_BYTES:
            return None  # truncated; the exporter replaces it
        if self._present.value == self._generation:
            return None
        region = os.pread(self._file, ORDER_BYTES, ORDER_OFFSET)
        found = read_blob(memoryview(region), 0, ORDER_BYTES) if len(region) == ORDER_BYTES else None
        if found is None:  # being written; the next boundary sees it whole
            return None
        self._generation = found[0]
        return found[1]

    def _look(self) -> None:
        """Open the file that has the path now, if it is not the open one."""
        try:
            file = os.open(self._path, _FLAGS)
        except OSError:  # missing, or not readable for us: no request
            return
        try:
            status = os.fstat(file)
            inode = (status.st_dev, status.st_ino)
            version = (*inode, status.st_ctime_ns)  # the inode of a file that is not open may become another file's
            if (inode == self._inode and self._file != _NO_FILE) or version == self._checked_version:
                return
            self._close()
            self._checked_version = version
            self._check(file, status)
            self._file = move_high(os.dup(file))
            self._inode = inode
            self._generation = 0
        except OSError:
            return
        finally:
            os.close(file)

    def _check(self, file: int, status: os.stat_result) -> None:
        directory = self._path.parent.parent  # the exporter's of all runs: what is below is of its making
        check_directory(directory, self._trusted, what="exporter's directory")
        check_owner(status, self._trusted, what="control block", where=self._path)
        if not stat.S_ISREG(status.st_mode):
            got = stat.filemode(status.st_mode)
            raise MalformedError("control block", where=str(self._path), got=got, expected="an ordinary file")
        check_control_header(os.pread(file, CONTROL_BYTES + 1, 0), where=str(self._path))

    def _close(self) -> None:
        if self._file != _NO_FILE:
            os.close(self._file)
            self._file = _NO_FILE
