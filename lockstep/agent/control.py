"""The reader of the node's control block: one integer compare at a step boundary when nothing changed.

The exporter may make the file late, or replace it when it restarts; its path is looked at once a second. What the
block holds when the rank begins was meant for a former attempt and is passed over.
"""

import mmap
import os
from pathlib import Path
from typing import Any

from lockstep.contracts.blob import read_blob
from lockstep.contracts.control import CONTROL_BYTES, ORDER_BYTES, ORDER_OFFSET, check_control_header

LOOK_INTERVAL_NS = 1_000_000_000  # the longest that a new control block stays unseen
_GENERATION_WORD = ORDER_OFFSET // 8


class ControlReader:
    """Reads `path`. Used by the training thread only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = (0, 0)
        self._view: memoryview | None = None
        self._words: memoryview | None = None
        self._generation = 0
        self._looked_ns = -LOOK_INTERVAL_NS

    def poll(self, now_ns: int) -> Any | None:
        """Return what the block holds as JSON value if that is new, else None.

        Raises
        ------
        MalformedError, ContractVersionError
            The file is no control block of this version. Raised once per file.
        """
        if now_ns - self._looked_ns >= LOOK_INTERVAL_NS:
            self._looked_ns = now_ns
            self._look()
        words, view = self._words, self._view
        if words is None or view is None or words[_GENERATION_WORD] == self._generation:
            return None
        found = read_blob(view, ORDER_OFFSET, ORDER_BYTES)
        if found is None:  # being written; the next boundary sees it whole
            return None
        self._generation = found[0]
        return found[1]

    def _look(self) -> None:
        """Map the file that has the path now, if it is another one than before."""
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # not there yet, or not for us: nobody asks
            return
        try:
            status = os.fstat(file)
            inode = (status.st_dev, status.st_ino)
            if inode == self._inode:
                return
            self._inode = inode
            self._view = self._words = None
            self._generation = 0
            head = os.pread(file, CONTROL_BYTES + 1, 0)
            check_control_header(head, where=str(self._path))
            view = memoryview(mmap.mmap(file, CONTROL_BYTES, prot=mmap.PROT_READ))
        except OSError:
            return
        finally:
            os.close(file)
        self._view = view
        self._words = view.cast("Q")
