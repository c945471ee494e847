"""Finds the files of a rank's output, and the rank.

Layouts: `<worker>_ascend_pt` or `_ascend_ms` with ASCEND_PROFILER_OUTPUT and profiler_info_N.json (torch_npu,
MindSpore), `PROF_*` with mindstudio_profiler_output (msprof), cluster_analysis_output (msprof-analyze, MindStudio
Insight), any folder with such files, one file. Of several files of a kind in one folder the first by name counts.
What is no file of a profiler is left alone; links are not followed.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path

from lockstep.contracts.errors import MalformedError
from lockstep.trace.ascend.rank_metadata import AscendSettings, read_settings
from lockstep.trace.columns import ABSENT

OUTPUT_FOLDERS = ("ASCEND_PROFILER_OUTPUT", "mindstudio_profiler_output")
"""Folders inside a rank's folder that contain its readable files."""
DEPTH_MAX = 6
ENTRIES_MAX = 200_000
"""Files and folders of one tree that are looked at: 10,000 ranks of 20 files."""

_PATTERNS = {
    "trace_view": ("trace_view.json", "trace_view.json.gz", "msprof_*.json", "msprof_*.json.gz"),
    "kernel_details": ("kernel_details.csv", "kernel_details_*.csv", "op_summary*.csv"),
    "step_trace_time": ("step_trace_time.csv",),
    "communication": ("communication.json",),
    "communication_matrix": ("communication_matrix.json",),
    "operator_details": ("operator_details.csv",),
    "database": ("ascend_pytorch_profiler*.db", "ascend_mindspore_profiler*.db", "msprof_*.db"),
    "analysis_database": ("analysis.db", "communication_analyzer.db"),
    "cluster_step_trace_time": ("cluster_step_trace_time.csv", "cluster_step_trace_time_*.csv"),
    "cluster_communication": ("cluster_communication.json", "cluster_communication_?rank.json"),
    "cluster_communication_matrix": ("cluster_communication_matrix.json",),
    "communication_group": ("communication_group.json", "communication_group_*.json"),
    "cluster_database": ("cluster_analysis.db",),
    "profiler_info": ("profiler_info.json", "profiler_info_*.json"),
    "profiler_metadata": ("profiler_metadata.json",),
}
_OWN = ("trace_view", "kernel_details", "step_trace_time", "communication", "operator_details", "database")
"""Files that make a folder a rank's: each rank has its own."""
_INFO_RANK = re.compile(r"profiler_info_(\d{1,7})\.json", re.ASCII)
_DATABASE_RANK = re.compile(r"ascend_(?:pytorch|mindspore)_profiler_(\d{1,7})\.db", re.ASCII)
_FOLDER_RANK = re.compile(r"(?:^|[._-])rank[._-]?(\d{1,7})(?=$|[._-])", re.IGNORECASE | re.ASCII)
_PROF_PREFIX = "PROF_"


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendOutput:
    """The files of one rank, or of a cluster's analysis; None where there is no such file.

    `rank` is ABSENT where neither a file nor a folder names it; `settings` are those of the capture in the rank's files
    and of its groups.
    """

    path: Path
    rank: int = ABSENT
    settings: AscendSettings = field(default_factory=AscendSettings)
    trace_view: Path | None = None
    kernel_details: Path | None = None
    step_trace_time: Path | None = None
    communication: Path | None = None
    communication_matrix: Path | None = None
    operator_details: Path | None = None
    database: Path | None = None
    analysis_database: Path | None = None
    cluster_step_trace_time: Path | None = None
    cluster_communication: Path | None = None
    cluster_communication_matrix: Path | None = None
    communication_group: Path | None = None
    cluster_database: Path | None = None
    profiler_info: Path | None = None
    profiler_metadata: Path | None = None

    @property
    def files(self) -> dict[str, Path]:
        """Return what is there, by what it is."""
        return {each: found for each in _PATTERNS if (found := getattr(self, each)) is not None}


assert {each.name for each in fields(AscendOutput)} == {"path", "rank", "settings", *_PATTERNS}


def kind_of(path: Path) -> str | None:
    """Return which of the files of `AscendOutput` one of this name is, None if it is none."""
    for kind, patterns in _PATTERNS.items():
        if any(fnmatchcase(path.name, pattern) for pattern in patterns):
            return kind
    return None


def discover(path: Path) -> AscendOutput:
    """Return the files of one rank: in `path`, its output folder and, for a rank's metadata, the folder above.

    Raises
    ------
    MalformedError
        There is no such path, no file of a profiler, or profiler_info and metadata are no JSON.
    """
    folders = _folders(path)
    found: dict[str, Path] = {}
    for each in [path] if path.is_file() else _files(folders):
        kind = kind_of(each)
        if kind is not None:
            found.setdefault(kind, each)
    if not found:
        raise MalformedError("Ascend output", where=str(path), got="no file of a profiler", expected=", ".join(_OWN))
    for name in ("profiler_info", "profiler_metadata"):
        if name not in found and (above := _above(folders[-1], name)):
            found[name] = above
    settings = read_settings(found.get("profiler_info"), found.get("profiler_metadata"))
    rank = _rank(path, found, settings)
    return AscendOutput(path=path, rank=rank, settings=replace(settings, rank=rank), **found)


def _folders(path: Path) -> list[Path]:
    """Return the folders with the files of one rank, the most specific one first."""
    if path.is_file():
        return [path.parent]
    if not path.is_dir():
        raise MalformedError("Ascend output", where=str(path), got="no such path", expected="a folder or file")
    inner = [path / name for name in OUTPUT_FOLDERS]
    for prof in sorted(each for each in _entries(path) if each.name.startswith(_PROF_PREFIX)):
        inner += [prof / name for name in OUTPUT_FOLDERS] + [prof]
    return [*(each for each in inner if each.is_dir()), path]


def _files(folders: list[Path]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(each for each in _entries(folder) if each.is_file())


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, without links."""
    found: list[Path] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_symlink():
                    found.append(Path(entry.path))
                if len(found) > ENTRIES_MAX:
                    raise MalformedError(
                        "entries", where=str(folder), got=f"over {ENTRIES_MAX}", expected=f"at most {ENTRIES_MAX}"
                    )
    except OSError as error:
        raise MalformedError(
            "folder", where=str(folder), got=error.strerror or error, expected="a readable one"
        ) from error
    return sorted(found)


def _above(folder: Path, name: str) -> Path | None:
    """Return a rank's own file from the folder above its output."""
    if folder.name not in OUTPUT_FOLDERS and not folder.name.startswith(_PROF_PREFIX):
        return None
    siblings = _entries(folder.parent) if folder.parent.is_dir() else []
    return next((each for each in siblings if each.is_file() and kind_of(each) == name), None)


def _rank(path: Path, found: dict[str, Path], settings: AscendSettings) -> int:
    """Return the rank by the best evidence: the name or content of its files, then the folders' names."""
    for kind, pattern in (("profiler_info", _INFO_RANK), ("database", _DATABASE_RANK)):
        named = pattern.fullmatch(found[kind].name) if kind in found else None
        if named:
            return int(named[1])
    if settings.rank != ABSENT:
        return settings.rank
    resolved = path.resolve()
    for name in [each.name for each in (resolved, *resolved.parents)][:3]:
        if of_folder := _FOLDER_RANK.search(name):
            return int(of_folder[1])
    return ABSENT
