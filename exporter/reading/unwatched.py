"""Counts the processes of this node that train without being monitored, by the marker files that they leave.

A marker counts as long as its process holds a lock on it. A marker that no process holds at two scans in a row is
removed; two, because a process creates the marker shortly before it locks it. The work of a scan is bounded, whatever
users put into the directory.
"""

import os
import stat
from itertools import islice
from pathlib import Path

from exporter.counts import ExporterCounters
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.locks import lock_holder
from lockstep.contracts.paths import unwatched_directory
from lockstep.contracts.unwatched import MARK_MAX_BYTES, MARKS_MAX, UNWATCHED_REASONS, UnwatchedReason, unpack_mark

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe in a marker's place must not block us


class UnwatchedProcesses:
    """The marker files below `root`. Runs on the event loop; `scan` does bounded work.

    `by_reason` is as of the last scan and includes every reason.
    """

    def __init__(self, root: Path, counts: ExporterCounters) -> None:
        self.by_reason: dict[str, int] = dict.fromkeys(UNWATCHED_REASONS, 0)
        self._directory = unwatched_directory(root)
        self._counts = counts
        self._refused: set[str] = set()
        self._unheld: set[str] = set()

    def scan(self) -> None:
        """Scan the markers, count those that are held, and remove the others."""
        by_reason: dict[str, int] = dict.fromkeys(UNWATCHED_REASONS, 0)
        names = self._names()
        self._refused &= names
        unheld = set()
        for name in names:
            try:
                reason = self._reason(name)
            except FileNotFoundError:
                continue
            except (MalformedError, OSError) as error:
                self._refuse(name, error)
                reason = None
            if reason is not None:
                by_reason[reason] += 1
            elif name not in self._unheld or not self._remove(name):
                unheld.add(name)
        self.by_reason, self._unheld = by_reason, unheld

    def _names(self) -> set[str]:
        try:
            with os.scandir(self._directory) as entries:
                return {entry.name for entry in islice(entries, MARKS_MAX)}
        except FileNotFoundError:  # the root was cleaned; the exporter creates it at its next start
            return set()
        except OSError as error:
            self._counts.reject("mark", error)
            return set()

    def _reason(self, name: str) -> UnwatchedReason | None:
        """Return why the process of a marker is not monitored, or None if it has ended."""
        path = self._directory / name
        file = os.open(path, _FLAGS)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                got = stat.filemode(status.st_mode)
                raise MalformedError("mark", where=str(path), got=got, expected="a regular file")
            if lock_holder(file) is None:
                return None
            return unpack_mark(os.pread(file, MARK_MAX_BYTES, 0), where=str(path))[0]
        finally:
            os.close(file)

    def _refuse(self, name: str, error: MalformedError | OSError) -> None:
        """Count an entry that is not a marker, once per name."""
        if name not in self._refused:
            self._refused.add(name)
            self._counts.reject("mark", error)

    def _remove(self, name: str) -> bool:
        path = self._directory / name
        try:
            if stat.S_ISDIR(path.lstat().st_mode):
                path.rmdir()
            else:
                path.unlink()
        except FileNotFoundError:
            return True
        except OSError as error:  # a directory that is not empty
            self._refuse(name, error)
            return False
        return True
