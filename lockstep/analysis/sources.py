"""Finds the traces under given paths: one source for each rank, from any profiler.

Finding is cheap: it uses names of files and folders, and Ascend's small settings files. The rank that a trace names is
known only once it is loaded (`load_source`). Links are not followed.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from lockstep.analysis.doctor_reports import DoctorReport, is_doctor_report, read_report
from lockstep.analysis.evidence import NOTHING, Evidence, with_notes, with_samples
from lockstep.analysis.kernels_only import columns_of_kernels
from lockstep.contracts.errors import LockstepError, MalformedError
from lockstep.contracts.node_samples import SUFFIX
from lockstep.trace.ascend.communication import load_communication
from lockstep.trace.ascend.database_communication import load_database_communication
from lockstep.trace.ascend.discover import DEPTH_MAX, ENTRIES_MAX, OUTPUT_FOLDERS, AscendOutput, discover, kind_of
from lockstep.trace.ascend.rank import load_rank_kernels, load_rank_trace
from lockstep.trace.columns import ABSENT, TraceColumns
from lockstep.trace.kineto.load import load_trace

_Table = TypeVar("_Table")

STORED_SUFFIX = ".parquet"
_TRACE_SUFFIXES = (".json", ".json.gz", STORED_SUFFIX)
_NO_TRACES = ("summary.json", "comparison.json", "perfetto.json")
"""Files that an earlier analysis left next to its columns."""
_NAMED_RANK = re.compile(r"rank[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE | re.ASCII)
_STORED_RANK = re.compile(r"(\d{1,7})\.parquet", re.ASCII)
_ASCEND_ROOTS = ("PROF_", "FRAMEWORK", "logs")
"""Folders inside a rank's output that belong to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One rank's trace: a file of Kineto's or a stored one, or the output of Ascend's profilers.

    `named_rank` is the rank in its name, ABSENT if none.
    """

    path: Path
    named_rank: int = ABSENT
    ascend: AscendOutput | None = None


@dataclass(frozen=True, slots=True)
class SkippedPath:
    """A path that could not be used, and why."""

    path: str
    error: str


@dataclass(slots=True)
class Sources:
    """Sources in order of their names' ranks and paths, files of the cluster, and skipped paths.

    `reports` are files written by `lockstep doctor`.
    """

    sources: list[Source] = field(default_factory=list)
    cluster_communication: list[Path] = field(default_factory=list)
    reports: list[DoctorReport] = field(default_factory=list)
    skipped: list[SkippedPath] = field(default_factory=list)

    def skip(self, path: Path, error: Exception) -> None:
        """Record a path that cannot be used."""
        self.skipped.append(SkippedPath(str(path), str(error)))


def find_sources(paths: Sequence[Path]) -> Sources:
    """Return the traces under `paths`, files and folders; a path that cannot be used is recorded, never raised."""
    found = Sources()
    seen: set[Path] = set()
    for path in paths:
        begin, passed = len(found.sources), len(found.skipped)
        try:
            if path.is_dir():
                _look_into(path, found)
            else:
                _take(path, found)
        except LockstepError as error:
            found.skip(path, error)
        if path.is_dir() and len(found.sources) == begin and len(found.skipped) == passed:
            found.skip(path, MalformedError("folder", where=str(path), got="no trace", expected="traces below it"))
        for each in found.sources[begin:]:
            if each.path.resolve() in seen:
                found.sources.remove(each)
            seen.add(each.path.resolve())
    found.sources.sort(key=lambda each: (each.named_rank == ABSENT, each.named_rank, str(each.path)))
    return found


def _look_into(root: Path, found: Sources) -> None:
    """Add the traces of a folder and its subfolders."""
    waiting, looked_at = [(root, 0)], 0
    while waiting:
        folder, depth = waiting.pop()
        entries = _entries(folder)
        looked_at += len(entries)
        if looked_at > ENTRIES_MAX:
            got = f"over {ENTRIES_MAX} files and folders"
            raise MalformedError("folder", where=str(root), got=got, expected=f"at most {ENTRIES_MAX}")
        folders = [each for each in entries if each.is_dir()]
        is_ascend = any(each.name in OUTPUT_FOLDERS for each in folders) or any(
            kind_of(each) not in {None, "profiler_info", "profiler_metadata"} for each in entries if each.is_file()
        )
        if is_ascend:
            _take_ascend(folder, found)
            folders = [each for each in folders if not _belongs_to_rank(each)]
        for each in entries:
            if not each.is_file() or kind_of(each) is not None or not _may_be_trace(each):
                continue
            if not is_ascend or is_doctor_report(each):
                _take_or_skip(each, found)
        if depth < DEPTH_MAX:
            waiting += [(each, depth + 1) for each in folders]


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, without links and hidden ones."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                Path(entry.path) for entry in entries if not entry.is_symlink() and not entry.name.startswith(".")
            )
    except OSError as error:
        got = error.strerror or error
        raise MalformedError("folder", where=str(folder), got=got, expected="a readable one") from error


def _belongs_to_rank(folder: Path) -> bool:
    return folder.name in OUTPUT_FOLDERS or folder.name.startswith(_ASCEND_ROOTS)


def _may_be_trace(path: Path) -> bool:
    is_named = path.name.endswith(_TRACE_SUFFIXES) and not path.name.endswith(SUFFIX)
    return is_named and path.name not in _NO_TRACES


def _take_or_skip(path: Path, found: Sources) -> None:
    try:
        _take(path, found)
    except LockstepError as error:
        found.skip(path, error)


def _take(path: Path, found: Sources) -> None:
    """Add one file.

    Raises
    ------
    MalformedError
        It begins like a report of the doctor but is not one.
    """
    if kind_of(path) is not None:
        _take_ascend(path, found)
        return
    if is_doctor_report(path):
        found.reports.append(read_report(path))
        return
    names = (path.name, path.parent.name)
    matches = [match for name in names if (match := _NAMED_RANK.search(name))]
    stored = _STORED_RANK.fullmatch(path.name)
    if stored:
        matches.insert(0, stored)
    found.sources.append(Source(path=path, named_rank=int(matches[0][1]) if matches else ABSENT))


def _take_ascend(path: Path, found: Sources) -> None:
    try:
        output = discover(path)
    except LockstepError as error:
        found.skip(path, error)
        return
    if output.cluster_communication is not None:
        found.cluster_communication.append(output.cluster_communication)
    if output.trace_view or output.database or output.kernel_details:
        found.sources.append(Source(path=path, named_rank=output.rank, ascend=output))
    elif output.cluster_communication is None:
        expected = "trace_view.json, kernel_details.csv or the profiler's database"
        got = ", ".join(output.files)
        found.skip(path, MalformedError("trace", where=str(path), got=got, expected=expected))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSource:
    """One source in memory; `skipped` are tables next to the trace that could not be used."""

    columns: TraceColumns
    evidence: Evidence = NOTHING
    skipped: tuple[SkippedPath, ...] = ()


def load_source(source: Source, *, cores: int = 1) -> LoadedSource:
    """Return one source's columns and the tables next to it; up to `cores` cores read it.

    Raises
    ------
    MalformedError
        The trace cannot be used.
    """
    if source.ascend is not None:
        return _load_ascend(source.ascend)
    if source.path.name.endswith(STORED_SUFFIX):
        from lockstep.trace.store import read_columns  # noqa: PLC0415  (nodes summarise without pyarrow)

        return LoadedSource(columns=read_columns(source.path))
    columns = load_trace(source.path, cores=cores)
    return LoadedSource(columns=columns, evidence=with_samples(with_notes(NOTHING, source.path), source.path))


def _load_ascend(output: AscendOutput) -> LoadedSource:
    skipped: list[SkippedPath] = []

    def siblings(path: Path | None, load: Callable[[Path], _Table]) -> _Table | None:
        try:
            return None if path is None else load(path)
        except LockstepError as error:
            skipped.append(SkippedPath(str(path), str(error)))
            return None

    if output.trace_view or output.database:
        columns = load_rank_trace(output)
        kernels = siblings(output.kernel_details or output.database, lambda _path: load_rank_kernels(output))
    else:
        kernels = load_rank_kernels(output)
        if not len(kernels):
            raise MalformedError("kernels", where=str(output.path), got="no row that can be used", expected="kernels")
        columns = columns_of_kernels(kernels, output.settings)
    if output.communication is not None:
        communication = siblings(output.communication, load_communication)
    else:
        communication = siblings(output.analysis_database, load_database_communication)
    evidence = Evidence(kernels=kernels, communication=communication)
    return LoadedSource(columns=columns, evidence=evidence, skipped=tuple(skipped))


def rank_of(source: Source, columns: TraceColumns) -> int:
    """Return the rank by the best evidence: the trace, then the name of its file or folder; ABSENT without either."""
    return columns.metadata.rank if columns.metadata.rank >= 0 else source.named_rank
