"""What the window waited for, from its end back to its beginning."""

from collections import defaultdict
from collections.abc import Sequence

from lockstep.analysis.report.choice import choose
from lockstep.analysis.report.parts import PathEntry, Rank
from lockstep.analysis.report.view import ReportView
from lockstep.html.bars import Bar, Stack, ranking, stacked
from lockstep.html.markup import Html, code, folded, left_out, muted, section, tag
from lockstep.html.scales import times
from lockstep.html.svg import legend, sample
from lockstep.html.units import counted, format_ns, format_share

NAME, TITLE = "critical-path", "Critical path"
BARS_MAX = 15
_LOOKED_AT = 3
_KINDS = {
    "compute": "compute",
    "memory": "copies and fills",
    "communication": "communication",
    "host": "host",
    "gap": "gap: the device could have begun and had not",
    "idle": "idle: the trace records nothing of the thread",
    "other": "other",
}


def critical_path(view: ReportView) -> Html:
    """Return the classes on every shown rank's path, and what takes most of it on a few."""
    ranks = [rank for rank in view.summary.ranks if rank.critical_path]
    if not ranks:
        return left_out(NAME, TITLE, "No rank has a critical path.")
    choice = choose(ranks, view.named)
    stacks = [
        Stack(
            label=rank.label,
            title=rank.title,
            parts=_by_class(rank.critical_path),
            total=format_ns(sum(entry.ns for entry in rank.critical_path)),
            is_named=rank.number in view.first,
        )
        for rank in choice.ranks
    ]
    axis = times("time on the path", max(sum(value for _, value in each.parts) for each in stacks))
    used = {kind for each in stacks for kind, _ in each.parts}
    close = view.focus(ranks, _LOOKED_AT)
    return section(
        NAME,
        TITLE,
        muted("Each moment of the window belongs to the one thing that everything after it waited for. ", choice.note),
        muted(_guessed(ranks)),
        tag(
            "figure",
            legend((sample(kind), name) for kind, name in _KINDS.items() if kind in used),
            stacked(stacks, axis, "critical path by class and rank"),
        ),
        *(_ranked(rank, is_open=at == 0) for at, rank in enumerate(close)),
    )


def _by_class(path: Sequence[PathEntry]) -> list[tuple[str, float]]:
    spent: dict[str, float] = defaultdict(float)
    for entry in path:
        spent[entry.kind] += entry.ns
    return [(kind, spent[kind]) for kind in _KINDS if kind in spent]


def _guessed(ranks: Sequence[Rank]) -> str:
    known = [(rank.guessed_ratio, rank.number) for rank in ranks if rank.guessed_ratio is not None]
    if not known:
        return "The summary does not record how much of the path was guessed by alignment in time."
    most, number = max(known)
    if most == 0:
        return "Every hop is recorded in the traces; none was guessed by alignment in time."
    least = min(known)[0]
    stored = format_share(most) if least == most else f"{format_share(least)} to {format_share(most)} (rank {number})"
    return f"Guessed by alignment in time, because no wait is recorded: {stored} of the path."


def _ranked(rank: Rank, *, is_open: bool) -> Html:
    path = rank.critical_path
    total = sum(entry.ns for entry in path)
    first, rest = path[:BARS_MAX], path[BARS_MAX:]
    bars = [_bar(code(entry.name), entry.ns, total, entry.kind) for entry in first]
    if rest:
        label = Html(tag("span", f"{counted(len(rest), 'other name')} of the summary"))
        bars.append(_bar(label, sum(entry.ns for entry in rest), total, "other"))
    drawn = ranking(bars, f"critical path of {rank.title}")
    guessed = "" if rank.guessed_ratio is None else f", {format_share(rank.guessed_ratio)} guessed"
    heading = f"On the path of {rank.title}: {format_ns(total)}{guessed}"
    return tag("div", tag("h3", heading), drawn) if is_open else folded(heading, drawn)


def _bar(label: Html, ns: int, total: int, kind: str) -> Bar:
    share = ns / total if total else 0.0
    return Bar(label=label, figure=f"{kind}, {format_ns(ns)}, {format_share(share)}", share=share, kind=kind)
