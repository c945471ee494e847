"""How many findings of `lockstep analyze` a performance engineer would expect, and how many of those it finds.

    python -m benchmarks.precision [--shared FOLDER] [--write docs/precision.md]

`precision_labels.toml` names for each trace what is to be found; what else is found is wrong, except what is allowed.
Fails below PRECISION_LEAST or RECALL_LEAST over the repository's traces, and over those of them that are held out: the
ones that were not looked at while rules were changed (see the labels' head). `--shared` is a folder with larger public
traces; they are labelled too, and their tables are printed and written as well without deciding anything. Of
every trace it is also measured by how much the idle time on the critical path differs from that of the breakdown.
"""

import argparse
import sys
import tarfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lockstep.analysis.analyse import analyse_paths
from lockstep.analysis.rank import RankAnalysis
from lockstep.analysis.workers import run_here
from lockstep.contracts.finding import Finding
from lockstep.trace.critical_path.path import PathClass

ROOT = Path(__file__).resolve().parent.parent
LABELS = Path(__file__).with_name("precision_labels.toml")
PRECISION_LEAST, RECALL_LEAST = 0.9, 0.9
_BEGIN, _END = "<!-- precision: begin -->", "<!-- precision: end -->"


@dataclass(frozen=True, slots=True)
class Label:
    """One finding to be expected or allowed: its cause, a part of its subject, and its ranks unless it is on all."""

    cause: str
    subject: str = ""
    ranks: tuple[int, ...] = ()

    def fits(self, found: Finding) -> bool:
        """Whether a finding is this one."""
        same = found.cause == self.cause and self.subject in found.subject
        return same and (not self.ranks or found.ranks == self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A trace, or the folder of a job's, with its labels; `why` is what an engineer sees in it."""

    path: str
    why: str
    expected: tuple[Label, ...]
    allowed: tuple[Label, ...]


@dataclass(slots=True)
class Score:
    """Findings by rule: `right` and `wrong` ones, and labels that were `missed`; `wrong_at` names the wrong ones.

    `idle_points` is the most by which the path's idle time and that of the breakdown differ, as a share of the window.
    """

    right: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    wrong_at: list[str] = field(default_factory=list)
    idle_points: float = 0.0
    missed_at: list[str] = field(default_factory=list)

    @property
    def precision(self) -> float:
        """Return the share of the findings that were expected."""
        return _ratio(self.right.total(), self.right.total() + self.wrong.total())

    @property
    def recall(self) -> float:
        """Return the share of the labels that were found."""
        return _ratio(self.right.total(), self.right.total() + self.missed.total())

    def add(self, trace: Trace, findings: Iterable[Finding]) -> None:
        """Score the findings of a trace; several findings that one label expects are one right and wrong beyond it."""
        left = list(trace.expected)
        for found in findings:
            label = next((each for each in left if each.fits(found)), None)
            if label is not None:
                left.remove(label)
                self.right[found.cause] += 1
            elif not any(each.fits(found) for each in trace.allowed):
                self.wrong[found.cause] += 1
                self.wrong_at.append(f"{trace.path}: {found.cause} {found.subject:.80} on ranks {found.ranks}")
        self.missed.update(each.cause for each in left)
        self.missed_at += [f"{trace.path}: {each.cause} {each.subject}" for each in left]

    def rows(self) -> list[tuple[str, int, int, int]]:
        """Return (rule, right, wrong, missed), in order of rule."""
        causes = sorted({*self.right, *self.wrong, *self.missed})
        return [(each, self.right[each], self.wrong[each], self.missed[each]) for each in causes]


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def read_labels(section: str) -> list[Trace]:
    """Return the labelled traces of one section (`repository` or `shared`)."""
    document = tomllib.loads(LABELS.read_text())
    return [
        Trace(
            path=each["path"],
            why=each["why"],
            expected=_labels(each.get("expected", ())),
            allowed=_labels(each.get("allowed", ())),
        )
        for each in document[section]
    ]


def _labels(rows: Sequence[dict[str, Any]]) -> tuple[Label, ...]:
    return tuple(Label(row["cause"], row.get("subject", ""), tuple(row.get("ranks", ()))) for row in rows)


def score(traces: Iterable[Trace], root: Path) -> Score:
    """Return the score of `lockstep analyze` over labelled traces below `root`."""
    found = Score()
    for trace in traces:
        with _unpacked(root / trace.path) as path:
            analysis = analyse_paths([path], partial(run_here, processes=1))
        found.add(trace, analysis.cluster.findings)
        found.idle_points = max(found.idle_points, *(_idle_points(each) for each in analysis.cluster.ranks))
    return found


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """Yield a path to analyse: an archive's content lies in a folder of its own meanwhile."""
    if not path.name.endswith(".tar.gz"):
        yield path
        return
    with TemporaryDirectory() as folder, tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
        yield Path(folder)


def _idle_points(rank: RankAnalysis) -> float:
    """Return by how much idle time on the path, gaps of the device included, exceeds the breakdown's free time."""
    if rank.path is None:
        return 0.0
    idle_ns = sum(each.ns for each in rank.path.shares if each.path_class in (PathClass.IDLE, PathClass.GAP))
    return (idle_ns - rank.breakdown.free_ns) / max(rank.length_ns, 1)


def table(found: Score) -> str:
    """Return precision and recall by rule as a table."""
    lines = ["| rule | right | wrong | missed | precision | recall |", "|---|---:|---:|---:|---:|---:|"]
    for cause, right, wrong, missed in found.rows():
        precision, recall = _ratio(right, right + wrong), _ratio(right, right + missed)
        lines.append(f"| `{cause}` | {right} | {wrong} | {missed} | {precision:.2f} | {recall:.2f} |")
    totals = found.right.total(), found.wrong.total(), found.missed.total()
    lines.append(f"| all | {totals[0]} | {totals[1]} | {totals[2]} | {found.precision:.2f} | {found.recall:.2f} |")
    return "\n".join(lines)


def _details(found: Score) -> str:
    return "\n".join([*(f"wrong: {each}" for each in found.wrong_at), *(f"missed: {each}" for each in found.missed_at)])


def _write(path: Path, text: str) -> None:
    head, _, rest = path.read_text().partition(_BEGIN)
    path.write_text(f"{head}{_BEGIN}\n{text}\n{_END}{rest.partition(_END)[2]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 where the repository's traces miss the budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, help="folder of larger public traces")
    parser.add_argument("--write", type=Path, help="page whose tables to replace")
    given = parser.parse_args(arguments)
    parts = [("The repository's traces", "repository", ROOT), ("The repository's held-out traces", "held_out", ROOT)]
    if given.shared:
        parts += [
            ("Larger public traces, not in the repository", "shared", given.shared),
            ("The held-out larger public traces", "held_out_shared", given.shared),
        ]
    text, decides = [], []
    for title, section, root in parts:
        found = score(read_labels(section), root)
        idle = (
            f"Idle on the critical path exceeds free time by at most {100 * found.idle_points:.1f} points of a window."
        )
        text.append(f"{title}:\n\n{table(found)}\n\n{idle}")
        sys.stdout.write(f"{text[-1]}\n{_details(found)}\n\n")
        if root == ROOT:
            decides.append(found)
    if given.write:
        _write(given.write, "\n\n".join(text))
    return int(any(each.precision < PRECISION_LEAST or each.recall < RECALL_LEAST for each in decides))


if __name__ == "__main__":
    sys.exit(main())
