"""The node's Inspector files: assigns each to its rank, keeps all of them small, and sums their lines.

`lockstep run --nccl-inspector` makes the plugin write one file per process into the exporter's own directory. Files
that belong to no rank are emptied too, so that shared memory stays bounded whatever writes there. Runs on the event
loop.
"""

import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from exporter.counts import ExporterCounters
from exporter.host_watch.host_reading import Key
from exporter.inspector.accounts import InspectorAccounts, InspectorView
from exporter.inspector.domain_times import Membership
from exporter.inspector.dump_file import DumpFile
from exporter.inspector.lines import InspectedOperation, parse_line
from exporter.reading.run_state import RunState
from exporter.shared_directory import run_status
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.inspector_metrics import LINE_OUTCOMES
from lockstep.contracts.paths import inspector_directory

FILES_MAX = 1024
SCAN_NS = 1_000_000_000
STALE_SECONDS = 7 * 86_400
"""Time without a write after which a file is removed: its process has ended, or has run no collective for a week."""
_NAME = re.compile(r"(.{1,255})-pid([0-9]{1,10})\.log")
_READ, _MALFORMED, _FOREIGN = LINE_OUTCOMES
_Process = tuple[str, int]
"""Host name and pid, both as the process sees them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectorStatus:
    """Lines by outcome, bytes dropped unread, operations that plugins report as lost, and the sums by run and rank.

    `times_ns` is the time in collectives by run and rank, then by communicator size and the rank's place in it. Before
    the first Inspector file there is nothing to count: `lines` is empty and the counts are None.
    """

    lines: Mapping[str, int] = field(default_factory=dict)
    dropped_bytes: int | None = None
    lost_operations: int | None = None
    ranks: Mapping[Key, InspectorView] = field(default_factory=dict)
    times_ns: Mapping[Key, Mapping[Membership, int]] = field(default_factory=dict)


class InspectorWatch:
    """Follows the files below `root`; refused files and lines are counted in `counts`, once per file."""

    def __init__(self, root: Path, counts: ExporterCounters) -> None:
        self._lines: dict[str, int] = dict.fromkeys(LINE_OUTCOMES, 0)
        self._dropped_bytes = 0
        self._lost_operations = 0
        self._scan_ns = 0
        self._is_used = False
        self._directory = inspector_directory(root)
        self._counts = counts
        self._accounts = InspectorAccounts()
        self._files: dict[str, tuple[DumpFile, int, _Process]] = {}
        self._ranks: dict[_Process, tuple[Key, int]] = {}
        self._refused: set[str] = set()

    def tick(self, runs: Iterable[RunState], now_ns: int) -> None:
        """Read every file, after listing the files at most once a second; `now_ns` is CLOCK_MONOTONIC."""
        if now_ns >= self._scan_ns:
            self._scan_ns = now_ns + SCAN_NS
            self.scan(runs)
        self.read()

    def scan(self, runs: Iterable[RunState], unix_s: float | None = None) -> None:
        """List the files and their owners; `unix_s` is the time on the files' clock, now by default."""
        self._ranks = _ranks_of(runs)
        self._accounts.forget_others({key for key, _ in self._ranks.values()})
        now_s = time.time() if unix_s is None else unix_s
        found: dict[str, tuple[DumpFile, int, _Process]] = {}
        for name, status in self._entries():
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            if now_s - status.st_mtime > STALE_SECONDS:
                self._remove(name)
                continue
            process = match[1], int(match[2])
            owner_uid = self._ranks[process][1] if process in self._ranks else status.st_uid
            known = self._files.get(name)
            if known is None or known[1] != owner_uid:
                found[name] = DumpFile(self._directory / name, owner_uid), owner_uid, process
            else:
                found[name] = known
        self._files = found
        self._refused &= set(found)

    def _entries(self) -> list[tuple[str, os.stat_result]]:
        try:
            with os.scandir(self._directory) as entries:
                return [(entry.name, entry.stat(follow_symlinks=False)) for entry in islice(entries, FILES_MAX)]
        except FileNotFoundError:  # the directory does not exist, or a file was removed meanwhile
            return []
        except OSError as error:
            self._counts.reject("inspector", error)
            return []

    def read(self) -> None:
        """Count the new lines of every file."""
        for name, (file, _, process) in self._files.items():
            try:
                new = file.read()
            except FileNotFoundError:
                continue
            except (MalformedError, OSError) as error:
                if name not in self._refused:
                    self._refused.add(name)
                    self._counts.reject("inspector", error)
                continue
            self._dropped_bytes += new.dropped_bytes
            for line in new.lines:
                self._count(line, process)

    def _count(self, line: bytes, process: _Process) -> None:
        if not line:
            return
        try:
            one = parse_line(line)
        except MalformedError:
            self._lines[_MALFORMED] += 1
            return
        known = self._ranks.get(process)
        if known is None or (one is not None and (one.hostname, one.pid) != process):
            self._lines[_FOREIGN] += 1
            return
        self._lines[_READ] += 1
        if one is not None:
            self._add(known[0], one)

    def _add(self, key: Key, one: InspectedOperation) -> None:
        self._lost_operations += one.dropped
        if one.operation:
            self._accounts.add(key, one)

    def _remove(self, name: str) -> None:
        try:
            (self._directory / name).unlink()
        except FileNotFoundError:
            return
        except OSError as error:  # a directory, or another user's file in a directory that is not ours
            if name not in self._refused:
                self._refused.add(name)
                self._counts.reject("inspector", error)

    def status(self) -> InspectorStatus:
        """Return all counts as they are now."""
        self._is_used |= bool(self._files)
        if not self._is_used:
            return InspectorStatus()
        return InspectorStatus(
            lines=dict(self._lines),
            dropped_bytes=self._dropped_bytes,
            lost_operations=self._lost_operations,
            ranks=self._accounts.views(),
            times_ns=self._accounts.times_ns(),
        )


def _ranks_of(runs: Iterable[RunState]) -> dict[_Process, tuple[Key, int]]:
    """Return rank and owner uid by the process of each rank."""
    found: dict[_Process, tuple[Key, int]] = {}
    for run in runs:
        try:
            owner_uid = run_status(run.directory).st_uid
        except (OSError, MalformedError):  # gone; the scan for runs counts it
            continue
        for rank_state in run.ranks.values():
            found[rank_state.header.hostname, rank_state.header.pid] = (run.name, rank_state.rank), owner_uid
    return found
