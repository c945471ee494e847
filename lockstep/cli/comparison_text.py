"""The comparison of two runs as a text table."""

from typing import Any

from lockstep.html.units import format_ns, format_number, format_share

_SHOWN = 30
_NAME_CHARS = 60
_MARKS = {"regression": "SLOWER", "improvement": "faster", "more": "more", "less": "less", "same": "noise"}
_HEADS = ("", "kind", "before", "after", "change", "of step", "rank", "name")


def comparison_text(comparison: dict[str, Any]) -> str:
    """Return the lines of a comparison's JSON form: regressions first, then other changes, then step and parts."""
    changes, count = comparison["changes"], comparison["regressions"]
    rows = [_HEADS, *(_row(each) for each in changes[:_SHOWN])]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADS) - 1)]
    table = [
        " ".join([*(cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=True)), row[-1]]) for row in rows
    ]
    more = [f"... and {len(changes) - _SHOWN} more (--json has all)"] if len(changes) > _SHOWN else []
    before, after = (_size(comparison[side]) for side in ("before", "after"))
    compared = f"{comparison['compared']} quantities compared, tolerance {format_share(comparison['tolerance_ratio'])}"
    result = "no regression" if not count else f"{count} regression{'' if count == 1 else 's'}"
    return "\n".join([f"before: {before}; after: {after}; {compared}", "", *table, *more, "", result])


def _size(side: dict[str, int]) -> str:
    return f"{side['ranks']} ranks, {side['steps']} steps"


def _row(change: dict[str, Any]) -> tuple[str, ...]:
    show = format_ns if change["unit"] == "ns" else format_number
    ratio, share, rank = change["change_ratio"], change["step_ratio"], change["rank"]
    return (
        _MARKS[change["verdict"]],
        change["kind"],
        show(change["before"]),
        show(change["after"]),
        "new" if ratio is None else f"{ratio:+.1%}",
        "" if share is None else f"{share:+.1%}",
        "all" if rank is None else str(rank),
        change["name"] if len(change["name"]) <= _NAME_CHARS else change["name"][: _NAME_CHARS - 3] + "...",
    )
