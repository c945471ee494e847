"""Draws the merged stacks of a hang: a row for each line of the tree, as wide as its share of the ranks.

Pure. Rows of ranks that have not arrived are highlighted. A row shows its innermost frame, and all frames on hover; the
page shows the lines as text below the picture.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lockstep.html.markup import Html, cut
from lockstep.html.svg import box, picture, svg_text

_LINE = re.compile(r"( *)(ranks? ([0-9, -]+?)(?: and ([0-9]+) more)?): (.+)\Z")
_ROW, _BAR = 26, 22  # pixels
_INDENT, _LEAST = 0.03, 0.004  # shares of the picture
_INDENTS_MAX = 12
_TEXT_MAX = 100


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One line of the tree: depth, ranks as text, the ranks named in that text, their total count, and frames."""

    depth: int
    text: str
    named: frozenset[int]
    count: int
    frames: str


def read_rows(lines: Sequence[str]) -> list[TreeRow]:
    """Parse the lines of a tree that `detect/hangs/hang_stacks.py` wrote; other lines are skipped."""
    rows = []
    for line in lines:
        found = _LINE.match(line)
        if found is None:
            continue
        spans = [[int(each) for each in span.split("-")] for span in found[3].split(", ")]
        named = frozenset(rank for span in spans for rank in range(span[0], span[-1] + 1))
        rows.append(TreeRow(len(found[1]) // 2, found[2], named, len(named) + int(found[4] or 0), found[5]))
    return rows


def draw_stacks(lines: Sequence[str], late: Collection[int]) -> Html:
    """Return the picture of a tree, empty if it has no rows; `late` are the ranks that have not arrived."""
    rows = read_rows(lines)
    if not rows:
        return Html()
    largest = max(row.count for row in rows)
    late_ranks = frozenset(late)
    drawn = (_draw_row(row, number * _ROW, largest, late_ranks) for number, row in enumerate(rows))
    shapes = [shape for row_shapes in drawn for shape in row_shapes]
    description = "; ".join(f"{row.text}: {_innermost(row)}" for row in rows)
    return picture(len(rows) * _ROW, cut(f"Stacks of the ranks: {description}"), *shapes, class_="stack-tree")


def _draw_row(row: TreeRow, top: int, largest: int, late: frozenset[int]) -> list[Html]:
    left = min(row.depth, _INDENTS_MAX) * _INDENT
    kind = "late" if row.count == len(row.named) and row.named <= late else "others"
    share = max(_LEAST, row.count / largest) * (1 - left)
    title = f"{row.text}: {row.frames}"
    return [
        box(left, top, 1 - left, _BAR, kind=f"rest {kind}-row", title=title),
        box(left, top, share, _BAR, kind=kind, title=title),
        svg_text(cut(f"{row.text}: {_innermost(row)}", _TEXT_MAX), left + _INDENT / 4, top + _BAR - 6),
    ]


def _innermost(row: TreeRow) -> str:
    return row.frames.rpartition(" > ")[2]
