"""An analysis in a notebook: `analyze`."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from lockstep.analysis.analyse import analyse_paths
from lockstep.analysis.group_kinds import ParallelDegrees
from lockstep.analysis.pictures import pictures_of
from lockstep.analysis.report import render
from lockstep.analysis.sources import Source
from lockstep.analysis.workers import run_here
from lockstep.contracts.domains import DEFAULT_ORDER, check_order, parse_degrees
from lockstep.contracts.errors import ConfigError
from lockstep.html.markup import Html, cell, code, items, join, muted, table, tag
from lockstep.html.units import counted, format_ns, format_ranks, format_share
from lockstep.notebook.tables import Frame, made, required, shown
from lockstep.notebook.traces import Paths, paths_of

_SHOWN = 10
_INT, _REAL, _TEXT = pa.int64(), pa.float64(), pa.string()
_PARTS = ("compute_ns", "communication_ns", "host_ns", "overlap_ns", "free_ns")
FINDINGS = pa.schema(
    [
        *(required(name, _TEXT) for name in ("bottleneck", "cause", "subject")),
        required("ranks", pa.list_(_INT)),
        *(pa.field("lost_ns", _INT), pa.field("predicted_gain_ratio", _REAL), required("confidence", _TEXT)),
        *(required(name, pa.list_(_TEXT)) for name in ("evidence", "advice")),
    ]
)
RANKS = pa.schema(
    [
        *(required("rank", _INT), pa.field("host", _TEXT), required("path", _TEXT)),
        *(required(name, _INT) for name in ("steps", "window_ns", *_PARTS)),
    ]
)


def analyze(paths: Paths, *, processes: int = 1, domains: str = "", order: str = DEFAULT_ORDER) -> "AnalysisResult":
    """Analyse traces as `lockstep analyze PATH...` does; a notebook shows the answer as a table.

    `paths` is one path or several, files and folders. `processes` traces are read at once; more than one needs an
    importable main module (a notebook, or a script with `if __name__ == "__main__"`). `domains` are the job's parallel
    degrees, e.g. "tp=8,dp=16", in `order`.

    Raises
    ------
    ConfigError
        An argument is wrong; the message names it, what was got and what is expected.
    NoTraceError
        No trace can be used.
    """
    if processes < 1:
        raise ConfigError(f"processes: got {processes}, expected at least 1")
    check_order(order, where="order")
    by_kind = parse_degrees(domains, where="domains")
    degrees = ParallelDegrees(by_kind=by_kind, order=order) if by_kind else None
    found = analyse_paths(paths_of(paths), partial(run_here, processes=processes), degrees=degrees)
    return AnalysisResult(found.as_json(), found.sources)


class AnalysisResult:
    """What an analysis found. `summary` is the JSON object of `lockstep analyze --json`: integers in ns and bytes."""

    def __init__(self, summary: dict[str, Any], sources: Mapping[int, Source] | None = None) -> None:
        self.summary = summary
        self._sources = sources or {}

    def __repr__(self) -> str:
        ranks, found = self.summary["ranks"], self.summary["findings"]
        return f"<lockstep analysis of {counted(len(ranks), 'rank')}: {counted(len(found), 'finding')}>"

    def findings(self, *, arrow: bool = False) -> Frame:
        """Return the findings, the most important first.

        Columns: bottleneck, cause, subject string (function, kernel or group; may be empty); ranks list of int64;
        lost_ns Int64 (of the window); predicted_gain_ratio float64 (share of the window, NaN if unknown); confidence
        string; evidence, advice list of string.
        """
        found = self.summary["findings"]
        columns = {name: [each[name] for each in found] for name in FINDINGS.names if name != "advice"}
        columns["advice"] = [[advice["suggestion"] for advice in each["advice"]] for each in found]
        return shown(made(FINDINGS, columns), arrow=arrow)

    def ranks(self, *, arrow: bool = False) -> Frame:
        """Return the account of each rank.

        Columns: rank int64; host, path string; steps int64; window_ns int64, the sum of compute_ns, communication_ns,
        host_ns, overlap_ns and free_ns (`OpenTrace.steps` explains them).
        """
        ranks = self.summary["ranks"]
        columns = {name: [each[name] for each in ranks] for name in ("rank", "host", "path", "window_ns")}
        columns["steps"] = [each["steps"]["count"] for each in ranks]
        columns |= {name: [each["breakdown"][name] for each in ranks] for name in _PARTS}
        return shown(made(RANKS, columns), arrow=arrow)

    def report(self) -> str:
        """Return the whole report as one HTML file; its timeline is drawn from the traces, read once more."""
        return render(self.summary, pictures_of(self._sources, self.summary["findings"]))

    def write_report(self, path: str | Path) -> None:
        """Write the report to `path`.

        Raises
        ------
        OSError
            It cannot be written.
        """
        Path(path).write_text(self.report(), encoding="utf-8")

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the findings with their first evidence and advice, then where the time goes."""
        skipped = [muted(f"skipped {each['path']}: {each['error']}") for each in self.summary["skipped"][:_SHOWN]]
        return str(join([self._findings(), self._ranks(), *skipped]))

    def _findings(self) -> Html:
        found = self.summary["findings"]
        if not found:
            return tag("p", "Nothing was found that holds the job back.")
        rows = [
            (
                f"{each['bottleneck']}: {each['cause'].replace('_', ' ')}",
                format_ranks(each["ranks"]),
                code(each["subject"]) if each["subject"] else "",
                cell(format_ns(each["lost_ns"]), value=each["lost_ns"], is_number=True),
                items([*each["evidence"][:1], *(advice["suggestion"] for advice in each["advice"][:1])]),
            )
            for each in found[:_SHOWN]
        ]
        more = muted(f"and {counted(len(found) - _SHOWN, 'more finding')}") if len(found) > _SHOWN else Html()
        return join([table(("finding", "ranks", "where", "lost", "evidence and advice"), rows), more])

    def _ranks(self) -> Html:
        ranks = self.summary["ranks"]
        rows = [
            (
                cell(str(each["rank"]), value=each["rank"]),
                cell(format_ns(each["window_ns"]), value=each["window_ns"]),
                *(_share(each["breakdown"][name], each["window_ns"]) for name in _PARTS),
            )
            for each in ranks[:_SHOWN]
        ]
        more = muted(f"and {counted(len(ranks) - _SHOWN, 'more rank')}") if len(ranks) > _SHOWN else Html()
        return join([table(("rank", "window", *(name.removesuffix("_ns") for name in _PARTS)), rows), more])


def _share(part_ns: int, window_ns: int) -> Html:
    return cell(format_share(part_ns / window_ns if window_ns else None), value=part_ns)
